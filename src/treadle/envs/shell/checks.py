"""How a shell task is checked: small frozen checks over what a rollout left behind.

A check reads `Evidence`: the output of the last command, the model's final message, and the workspace as the safe
grading reader saw it. Nothing of it can be written by the agent except through the three honest ways: printing,
saying and changing files. A dump never passes: an output must equal one of few accepted texts, a statement must
hold the answer and none of its rivals, and a workspace must equal the expected one file by file.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

_TOKEN = re.compile(r"[\w./-]+")
_LONG = re.compile(r"^-[rwx-]{9}\s.*\d\d:\d\d(:\d\d)?\s+")
"""What a long listing tells of a regular file before its name."""
_STATEMENT_CHARS = 200
_GZIP = b"\x1f\x8b"
_UNPACKED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A workspace as bytes and modes; symbolic links, pipes and devices stand in `odd`."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    """Relative path to content."""
    folders: frozenset[str] = frozenset()
    modes: Mapping[str, int] = field(default_factory=dict)
    """Relative path of each file to its permission bits."""
    odd: frozenset[str] = frozenset()
    """Paths that are neither a regular file nor a folder, or too large to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one rollout left behind."""

    output: str
    """Text that the last command printed; empty when there was none."""
    statement: str
    """The final message; empty when the rollout ended without one."""
    commands: int
    """How many commands were run."""
    tree: Tree


class Check(Protocol):
    """Decides whether a rollout solved its task."""

    def passes(self, evidence: Evidence) -> bool:
        """True when solved. Never raises for anything an agent can leave behind."""
        ...


def squeeze(text: str) -> str:
    """The text with runs of blanks made one, lines trimmed, and empty lines at both ends dropped."""
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def bare_path(path: str) -> str:
    """A path without a leading `./` or the sandbox's workspace."""
    return re.sub(r"^(\./|/work/)", "", path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """The last command printed one of the accepted texts, blanks aside."""

    accept: tuple[str, ...]
    aside: str = ""
    """Pattern of whole lines that do not count, for headings that a tool prints; empty when every line does."""

    def passes(self, evidence: Evidence) -> bool:
        """Compare after `squeeze`."""
        lines = squeeze(evidence.output).split("\n")
        if self.aside:
            lines = [line for line in lines if not re.fullmatch(self.aside, line)]
        return "\n".join(lines) in {squeeze(text) for text in self.accept}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedPaths:
    """The last command printed exactly one of the accepted sets of paths, in any order, `./` aside.

    A line may be a long listing, as `ls -l` and `tar -tv` print it: what stands before the path does not count.
    """

    accept: tuple[frozenset[str], ...]

    def passes(self, evidence: Evidence) -> bool:
        """Compare the sets; a path printed twice does not pass."""
        lines = [bare_path(_LONG.sub("", line.strip())) for line in evidence.output.strip().splitlines()]
        return len(lines) == len(set(lines)) and set(lines) in self.accept


def tokens(statement: str) -> set[str]:
    """Lower-case words, numbers and paths of a statement, without the punctuation of the sentence."""
    return {bare_path(token.lower()).strip("./-") for token in _TOKEN.findall(statement)} - {""}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedNumber:
    """The final message holds the number and no other number."""

    answer: int

    def passes(self, evidence: Evidence) -> bool:
        """A number inside a word or a file name is no number; guesses without a command do not pass."""
        if evidence.commands == 0 or len(evidence.statement) > _STATEMENT_CHARS:
            return False
        return {token for token in tokens(evidence.statement) if token.isdecimal()} == {str(self.answer)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedWord:
    """The final message holds the answer and none of the words that it could be mistaken for."""

    answer: str
    rivals: frozenset[str]

    def passes(self, evidence: Evidence) -> bool:
        """Compare whole words and paths, case aside; guesses without a command do not pass."""
        if evidence.commands == 0 or len(evidence.statement) > _STATEMENT_CHARS:
            return False
        said = tokens(evidence.statement)
        return self.answer in said and not said & (self.rivals - {self.answer})


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf:
    """Content that may be any of these."""

    texts: tuple[bytes, ...]

    def holds(self, content: bytes) -> bool:
        """Whether the content is among them."""
        return content in self.texts


@dataclass(frozen=True, slots=True, kw_only=True)
class TarOf:
    """Content that is a tar archive of exactly these files."""

    members: Mapping[str, bytes]
    zipped: bool = False
    """Whether it must be compressed with gzip; otherwise it must not be."""

    def holds(self, content: bytes) -> bool:
        """Read the archive in memory, never unpacking to disk, and bounded in size."""
        if content.startswith(_GZIP) != self.zipped:
            return False
        try:
            plain = gzip.GzipFile(fileobj=io.BytesIO(content)).read(_UNPACKED_BYTES) if self.zipped else content
            with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
                return self._same(archive)
        except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError, OverflowError):
            return False

    def _same(self, archive: tarfile.TarFile) -> bool:
        found: dict[str, bytes] = {}
        for entry in archive:
            if entry.isdir():
                continue
            wanted = self.members.get(bare_path(entry.name))
            # The size first: a sparse member of a few bytes may claim to be gigabytes long.
            if wanted is None or not entry.isreg() or entry.size != len(wanted):
                return False
            stream = archive.extractfile(entry)
            assert stream is not None, "a regular member has content"
            found[bare_path(entry.name)] = stream.read()
        return found == dict(self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The workspace is exactly as expected: no file missing, changed or new."""

    files: Mapping[str, OneOf | TarOf]
    folders: frozenset[str]

    def passes(self, evidence: Evidence) -> bool:
        """Compare every path."""
        tree = evidence.tree
        if tree.odd or tree.folders != self.folders or tree.files.keys() != self.files.keys():
            return False
        return all(wanted.holds(tree.files[path]) for path, wanted in self.files.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Runnable:
    """Exactly these files may be executed by their owner."""

    paths: frozenset[str]

    def passes(self, evidence: Evidence) -> bool:
        """Look at the owner's read and execute bits."""
        modes = evidence.tree.modes
        readable = all(modes.get(path, 0) & 0o400 for path in self.paths)
        return readable and {path for path, mode in modes.items() if mode & 0o100} == self.paths


@dataclass(frozen=True, slots=True, kw_only=True)
class All:
    """Every part passes."""

    parts: tuple[Check, ...]

    def passes(self, evidence: Evidence) -> bool:
        """Ask each part."""
        return all(part.passes(evidence) for part in self.parts)


def rivals(check: Check) -> frozenset[str]:
    """The words that a check would take for a wrong answer beside the right one."""
    if isinstance(check, All):
        return frozenset().union(*(rivals(part) for part in check.parts))
    return check.rivals if isinstance(check, StatedWord) else frozenset()
