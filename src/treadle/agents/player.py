"""Playing one rollout.

    Host.open -> messages -> Renderer.first -> prompt, stored once per group
    loop:  Generate -> ids, kept exactly as sampled -> Renderer.parse -> action -> Host.act
           -> messages -> Renderer.bridge -> ids, appended -> Generate ...
    Host.score while the environment is open -> rewards on the last action -> close

The context only ever grows by concatenation, so what is stored along the path is what the model saw. A rollout ends in
exactly one way, as the outcome table says, and never by raising: whatever goes wrong inside ends this rollout and
nothing else. The one exception is cancellation, which closes the environment, marks the rollout and passes on.

A rollout may be one branch of a tree (`agents.branching`). It then begins where another one got to, in a world that is
resumed there, and asks at every state how many go on from it, before it samples what comes next.

An action that its token limit cut off is not run: half a command is not what the policy meant. It ends the rollout as
(truncated, limit), type `tokens`, and is scored as the world stands. A full context does the same, type `context`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from treadle.agents.branching import Branch, Place, State
from treadle.agents.context import Context
from treadle.agents.deadline import deadline
from treadle.agents.leash import Leash
from treadle.agents.limits import STEP, Rewards, RolloutLimits, chars_beyond
from treadle.agents.ports import Rendering
from treadle.agents.stages import StageMeter
from treadle.core.errors import EngineError, EnvError, PromptTooLong, RenderError
from treadle.core.outcome import CANCELLED, OK, Origin, Outcome, failure, limit
from treadle.core.ports import CacheHint, Clock, Completion, Finish, Generate, Ids, Request, Sampling
from treadle.core.seeds import Stream
from treadle.envs.host import Host, Opened
from treadle.envs.task import Task
from treadle.trajectory.group import Group, Rollout
from treadle.trajectory.segment import Segment

Priority = Callable[[], int]
"""Asked before every turn: what the engine is told; smaller is sooner."""


def no_priority() -> int:
    """All alike."""
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What to play: one attempt at one task."""

    task: Task
    index: int
    """Place in the group."""
    attempt: int = 0
    env_seed: Stream
    """Equal for all members of a group, so that they start alike."""
    sample_stream: Stream
    """Of this rollout and attempt; turn k draws from its child ("turn", k, "sample")."""
    priority: Priority = no_priority
    """Handed to the engine with every turn."""
    leash: Leash | None = None
    """How it is watched over and given up from outside; None is watched by nobody."""
    max_turns: int | None = None
    """Most actions of this rollout, if that is less than the limits and the environment say; None says nothing."""
    branch: Branch | None = None
    """The branch of a tree that it is; None for a rollout on its own."""
    prompts: list[tuple[Opened, Ids]] = field(default_factory=list)
    """What members of the group were told, and its ids: whoever is told the same need not render it again."""


class Player:
    """Plays rollouts, many at once. Holds no state of any of them."""

    def __init__(
        self, generate: Generate, renderer: Rendering, *, make_host: Callable[[], Host],
        limits: RolloutLimits, rewards: Rewards, meter: StageMeter,
    ) -> None:
        self.generate: Generate = generate
        self.renderer = renderer
        self.make_host = make_host
        self.limits = limits
        self.rewards = rewards
        self.meter = meter

    @property
    def clock(self) -> Clock:
        """The clock that stages are measured with."""
        return self.meter.clock

    async def play(self, group: Group, plan: Play) -> Rollout:
        """Play one attempt to its end and return it, ended. Raises nothing but CancelledError."""
        rollout = _begun(group, plan)
        host = self.make_host()
        playing = _Playing(self, group, plan, rollout.id, host)
        try:
            outcome, scored = await playing.leash.hold(playing.run())
        except asyncio.CancelledError:
            group.end(rollout.id, CANCELLED, seconds=playing.spent, scored=False)
            raise
        else:
            return group.end(rollout.id, outcome, seconds=playing.spent, scored=scored)
        finally:
            self.generate.release(rollout.id)
            await host.close()


def _begun(group: Group, plan: Play) -> Rollout:
    """The rollout: of its own, or from where its branch begins."""
    if plan.branch is None or plan.branch.place is None:
        return group.begin(plan.index, attempt=plan.attempt)
    place = plan.branch.place
    return group.fork(
        place.rollout, plan.index, at=place.segment, attempt=plan.attempt, probe=plan.branch.probe
    )


class _Playing:
    """The state of one rollout while it is played."""

    def __init__(self, player: Player, group: Group, plan: Play, rollout: str, host: Host) -> None:
        self.player = player
        self.group = group
        self.plan = plan
        self.rollout = rollout
        self.host = host
        self.leash = plan.leash or Leash.begin(player.clock)
        self.spent: dict[str, float] = {}
        self.context = Context(np.empty(0, np.int32))
        self.prompt_len = 0
        self.state_key: str | None = None
        self.hint = CacheHint(rollout=rollout)
        limits = player.limits
        self.sampling = Sampling(
            temperature=limits.temperature, max_tokens=limits.max_tokens_per_turn,
            stop_ids=player.renderer.stop_ids, stop_strings=limits.stop_strings,
        )

    async def run(self) -> tuple[Outcome, bool]:
        """How it ended, and whether it was scored."""
        try:
            outcome = await self._turns()
            held = self.group.rollouts[self.rollout]
            acted = bool(held.leaves) and held.leaves[-1] != held.forked_at
            if not outcome.scored:
                return outcome, False
            if not acted:
                raise EnvError(f"task {self.plan.task.id}: it was over before the first action")  # noqa: TRY301
            return await self._score(outcome)
        except (EnvError, RenderError, PromptTooLong) as error:
            return failure(Origin.ENV, error), False
        # Boundary of a rollout: one that fails, for whatever reason, never ends a batch. What is not the
        # environment's fault is the machinery's.
        except Exception as error:
            return failure(Origin.INFRA, error), False

    async def _turns(self) -> Outcome:
        place, branch = self._place, self.plan.branch
        with self.player.meter.busy("env", self.spent):
            opened = await self._opened(place)
        if opened.outcome is not None:
            return opened.outcome
        first = 0 if place is None else place.turn
        bounds = (first + opened.max_turns, self.player.limits.max_turns, self.plan.max_turns)
        turns = min(bound for bound in bounds if bound is not None)
        if place is None:
            at = self._prompt(opened)
            self.prompt_len = len(at)
            if branch is not None:
                await self._split(branch, at, turn=0, turns_left=turns)
        else:
            at, self.context, self.prompt_len = place.segment, Context(place.context), place.prompt_len
            self.state_key = place.state_key
        self.hint = CacheHint(rollout=self.rollout, trunk=self.group.key.id, trunk_len=self.prompt_len)
        for turn in range(first, turns):
            if branch is not None and branch.left == 0:
                return limit("budget", "its part of branching.tokens_per_group is used up")
            completion = await self._sample(turn)
            cut = completion.finish in (Finish.LENGTH, Finish.CONTEXT)
            parsed = self.player.renderer.parse(completion.ids, truncated=cut, turn=turn)
            at = self.group.sampled(
                self.rollout, completion, after=at, turn=turn, spans=parsed.spans, state_key=self.state_key
            )
            self.leash.beat()
            self.context.append(completion.ids)
            if cut:
                return self._cut_off(completion)
            self.leash.waits_for = "environment"
            with self.player.meter.busy("env", self.spent):
                step = await self.host.act(parsed.action, step_id=f"{self.rollout}:{turn}")
            if step.reward:
                self._pay(STEP, step.reward, at)
            if step.outcome is not None:
                return step.outcome
            if step.terminated:
                return OK
            if step.truncated:
                return limit("env", "the environment's own limit")
            if turn + 1 == turns:
                return limit("turns", f"{turns} turns")
            if chars := chars_beyond(self.player.limits.max_context, step.messages):
                return limit("context", f"an observation of {chars} characters")
            ids = self.player.renderer.bridge(step.messages, ended=self.player.renderer.ended(completion.ids))
            if len(self.context) + len(ids) >= self.player.limits.max_context:
                return limit("context", f"{len(self.context)} + {len(ids)} tokens")
            self.context.append(ids)
            self.state_key = step.state_key
            if branch is None:
                at = self.group.observed(self.rollout, ids, after=at, turn=turn, tier=self.host.tier)
            else:
                at = await self._split(branch, at, ids, turn=turn + 1, turns_left=turns - turn - 1)
            self.leash.beat()
        raise EnvError(f"task {self.plan.task.id}: max_turns is {turns}, expected at least 1")

    @property
    def _place(self) -> Place | None:
        """Where a resumed world goes on; None where a reset leads."""
        place = None if self.plan.branch is None else self.plan.branch.place
        return place if place is not None and place.snapshot is not None else None

    async def _opened(self, place: Place | None) -> Opened:
        if place is None or self.plan.branch is None:
            return await self.host.open(self.plan.task, self.plan.env_seed, rollout=self.rollout)
        assert place.snapshot is not None
        return await self.host.resume(place.snapshot, rollout=self.rollout, rng=self.plan.branch.rng)

    async def _split(
        self, branch: Branch, after: Segment, ids: Ids | None = None, *, turn: int, turns_left: int
    ) -> Segment:
        """Append what the world answered (nothing at the prompt), and have the tree fork there if it wishes to.

        Whether it does is settled first: a segment says which snapshot it can be resumed from, and never changes.
        """
        async def look(tokens: int) -> float:
            return await self._look(branch, turn, tokens)

        wish = await branch.split(State(
            rollout=self.rollout, turn=turn, turns_left=turns_left, context=len(self.context), behind=after.id
        ), look)
        snapshot = None
        if ids is not None and (wish.more or branch.keeps):
            self.leash.waits_for = "environment"
            with self.player.meter.busy("env", self.spent):
                snapshot = await self.host.snapshot()
        at = after if ids is None else self.group.observed(
            self.rollout, ids, after=after, turn=turn - 1, tier=self.host.tier,
            snapshot=None if snapshot is None else snapshot.id,
        )
        if wish.more or branch.keeps:
            branch.grow(Place(
                rollout=self.rollout, segment=at, context=self.context.ids, prompt_len=self.prompt_len, turn=turn,
                turns_left=turns_left, state_key=self.state_key, snapshot=snapshot,
            ), wish)
        return at

    async def _look(self, branch: Branch, turn: int, tokens: int) -> float:
        """Entropy of what would be said here; the tokens are thrown away."""
        done = await self._generate(turn, "look", tokens)
        branch.spend(len(done.ids), look=True)
        return float(done.entropy.mean())

    def _prompt(self, opened: Opened) -> Segment:
        """The group's prompt. Raises EnvError when this member starts from another one."""
        chars = chars_beyond(self.player.limits.max_context, opened.messages)
        ids = np.empty(0, np.int32) if chars else self._rendered(opened)
        if chars or len(ids) >= self.player.limits.max_context:
            size = f"{chars} characters" if chars else f"{len(ids)} tokens"
            raise PromptTooLong(
                f"task {self.plan.task.id}: its prompt has {size}, limits.max_context is "
                f"{self.player.limits.max_context} tokens: raise it or shorten the prompt"
            )
        shared = next((s for s in self.group.segments.values() if s.rollout is None), None)
        if shared is not None and not np.array_equal(shared.ids, ids):
            raise EnvError(
                f"task {self.plan.task.id}: rollout {self.rollout} starts from another prompt than its group; "
                "reset must depend on the task and the env seed alone"
            )
        self.context = Context(ids)
        return self.group.prompt(ids)

    def _rendered(self, opened: Opened) -> Ids:
        """Ids of a prompt; those of a sibling that was told the same."""
        ids = next((ids for told, ids in self.plan.prompts if told == opened), None)
        if ids is None:
            ids = self.player.renderer.first(opened.messages, opened.tools)
            self.plan.prompts.append((opened, ids))
        return ids

    async def _sample(self, turn: int) -> Completion:
        limits, branch = self.player.limits, self.plan.branch
        room = limits.max_context - len(self.context)
        if branch is None:
            return await self._generate(turn, "sample", min(room, limits.max_tokens_per_turn))
        if branch.left is not None:
            room = min(room, branch.left)
        completion = await self._generate(turn, "sample", min(room, limits.max_tokens_per_turn))
        branch.spend(len(completion.ids))
        return completion

    async def _generate(self, turn: int, purpose: str, most: int) -> Completion:
        """One completion of the context; turn and purpose name its stream."""
        limits = self.player.limits
        sampling = self.sampling if most == limits.max_tokens_per_turn else replace(self.sampling, max_tokens=most)
        request = Request(
            prompt=self.context.ids, sampling=sampling,
            stream=self.plan.sample_stream.at("turn", turn, purpose),
            cache=self.hint, priority=self.plan.priority(),
        )
        what = f"rollout {self.rollout}, turn {turn}, waits for the engine"
        self.leash.waits_for = "engine"
        with self.player.meter.busy("generate", self.spent):
            async with deadline(what, limits.generate_s):
                completion = await self.player.generate.generate(request)
        if completion.finish is Finish.CANCELLED or not len(completion.ids):
            raise EngineError(f"rollout {self.rollout}, turn {turn}: the engine gave up the request")
        self.player.meter.count("tokens", len(completion.ids))
        return completion

    def _cut_off(self, completion: Completion) -> Outcome:
        if completion.finish is Finish.CONTEXT or len(self.context) >= self.player.limits.max_context:
            return limit("context", f"{len(self.context)} tokens")
        if self.plan.branch is not None and self.plan.branch.left == 0:
            return limit("budget", "its part of branching.tokens_per_group is used up")
        return limit("tokens", f"{len(completion.ids)} tokens in one turn")

    async def _score(self, outcome: Outcome) -> tuple[Outcome, bool]:
        self.leash.waits_for = "grader"
        with self.player.meter.busy("score", self.spent):
            score = await self.host.score()
        if score.outcome is not None:
            return score.outcome, False
        if score.parts is None:
            return outcome, False
        for name, value in score.parts.items():
            self._pay(name, value)
        return outcome, True

    def _pay(self, name: str, value: float, on: Segment | None = None) -> None:
        self.group.pay(self.rollout, name, value, on=on, train=self.player.rewards.trains(name))
