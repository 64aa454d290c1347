"""Sorting lines and dropping the ones that come twice."""

from __future__ import annotations

from treadle.envs.shell.checks import Printed, StatedNumber, StatedWord
from treadle.envs.shell.family import Draft, Draw, Family, Level, noted
from treadle.envs.shell.names import WORDS


def _jumbled(d: Draw, count: int) -> list[str]:
    """New words, neither sorted nor sorted backwards, whose first word is not the first in order."""
    words = sorted(d.words(count))
    while words[0] == min(words) or words == sorted(words, reverse=True):
        d.rng.shuffle(words)
    return words


def _sort(d: Draw, *, backwards: bool = False) -> Draft:
    path = d.put(d.file(), words := _jumbled(d, d.number(5, 7)))
    d.crowd(3)
    right, wrong = (f"sort -r {path}", f"sort {path}") if backwards else (f"sort {path}", f"sort -r {path}")
    return Draft(
        slots={"file": path},
        check=Printed(accept=("\n".join(sorted(words, reverse=backwards)),)),
        commands=(right,),
        others=(
            f"cat {path} | {right.removesuffix(path)}",
            *([f"sort {path} | tac"] if backwards else []),
        ),
        misses=(wrong, f"cat {path}", f"tac {path}"),
    )


def _sort_hard(d: Draw) -> Draft:
    lists = [_jumbled(d, 6) for _ in range(3)]
    paths = [d.put(d.file(), words) for words in lists]
    note = d.note("file", paths[0])
    answer = min(lists[0])
    return Draft(
        slots={"note": note},
        check=StatedWord(answer=answer, rivals=frozenset(WORDS)),
        commands=(f"cat {note}", f"sort {paths[0]} | head -n 1"),
        answer=answer,
        misses=(f"sort {paths[0]} | head -n 1", f"sort {paths[0]}"),
    )


def _repeated(d: Draw, different: int) -> list[str]:
    """Words of which some come more than once and at least one does not, unsorted."""
    words = d.singles(different)
    lines = words + d.rng.choices(words[1:], k=d.number(3, 5))
    while lines == sorted(lines) or lines[0] == min(lines):
        d.rng.shuffle(lines)
    return lines


def _unique(d: Draw) -> Draft:
    path = d.put(d.file(), lines := _repeated(d, d.number(4, 6)))
    d.crowd(3)
    return Draft(
        slots={"file": path},
        check=Printed(accept=("\n".join(sorted(set(lines))),)),
        commands=(f"sort -u {path}",),
        others=(
            f"sort {path} | uniq",
            f"cat {path} | sort -u",
            f"awk '!s[$0]++' {path} | sort",
        ),
        misses=(f"sort {path}", f"cat {path}", f"sort {path} | uniq -d"),
    )


def _different(d: Draw) -> Draft:
    path = d.put(d.file(), lines := _repeated(d, d.number(4, 8)))
    d.crowd(3)
    return Draft(
        slots={"file": path},
        check=Printed(accept=(str(len(set(lines))),)),
        commands=(f"sort -u {path} | wc -l",),
        others=(
            f"sort {path} | uniq | wc -l",
            f"cat {path} | sort -u | wc -l",
        ),
        misses=(f"wc -l < {path}", f"sort -u {path}"),
    )


def _different_hard(d: Draw) -> Draft:
    counts = d.rng.sample(range(6, 20), 3)
    paths = [d.put(d.file(), _repeated(d, count)) for count in counts]
    note = d.note("file", paths[0])
    return Draft(
        slots={"note": note},
        check=StatedNumber(answer=counts[0]),
        commands=(f"cat {note}", f"sort -u {paths[0]} | wc -l"),
        answer=str(counts[0]),
        misses=(f"sort -u {paths[0]} | wc -l", f"wc -l < {paths[0]}"),
    )


FAMILIES = (
    Family(
        name="sort-lines",
        easy=Level(
            train=(
                "Print the lines of {file} in sorted order.",
                "Sort the lines of {file} and print them.",
                "Show {file} sorted from a to z.",
                "Print {file} with its lines sorted.",
                "In {file}, sort the lines and show them.",
                "Tell me the lines of {file} in alphabetical order.",
                "Give me {file} with all lines sorted.",
                "From {file}, print the lines in order from a to z.",
                "What are the lines of {file} in sorted order?",
                "The lines of {file} should be sorted. Print them so.",
                "Order the lines of {file} from a to z and print them.",
                "Print the file {file}, sorted.",
            ),
            heldout=(
                "Show me the sorted lines of {file}.",
                "Give the lines in {file} in sorted order.",
                "Sort what is in {file} and show it to me.",
            ),
            build=_sort,
        ),
        medium=Level(
            train=(
                "Print the lines of {file} in reverse sorted order.",
                "Sort the lines of {file} in reverse and print them.",
                "Show {file} sorted in reverse, from z to a.",
                "Print {file} with its lines sorted in reverse.",
                "In {file}, sort the lines in reverse and show them.",
                "Tell me the lines of {file} in reverse alphabetical order.",
                "Give me {file} with all lines in reverse sorted order.",
                "From {file}, print the lines in order from z to a.",
                "What are the lines of {file} in reverse sorted order?",
                "The lines of {file} should be sorted from z to a. Print them so.",
                "Order the lines of {file} from z to a and print them.",
                "Sort {file} backwards, from z to a.",
            ),
            heldout=(
                "Show me the lines of {file}, sorted in reverse.",
                "Give the lines in {file} in reverse sorted order.",
                "Sort what is in {file} in reverse and show it to me.",
            ),
            build=lambda d: _sort(d, backwards=True),
        ),
        hard=noted(
            "file",
            _sort_hard,
            train=(
                "Sort that file and say the first line.",
                "Say the line of that file that comes first when sorted.",
                "Which of its lines comes first when sorted? Say it.",
                "Tell me the first line of that file in sorted order.",
                "Order its lines from a to z and say the first.",
                "Say which line is first after you sort that file.",
            ),
            heldout=(
                "Then say which of its lines is first in sorted order.",
                "Say what the first line of that file is once it is sorted.",
            ),
        ),
    ),
    Family(
        name="unique-lines",
        easy=Level(
            train=(
                "Print each different line of {file} once, sorted.",
                "Sort {file} and print it without repeated lines.",
                "Show the different lines of {file}, sorted, each once.",
                "Print the sorted lines of {file} without duplicates.",
                "In {file}, sort the lines and drop the duplicates.",
                "Tell me the different lines of {file} in sorted order.",
                "Give me the sorted lines of {file} without repeats.",
                "From {file}, print each line only once, sorted.",
                "What are the different lines in {file}? Print them sorted.",
                "Sort the lines of {file} and print every line just once.",
                "Some lines of {file} are repeated. Print each once, sorted.",
                "Print the unique lines of {file} in sorted order.",
            ),
            heldout=(
                "Show {file} sorted and without duplicates.",
                "Give me each different line in {file} once, in sorted order.",
                "Print what is in {file} in sorted order, with each line just once.",
            ),
            build=_unique,
        ),
        medium=Level(
            train=(
                "How many different lines does {file} have?",
                "Count the different lines in {file}.",
                "Print the number of different lines in {file}.",
                "Show how many different lines {file} has.",
                "In {file}, count the different lines.",
                "Tell me the number of different lines that {file} has.",
                "Give me the number of unique lines of {file}.",
                "Say how many different lines are in {file}.",
                "How many unique lines are in {file}?",
                "Some lines of {file} are repeated. How many different ones are there?",
                "Count each different line of {file} once and print the count.",
                "Without duplicates, how many lines does {file} have?",
            ),
            heldout=(
                "What is the number of different lines in {file}?",
                "Tell me how many different lines there are in {file}.",
                "In the file {file}, how many lines are different?",
            ),
            build=_different,
        ),
        hard=noted(
            "file",
            _different_hard,
            train=(
                "Say how many different lines that file has.",
                "Count its different lines and say the number.",
                "How many unique lines does it have? Say the number.",
                "Tell me the number of different lines it has.",
                "Without duplicates, how many lines are in that file? Say it.",
                "Count the unique lines of that file. Say the count.",
            ),
            heldout=(
                "Then say the number of different lines in that file.",
                "Say how many different lines there are in that file.",
            ),
        ),
    ),
)
"""The families of this craft."""
