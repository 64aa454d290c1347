"""Replay: does the record of a run lead to its weights, bit for bit?

A copy of the record is trained once more, by the loop that trained it. Nothing is generated for that, because all of it
is stored: groups, batches, what the world answered. Before an update changes the weights, every token that they sampled
is sampled again: from its stored context, with its own number of its own stream.

In the engine's deterministic mode a token is a function of weights, context and stream. So ids, log-probs and in the
end the weights must be the same to the last bit, whatever the timing was: which version sampled a token is in the
record. A run replays at any `lag` and of any world, without the world.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from treadle.core.errors import ConfigError
from treadle.core.ports import CacheHint, Completion, Request, Sampling
from treadle.core.seeds import Stream
from treadle.pipeline.first_error import first_error
from treadle.pipeline.past import TICKET
from treadle.pipeline.trainer import LearnerTrainer, TrainReport
from treadle.recipes.blocking import Brake, block
from treadle.recipes.compose import compose
from treadle.recipes.folder import RunFolder
from treadle.recipes.recipe import Recipe
from treadle.recipes.resume import is_done, recipe_of
from treadle.recipes.run import Run
from treadle.trajectory.group import Group
from treadle.trajectory.segment import Segment
from treadle.trajectory.store import read_group, read_groups
from treadle.trajectory.store_reader import copy_database


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay found."""

    updates: int
    """Updates that were made again."""
    tokens: int
    """Tokens that were sampled again."""
    differing: int
    """Those whose id or log-prob was another one."""
    first: str
    """The first completion with such a token; empty when there is none."""
    same_weights: bool
    """Whether weights and moments of the last checkpoint came out byte for byte."""

    @property
    def exact(self) -> bool:
        """Whether every bit was the same."""
        return self.same_weights and not self.differing


def replay(run: str | Path, *, recipe: Recipe | None = None) -> Replayed:
    """Replay a finished run. `recipe` is needed only for a run that was trained from a Recipe object.

    Blocks, and leaves the run folder as it is. Raises ConfigError for a run that is not done or was not deterministic,
    KeyboardInterrupt when stopped.
    """
    folder = RunFolder.existing(run)
    chosen = recipe or recipe_of(run)
    if not chosen.engine.deterministic:
        raise ConfigError(
            f"{run}: engine.deterministic was false, so its tokens depended on what else was sampled: only runs with "
            "engine.deterministic=true can be replayed"
        )
    if not is_done(folder):
        raise ConfigError(f"{run} is not done: go on with it first, `treadle train --resume {run}`")
    found = block(lambda brake: _replay(chosen, folder, brake))
    if found is None:
        raise KeyboardInterrupt
    return found


async def _replay(recipe: Recipe, folder: RunFolder, brake: Brake) -> Replayed | None:
    """What was found; None when it was stopped."""
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(prefix="treadle-replay-") as scratch:
        copy = RunFolder(Path(scratch) / folder.path.name)
        copy.path.mkdir()
        copy_database(folder.database, copy.database)
        async with compose(recipe, folder=copy) as run:
            record = Record(run, folder.database)

            def look(version: int) -> None:
                asyncio.run_coroutine_threadsafe(record.check(version), loop).result(recipe.pipeline.update_s)

            run.watch = lambda trainer: Watched(trainer, look)
            with brake.governs(run.stop):
                result = await run.train()
            await record.check(run.tools.policy.version)  # no update looks at what the last version sampled
        if result.reason != "done":
            return None
        return Replayed(
            updates=len(run.past.batches), tokens=record.tokens, differing=record.differing, first=record.first,
            same_weights=_same(folder.newest_checkpoint, copy.newest_checkpoint),
        )


class Watched(LearnerTrainer):
    """Lets somebody look before every update. Lives in the update's thread."""

    def __init__(self, trainer: LearnerTrainer, look: Callable[[int], None]) -> None:
        super().__init__(
            trainer.learner, rule=trainer.rule, aggregation=trainer.aggregation, loss=trainer.loss,
            shared=trainer.shared, prm=trainer.prm,
        )
        self._look = look

    def train(self, groups: Sequence[Group]) -> TrainReport:
        """Show the version that is about to change, then train."""
        self._look(self.version)
        return super().train(groups)


class Record:
    """The tokens that a run sampled, held against what its engine samples now. Lives on the event loop."""

    def __init__(self, run: Run, path: Path) -> None:
        self.run = run
        self.path = path
        self.tokens = 0
        self.differing = 0
        self.first = ""
        self._groups: defaultdict[int, list[str]] = defaultdict(list)
        """By version, the groups that it sampled tokens of."""
        self._checked: set[int] = set()
        for group in read_groups(path):
            if TICKET.fullmatch(group.key.id):
                for version in {version for s in group.segments.values() for version, _ in s.versions}:
                    self._groups[version].append(group.key.id)

    async def check(self, version: int) -> None:
        """Sample again what the weights of now, which must be of this version, sampled. Once for each version."""
        if version in self._checked:
            return
        self._checked.add(version)
        for id in self._groups.pop(version, ()):
            group = read_group(self.path, id)
            with first_error():
                async with asyncio.TaskGroup() as tasks:
                    for segment, at, count in _sampled_by(version, group):
                        tasks.create_task(self._again(group, segment, at=at, count=count), name=segment.id)
            self.run.engine.release(id)

    async def _again(self, group: Group, segment: Segment, *, at: int, count: int) -> None:
        """Tokens at .. at + count - 1 of a segment."""
        assert segment.rollout is not None
        assert segment.parent is not None
        assert segment.logprobs is not None
        rollout, path = group.rollouts[segment.rollout], group.path(segment.parent)
        stream = Stream(self.run.recipe.seed).at(
            "ticket", group.key.ticket, "rollout", rollout.index, "attempt", rollout.attempt, "turn", segment.turn,
            "sample",
        )
        done = await self.run.engine.generate(Request(
            prompt=np.concatenate([*(before.ids for before in path), segment.ids[:at]]),
            sampling=Sampling(temperature=self.run.recipe.limits.temperature, max_tokens=count),
            stream=Later(seed=stream.seed, path=stream.path, first=at),
            cache=CacheHint(rollout="", trunk=group.key.id, trunk_len=len(path[0])),
        ))
        apart = _apart(done, segment.ids[at : at + count], segment.logprobs[at : at + count])
        self.tokens += count
        self.differing += int(apart.sum())
        if apart.any() and not self.first:
            self.first = f"segment {segment.id}, token {at + int(apart.argmax())}"


@dataclass(frozen=True, slots=True)
class Later(Stream):
    """A stream from its number `first` on."""

    first: int = 0

    def uniforms(self, start: int, count: int) -> NDArray[np.float64]:
        """Numbers first + start .. of the stream. Shape [count]."""
        return Stream.uniforms(self, self.first + start, count)


def _sampled_by(version: int, group: Group) -> Iterator[tuple[Segment, int, int]]:
    """(segment, first token, count) of what this version sampled."""
    for segment in group.segments.values():
        at = 0
        for sampled_by, count in segment.versions:
            if sampled_by == version:
                yield segment, at, count
            at += count


def _apart(done: Completion, ids: NDArray[np.int32], logprobs: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which tokens are not what they were, to the last bit."""
    if len(done.ids) != len(ids):
        return np.ones(len(ids), dtype=np.bool_)
    return np.asarray((done.ids != ids) | (done.logprobs != logprobs))


def _same(one: Path | None, other: Path | None) -> bool:
    """Whether two checkpoints hold the same tensors, byte for byte."""
    if one is None or other is None:
        return False
    names = [sorted(path.relative_to(root) for path in root.rglob("*.safetensors")) for root in (one, other)]
    return names[0] == names[1] and all((one / n).read_bytes() == (other / n).read_bytes() for n in names[0])
