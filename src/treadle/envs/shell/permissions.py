"""Who may execute a file."""

from __future__ import annotations

from treadle.envs.shell.checks import Runnable, StatedWord
from treadle.envs.shell.family import Draft, Draw, Family, Level, both, noted


def _script(d: Draw) -> str:
    return d.put(d.file("sh"), [f"echo {d.word()}"])


def _runnable(d: Draw) -> Draft:
    path, other = _script(d), _script(d)
    d.crowd(2)
    return Draft(
        slots={"file": path},
        check=both(Runnable(paths=frozenset([path])), d.left({})),
        commands=(f"chmod +x {path}",),
        others=(
            f"chmod u+x {path}",
            f"chmod 755 ./{path}",
        ),
        misses=(f"chmod -x {path}", f"sh {path}", f"chmod +x {other}", "chmod +x *"),
    )


def _runnable_all(d: Draw) -> Draft:
    paths = [_script(d) for _ in range(d.number(2, 3))]
    d.crowd(2)
    return Draft(
        slots={},
        check=both(Runnable(paths=frozenset(paths)), d.left({})),
        commands=("chmod +x *.sh",),
        others=(
            'find . -name "*.sh" -exec chmod +x {} +',
            "chmod a+x *.sh",
        ),
        misses=(f"chmod +x {paths[0]}", "chmod +x *", "ls *.sh"),
    )


def _runnable_hard(d: Draw) -> Draft:
    paths = [_script(d) for _ in range(4)]
    path, *others = paths
    note = d.note("file", path)
    return Draft(
        slots={"note": note},
        check=both(StatedWord(answer=path, rivals=frozenset(others)), Runnable(paths=frozenset([path])), d.left({})),
        commands=(f"cat {note}", f"chmod +x {path}"),
        answer=path,
        misses=(f"chmod +x {path}", "chmod +x *.sh", f"chmod +x {others[0]}"),
    )


FAMILIES = (
    Family(
        name="make-executable",
        easy=Level(
            train=(
                "Make {file} executable.",
                "Make the file {file} executable.",
                "Change {file} so that it is executable.",
                "Give {file} the permission to be executed.",
                "I want to run {file}. Make it executable.",
                "Let {file} be executable.",
                "{file} needs the permission to run. Give it that.",
                "Add the execute permission to {file}.",
                "It should be possible to execute {file}. Make it so.",
                "The script {file} should be allowed to run. Do it.",
                "Of the files here, make only {file} executable.",
                "Mark {file} as executable.",
                "To the file {file}, give the execute permission.",
            ),
            heldout=(
                "The file {file} should be executable. Make it so.",
                "Set {file} to be executable.",
                "Allow the file {file} to be executed.",
            ),
            build=_runnable,
        ),
        medium=Level(
            train=(
                "Make all .sh files executable.",
                "Make every file that ends in .sh executable.",
                "Change all .sh files so that they are executable.",
                "Give all .sh files the permission to be executed.",
                "I want to run the .sh files. Make them all executable.",
                "Let all .sh files be executable.",
                "The .sh files need the permission to run. Give it to all.",
                "Add the execute permission to every .sh file.",
                "It should be possible to execute all .sh files. Make it so.",
                "All scripts that end in .sh should be allowed to run. Do it.",
                "Of the files here, make those that end in .sh executable.",
                "Mark every .sh file as executable.",
                "To each .sh file, give the execute permission.",
            ),
            heldout=(
                "Each file that ends in .sh should be executable. Make it so.",
                "Set all .sh files to be executable.",
                "Allow all files that end in .sh to be executed.",
            ),
            build=_runnable_all,
        ),
        hard=noted(
            "file",
            _runnable_hard,
            train=(
                "Make that file executable and say which file it was.",
                "Make that file executable. Say its name.",
                "Add the execute permission to that file and say its name.",
                "That file should be allowed to run. Do it and say its name.",
                "I want to run that file. Make it executable and say its name.",
                "Mark that file as executable. Tell me its name.",
            ),
            heldout=(
                "Then make that file executable, and say the name of the file.",
                "That file should be executable: make it so, and say its name.",
            ),
        ),
    ),
)
"""The families of this craft."""
