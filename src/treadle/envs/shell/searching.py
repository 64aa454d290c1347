"""Finding lines by a word, and files by a word that they contain."""

from __future__ import annotations

from treadle.envs.shell.checks import Printed, StatedNumber
from treadle.envs.shell.family import Draft, Draw, Family, Level, noted


def _numbered(lines: list[str], chosen: list[str]) -> str:
    """The chosen lines as `grep -n` prints them."""
    return "\n".join(f"{number}:{line}" for number, line in enumerate(lines, 1) if line in chosen)


def _find_lines(d: Draw, *, without: bool = False) -> Draft:
    word = d.word()
    inside = [f"{word} {line}" for line in d.phrases(d.number(1, 3), avoid=[word])]
    lines = inside + d.phrases(d.number(4, 6), avoid=[word])
    d.rng.shuffle(lines)
    path = d.put(d.file(), lines)
    d.crowd(3, avoid=[word])
    chosen = [line for line in lines if (line in inside) != without]
    right, wrong = (f"grep -v {word} {path}", f"grep {word} {path}")
    return Draft(
        slots={"file": path, "word": word},
        check=Printed(accept=("\n".join(chosen), _numbered(lines, chosen))),
        commands=(right if without else wrong,),
        others=(
            (right if without else wrong).replace("grep ", "grep -n "),
            (right if without else wrong).replace("grep ", "grep -w "),
            f"cat {path} | grep {'-v ' if without else ''}{word}",
        ),
        misses=(wrong if without else right, f"cat {path}", f"grep -c {word} {path}"),
    )


def _find_lines_hard(d: Draw) -> Draft:
    words = d.words(7)
    counts = d.rng.sample(range(11, 99), len(words))
    rows = [f"{word} {count}" for word, count in zip(words, counts, strict=True)]
    path = d.put(d.file(), rows)
    d.crowd(2, avoid=words)
    note = d.note("word", words[3])
    return Draft(
        slots={"note": note, "file": path},
        check=StatedNumber(answer=counts[3]),
        commands=(f"cat {note}", f"grep {words[3]} {path}"),
        answer=str(counts[3]),
        misses=(f"grep {words[3]} {path}", f"cat {path}"),
    )


def _hide(d: Draw, word: str, *, folder: str = "", count: int = 4) -> tuple[str, str, list[str]]:
    """Put files of which the first has the word on one line: that file, the line, and the other files."""
    first, *others = d.crowd(count, avoid=[word], folder=folder)
    before = d.phrases(d.number(2, 8), avoid=[word])
    line = f"{word} {d.phrases(1, avoid=[word])[0]}"
    before.insert(d.number(0, len(before)), line)
    return d.put(first, before), line, others


def _which_file(d: Draw, *, deep: bool = False) -> Draft:
    word = d.word()
    folder = d.folder() if deep else ""
    path, line, _ = _hide(d, word, folder=folder)
    if deep:
        d.crowd(2, avoid=[word])
    forms = {path, path.removeprefix(f"{folder}/")}
    number = d.files[path].decode().splitlines().index(line) + 1
    accept = [form + end for form in forms | {f"./{path}"} for end in ("", f":{line}", f":{number}:{line}")]
    return Draft(
        slots={"word": word, "folder": folder},
        check=Printed(accept=tuple(sorted(accept))),
        commands=(f"grep -rl {word} {folder}" if deep else f"grep -l {word} *",),
        others=(
            f"grep -rl {word} {folder}",
            f"grep -r {word} {folder or '.'}",
            f"grep -l {word} {folder or '.'}/*",
            f"grep -n {word} {folder or '.'}/*",
            f"grep -rlw {word} .",
            f"cd ./{folder} && grep -l {word} *",
        ),
        misses=(f"grep -rL {word} .", "ls", f"grep -h {word} {folder or '.'}/*", f"find . -name {word}"),
    )


def _which_file_hard(d: Draw) -> Draft:
    word = d.word()
    path, _, others = _hide(d, word)
    lines = d.files[path].count(b"\n")
    for other in others:
        while d.files[other].count(b"\n") == lines:
            d.put(other, d.phrases(d.number(2, 9), avoid=[word]))
    return Draft(
        slots={"word": word},
        check=StatedNumber(answer=lines),
        commands=(f"grep -l {word} *", f"wc -l < {path}"),
        answer=str(lines),
        misses=(f"wc -l < {path}", "wc -l *"),
    )


FAMILIES = (
    Family(
        name="find-lines",
        easy=Level(
            train=(
                "Print the lines of {file} that contain the word {word}.",
                "Show all lines in {file} with the word {word}.",
                "Which lines of {file} contain the word {word}?",
                "Find the lines with the word {word} in {file}.",
                "From {file}, print each line with the word {word}.",
                "Tell me which lines in {file} have the word {word}.",
                "Give me all lines of {file} that have {word} in them.",
                "Search {file} for the word {word} and print the matching lines.",
                "What lines in {file} contain {word}?",
                "In the file {file}, look for lines with {word}.",
                "I want to see only the lines of {file} with {word}.",
                "Print every line that has the word {word} from {file}.",
            ),
            heldout=(
                "In {file}, find every line that contains the word {word}.",
                "Show me the lines of {file} with the word {word} in them.",
                "Look through {file} and show the lines that contain {word}.",
            ),
            build=_find_lines,
        ),
        medium=Level(
            train=(
                "Print the lines of {file} that do not contain the word {word}.",
                "Show all lines in {file} without the word {word}.",
                "Which lines of {file} do not contain the word {word}?",
                "Find the lines without the word {word} in {file}.",
                "From {file}, print each line without the word {word}.",
                "Tell me which lines in {file} do not have the word {word}.",
                "Give me all lines of {file} that have no {word} in them.",
                "Print {file}, but leave out the lines with {word}.",
                "What lines in {file} do not contain {word}?",
                "In the file {file}, look for lines without {word}.",
                "I want to see only the lines of {file} without {word}.",
                "Show {file} without the lines that contain the word {word}.",
            ),
            heldout=(
                "In {file}, find every line that does not contain the word {word}.",
                "Show me the lines of {file} without the word {word} in them.",
                "Look through {file} and show the lines that do not contain {word}.",
            ),
            build=lambda d: _find_lines(d, without=True),
        ),
        hard=noted(
            "word",
            _find_lines_hard,
            train=(
                "Say the number next to that word in {file}.",
                "Find it in {file} and say the number beside it.",
                "In {file}, which number is beside that word? Say it.",
                "Look that word up in {file} and say its number.",
                "Tell me the number that {file} gives for that word.",
                "Search {file} for that word and say the number on its line.",
            ),
            heldout=(
                "Then say which number {file} has next to that word.",
                "Say what number stands beside that word in {file}.",
            ),
        ),
    ),
    Family(
        name="which-file",
        easy=Level(
            train=(
                "Which file contains the word {word}?",
                "Find the file that contains the word {word}.",
                "Print the name of the file with the word {word}.",
                "Show which file has the word {word}.",
                "Search all files for the word {word}. Which file has it?",
                "In which file is the word {word}?",
                "Tell me which file has {word} in it.",
                "Give me the name of the file with {word} in it.",
                "Look for the word {word} and print the name of its file.",
                "What is the name of the file that contains {word}?",
                "Some file here has the word {word}. Print its name.",
                "Where is the word {word}? Print the file name.",
            ),
            heldout=(
                "One file contains the word {word}. Which one?",
                "Give the name of the file that has the word {word}.",
                "Say the name of the one file that contains {word}.",
            ),
            build=_which_file,
        ),
        medium=Level(
            train=(
                "Which file in the folder {folder} contains the word {word}?",
                "Find the file in the folder {folder} that contains the word {word}.",
                "Print the name of the file in the folder {folder} with the word {word}.",
                "Show which file in the folder {folder} has the word {word}.",
                "In the folder {folder}, which file has the word {word}?",
                "In which file of the folder {folder} is the word {word}?",
                "Tell me which file in {folder} has {word} in it.",
                "Search the folder {folder} for the word {word} and print the file name.",
                "From the folder {folder}, give me the name of the file with {word}.",
                "What is the name of the file in {folder} that contains {word}?",
                "Some file in {folder} has the word {word}. Print its name.",
                "Look in {folder} for the file that contains {word}.",
            ),
            heldout=(
                "One file in the folder {folder} contains the word {word}. Which one?",
                "Give the name of the file that has the word {word} in the folder {folder}.",
                "Say the name of the one file in {folder} that contains {word}.",
            ),
            build=lambda d: _which_file(d, deep=True),
        ),
        hard=Level(
            train=(
                "Find the file that contains the word {word}. Say how many lines that file has.",
                "Which file contains the word {word}? Count its lines and say the number.",
                "One file has the word {word}. Find it and say how many lines that file has.",
                "Find the file with the word {word}, count its lines and say the number.",
                "In which file is the word {word}? Say how many lines it has.",
                "Search all files for {word}. Say the line count of the file that has it.",
                "Tell me how many lines the file with the word {word} has.",
                "How many lines are in the file that contains {word}? Find it and say the number.",
                "Look for the word {word}. Count the lines of the file that has it and say the count.",
                "Some file has {word} in it. Tell me its number of lines.",
            ),
            heldout=(
                "Look for the file that contains the word {word}. Then say the number of lines in that file.",
                "A single file has the word {word}. Say how many lines there are in it.",
                "Find out which file has {word}, then say the number of lines in it.",
            ),
            build=_which_file_hard,
        ),
    ),
)
"""The families of this craft."""
