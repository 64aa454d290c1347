"""Cassettes: what a world answered, kept in a file, so that it can be asked again without the world.

An answer is found by what led to it: the task, the seed of the episode, and every action since its start. So siblings
that act alike have one answer, and what another run asks is found as well. A world that has moods answers one history
in several ways: the first answer is everybody's, another one is kept for the rollout that got it. So a run that samples
the same tokens again finds all of its own.

Failures of the environment or of machinery are not answers and are never kept; what a limit cut short is.
One process writes a cassette, many may read it. Used from an event loop: an answer is one small row.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from treadle.core.actions import Action
from treadle.core.errors import ConfigError, StoreError
from treadle.core.messages import Message, ToolCall, ToolSpec
from treadle.core.outcome import Origin, Outcome, Status
from treadle.core.seeds import Stream
from treadle.envs.step import Step, ToolResult
from treadle.envs.task import Task

FORMAT = 1
SHORT = 16
"""Bytes of a key."""
TABLE = """
CREATE TABLE IF NOT EXISTS answers(key BLOB, who TEXT, value TEXT, PRIMARY KEY(key, who)) WITHOUT ROWID
"""
Mode = Literal["record", "strict", "fallback"]
Reads = Literal["turns", "actions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CassetteConfig:
    """Whether worlds are recorded, or played back. Raises ConfigError for keys that contradict each other."""

    file: Path | None = None
    """The cassette; None plays the world and records nothing."""
    mode: Mode = "record"
    """`record` plays the world and keeps its answers; `strict` plays the cassette alone, and what is not on it fails
    the rollout; `fallback` plays the cassette as far as it goes, then the world, whose answers it keeps."""
    reads: Reads = "turns"
    """What of a turn an answer depends on: `turns` its whole text; `actions` only its calls, code blocks and queries,
    where it has any. The second finds more and is right only for worlds that read nothing else."""

    def __post_init__(self) -> None:
        if self.file is None and (self.mode, self.reads) != ("record", "turns"):
            raise ConfigError(
                f"cassette.mode={self.mode} and cassette.reads={self.reads} say how a cassette is used, but "
                "cassette.file is none: set it to the cassette's path"
            )


@dataclass(slots=True)
class Trail:
    """How an episode came to where it is: the key of what comes next."""

    key: bytes
    reads: Reads

    @classmethod
    def start(cls, task: Task, seed: Stream, *, reads: Reads) -> Trail:
        """Of an episode that begins."""
        return cls(_digest("open", task.id, task.prompt, task.split, f"{seed.key:032x}"), reads)

    def act(self, action: Action) -> bytes:
        """Go on by one action; the key of the answer to it."""
        self.key = _digest("act", self.key.hex(), self._said(action))
        return self.key

    def split(self, snapshot: str, rollout: str) -> None:
        """Go on as a fork that draws from a stream of its own: what follows is nobody else's history."""
        self.key = _digest("split", self.key.hex(), snapshot, rollout)

    @property
    def fork(self) -> bytes:
        """The key of whether the episode could be forked here."""
        return _digest("fork", self.key.hex())

    @property
    def score(self) -> bytes:
        """The key of the grading of what was done so far."""
        return _digest("score", self.key.hex())

    def _said(self, action: Action) -> str:
        asked: list[object] = [
            [[call.name, call.raw if call.arguments is None else call.arguments] for call in action.calls],
            [[block.language, block.code, block.closed] for block in action.blocks], list(action.queries),
        ]
        text = "" if self.reads == "actions" and any(asked) else action.text
        return json.dumps([text, asked, action.truncated], sort_keys=True, default=repr)


@dataclass(slots=True)
class Counts:
    """What was done with a cassette."""

    found: int = 0
    missing: int = 0
    kept: int = 0
    """Answers that are new on it."""
    differing: int = 0
    """Answers of the world that were other than the first one to the same history."""


@dataclass(slots=True)
class Cassette:
    """An open cassette. A context manager. Raises StoreError for a file that is none, or cannot be used."""

    file: Path
    writes: bool
    reads: Reads = "turns"
    counts: Counts = field(default_factory=Counts)
    _db: sqlite3.Connection = field(init=False)

    def __post_init__(self) -> None:
        if not self.writes and not self.file.is_file():
            raise StoreError(f"cassette {self.file} does not exist: record it first, cassette.mode=record")
        try:
            self._db = self._opened()
            facts = dict(self._db.execute("SELECT name, value FROM facts"))
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"cassette {self.file} cannot be used: {error}") from error
        if facts != {"format": str(FORMAT), "reads": self.reads}:
            self.close()
            raise StoreError(
                f"cassette {self.file}: got format {facts.get('format')} that reads {facts.get('reads')}, expected "
                f"{FORMAT} that reads {self.reads}; set cassette.reads, or record another file"
            )

    def find(self, key: bytes, who: str = "") -> Any | None:
        """The answer that `who` got to what the key stands for, else everybody's; None when there is none.

        Raises StoreError.
        """
        row = self._run("SELECT value FROM answers WHERE key = ? AND who IN (?, '') ORDER BY who DESC", key, who)
        if row is None:
            self.counts.missing += 1
            return None
        self.counts.found += 1
        return json.loads(row[0])

    def keep(self, key: bytes, answer: Mapping[str, object], *, who: str = "", aside: tuple[str, ...] = ()) -> None:
        """Keep the answer that `who` got. Entries named in `aside` do not make it another one. Raises StoreError."""
        text = json.dumps(answer)
        row = self._run("SELECT value FROM answers WHERE key = ? AND who = ''", key)
        if row is None:
            who = ""
        elif _without(json.loads(row[0]), aside) == _without(json.loads(text), aside):
            return
        else:
            self.counts.differing += 1
        if self._run("INSERT OR IGNORE INTO answers VALUES (?, ?, ?) RETURNING who", key, who, text) is not None:
            self.counts.kept += 1

    def close(self) -> None:
        """Idempotent."""
        self._db.close()

    def __enter__(self) -> Cassette:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self) -> sqlite3.Connection:
        uri = f"{self.file.absolute().as_uri()}?mode={'rwc' if self.writes else 'ro'}"
        if self.writes:
            self.file.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=30)
        if self.writes:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("CREATE TABLE IF NOT EXISTS facts(name TEXT PRIMARY KEY, value TEXT)")
            db.execute(TABLE)
            db.executemany("INSERT OR IGNORE INTO facts VALUES (?, ?)", [("format", FORMAT), ("reads", self.reads)])
        return db

    def _run(self, statement: str, *values: object) -> Any:
        try:
            return self._db.execute(statement, values).fetchone()
        except sqlite3.Error as error:
            raise StoreError(f"cassette {self.file}: {error}") from error


def step_out(step: Step, action: Action) -> dict[str, object]:
    """A step as plain values."""
    return {**asdict(step), "calls": [call.id for call in action.calls]}


def step_in(flat: Mapping[str, Any], action: Action) -> Step:
    """The step as an answer to `action`, whose calls may have other ids than those it was recorded for."""
    ours = dict(zip(flat["calls"], action.calls, strict=False))
    return Step(
        messages=tuple(_renamed(message_in(m), ours) for m in flat["messages"]),
        results=tuple(_result(result, ours) for result in flat["results"]),
        outcome=None if flat["outcome"] is None else outcome_in(flat["outcome"]),
        **{name: flat[name] for name in ("reward", "terminated", "truncated", "state_key")},
    )


def message_in(flat: Mapping[str, Any]) -> Message:
    """A message from plain values."""
    return Message(**{**flat, "tool_calls": tuple(ToolCall(**call) for call in flat["tool_calls"])})


def tool_in(flat: Mapping[str, Any]) -> ToolSpec:
    """A tool's description from plain values."""
    return ToolSpec(**flat)


def outcome_in(flat: Mapping[str, Any]) -> Outcome:
    """An outcome from plain values."""
    return Outcome(**{**flat, "status": Status(flat["status"]), "origin": Origin(flat["origin"])})


def _renamed(message: Message, ours: Mapping[str, ToolCall]) -> Message:
    call = ours.get(message.tool_call_id)
    if call is None:
        return message
    return Message(role=message.role, content=message.content, tool_call_id=call.id, name=message.name)


def _result(flat: Mapping[str, Any], ours: Mapping[str, ToolCall]) -> ToolResult:
    call = None if flat["call"] is None else ours.get(flat["call"]["id"], ToolCall(**flat["call"]))
    return ToolResult(**{**flat, "call": call})


def _digest(*parts: str) -> bytes:
    return hashlib.blake2b("\x1f".join(parts).encode(errors="surrogatepass"), digest_size=SHORT).digest()


def _without(value: Any, names: tuple[str, ...]) -> Any:
    """A copy without the entries of these names, at any depth."""
    if isinstance(value, dict):
        return {key: _without(inner, names) for key, inner in value.items() if key not in names}
    return [_without(inner, names) for inner in value] if isinstance(value, list) else value
