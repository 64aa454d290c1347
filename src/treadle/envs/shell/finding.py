"""Finding files: by name, by ending, by size."""

from __future__ import annotations

from treadle.envs.shell.checks import Printed, PrintedPaths, StatedNumber, StatedWord
from treadle.envs.shell.family import Draft, Draw, Family, Level, noted


def _find_name(d: Draw) -> Draft:
    folders = [d.folder() for _ in range(3)]
    name = d.file()
    path = d.put(f"{folders[0]}/{name}", d.phrases(2))
    for folder in folders:
        d.crowd(2, folder=folder)
    return Draft(
        slots={"file": name},
        check=PrintedPaths(accept=(frozenset([path]),)),
        commands=(f"find . -name {name}",),
        others=(
            f"find . -type f -name {name}",
            f"find /work -name {name}",
            f"find * -name {name}",
            f"ls */{name}",
            f"ls -l */{name}",
            f"find . | grep {name}",
        ),
        misses=("find .", "ls", f"find . -name {folders[0]}", f"echo {name}"),
    )


def _find_ending(d: Draw) -> Draft:
    folders = [d.folder() for _ in range(2)]
    ending, other = d.rng.sample(["txt", "log", "csv", "md"], 2)
    paths = [path for folder in folders for path in d.crowd(d.number(1, 2), folder=folder, ending=ending)]
    for folder in folders:
        d.crowd(1, folder=folder, ending=other)
    return Draft(
        slots={"ending": ending},
        check=PrintedPaths(accept=(frozenset(paths),)),
        commands=(f'find . -name "*.{ending}"',),
        others=(
            f'find . -type f -name "*.{ending}"',
            f"ls */*.{ending}",
            f"ls -1 */*.{ending} | sort -r",
            f'find /work -name "*.{ending}"',
        ),
        misses=("find .", "find . -type f", f'find . -name "*.{other}"'),
    )


def _find_name_hard(d: Draw) -> Draft:
    folders = [d.folder() for _ in range(4)]
    name = d.file()
    d.put(f"{folders[0]}/{name}", d.phrases(2))
    for folder in folders[1:]:
        d.crowd(1, folder=folder)
    note = d.note("file", name)
    return Draft(
        slots={"note": note},
        check=StatedWord(answer=folders[0], rivals=frozenset(folders)),
        commands=(f"cat {note}", f"find . -name {name}"),
        answer=folders[0],
        misses=(f"find . -name {name}", "find ."),
    )


def _sized(d: Draw, *, folder: str = "") -> list[str]:
    """Files of clearly different sizes, smallest first."""
    prefix = f"{folder}/" if folder else ""
    sizes = [2, 5, 9, 14]
    paths = [prefix + d.file() for _ in sizes]
    for path, size in d.rng.sample(list(zip(paths, sizes, strict=True)), len(sizes)):
        d.put(path, d.phrases(size))
    return paths


def _named(d: Draw, path: str) -> Printed:
    """One file, with or without its folder, alone or after its size in bytes."""
    names = (path, f"./{path}", path.rpartition("/")[2])
    return Printed(accept=tuple(size + name for size in ("", f"{len(d.files[path])} ") for name in names))


def _largest(d: Draw) -> Draft:
    paths = _sized(d)
    return Draft(
        slots={},
        check=_named(d, paths[-1]),
        commands=("ls -S | head -n 1",),
        others=(
            "ls -S * | head -1",
            "ls -Sr | tail -n 1",
            "wc -c * | sort -n | tail -n 2 | head -n 1",
            "du -b * | sort -n | tail -n 1",
            """find . -type f -printf '%s %p\\n' | sort -n | tail -n 1""",
        ),
        misses=("ls -S", "ls -S | tail -n 1", f"cat {paths[-1]}"),
    )


def _smallest(d: Draw) -> Draft:
    folder = d.folder()
    paths = _sized(d, folder=folder)
    d.crowd(2)
    path = paths[0]
    return Draft(
        slots={"folder": folder},
        check=_named(d, path),
        commands=(f"ls -S {folder} | tail -n 1",),
        others=(
            f"ls -Sr {folder} | head -n 1",
            f"ls -S {folder}/* | tail -n 1",
            f"wc -c {folder}/* | sort -n | head -n 1",
            f"cd {folder} && ls -S | tail -n 1",
            f"stat -c '%s %n' {folder}/* | sort -n | head -n 1",
        ),
        misses=(f"ls -S {folder}", f"ls -S {folder} | head -n 1"),
    )


def _largest_hard(d: Draw) -> Draft:
    path = _sized(d)[-1]
    first, second = d.rng.sample(range(11, 99), 2)
    d.put(path, [str(first), *d.phrases(20)])
    for other in d.files.keys() - {path}:
        d.files[other] = f"{second}\n".encode() + d.files[other]
    return Draft(
        slots={},
        check=StatedNumber(answer=first),
        commands=("ls -S | head -n 1", f"head -n 1 {path}"),
        answer=str(first),
        misses=(f"head -n 1 {path}", "head -n 1 *"),
    )


FAMILIES = (
    Family(
        name="find-name",
        easy=Level(
            train=(
                "Find the file named {file} and print its path.",
                "Where is the file named {file}? Print its path.",
                "Print the path to the file that is named {file}.",
                "In which folder is the file named {file}? Print its path.",
                "Search all folders for {file} and show its path.",
                "Tell me the path of {file}.",
                "What is the path of the file {file}?",
                "Give me the path of the file called {file}.",
                "The file {file} is in some folder. Print its path.",
                "Locate {file} and print the path.",
                "In some folder there is a file {file}. Find its path.",
                "Show me the path to {file}.",
            ),
            heldout=(
                "Give the path of the file named {file}.",
                "Look for a file named {file} and print its path.",
                "Which path does the file named {file} have?",
            ),
            build=_find_name,
        ),
        medium=Level(
            train=(
                "Find all files that end in .{ending} and print their paths.",
                "Where are the files that end in .{ending}? Print their paths.",
                "Print the path to each file that ends in .{ending}.",
                "Show the paths of all files whose names end in .{ending}.",
                "Search all folders for .{ending} files and show their paths.",
                "Tell me the paths of all .{ending} files.",
                "What are the paths of the .{ending} files?",
                "Give me the path of every .{ending} file.",
                "There are .{ending} files in some folders. Print their paths.",
                "Locate every file that ends in .{ending} and print the paths.",
                "In all folders, find the .{ending} files and print each path.",
                "List the paths of all files with the ending .{ending}.",
            ),
            heldout=(
                "Give the paths of all files that end in .{ending}.",
                "Look for files that end in .{ending} and print their paths.",
                "Which paths do the files that end in .{ending} have?",
            ),
            build=_find_ending,
        ),
        hard=noted(
            "file",
            _find_name_hard,
            train=(
                "Find that file and say which folder it is in.",
                "Say the folder where that file is.",
                "Which folder is that file in? Say it.",
                "Search for that file and say its folder.",
                "Tell me in what folder you find that file.",
                "Look for that file and say the name of its folder.",
            ),
            heldout=(
                "Then find out and say in which folder that file is.",
                "Say which of the folders that file is in.",
            ),
        ),
    ),
    Family(
        name="largest-file",
        easy=Level(
            train=(
                "Which file is the largest?",
                "Print the name of the largest file.",
                "Find the largest file and print its name.",
                "Show the name of the largest file here.",
                "Tell me which file here is the biggest.",
                "Which of the files is the biggest?",
                "Give me the name of the biggest file.",
                "Of all files here, print the name of the largest.",
                "What is the biggest file here called?",
                "Say which file is larger than all others.",
                "One file is the largest. Print its name.",
                "Sort the files by size and print the name of the largest.",
            ),
            heldout=(
                "Give the name of the file that is the largest.",
                "What is the name of the largest file?",
                "Here, what file is the largest one?",
            ),
            build=_largest,
        ),
        medium=Level(
            train=(
                "Which file in the folder {folder} is the smallest?",
                "Print the name of the smallest file in the folder {folder}.",
                "Find the smallest file in the folder {folder} and print its name.",
                "Show the name of the smallest file in {folder}.",
                "In the folder {folder}, which file is smallest?",
                "Tell me which file in {folder} is the smallest.",
                "Give me the name of the smallest file in {folder}.",
                "Of the files in {folder}, print the name of the smallest.",
                "What is the smallest file in {folder} called?",
                "Which of the files in the folder {folder} is smaller than the others?",
                "One file in {folder} is the smallest. Print its name.",
                "Sort the files in {folder} by size and print the smallest one.",
            ),
            heldout=(
                "Give the name of the file in the folder {folder} that is the smallest.",
                "What is the name of the smallest file in the folder {folder}?",
                "In the folder {folder}, what file is the smallest one?",
            ),
            build=_smallest,
        ),
        hard=Level(
            train=(
                "Find the largest file. Say the number on its first line.",
                "Which file is the largest? Say the number on its first line.",
                "Look at the largest file and say the number on its first line.",
                "The largest file begins with a number. Say that number.",
                "Open the biggest file and tell me the number on its first line.",
                "What number is on the first line of the largest file? Say it.",
                "Tell me which number the biggest file begins with.",
                "Of all files, take the largest and say the number it begins with.",
                "Look for the biggest file. Its first line is a number: say it.",
                "One file is the largest. Read its first line and say the number.",
            ),
            heldout=(
                "Find out which file is the largest, then say the number on the first line of it.",
                "Say which number stands on the first line of the largest file.",
                "Look up which file is the largest, and say the number that its first line has.",
            ),
            build=_largest_hard,
        ),
    ),
)
"""The families of this craft."""
