"""The shell taskset: an endless, seeded supply of file tasks.

Task number i of a split is a pure function of (seed, split, i). Families take turns in an order that the seed draws,
and the level moves on with each turn of the wheel: any run of as many tasks as there are families holds each
family once, and any run of that many times the number of levels holds each pair of family and level once. A level
that is named twice comes twice as often. `train_wordings` keeps training to the first few wordings of each level.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from treadle.core.seeds import Stream
from treadle.envs.shell.catalog import FAMILIES
from treadle.envs.shell.checks import rivals
from treadle.envs.shell.family import DONE, LEVELS, Draft, Draw, Family, LevelName, Scene
from treadle.envs.shell.names import SPLITS
from treadle.envs.task import Task


def block(command: str) -> str:
    """A command as the assistant turn that runs it."""
    return f"```bash\n{command}\n```"


class ShellTaskset:
    """File tasks for a Linux shell. Raises ValueError for an unknown family or level."""

    def __init__(
        self, seed: int = 0, *, families: Sequence[str] | None = None, levels: Sequence[str] | None = None,
        train_wordings: int | None = None,
    ) -> None:
        if train_wordings is not None and train_wordings < 1:
            raise ValueError(f"train_wordings: got {train_wordings}, expected >= 1 or none")
        self._train_wordings = train_wordings
        known = {family.name: family for family in FAMILIES}
        chosen = _chosen("families", families, tuple(known))
        if len(set(chosen)) != len(chosen):
            raise ValueError(f"families: got {list(chosen)}, expected each at most once")
        self._families = [known[name] for name in chosen]
        self._levels: list[LevelName] = [
            level for name in _chosen("levels", levels, LEVELS) for level in LEVELS if level == name
        ]
        self._stream = Stream(seed).at("shell")

    @property
    def families(self) -> tuple[str, ...]:
        """Names of the families in use."""
        return tuple(family.name for family in self._families)

    @property
    def levels(self) -> tuple[LevelName, ...]:
        """Names of the levels in use."""
        return tuple(self._levels)

    def size(self, split: str) -> int | None:
        """None: both splits are endless."""
        _known_split(split)
        return None

    def task(self, split: str, index: int) -> Task:
        """Task number `index` of `train` or `heldout`."""
        _known_split(split)
        if index < 0:
            raise ValueError(f"task index: got {index}, expected >= 0")
        family, level = self._turn(split, index)
        rng = self._stream.at(split, index).python()
        chosen = family.level(level)
        known = chosen.wordings(split)
        wording = rng.choice(known[: self._train_wordings] if split == "train" else known)
        draw = Draw(rng, split)
        draft = chosen.build(draw)
        prompt = wording.format(**draft.slots)
        return Task(
            id=f"shell/{split}/{index}",
            prompt=prompt,
            family=family.name,
            level=level,
            split=split,
            data={"scene": _scene(draw, draft, prompt)},
        )

    def demonstration(self, task: Task) -> Sequence[str] | None:
        """The scripted solution of a task of this set, as assistant turns."""
        return scene(task).turns

    def _turn(self, split: str, index: int) -> tuple[Family, LevelName]:
        """Whose turn it is."""
        order = _order(self._stream, split, len(self._families))
        wheel, place = divmod(index, len(order))
        return self._families[order[place]], self._levels[(wheel + place) % len(self._levels)]


def scene(task: Task) -> Scene:
    """What a shell task holds beyond its prompt. Raises ValueError for a task of another kind."""
    found = task.data.get("scene")
    if not isinstance(found, Scene):
        raise ValueError(f"task {task.id}: got data with keys {sorted(task.data)}, expected a shell scene")
    return found


def _scene(draw: Draw, draft: Draft, prompt: str) -> Scene:
    work = tuple(block(command) for command in draft.commands)
    closing = f"The answer is {draft.answer}." if draft.answer else DONE
    return Scene(
        files=draw.files,
        folders=frozenset(draw.folders),
        check=draft.check,
        turns=(*work, closing),
        others=tuple((block(command), DONE) for command in draft.others),
        misses=_misses(draft, prompt, work),
    )


def _misses(draft: Draft, prompt: str, work: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Rollouts that must score 0: near misses of the family, dumps, echoes, and silence or babble at the end."""
    dumps = ("cat *", "ls -R", "grep -r . .", "seq 1 100", "true", f'echo "{prompt}"')
    rollouts: list[tuple[str, ...]] = [(block(command), DONE) for command in (*draft.misses, *dumps)]
    rollouts += [(DONE,), (prompt,), ("",)]
    if draft.answer:
        numbers = " ".join(str(n) for n in range(1, 100))
        either = " or ".join([draft.answer, *sorted(rivals(draft.check) - {draft.answer})[:3], "1", "2"])
        endings = (DONE, prompt, numbers, "The answer is not here.", either)
        rollouts += [(*work, ending) for ending in endings]
        rollouts += [(block("ls"), ending) for ending in endings[:-1]]
        rollouts += [(f"The answer is {draft.answer}.",)]
    return tuple(rollouts)


@lru_cache(maxsize=64)
def _order(stream: Stream, split: str, count: int) -> tuple[int, ...]:
    """The order in which families take turns."""
    order = list(range(count))
    stream.at(split, "order").python().shuffle(order)
    return tuple(order)


def _chosen(what: str, wanted: Sequence[str] | None, known: tuple[str, ...]) -> tuple[str, ...]:
    if wanted is None:
        return known
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise ValueError(f"{what}: got {list(wanted)}, expected names among {', '.join(known)}")
    return tuple(wanted)


def _known_split(split: str) -> None:
    if split not in SPLITS:
        raise ValueError(f"split: got {split!r}, expected one of {', '.join(SPLITS)}")
