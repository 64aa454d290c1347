"""Worlds: which tasks, in which environment, spoken to in which way.

A world is the part of a recipe that is code rather than numbers: a source of tasks, a maker of environments and the
parser of the model's turns. `World` takes the three as they are; `ShellWorld` and `CodeWorld` make those of the shell
and of programming tasks from a few settings, so that they can be set from the command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from treadle.core.errors import ConfigError, SandboxError
from treadle.envs.env import Env
from treadle.envs.sandbox import Sandbox
from treadle.envs.task import Task, Taskset
from treadle.rendering.fenced import FencedParser
from treadle.rendering.hermes import HermesParser
from treadle.rendering.parsing import Parser


class WorldPort(Protocol):
    """What a recipe needs of a world."""

    def taskset(self) -> Taskset:
        """Where tasks come from."""
        ...

    def maker(self) -> Callable[[], Env]:
        """Makes one fresh environment per call. Raises SandboxError, ConfigError when none can be made here."""
        ...

    def parser(self) -> Parser:
        """Reads the model's turns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A world from its three parts."""

    tasks: Taskset
    env: Callable[[], Env]
    """The environment's class, or any callable that makes one."""
    reads: Parser = field(default_factory=HermesParser)
    """JSON tool calls by default; `FencedParser` for code blocks, `PlainParser` for plain text."""

    def __post_init__(self) -> None:
        """Raise ConfigError for parts that are easily mistaken for what is meant."""
        if isinstance(self.tasks, list | tuple):
            raise ConfigError(
                f"world.tasks: got a {type(self.tasks).__name__}, expected a taskset; set "
                "tasks=ListTaskset(TRAIN, HELDOUT)"
            )
        if not callable(self.env):
            kind = type(self.env).__name__
            raise ConfigError(
                f"world.env: got one {kind}, expected its class, or what else makes a fresh one for each rollout; set "
                f"env={kind}"
            )
        if isinstance(self.reads, type):
            kind = self.reads.__name__
            raise ConfigError(f"world.reads: got the class {kind}, expected an object of it; set reads={kind}()")

    def taskset(self) -> Taskset:
        """The tasks."""
        return self.tasks

    def maker(self) -> Callable[[], Env]:
        """The environment's class."""
        return self.env

    def parser(self) -> Parser:
        """The parser."""
        return self.reads


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellWorld:
    """File tasks in a sandboxed shell."""

    seed: int = 0
    """Seed of the task generator; the run's own seed is another."""
    families: tuple[str, ...] | None = None
    """Families in use; None takes all."""
    train_levels: tuple[str, ...] = ("easy", "medium", "hard")
    """Levels that training and demonstrations draw from, in turn: one that is named twice comes twice as often."""
    heldout_levels: tuple[str, ...] = ("easy", "medium", "hard")
    """Levels that evaluation draws from."""
    train_wordings: int | None = None
    """How many of each level's training wordings are used; None takes all. Held-out wordings are always all used."""
    sandbox: str = "bubblewrap"
    """`bubblewrap`, or `none-unsafe`: commands of the model run on this machine as this user."""
    state_keys: bool = False
    """Name the state after every turn, by a digest of files and last output: what `gigpo` and `graph` compare. Costs a
    look at the workspace for each turn."""

    def __post_init__(self) -> None:
        _known(self.sandbox)

    def taskset(self) -> Taskset:
        """The generator, one per split."""
        from treadle.envs.shell import ShellTaskset

        def of(levels: Sequence[str]) -> ShellTaskset:
            try:
                return ShellTaskset(
                    self.seed, families=self.families, levels=levels, train_wordings=self.train_wordings
                )
            except ValueError as error:
                raise ConfigError(f"world: {error}") from error

        return BySplit(train=of(self.train_levels), heldout=of(self.heldout_levels))

    def maker(self) -> Callable[[], Env]:
        """Makes shell environments. Raises SandboxError when bubblewrap is missing or refused."""
        from treadle.envs.shell import ShellEnv

        make_sandbox = _sandboxes(self.sandbox)
        return lambda: ShellEnv(make_sandbox, state_keys=self.state_keys)

    def parser(self) -> Parser:
        """Reads fenced code blocks."""
        return FencedParser()


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeWorld:
    """Functions to write in Python, in a sandbox, judged by tests outside of it."""

    seed: int = 0
    """Seed of the task generator; the run's own seed is another."""
    families: tuple[str, ...] | None = None
    """Families in use; None takes all."""
    sandbox: str = "bubblewrap"
    """`bubblewrap`, or `none-unsafe`: programs of the model run on this machine as this user."""

    def __post_init__(self) -> None:
        _known(self.sandbox)

    def taskset(self) -> Taskset:
        """The generator."""
        from treadle.envs.code import CodeTaskset

        try:
            return CodeTaskset(self.seed, families=self.families)
        except ValueError as error:
            raise ConfigError(f"world: {error}") from error

    def maker(self) -> Callable[[], Env]:
        """Makes code environments. Raises SandboxError when bubblewrap or Python is missing."""
        from treadle.envs.code.env import PYTHON, CodeEnv

        make_sandbox = _sandboxes(self.sandbox)
        if not os.access(PYTHON, os.X_OK):
            raise SandboxError(f"sandbox: {PYTHON} is missing: apt-get install python3")
        return lambda: CodeEnv(make_sandbox)

    def parser(self) -> Parser:
        """Reads fenced code blocks."""
        return FencedParser(languages=("python", ""))


def _known(sandbox: str) -> None:
    if sandbox not in ("bubblewrap", "none-unsafe"):
        raise ConfigError(f"world.sandbox: got {sandbox!r}, expected 'bubblewrap' or 'none-unsafe'")


def _sandboxes(name: str) -> Callable[[], Sandbox]:
    """Makes sandboxes of this kind. Raises SandboxError when bubblewrap is missing or refused."""
    from treadle.envs.bubblewrap import BubblewrapSandbox
    from treadle.envs.unsafe import UnsafeSandbox

    if name == "none-unsafe":
        return UnsafeSandbox
    reason = BubblewrapSandbox.available()
    if reason is not None:
        raise SandboxError(reason)
    return BubblewrapSandbox


class BySplit:
    """One taskset for training, another for held-out tasks."""

    def __init__(self, *, train: Taskset, heldout: Taskset) -> None:
        self._of = {"train": train, "heldout": heldout}

    def size(self, split: str) -> int | None:
        """How many tasks the split holds."""
        return self._taskset(split).size(split)

    def task(self, split: str, index: int) -> Task:
        """Task number `index` of the split."""
        return self._taskset(split).task(split, index)

    def demonstration(self, task: Task) -> Sequence[str] | None:
        """The scripted solution of a task."""
        return self._taskset(task.split).demonstration(task)

    def _taskset(self, split: str) -> Taskset:
        if split not in self._of:
            raise ValueError(f"split: got {split!r}, expected one of {', '.join(self._of)}")
        return self._of[split]
