"""Printing a file, its first or last lines, or lines by number."""

from __future__ import annotations

from treadle.envs.shell.checks import Printed, StatedWord
from treadle.envs.shell.family import Draft, Draw, Family, Level, noted
from treadle.envs.shell.names import WORDS

_ANY_WORD = frozenset(WORDS)


def _show(d: Draw) -> Draft:
    path = d.put(d.file(), lines := d.phrases(d.number(3, 6)))
    d.crowd(3)
    return Draft(
        slots={"file": path},
        check=Printed(accept=("\n".join(lines),)),
        commands=(f"cat {path}",),
        others=(
            f"cat < {path}",
            f"head -n 100 {path}",
        ),
        misses=("ls", f"head -n 1 {path}"),
    )


def _show_two(d: Draw) -> Draft:
    first = d.put(d.file(), lines := d.phrases(d.number(2, 4)))
    second = d.put(d.file(), more := d.phrases(d.number(2, 4)))
    d.crowd(2)
    return Draft(
        slots={"file": first, "second": second},
        check=Printed(accept=("\n".join(lines + more),)),
        commands=(f"cat {first} {second}",),
        others=(
            f"cat {first}; cat {second}",
            f"cat {first} && cat {second}",
        ),
        misses=(f"cat {second} {first}", f"cat {first}", f"cat {second}"),
    )


def _show_hard(d: Draw) -> Draft:
    words = d.words(4)
    paths = [d.put(d.file(), [word]) for word in words]
    note = d.note("file", paths[0])
    return Draft(
        slots={"note": note},
        check=StatedWord(answer=words[0], rivals=_ANY_WORD),
        commands=(f"cat {note}", f"cat {paths[0]}"),
        answer=words[0],
        misses=(f"cat {paths[0]}", f"cat {note}"),
    )


def _end(d: Draw, tool: str, *, deep: bool) -> Draft:
    """The first (`head`) or last (`tail`) lines of a file."""
    count = d.number(2, 5)
    path = d.put(f"{d.folder()}/{d.file()}" if deep else d.file(), lines := d.phrases(d.number(7, 11)))
    d.crowd(3)
    wanted = lines[:count] if tool == "head" else lines[-count:]
    other = "tail" if tool == "head" else "head"
    return Draft(
        slots={"file": path, "count": str(count)},
        check=Printed(accept=("\n".join(wanted),)),
        commands=(f"{tool} -n {count} {path}",),
        others=(
            f"{tool} -{count} {path}",
            f"cat {path} | {tool} -n {count}",
        ),
        misses=(f"cat {path}", f"{tool} -n {count + 1} {path}", f"{other} -n {count} {path}"),
    )


def _end_hard(d: Draw, tool: str) -> Draft:
    words = d.words(8)
    path = d.put(d.file(), words)
    for _ in range(2):
        d.put(d.file(), d.words(6))
    note = d.note("file", path)
    answer = words[0] if tool == "head" else words[-1]
    return Draft(
        slots={"note": note},
        check=StatedWord(answer=answer, rivals=_ANY_WORD),
        commands=(f"cat {note}", f"{tool} -n 1 {path}"),
        answer=answer,
        misses=(f"{tool} -n 1 {path}", f"cat {path}"),
    )


def _nth(d: Draw) -> Draft:
    path = d.put(d.file(), lines := d.phrases(d.number(7, 11)))
    d.crowd(3)
    which = d.number(2, len(lines) - 1)
    return Draft(
        slots={"file": path, "n": str(which)},
        check=Printed(accept=(lines[which - 1],)),
        commands=(f"sed -n {which}p {path}",),
        others=(
            f"head -n {which} {path} | tail -n 1",
            f"awk NR=={which} {path}",
        ),
        misses=(f"head -n {which} {path}", f"cat {path}", f"sed -n {which + 1}p {path}"),
    )


def _span(d: Draw) -> Draft:
    path = d.put(d.file(), lines := d.phrases(d.number(8, 11)))
    d.crowd(3)
    first = d.number(2, 4)
    last = first + d.number(1, 3)
    return Draft(
        slots={"file": path, "first": str(first), "last": str(last)},
        check=Printed(accept=("\n".join(lines[first - 1 : last]),)),
        commands=(f"sed -n {first},{last}p {path}",),
        others=(
            f"head -n {last} {path} | tail -n +{first}",
            f"awk 'NR>={first} && NR<={last}' {path}",
        ),
        misses=(f"head -n {last} {path}", f"sed -n {first}p {path}"),
    )


def _nth_hard(d: Draw) -> Draft:
    path = d.put(d.file(), words := d.words(9))
    d.crowd(2)
    which = d.number(2, 8)
    note = d.note("number", str(which))
    return Draft(
        slots={"note": note, "file": path},
        check=StatedWord(answer=words[which - 1], rivals=_ANY_WORD),
        commands=(f"cat {note}", f"sed -n {which}p {path}"),
        answer=words[which - 1],
        misses=(f"sed -n {which}p {path}", f"cat {path}"),
    )


def _ends(tool: str, which: str) -> Family:
    train = (
        f"Print the {which} {{count}} lines of {{file}}.",
        f"Show the {which} {{count}} lines of {{file}}.",
        f"Give me the {which} {{count}} lines in {{file}}.",
        f"What are the {which} {{count}} lines of {{file}}?",
        f"From {{file}}, show the {which} {{count}} lines.",
        f"In the file {{file}}, read only the {which} {{count}} lines.",
        f"Tell me what is on the {which} {{count}} lines of {{file}}.",
        f"Say what the {which} {{count}} lines in {{file}} are.",
        f"Let me see the {which} {{count}} lines of the file {{file}}.",
        f"Which {{count}} lines come {which} in {{file}}?",
        f"Print {{file}}, but only its {which} {{count}} lines.",
        f"Of all lines in {{file}}, show the {which} {{count}}.",
    )
    heldout = (
        f"Of {{file}}, print only the {which} {{count}} lines.",
        f"I want to see the {which} {{count}} lines of {{file}}.",
        f"Show me what {{file}} has on its {which} {{count}} lines.",
    )
    return Family(
        name=f"{which}-lines",
        easy=Level(train=train, heldout=heldout, build=lambda d: _end(d, tool, deep=False)),
        medium=Level(train=train, heldout=heldout, build=lambda d: _end(d, tool, deep=True)),
        hard=noted(
            "file",
            lambda d: _end_hard(d, tool),
            train=(
                f"Say the {which} line of that file.",
                f"Say the word on its {which} line.",
                f"What is the {which} line of that file? Say it.",
                f"Tell me the word on the {which} line of that file.",
                f"From that file, take the {which} line and say its word.",
                f"Which word comes {which} in that file? Say it.",
            ),
            heldout=(
                f"Then say what the {which} line of that file is.",
                f"Say which word that file has on its {which} line.",
            ),
        ),
    )


FAMILIES = (
    Family(
        name="show-file",
        easy=Level(
            train=(
                "Print the file {file}.",
                "Show {file}.",
                "Print what is in {file}.",
                "What does {file} contain?",
                "Show the whole content of {file}.",
                "Give me the text of {file}.",
                "Tell me what is in the file {file}.",
                "From {file}, print every line.",
                "What is written in {file}?",
                "Let me see the file {file}.",
                "Display {file}.",
                "Print all lines of {file}.",
            ),
            heldout=(
                "Print everything in the file {file}.",
                "Show me what {file} contains.",
                "I want to read {file}. Show all of it.",
            ),
            build=_show,
        ),
        medium=Level(
            train=(
                "Print {file} and then {second}.",
                "Show the files {file} and {second}, in this order.",
                "Print what is in {file}, then what is in {second}.",
                "Show {file} first and {second} after it.",
                "First print {file}, then print {second}.",
                "Give me the text of {file} and then the text of {second}.",
                "Print {second} after {file}.",
                "What is in {file} and {second}? Print both, in this order.",
                "Display the files {file} and {second}, one after the other.",
                "Let me see {file} first, then {second}.",
                "From {file} and then from {second}, print every line.",
            ),
            heldout=(
                "Print the file {file}, followed by {second}.",
                "Show me {file} and, after it, {second}.",
                "Show all of {file}, and all of {second} below it.",
            ),
            build=_show_two,
        ),
        hard=noted(
            "file",
            _show_hard,
            train=(
                "Say the word in that file.",
                "Say which word that file contains.",
                "Tell me the word that is in that file.",
                "What word does that file contain? Say it.",
                "Open that file too and say its word.",
                "That file has one word. Say it.",
            ),
            heldout=(
                "Then say what word is in that file.",
                "Say the word that you find in that file.",
            ),
        ),
    ),
    _ends("head", "first"),
    _ends("tail", "last"),
    Family(
        name="nth-line",
        easy=Level(
            train=(
                "Print line {n} of {file}.",
                "Show line {n} of {file}.",
                "What is line {n} of {file}?",
                "Print only line {n} in {file}.",
                "From {file}, show only line {n}.",
                "Tell me what line {n} of {file} is.",
                "Give me line number {n} from {file}.",
                "Say what is on line {n} of {file}.",
                "What is written on line {n} of {file}?",
                "Which text is on line {n} of {file}?",
                "In the file {file}, show the line with the number {n}.",
                "I only want line {n} of {file}.",
            ),
            heldout=(
                "Give me line {n} of the file {file}.",
                "In {file}, print line number {n}.",
                "Show me what {file} has on line {n}.",
            ),
            build=_nth,
        ),
        medium=Level(
            train=(
                "Print lines {first} to {last} of {file}.",
                "Show lines {first} to {last} of {file}.",
                "What are lines {first} to {last} of {file}?",
                "Print only lines {first} to {last} in {file}.",
                "From {file}, show only the lines {first} to {last}.",
                "Tell me what is on lines {first} to {last} of {file}.",
                "Give me line {first} up to line {last} from {file}.",
                "What is written on lines {first} to {last} of {file}?",
                "Print {file} from line {first} to line {last}.",
                "In the file {file}, show line {first} through line {last}.",
                "I only want lines {first} to {last} of {file}.",
                "Show {file}, but only lines {first} to {last}.",
            ),
            heldout=(
                "Give me lines {first} to {last} of the file {file}.",
                "In {file}, print lines {first} to {last}.",
                "Show me what {file} has on lines {first} to {last}.",
            ),
            build=_span,
        ),
        hard=noted(
            "number",
            _nth_hard,
            train=(
                "Say what is on the line of {file} with that number.",
                "Say the word on that line of {file}.",
                "In {file}, look at that line and say its word.",
                "What word is on that line of {file}? Say it.",
                "Tell me which word is on that line in {file}.",
                "Print that line of {file} and say the word.",
            ),
            heldout=(
                "Then say which word {file} has on that line.",
                "Say the word that stands on that line in {file}.",
            ),
        ),
    ),
)
"""The families of this craft."""
