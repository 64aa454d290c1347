"""Treadle's side of `closed_loop`: `compose`, `Run.train` and every listener of `treadle train`, nothing taken out.

Two things are added. A listener stops the run at `update.done`, when the new weights are loaded and no rollout of the
next batch has begun, until it is asked for the next update: seconds of an update go from there to there. And the engine
samples a fixed number of tokens a turn: it is told of no end token, and what reached the limit passes for a turn that
ended by itself.

    python -m bench.closed_treadle      answers on the wire, see `closed_wire`
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.closed_wire import Wire
from bench.closed_world import WARM_TOKENS, Scenario, Work, answered, digests, worth
from bench.main_job import real
from treadle import (
    Action,
    Algorithm,
    EngineConfig,
    Env,
    EnvContext,
    Event,
    Grpo,
    LearnerConfig,
    Listener,
    ListTaskset,
    Message,
    PipelineConfig,
    PlainParser,
    PpoClip,
    Recipe,
    RolloutLimits,
    Step,
    Task,
    ToolCall,
    ToolSpec,
    World,
    compose,
    tool,
    user,
)
from treadle.core.ports import Completion, Finish, Request
from treadle.inference import LocalEngine
from treadle.observability import JsonlExport, Report
from treadle.recipes.folder import RunFolder

CONTEXT = 1024
"""Most tokens of a rollout."""


class Room(Env):
    """Calls its tool with what each turn says; ends with the last turn."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.heard: list[str] = []

    async def reset(self, task: Task, ctx: EnvContext) -> Sequence[Message]:
        """The task alone."""
        return [user(task.prompt)]

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """None: the model's template has no place for them, on either side."""
        return ()

    async def step(self, action: Action) -> Step:
        """One call per turn."""
        self.heard.append(action.text)
        if len(self.heard) == self.scenario.turns:
            return Step(terminated=True)
        call = ToolCall(name="look", arguments={"said": action.text})
        return await self.call_tools(replace(action, calls=(call,)))

    @tool
    def look(self, said: str) -> str:
        """Look around in the room."""
        return answered(self.scenario.tool_s)

    async def score(self) -> float:
        """What the last turn is worth."""
        return worth(self.heard[-1])


class FixedLength(LocalEngine):
    """Samples `tokens` tokens for every request, and says that they ended by themselves."""

    tokens = WARM_TOKENS
    prompts: dict[str, tuple[int, ...]]
    """Ids of each group's prompt."""
    lengths: dict[str, int]
    """Tokens of each rollout's path."""
    observed = 0
    """Tokens that the world said."""
    sampled = 0

    def forget(self) -> None:
        """Begin to count anew."""
        self.prompts, self.lengths, self.observed, self.sampled = {}, {}, 0, 0

    async def generate(self, request: Request) -> Completion:
        """As the engine does, without an end token."""
        hint = request.cache
        assert hint is not None
        self.prompts.setdefault(hint.trunk, tuple(map(int, request.prompt[: hint.trunk_len])))
        self.observed += len(request.prompt) - self.lengths.get(hint.rollout, len(request.prompt))
        sampling = replace(request.sampling, stop_ids=(), max_tokens=self.tokens)
        done = await super().generate(replace(request, sampling=sampling))
        assert len(done.ids) == self.tokens, f"got {len(done.ids)} tokens"
        self.sampled += self.tokens
        self.lengths[hint.rollout] = len(request.prompt) + self.tokens
        return replace(done, finish=Finish.STOP)


class Pacer:
    """Answers after every update, then stops the run until it is asked on."""

    def __init__(self, wire: Wire, engine: FixedLength, tokens: int) -> None:
        self.wire, self.engine, self.tokens = wire, engine, tokens
        self.begun = time.perf_counter()

    def emit(self, event: Event) -> None:
        """On the run's loop: nothing else happens meanwhile."""
        if event.name in ("update.skipped", "run.failed"):
            self.wire.say(error=f"{event.name}: {dict(event.values)}")
        if event.name != "update.done":
            return
        seconds = time.perf_counter() - self.begun
        update_s = real(event.values["update_s"])
        self.wire.say(
            seconds=seconds, update_s=update_s, generate_s=seconds - update_s, skipped=event.values["skipped"],
            trained_tokens=event.values["tokens_trained"], sampled_tokens=self.engine.sampled,
            observed_tokens=self.engine.observed, prompts=digests(list(self.engine.prompts.values())),
            prompt_tokens=sorted(map(len, self.engine.prompts.values())), reward_mean=event.values["reward_mean"],
            peak_rss_gb=peak_rss_gb(),
        )
        if self.wire.hear()["do"] == "quit":
            raise SystemExit("nobody asks any more")
        self.engine.forget()
        self.engine.tokens = self.tokens
        self.begun = time.perf_counter()


def peak_rss_gb() -> float:
    """Most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def recipe(work: Work, scenario: Scenario, *, updates: int, runs: Path) -> Recipe:
    """All layers train; what TRL has other defaults for is set to the same on both sides."""
    tasks = [Task(id=f"room-{number}", prompt=prompt) for number, prompt in enumerate(work.prompts)]
    return Recipe(
        name="closed-loop", model=work.folder, runs=runs, evaluation=None,
        world=World(tasks=ListTaskset(tasks), env=lambda: Room(scenario), reads=PlainParser()),
        limits=RolloutLimits(max_turns=scenario.turns, max_tokens_per_turn=work.tokens, max_context=CONTEXT),
        engine=EngineConfig(slots=work.rows, context=CONTEXT),
        algorithm=Algorithm(rule=Grpo(eps=1e-4), loss=PpoClip(eps_low=0.2, eps_high=0.28, dual=None)),
        learner=LearnerConfig(lr=work.lr),
        pipeline=PipelineConfig(
            group_size=work.size, groups_per_update=work.groups, updates=updates, lag=0, filters=()
        ),
    )


async def play(work: Work, scenario: Scenario, *, updates: int, wire: Wire) -> None:
    """One run: a warm-up update, then as many as are asked for."""
    with tempfile.TemporaryDirectory(prefix="treadle-closed-") as scratch:
        made = recipe(work, scenario, updates=updates, runs=Path(scratch))
        folder = RunFolder.create(made.runs, made.name)
        export = JsonlExport(folder.path)
        listeners: list[Listener] = [export, Report()]
        run = compose(made, folder=folder, listeners=[Late(listeners)])
        engine = FixedLength(
            run.tools.policy, made.engine, clock=run.tools.clock, decode=run.tools.renderer.decode
        )
        engine.forget()
        listeners.append(Pacer(wire, engine, work.tokens))
        run.engine = engine
        try:
            async with run:
                await run.train()
        finally:
            export.close()


class Late:
    """Listeners that are known only when the run is made."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = listeners

    def emit(self, event: Event) -> None:
        """To all of them, in order."""
        for listener in self.listeners:
            listener.emit(event)


def main() -> None:
    """Answer until told to quit."""
    import treadle

    wire = Wire()
    work = Work.of(wire.hear())
    wire.say(treadle=treadle.__version__)
    while (asked := wire.hear())["do"] != "quit":
        scenario = Scenario(name=asked["name"], turns=asked["turns"], tool_s=asked["tool_s"])
        asyncio.run(play(work, scenario, updates=asked["updates"], wire=wire))
        wire.say(ended=scenario.name)


if __name__ == "__main__":
    main()
