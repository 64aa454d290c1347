"""A family of shell tasks: one skill at three levels, each with its wordings and a builder.

A builder takes a `Draw`, puts files into it, and returns a `Draft`: the words for the wording, the check, the shortest
commands that solve the task, the final message, and near misses that must score 0. A hard level begins with a
note that names what the rest of the task is about, and ends with the answer said in the final message; its
wordings are an opening and an ask, put together by `noted`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from treadle.envs.shell.checks import All, Check, Left, OneOf, TarOf
from treadle.envs.shell.names import SPLITS, WORDS

LevelName = Literal["easy", "medium", "hard"]
LEVELS: tuple[LevelName, ...] = ("easy", "medium", "hard")
DONE = "Done."

_OPENINGS = {
    "train": (
        "Read {{note}}. It {verb} a {kind}.",
        "Open {{note}}; it {verb} a {kind}.",
        "First read {{note}}, which {verb} a {kind}.",
        "The file {{note}} {verb} a {kind}. Read it.",
        "Begin with {{note}}: it {verb} a {kind}.",
        "Look at {{note}}, where a {kind} is {past}.",
        "In {{note}}, a {kind} is {past}. Look it up.",
        "Take a look at {{note}}; it {verb} a {kind}.",
        "See which {kind} {{note}} {verb}.",
        "A note in {{note}} {verb} a {kind}.",
        "What {kind} does {{note}} {stem}? Look there.",
        "A {kind} is {past} in the note {{note}}.",
    ),
    "heldout": (
        "Start by reading {{note}}: it {verb} a {kind}.",
        "Look into {{note}}, where a note {verb} a {kind}.",
    ),
}
_NOTE_LINES = (
    "The {kind} is {value}.",
    "Use the {kind} {value}.",
    "Please take {value} today.",
    "You want {value}.",
    "It is {value}.",
    "My choice is {value}.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One task as its builder made it."""

    slots: Mapping[str, str]
    """Values for the places in the wording."""
    check: Check
    commands: tuple[str, ...]
    """The scripted solution, one command a turn."""
    answer: str = ""
    """What a hard task's final message states; empty where nothing is to be said."""
    others: tuple[str, ...] = ()
    """Other ordinary commands that solve the task alone and must score 1."""
    misses: tuple[str, ...] = ()
    """Commands that nearly solve the task and must score 0."""


class Draw:
    """Draws names, words and files for one task; keeps what was put into the workspace."""

    def __init__(self, rng: random.Random, split: str) -> None:
        names = SPLITS[split]
        self.rng = rng
        self.ending = rng.choice(("txt", "txt", "txt", "log", "md"))
        """Ending of all files of this task, unless a builder asks for another."""
        self.files: dict[str, bytes] = {}
        self.folders: set[str] = set()
        self._files = rng.sample(names.files, len(names.files))
        self._folders = rng.sample(names.folders, len(names.folders))
        self._words = rng.sample(WORDS, len(WORDS))
        self._notes = names.notes

    def number(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return self.rng.randint(low, high)

    def file(self, ending: str = "") -> str:
        """A new file name; nothing is put into the workspace."""
        return f"{self._files.pop()}.{ending or self.ending}"

    def folder(self, *, make: bool = True) -> str:
        """A new folder name, made in the workspace unless told otherwise."""
        name = self._folders.pop()
        if make:
            self.folders.add(name)
        return name

    def word(self) -> str:
        """A word that no later call gives and no earlier one gave."""
        return self._words.pop()

    def words(self, count: int) -> list[str]:
        """That many new words."""
        return [self.word() for _ in range(count)]

    def phrases(self, count: int, *, avoid: Sequence[str] = ()) -> list[str]:
        """Different lines of two or three words, none of them among `avoid`."""
        pool = [word for word in WORDS if word not in avoid]
        lines: list[str] = []
        while len(lines) < count:
            line = " ".join(self.rng.sample(pool, self.rng.randint(2, 3)))
            if line not in lines:
                lines.append(line)
        return lines

    def singles(self, count: int, *, avoid: Sequence[str] = ()) -> list[str]:
        """Different single words, none of them among `avoid`."""
        return self.rng.sample([word for word in WORDS if word not in avoid], count)

    def put(self, path: str, lines: Sequence[str] | bytes) -> str:
        """Put a file into the workspace; gives its path back."""
        self.files[path] = lines if isinstance(lines, bytes) else text(*lines)
        return path

    def crowd(self, count: int, *, avoid: Sequence[str] = (), folder: str = "", ending: str = "") -> list[str]:
        """Put that many more files, of two to nine lines; gives their paths."""
        prefix = f"{folder}/" if folder else ""
        return [
            self.put(prefix + self.file(ending), self.phrases(self.number(2, 9), avoid=avoid)) for _ in range(count)
        ]

    def note(self, kind: str, value: str) -> str:
        """Put a note that names a value; gives its file name."""
        line = self.rng.choice(_NOTE_LINES).format(kind=kind, value=value)
        return self.put(self.rng.choice(self._notes), [line])

    def left(self, changed: Mapping[str, OneOf | TarOf | None], *, folders: Sequence[str] = ()) -> Left:
        """The check that the workspace is as it was, but for these files (None: gone) and new folders."""
        files: dict[str, OneOf | TarOf] = {path: OneOf(texts=(content,)) for path, content in self.files.items()}
        for path, wanted in changed.items():
            if wanted is None:
                del files[path]
            else:
                files[path] = wanted
        return Left(files=files, folders=frozenset(self.folders | set(folders)))


def text(*lines: str) -> bytes:
    """The bytes of a file with these lines."""
    return "".join(f"{line}\n" for line in lines).encode()


def exactly(*lines: str) -> OneOf:
    """Content of exactly these lines; the last line end may be missing."""
    whole = text(*lines)
    return OneOf(texts=(whole, whole.removesuffix(b"\n")))


def both(*parts: Check) -> All:
    """All of these."""
    return All(parts=parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of a family."""

    train: tuple[str, ...]
    heldout: tuple[str, ...]
    build: Callable[[Draw], Draft]

    def wordings(self, split: str) -> tuple[str, ...]:
        """Wording templates of a split."""
        return {"train": self.train, "heldout": self.heldout}[split]


def noted(kind: str, build: Callable[[Draw], Draft], *, train: Sequence[str], heldout: Sequence[str]) -> Level:
    """A hard level: every opening of a split that tells of a note on a `kind`, with every ask of that split."""
    verb, stem, past = ("gives", "give", "given") if kind in ("number", "word") else ("names", "name", "named")
    asks = {"train": train, "heldout": heldout}
    whole = {
        split: tuple(
            f"{opening.format(verb=verb, stem=stem, past=past, kind=kind)} {ask}"
            for opening in openings
            for ask in asks[split]
        )
        for split, openings in _OPENINGS.items()
    }
    return Level(train=whole["train"], heldout=whole["heldout"], build=build)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One skill at three levels."""

    name: str
    easy: Level
    medium: Level
    hard: Level

    def level(self, name: LevelName) -> Level:
        """The level of that name."""
        return {"easy": self.easy, "medium": self.medium, "hard": self.hard}[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a task holds beyond its prompt; never shown to the model."""

    files: Mapping[str, bytes]
    """Content of the workspace at the start."""
    folders: frozenset[str]
    check: Check
    turns: tuple[str, ...]
    """The scripted solution as assistant turns."""
    others: tuple[tuple[str, ...], ...] = field(default=())
    """Whole rollouts, as assistant turns, that solve the task in another way and must score 1."""
    misses: tuple[tuple[str, ...], ...] = field(default=())
    """Whole rollouts, as assistant turns, that must score 0."""
