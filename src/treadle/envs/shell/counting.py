"""Counting lines, words, matching lines and files."""

from __future__ import annotations

from treadle.envs.shell.checks import Printed, StatedNumber
from treadle.envs.shell.family import Draft, Draw, Family, Level, noted

_LINES = (
    "How many lines does {file} have?",
    "Count the lines in {file}.",
    "Print the number of lines in {file}.",
    "Show how many lines {file} has.",
    "In {file}, count all the lines.",
    "Tell me the number of lines that {file} has.",
    "What is the line count of {file}?",
    "Give me the number of lines of the file {file}.",
    "Say how many lines are in {file}.",
    "Show me the line count of {file}.",
    "I want to know how many lines {file} has. Count them.",
)
_LINES_HELDOUT = (
    "What is the number of lines in {file}?",
    "Tell me how many lines there are in {file}.",
    "How many lines are there in the file {file}?",
)
_WORDS = (
    "How many words does {file} have?",
    "Count the words in {file}.",
    "Print the number of words in {file}.",
    "Show how many words {file} has.",
    "In {file}, count all the words.",
    "Tell me the number of words that {file} has.",
    "What is the word count of {file}?",
    "Give me the number of words of the file {file}.",
    "Say how many words are in {file}.",
    "Show me the word count of {file}.",
    "I want to know how many words {file} has. Count them.",
)
_WORDS_HELDOUT = (
    "What is the number of words in {file}?",
    "Tell me how many words there are in {file}.",
    "How many words are there in the file {file}?",
)
_MATCHES = (
    "How many lines of {file} contain the word {word}?",
    "Count the lines in {file} that contain the word {word}.",
    "Print the number of lines in {file} with the word {word}.",
    "Show how many lines of {file} have the word {word}.",
    "In {file}, count the lines that have the word {word} in them.",
    "Tell me how many lines in {file} have the word {word}.",
    "What is the number of lines of {file} that contain {word}?",
    "Give me the number of lines with {word} in {file}.",
    "Say how many lines in {file} contain {word}.",
    "On how many lines of {file} is the word {word}?",
    "Some lines of {file} contain {word}. Count these lines.",
)
_MATCHES_HELDOUT = (
    "In {file}, how many lines contain the word {word}?",
    "Give the count of lines with the word {word} in {file}.",
    "Of the lines in {file}, how many have the word {word}?",
)


def _place(d: Draw, *, deep: bool) -> str:
    """A new path, in a folder if deep."""
    return f"{d.folder()}/{d.file()}" if deep else d.file()


def _counted(count: int, path: str) -> Printed:
    names = (path, f"./{path}", path.rpartition("/")[2])
    return Printed(accept=(str(count), *(f"{count} {name}" for name in names)))


def _lines(d: Draw, *, deep: bool = False) -> Draft:
    count = d.number(10, 24)
    path = d.put(_place(d, deep=deep), d.phrases(count))
    d.crowd(3)
    return Draft(
        slots={"file": path},
        check=_counted(count, path),
        commands=(f"wc -l < {path}",),
        others=(
            f"wc -l {path}",
            f"cat {path} | wc -l",
            "grep -c '' " + path,
            f"cd ./$(dirname {path}) && wc -l $(basename {path})",
        ),
        misses=(f"wc -w < {path}", f"wc {path}", f"cat {path}"),
    )


def _lines_hard(d: Draw) -> Draft:
    count = d.number(10, 30)
    path = d.put(d.file(), d.phrases(count))
    d.crowd(3)
    note = d.note("file", path)
    return Draft(
        slots={"note": note},
        check=StatedNumber(answer=count),
        commands=(f"cat {note}", f"wc -l < {path}"),
        answer=str(count),
        misses=(f"wc -l < {path}", f"wc -l < {note}"),
    )


def _words(d: Draw, *, deep: bool = False) -> Draft:
    path = d.put(_place(d, deep=deep), lines := d.phrases(d.number(4, 8)))
    d.crowd(3)
    count = sum(len(line.split()) for line in lines)
    return Draft(
        slots={"file": path},
        check=_counted(count, path),
        commands=(f"wc -w < {path}",),
        others=(
            f"wc -w {path}",
            f"cat {path} | wc -w",
            f"wc -w ./{path}",
        ),
        misses=(f"wc -l < {path}", f"wc {path}", f"cat {path}"),
    )


def _words_hard(d: Draw) -> Draft:
    path = d.put(d.file(), lines := d.phrases(d.number(5, 12)))
    d.crowd(3)
    note = d.note("file", path)
    count = sum(len(line.split()) for line in lines)
    return Draft(
        slots={"note": note},
        check=StatedNumber(answer=count),
        commands=(f"cat {note}", f"wc -w < {path}"),
        answer=str(count),
        misses=(f"wc -w < {path}", f"wc -w < {note}"),
    )


def _mixed(d: Draw, word: str, low: int, high: int) -> tuple[list[str], int]:
    """Lines of which some contain the word, and how many do."""
    count = d.number(low, high)
    lines = [f"{d.rng.choice(['', 'calm ', 'heavy '])}{word} {line}" for line in d.phrases(count, avoid=[word])]
    lines += d.phrases(d.number(count + 1, count + 5), avoid=[word])
    d.rng.shuffle(lines)
    return lines, count


def _matches(d: Draw, *, deep: bool = False) -> Draft:
    word = d.word()
    lines, count = _mixed(d, word, 2, 7)
    path = d.put(_place(d, deep=deep), lines)
    d.crowd(3, avoid=[word])
    return Draft(
        slots={"file": path, "word": word},
        check=_counted(count, path),
        commands=(f"grep -c {word} {path}",),
        others=(
            f"grep -cw {word} {path}",
            f"grep {word} {path} | wc -l",
            f"cat {path} | grep -c {word}",
        ),
        misses=(f"grep {word} {path}", f"wc -l < {path}", f"grep -vc {word} {path}"),
    )


def _matches_hard(d: Draw) -> Draft:
    word = d.word()
    lines, count = _mixed(d, word, 3, 15)
    path = d.put(d.file(), lines)
    d.crowd(2, avoid=[word])
    note = d.note("word", word)
    return Draft(
        slots={"note": note, "file": path},
        check=StatedNumber(answer=count),
        commands=(f"cat {note}", f"grep -c {word} {path}"),
        answer=str(count),
        misses=(f"grep -c {word} {path}", f"wc -l < {path}"),
    )


def _files(d: Draw) -> Draft:
    folder = d.folder()
    count = d.number(4, 9)
    d.crowd(count, folder=folder)
    d.crowd(2)
    return Draft(
        slots={"folder": folder},
        check=Printed(accept=(str(count),)),
        commands=(f"ls {folder} | wc -l",),
        others=(
            f"find {folder} -type f | wc -l",
            f"ls -1 {folder}/* | wc -l",
        ),
        misses=(f"ls {folder}", "ls | wc -l", "find . | wc -l"),
    )


def _files_ending(d: Draw) -> Draft:
    folder = d.folder()
    ending, other = d.rng.sample(["txt", "log", "csv", "md"], 2)
    count = d.number(2, 6)
    d.crowd(count, folder=folder, ending=ending)
    d.crowd(d.number(1, 3), folder=folder, ending=other)
    d.crowd(1, ending=other)
    return Draft(
        slots={"folder": folder, "ending": ending},
        check=Printed(accept=(str(count),)),
        commands=(f"ls {folder}/*.{ending} | wc -l",),
        others=(
            f'find {folder} -name "*.{ending}" | wc -l',
            f"ls {folder} | grep {ending} | wc -l",
            f"ls {folder} | grep -c .{ending}",
        ),
        misses=(f"ls {folder}/*.{ending}", f"ls {folder} | wc -l"),
    )


def _files_hard(d: Draw) -> Draft:
    folder, other = d.folder(), d.folder()
    count, wrong = d.rng.sample(range(4, 13), 2)
    d.crowd(count, folder=folder)
    d.crowd(wrong, folder=other)
    note = d.note("folder", folder)
    return Draft(
        slots={"note": note},
        check=StatedNumber(answer=count),
        commands=(f"cat {note}", f"ls {folder} | wc -l"),
        answer=str(count),
        misses=(f"ls {folder} | wc -l", f"ls {folder}"),
    )


FAMILIES = (
    Family(
        name="count-lines",
        easy=Level(train=_LINES, heldout=_LINES_HELDOUT, build=_lines),
        medium=Level(train=_LINES, heldout=_LINES_HELDOUT, build=lambda d: _lines(d, deep=True)),
        hard=noted(
            "file",
            _lines_hard,
            train=(
                "Say how many lines that file has.",
                "Count its lines and say the number.",
                "Tell me the number of lines it has.",
                "What is the line count of that file? Say it.",
                "How many lines does that file have? Say the number.",
            ),
            heldout=(
                "Then say the number of lines in that file.",
                "Say how many lines there are in it.",
            ),
        ),
    ),
    Family(
        name="count-words",
        easy=Level(train=_WORDS, heldout=_WORDS_HELDOUT, build=_words),
        medium=Level(train=_WORDS, heldout=_WORDS_HELDOUT, build=lambda d: _words(d, deep=True)),
        hard=noted(
            "file",
            _words_hard,
            train=(
                "Say how many words that file has.",
                "Count its words and say the number.",
                "Tell me the number of words it has.",
                "What is the word count of that file? Say it.",
                "How many words does that file have? Say the number.",
            ),
            heldout=(
                "Then say the number of words in that file.",
                "Say how many words there are in it.",
            ),
        ),
    ),
    Family(
        name="count-matches",
        easy=Level(train=_MATCHES, heldout=_MATCHES_HELDOUT, build=_matches),
        medium=Level(train=_MATCHES, heldout=_MATCHES_HELDOUT, build=lambda d: _matches(d, deep=True)),
        hard=noted(
            "word",
            _matches_hard,
            train=(
                "Say how many lines of {file} contain it.",
                "Count the lines in {file} with it and say the number.",
                "How many lines of {file} have that word? Say the number.",
                "In {file}, count the lines with that word. Say the count.",
                "Tell me how many lines in {file} have that word.",
            ),
            heldout=(
                "Then say the number of lines in {file} that contain that word.",
                "Say on how many lines of {file} that word is.",
            ),
        ),
    ),
    Family(
        name="count-files",
        easy=Level(
            train=(
                "How many files are in the folder {folder}?",
                "Count the files in the folder {folder}.",
                "Print the number of files in the folder {folder}.",
                "Show how many files the folder {folder} has.",
                "In the folder {folder}, count all the files.",
                "Tell me the number of files that the folder {folder} holds.",
                "Give me the number of files inside {folder}.",
                "Say how many files are inside the folder {folder}.",
                "What is the file count of the folder {folder}?",
                "The folder {folder} holds some files. How many?",
                "Show me the number of files that are in {folder}.",
            ),
            heldout=(
                "What is the number of files in the folder {folder}?",
                "Tell me how many files there are in the folder {folder}.",
                "In the folder {folder}, how many files are there?",
            ),
            build=_files,
        ),
        medium=Level(
            train=(
                "How many .{ending} files are in the folder {folder}?",
                "Count the .{ending} files in the folder {folder}.",
                "Print the number of .{ending} files in the folder {folder}.",
                "Show how many .{ending} files the folder {folder} has.",
                "In the folder {folder}, count all files that end in .{ending}.",
                "Tell me the number of .{ending} files that {folder} holds.",
                "Give me the number of .{ending} files inside {folder}.",
                "How many files in {folder} end in .{ending}?",
                "Say how many .{ending} files are inside the folder {folder}.",
                "Count those files in {folder} that end in .{ending}.",
                "The folder {folder} holds some .{ending} files. How many?",
            ),
            heldout=(
                "What is the number of .{ending} files in the folder {folder}?",
                "Tell me how many .{ending} files there are in the folder {folder}.",
                "In the folder {folder}, how many .{ending} files are there?",
            ),
            build=_files_ending,
        ),
        hard=noted(
            "folder",
            _files_hard,
            train=(
                "Say how many files that folder has.",
                "Count its files and say the number.",
                "Tell me the number of files it has.",
                "How many files does that folder hold? Say the number.",
                "What is the file count of that folder? Say it.",
            ),
            heldout=(
                "Then say the number of files in that folder.",
                "Say how many files there are in it.",
            ),
        ),
    ),
)
"""The families of this craft."""
