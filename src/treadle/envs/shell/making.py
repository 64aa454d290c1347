"""Writing new files, adding lines, making folders."""

from __future__ import annotations

from treadle.envs.shell.checks import StatedWord
from treadle.envs.shell.family import Draft, Draw, Family, Level, both, exactly, noted
from treadle.envs.shell.names import WORDS


def _write(d: Draw) -> Draft:
    path, words = d.file(), " ".join(d.words(2))
    d.crowd(3)
    return Draft(
        slots={"file": path, "text": words},
        check=d.left({path: exactly(words)}),
        commands=(f"echo {words} > {path}",),
        misses=(f"touch {path}", f"echo {words}", f"echo {path} > {path}"),
    )


def _write_deep(d: Draw) -> Draft:
    folder, name, words = d.folder(make=False), d.file(), " ".join(d.words(2))
    path = f"{folder}/{name}"
    d.crowd(3)
    return Draft(
        slots={"folder": folder, "file": name, "text": words},
        check=d.left({path: exactly(words)}, folders=[folder]),
        commands=(f"mkdir {folder} && echo {words} > {path}",),
        misses=(f"mkdir {folder}", f"echo {words} > {path}", f"echo {words} > {name}"),
    )


def _write_hard(d: Draw) -> Draft:
    path, word = d.file(), d.word()
    d.crowd(2, avoid=[word])
    note = d.note("word", word)
    return Draft(
        slots={"note": note, "file": path},
        check=both(StatedWord(answer=word, rivals=frozenset(WORDS)), d.left({path: exactly(word)})),
        commands=(f"cat {note}", f"echo {word} > {path}"),
        answer=word,
        misses=(f"echo {word} > {path}", f"cp {note} {path}"),
    )


def _append(d: Draw, *, deep: bool = False) -> Draft:
    words = " ".join(d.words(2))
    path = d.put(f"{d.folder()}/{d.file()}" if deep else d.file(), lines := d.phrases(d.number(2, 5)))
    d.crowd(3)
    return Draft(
        slots={"file": path, "text": words},
        check=d.left({path: exactly(*lines, words)}),
        commands=(f"echo {words} >> {path}",),
        misses=(f"echo {words} > {path}", f"echo {words}", f"cat {path}"),
    )


def _append_hard(d: Draw) -> Draft:
    word = d.word()
    path = d.put(d.file(), lines := d.phrases(d.number(2, 5), avoid=[word]))
    d.crowd(2, avoid=[word])
    note = d.note("word", word)
    return Draft(
        slots={"note": note, "file": path},
        check=both(StatedWord(answer=word, rivals=frozenset(WORDS)), d.left({path: exactly(*lines, word)})),
        commands=(f"cat {note}", f"echo {word} >> {path}"),
        answer=word,
        misses=(f"echo {word} >> {path}", f"cat {note} >> {path}"),
    )


def _folder(d: Draw) -> Draft:
    folder = d.folder(make=False)
    d.crowd(3)
    return Draft(
        slots={"folder": folder},
        check=d.left({}, folders=[folder]),
        commands=(f"mkdir {folder}",),
        misses=(f"touch {folder}", f"mkdir {folder} {folder}2", "mkdir folder"),
    )


def _nested(d: Draw) -> Draft:
    outer, inner = d.folder(make=False), d.folder(make=False)
    d.crowd(3)
    return Draft(
        slots={"outer": outer, "inner": inner},
        check=d.left({}, folders=[outer, f"{outer}/{inner}"]),
        commands=(f"mkdir -p {outer}/{inner}",),
        misses=(f"mkdir {outer}", f"mkdir {outer} {inner}", f"mkdir -p {inner}/{outer}"),
    )


def _folder_hard(d: Draw) -> Draft:
    folder, other = d.folder(make=False), d.folder()
    d.crowd(2)
    note = d.note("folder", folder)
    return Draft(
        slots={"note": note},
        check=both(StatedWord(answer=folder, rivals=frozenset([other])), d.left({}, folders=[folder])),
        commands=(f"cat {note}", f"mkdir {folder}"),
        answer=folder,
        misses=(f"mkdir {folder}", f"mkdir {other}"),
    )


FAMILIES = (
    Family(
        name="write-file",
        easy=Level(
            train=(
                "Write the text {text} to a new file {file}.",
                "Create the file {file} with the text {text}.",
                "Make a file {file} that contains the text {text}.",
                "Put the text {text} into a new file {file}.",
            ),
            heldout=(
                "Create a new file {file} and write the text {text} to it.",
                "There should be a file {file} with the text {text}. Make it.",
            ),
            build=_write,
        ),
        medium=Level(
            train=(
                "Make the folder {folder} and in it the file {file} with the text {text}.",
                "Create a folder {folder}, then write the text {text} to {folder}/{file}.",
                "Make a folder {folder} and put the text {text} into {folder}/{file}.",
                "Create the file {folder}/{file} with the text {text}. Make the folder first.",
            ),
            heldout=(
                "Make a new folder {folder} and in it create {file} with the text {text}.",
                "Write the text {text} to {folder}/{file}; the folder {folder} has to be made first.",
            ),
            build=_write_deep,
        ),
        hard=noted(
            "word",
            _write_hard,
            train=(
                "Write that word to a new file {file} and say it.",
                "Create {file} with that word and say the word.",
            ),
            heldout=("Then make a file {file} with just that word, and say the word.",),
        ),
    ),
    Family(
        name="append-line",
        easy=Level(
            train=(
                "Add the line {text} to the end of {file}.",
                "Append the line {text} to {file}.",
                "Put the line {text} at the end of {file}.",
                "Add {text} as the last line of {file}.",
            ),
            heldout=("At the end of {file}, add the line {text}.", "To the file {file}, append the line {text}."),
            build=_append,
        ),
        medium=Level(
            train=(
                "Add the line {text} to the end of {file}.",
                "Append the line {text} to {file}.",
                "Put the line {text} at the end of {file}.",
                "Add {text} as the last line of {file}.",
            ),
            heldout=("At the end of {file}, add the line {text}.", "To the file {file}, append the line {text}."),
            build=lambda d: _append(d, deep=True),
        ),
        hard=noted(
            "word",
            _append_hard,
            train=("Add that word to the end of {file} and say it.", "Append that word to {file} and say the word."),
            heldout=("Then add that word as the last line of {file}, and say the word.",),
        ),
    ),
    Family(
        name="make-folder",
        easy=Level(
            train=(
                "Make a folder named {folder}.",
                "Create the folder {folder}.",
                "Make the new folder {folder}.",
                "Create a new folder with the name {folder}.",
            ),
            heldout=("A folder {folder} is needed. Make it.", "Please create a folder that is named {folder}."),
            build=_folder,
        ),
        medium=Level(
            train=(
                "Make a folder {outer} with a folder {inner} in it.",
                "Create the folder {inner} inside a new folder {outer}.",
                "Make the folder {outer}/{inner}.",
                "Create a new folder {outer} that contains a folder {inner}.",
            ),
            heldout=(
                "A folder {outer} with a folder {inner} in it is needed. Make both.",
                "Please create the folder {outer} and, inside it, the folder {inner}.",
            ),
            build=_nested,
        ),
        hard=noted(
            "folder",
            _folder_hard,
            train=("Make that folder and say its name.", "Create a folder with that name and say the name."),
            heldout=("Then make that new folder, and say what it is named.",),
        ),
    ),
)
"""The families of this craft."""
