"""Comparing two files."""

from __future__ import annotations

from difflib import unified_diff

from treadle.envs.shell.checks import Printed, StatedWord
from treadle.envs.shell.family import Draft, Draw, Family, Level, noted
from treadle.envs.shell.names import WORDS

_NAMED = r"(---|\+\+\+) \S+ \d{4}-.*"
"""Lines of a unified difference that name the files."""
_PLACED = r"\d+(,\d+)?[ad]\d+(,\d+)?"
"""Lines of a plain difference that tell where lines are missing."""


def _changed(line: int, old: str, new: str) -> str:
    """One changed line as `diff` prints it."""
    return f"{line}c{line}\n< {old}\n---\n> {new}"


def _differences(at: int, one: list[str], two: list[str]) -> tuple[str, ...]:
    """What the ordinary tools print for two lists of words that differ in one line, `at`."""
    old, new = one[at - 1], two[at - 1]
    beside = [f"{a} {b}" if a == b else f"{a} | {b}" for a, b in zip(one, two, strict=True)]
    unified = list(unified_diff(one, two, lineterm=""))[2:]
    return _changed(at, old, new), "\n".join(unified), "\n".join(beside), beside[at - 1], "\n".join(sorted([old, new]))


def _compare(d: Draw) -> Draft:
    words = d.words(8)
    *lines, new = words
    at = d.number(1, len(lines))
    other = [new if n == at else word for n, word in enumerate(lines, 1)]
    first, second = d.put(d.file(), lines), d.put(d.file(), other)
    d.crowd(2)
    accept = [text for one, two in ((lines, other), (other, lines)) for text in _differences(at, one, two)]
    return Draft(
        slots={"file": first, "second": second},
        check=Printed(accept=tuple(accept), aside=_NAMED),
        commands=(f"diff {first} {second}",),
        others=(
            f"diff {second} {first}",
            f"diff -u {first} {second}",
            f"diff -y {first} {second}",
            f"diff -y --suppress-common-lines {first} {second}",
            f"comm -3 <(sort {first}) <(sort {second})",
        ),
        misses=(f"cat {first} {second}", f"diff -q {first} {second}", f"diff {first} {first}"),
    )


def _missing(d: Draw) -> Draft:
    words = d.words(9)
    gone = d.rng.sample(words[1:], 2)
    first = d.put(d.file(), words)
    second = d.put(d.file(), [word for word in words if word not in gone])
    d.crowd(2)
    wanted = [word for word in words if word in gone]
    accept = ["\n".join(sign + word for word in wanted) for sign in ("", "< ", "> ")]
    accept.append("\n".join(sorted(wanted)))
    return Draft(
        slots={"file": first, "second": second},
        check=Printed(accept=tuple(accept), aside=_PLACED),
        commands=(f"grep -v -f {second} {first}",),
        others=(
            f"grep -vxFf {second} {first}",
            f"diff {first} {second}",
            f"diff {second} {first}",
            f"diff {first} {second} | grep '^<'",
            f"comm -23 <(sort {first}) <(sort {second})",
            f"sort {first} {second} | uniq -u",
        ),
        misses=(f"grep -v -f {first} {second}", f"grep -f {second} {first}", f"cat {first}", f"cat {second}"),
    )


def _compare_hard(d: Draw) -> Draft:
    shared = d.words(6)
    path = d.put(d.file(), shared)
    others = []
    extras = d.words(3)
    for extra in extras:
        lines = list(shared)
        lines.insert(d.number(1, len(lines)), extra)
        others.append(d.put(d.file(), lines))
    note = d.note("file", others[0])
    return Draft(
        slots={"note": note, "file": path},
        check=StatedWord(answer=extras[0], rivals=frozenset(WORDS)),
        commands=(f"cat {note}", f"diff {path} {others[0]}"),
        answer=extras[0],
        misses=(f"diff {path} {others[0]}", f"cat {others[0]}"),
    )


FAMILIES = (
    Family(
        name="compare-files",
        easy=Level(
            train=(
                "Compare {file} with {second}.",
                "Show the difference between {file} and {second}.",
                "How do {file} and {second} differ?",
                "Print how {file} differs from {second}.",
                "Tell me how {file} and {second} differ.",
                "Give me the difference between {file} and {second}.",
                "In what do {file} and {second} differ?",
                "What is different in {file} and {second}?",
                "Find the difference between {file} and {second}.",
                "Show me what differs between {file} and {second}.",
                "{file} and {second} are not the same. Show the difference.",
                "Use diff on {file} and {second}.",
                "Where does {file} differ from {second}?",
            ),
            heldout=(
                "What is the difference between {file} and {second}?",
                "Compare the files {file} and {second}.",
                "Look for what is different between the files {file} and {second}.",
            ),
            build=_compare,
        ),
        medium=Level(
            train=(
                "Print the lines of {file} that are not in {second}.",
                "Which lines of {file} are not in {second}?",
                "Show all lines in {file} that {second} does not have.",
                "Find the lines of {file} that are not in {second}.",
                "Tell me which lines {file} has and {second} does not.",
                "Give me the lines of {file} that {second} lacks.",
                "From {file}, print only the lines that are not in {second}.",
                "What lines are in {file} but not in {second}?",
                "In {second}, some lines of {file} are missing. Print them.",
                "Print each line that is in {file} and not in {second}.",
                "Show {file} without the lines that are in {second}.",
                "Which lines are only in {file} and not in {second}?",
                "Find all lines that {file} has but {second} does not.",
            ),
            heldout=(
                "In {file}, find every line that is not in {second}.",
                "Show me the lines of {file} that are missing in {second}.",
                "Give every line of {file} that does not come up in {second}.",
            ),
            build=_missing,
        ),
        hard=noted(
            "file",
            _compare_hard,
            train=(
                "Compare {file} with it and say the word that only that file has.",
                "Say which word that file has and {file} does not.",
                "Which word is in that file but not in {file}? Say it.",
                "Tell me the word that {file} lacks and that file has.",
                "Find the difference between {file} and that file. Say the extra word.",
                "That file has one word more than {file}. Say that word.",
            ),
            heldout=(
                "Then compare {file} with that file, and say the word that only that file has.",
                "Say what word that file has that is not in {file}.",
            ),
        ),
    ),
)
"""The families of this craft."""
