"""Tables: adding up numbers, cutting a column, the largest number."""

from __future__ import annotations

from treadle.envs.shell.checks import Printed, StatedNumber, StatedWord
from treadle.envs.shell.family import Draft, Draw, Family, Level, noted
from treadle.envs.shell.names import WORDS

_SUM = (
    "Add up the numbers in {file}.",
    "Print the sum of the numbers in {file}.",
    "What is the sum of the numbers in {file}?",
    "Show what the numbers in {file} add up to.",
    "Tell me the sum of the numbers in {file}.",
    "Give me the total of the numbers in {file}.",
    "What do the numbers in {file} add up to?",
    "Take all numbers from {file} and print their sum.",
    "Sum the numbers in the file {file}.",
    "In the file {file} there are numbers. Print their total.",
    "What is the total of all numbers in {file}?",
    "Say what you get when you add all numbers of {file}.",
)
_SUM_HELDOUT = (
    "Give the sum of all numbers in {file}.",
    "In {file}, add up all the numbers.",
    "How much do all the numbers in {file} add up to?",
)


def _adding(column: int, path: str) -> str:
    return f"awk '{{s+=${column}}} END {{print s}}' {path}"


def _numbers(d: Draw, count: int) -> list[int]:
    """Different numbers whose order as text is not their order as numbers."""
    low = [9, d.number(2, 8)]
    return d.rng.sample(low + d.rng.sample(range(11, 90), count - 2), count)


def _sum(d: Draw) -> Draft:
    numbers = _numbers(d, d.number(4, 7))
    path = d.put(d.file(), [str(n) for n in numbers])
    d.crowd(3)
    return Draft(
        slots={"file": path},
        check=Printed(accept=(str(sum(numbers)),)),
        commands=(_adding(1, path),),
        others=(
            f"awk '{{s += $1}} END {{print s}}' < {path}",
            f"echo $(( $(paste -sd+ {path}) ))",
        ),
        misses=(f"cat {path}", f"wc -l < {path}", f"sort -n {path}", f"tail -n 1 {path}"),
    )


def _sum_column(d: Draw) -> Draft:
    numbers = _numbers(d, d.number(4, 7))
    path = d.put(d.file(), [f"{w} {n}" for w, n in zip(d.words(len(numbers)), numbers, strict=True)])
    d.crowd(3)
    return Draft(
        slots={"file": path},
        check=Printed(accept=(str(sum(numbers)),)),
        commands=(_adding(2, path),),
        others=(f"cat {path} | awk '{{s+=$2}} END {{print s}}'",),
        misses=(_adding(1, path), f"cat {path}", f"wc -l < {path}"),
    )


def _sum_hard(d: Draw) -> Draft:
    paths: list[str] = []
    sums: list[int] = []
    while len(paths) < 3:
        numbers = _numbers(d, d.number(4, 6))
        if sum(numbers) not in sums:
            sums.append(sum(numbers))
            paths.append(d.put(d.file(), [str(n) for n in numbers]))
    note = d.note("file", paths[0])
    return Draft(
        slots={"note": note},
        check=StatedNumber(answer=sums[0]),
        commands=(f"cat {note}", _adding(1, paths[0])),
        answer=str(sums[0]),
        misses=(_adding(1, paths[0]), f"cat {paths[0]}"),
    )


def _table(d: Draw) -> tuple[str, list[list[str]], int]:
    """A table of words with commas: its path, its rows, and a column number from 1."""
    rows = [d.words(3) for _ in range(d.number(4, 6))]
    return d.put(d.file("csv"), [",".join(row) for row in rows]), rows, d.number(1, 3)


def _cut(d: Draw, *, ordered: bool = False) -> Draft:
    path, rows, column = _table(d)
    d.crowd(3)
    cells = [row[column - 1] for row in rows]
    if cells == sorted(cells):
        cells.reverse()
        rows.reverse()
        d.put(path, [",".join(row) for row in rows])
    plain = f"cut -d, -f{column} {path}"
    return Draft(
        slots={"file": path, "column": str(column)},
        check=Printed(accept=("\n".join(sorted(cells) if ordered else cells),)),
        commands=(f"{plain} | sort" if ordered else plain,),
        others=(
            f"awk -F, '{{print ${column}}}' {path}{' | sort' if ordered else ''}",
            f"cut -d ',' -f {column} {path}{' | sort' if ordered else ''}",
        ),
        misses=(plain if ordered else f"{plain} | sort", f"cat {path}", f"cut -d, -f{column % 3 + 1} {path}"),
    )


def _cut_hard(d: Draw) -> Draft:
    row = d.words(5)
    path = d.put(d.file("csv"), [",".join(row)])
    d.crowd(2)
    column = d.number(1, 5)
    note = d.note("number", str(column))
    return Draft(
        slots={"note": note, "file": path},
        check=StatedWord(answer=row[column - 1], rivals=frozenset(WORDS)),
        commands=(f"cat {note}", f"cut -d, -f{column} {path}"),
        answer=row[column - 1],
        misses=(f"cut -d, -f{column} {path}", f"cat {path}"),
    )


def _largest(d: Draw) -> Draft:
    numbers = _numbers(d, d.number(5, 8))
    path = d.put(d.file(), [str(n) for n in numbers])
    d.crowd(3)
    return Draft(
        slots={"file": path},
        check=Printed(accept=(str(max(numbers)),)),
        commands=(f"sort -n {path} | tail -n 1",),
        others=(
            f"sort -nr {path} | head -n 1",
            f"awk '$1>m {{m=$1}} END {{print m}}' {path}",
        ),
        misses=(f"sort {path} | tail -n 1", f"sort -n {path}", f"sort -n {path} | head -n 1"),
    )


def _largest_row(d: Draw) -> Draft:
    numbers = _numbers(d, d.number(5, 8))
    rows = [f"{w} {n}" for w, n in zip(d.words(len(numbers)), numbers, strict=True)]
    path = d.put(d.file(), rows)
    d.crowd(3)
    return Draft(
        slots={"file": path},
        check=Printed(accept=(rows[numbers.index(max(numbers))],)),
        commands=(f"sort -n -k2 {path} | tail -n 1",),
        others=(
            f"sort -k2 -nr {path} | head -n 1",
            f"sort -k2n {path} | tail -1",
        ),
        misses=(f"sort -n -k2 {path} | head -n 1", f"sort -n -k2 {path}", f"cat {path}"),
    )


def _largest_hard(d: Draw) -> Draft:
    tables = [_numbers(d, 6) for _ in range(3)]
    paths = [d.put(d.file(), [str(n) for n in numbers]) for numbers in tables]
    note = d.note("file", paths[0])
    return Draft(
        slots={"note": note},
        check=StatedNumber(answer=max(tables[0])),
        commands=(f"cat {note}", f"sort -n {paths[0]} | tail -n 1"),
        answer=str(max(tables[0])),
        misses=(f"sort -n {paths[0]} | tail -n 1", f"cat {paths[0]}"),
    )


FAMILIES = (
    Family(
        name="sum-column",
        easy=Level(train=_SUM, heldout=_SUM_HELDOUT, build=_sum),
        medium=Level(
            train=(
                "Add up the numbers in column 2 of {file}.",
                "Print the sum of column 2 of {file}.",
                "What is the sum of column 2 in {file}?",
                "Show what the numbers in column 2 of {file} add up to.",
                "Tell me the sum of column 2 in {file}.",
                "Give me the total of column 2 of {file}.",
                "What do the numbers in column 2 of {file} add up to?",
                "From {file}, take column 2 and print its sum.",
                "Sum column 2 of the file {file}.",
                "Column 2 of {file} holds numbers. Print their total.",
                "What is the total of all numbers in column 2 of {file}?",
                "In the file {file}, sum the numbers of column 2.",
            ),
            heldout=(
                "Give the sum of all numbers in column 2 of {file}.",
                "In {file}, add up column 2.",
                "How much do all the numbers in column 2 of {file} add up to?",
            ),
            build=_sum_column,
        ),
        hard=noted(
            "file",
            _sum_hard,
            train=(
                "Say the sum of the numbers in that file.",
                "Add up its numbers and say the sum.",
                "What do its numbers add up to? Say the sum.",
                "Tell me the total of the numbers in that file.",
                "Sum all numbers in that file and say the total.",
                "Say what the numbers in that file add up to.",
            ),
            heldout=(
                "Then say the sum of all numbers in it.",
                "Say how much the numbers in that file are together.",
            ),
        ),
    ),
    Family(
        name="pick-column",
        easy=Level(
            train=(
                "Print column {column} of {file}.",
                "Show column {column} of {file}.",
                "Print only column {column} in {file}.",
                "What is in column {column} of {file}?",
                "In {file}, take column {column} and print it.",
                "From the table {file}, show only column {column}.",
                "Tell me what column {column} of {file} contains.",
                "Give me only column {column} from {file}.",
                "The table {file} has columns. Print column {column}.",
                "Cut column {column} out of {file} and print it.",
                "Which words are in column {column} of {file}?",
                "I want to see just column {column} of {file}.",
            ),
            heldout=(
                "From {file}, print column {column}.",
                "Give me column {column} of the table {file}.",
                "Show me what {file} has in column {column}.",
            ),
            build=_cut,
        ),
        medium=Level(
            train=(
                "Print column {column} of {file}, sorted.",
                "Show column {column} of {file} in sorted order.",
                "Sort column {column} of {file} and print only that column.",
                "Print only column {column} in {file} and sort it.",
                "In {file}, take column {column}, sort it and print it.",
                "From the table {file}, show only column {column}, sorted.",
                "Give me only column {column} from {file}, in sorted order.",
                "Cut column {column} out of {file} and sort it.",
                "Tell me the words in column {column} of {file}, sorted.",
                "What is in column {column} of {file}? Print it sorted.",
                "I want to see just column {column} of {file}, sorted.",
                "The words in column {column} of {file} should be sorted. Print them.",
            ),
            heldout=(
                "From {file}, print column {column} in sorted order.",
                "Give me column {column} of the table {file}, sorted.",
                "Show me, in sorted order, what {file} has in column {column}.",
            ),
            build=lambda d: _cut(d, ordered=True),
        ),
        hard=noted(
            "number",
            _cut_hard,
            train=(
                "Say the word in that column of {file}.",
                "Say what is in the column of {file} with that number.",
                "In {file}, look at that column and say its word.",
                "Which word is in that column of {file}? Say it.",
                "Tell me what {file} has in that column.",
                "Print that column of {file} and say the word.",
            ),
            heldout=(
                "Then say which word {file} has in that column.",
                "Say the word that is in that column of the table {file}.",
            ),
        ),
    ),
    Family(
        name="largest-number",
        easy=Level(
            train=(
                "Print the largest number in {file}.",
                "What is the largest number in {file}?",
                "Find the largest number in {file}.",
                "Show the largest of the numbers in {file}.",
                "Tell me the biggest number in {file}.",
                "Give me the largest number from {file}.",
                "Which number in {file} is the biggest?",
                "From {file}, print only the largest number.",
                "In the file {file}, find the number that is greater than all others.",
                "What is the maximum of the numbers in {file}?",
                "Of all numbers in {file}, print the biggest.",
                "Say which of the numbers in {file} is the largest.",
            ),
            heldout=(
                "In {file}, which number is the largest?",
                "Give the largest number that {file} contains.",
                "Look at the numbers in {file} and show the largest one.",
            ),
            build=_largest,
        ),
        medium=Level(
            train=(
                "Print the line of {file} with the largest number.",
                "Which line of {file} has the largest number?",
                "Find the line with the largest number in {file}.",
                "Show the line that has the largest number in {file}.",
                "Tell me the line with the biggest number in {file}.",
                "Give me the line from {file} that has the biggest number.",
                "Which line in {file} holds the biggest number?",
                "From {file}, print only the line with the largest number.",
                "In the file {file}, find the line whose number is the largest.",
                "What is the line with the maximum number in {file}?",
                "Of all lines in {file}, print the one with the biggest number.",
                "Each line of {file} has a number. Print the line with the largest.",
            ),
            heldout=(
                "In {file}, which line has the largest number?",
                "Give the line of {file} that has the largest number.",
                "Look at the numbers in {file} and show the line that has the largest.",
            ),
            build=_largest_row,
        ),
        hard=noted(
            "file",
            _largest_hard,
            train=(
                "Say the largest number in that file.",
                "Find its largest number and say it.",
                "Which number in that file is the biggest? Say it.",
                "Tell me the biggest number in that file.",
                "Look for the maximum of its numbers and say it.",
                "Of all numbers in that file, say the largest.",
            ),
            heldout=(
                "Then say which number in it is the largest.",
                "Say what the largest of the numbers in that file is.",
            ),
        ),
    ),
)
"""The families of this craft."""
