"""Writing new files, adding lines, making folders."""

from __future__ import annotations

from treadle.envs.shell.checks import StatedWord
from treadle.envs.shell.family import Draft, Draw, Family, Level, both, exactly, noted
from treadle.envs.shell.names import WORDS

_APPEND = (
    "Add the line {text} to the end of {file}.",
    "Append the line {text} to {file}.",
    "Put the line {text} at the end of {file}.",
    "Add {text} as the last line of {file}.",
    "Append {text} as a new line to {file}.",
    "In {file}, add a last line {text}.",
    "Into {file}, write {text} as the new last line.",
    "To {file}, add the line {text} at the end.",
    "The last line of {file} should be {text}. Add it.",
    "Write the line {text} at the end of the file {file}.",
    "Let {file} end with a new line {text}.",
    "Extend {file} by the line {text}.",
    "After the last line of {file}, add the line {text}.",
)
_APPEND_HELDOUT = (
    "At the end of {file}, add the line {text}.",
    "To the file {file}, append the line {text}.",
    "The line {text} should come at the end of {file}. Append it.",
)


def _write(d: Draw) -> Draft:
    path, words = d.file(), " ".join(d.words(2))
    d.crowd(3)
    return Draft(
        slots={"file": path, "text": words},
        check=d.left({path: exactly(words)}),
        commands=(f"echo {words} > {path}",),
        others=(
            f'echo "{words}" > {path}',
            f"printf '{words}' > {path}",
            f"echo {words} | tee {path}",
        ),
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
        others=(f'mkdir -p {folder}; echo "{words}" > {path}',),
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
        others=(
            f"echo {words} | tee -a {path}",
            f"sed -i '$a {words}' {path}",
        ),
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
        others=(f"mkdir -p ./{folder}/",),
        misses=(f"touch {folder}", f"mkdir {folder} {folder}2", "mkdir folder"),
    )


def _nested(d: Draw) -> Draft:
    outer, inner = d.folder(make=False), d.folder(make=False)
    d.crowd(3)
    return Draft(
        slots={"outer": outer, "inner": inner},
        check=d.left({}, folders=[outer, f"{outer}/{inner}"]),
        commands=(f"mkdir -p {outer}/{inner}",),
        others=(
            f"mkdir {outer} {outer}/{inner}",
            f"mkdir {outer} && cd {outer} && mkdir {inner}",
        ),
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
                "Save the text {text} in a new file {file}.",
                "In a new file {file}, write the text {text}.",
                "Into a new file {file}, put the text {text}.",
                "The new file {file} should contain the text {text}. Make it so.",
                "Make {file} with the text {text} in it.",
                "Write {text} into a file named {file}.",
                "I need a new file {file} that says {text}.",
                "Add a new file named {file} with the text {text}.",
                "Store the words {text} in a new file {file}.",
            ),
            heldout=(
                "Create a new file {file} and write the text {text} to it.",
                "There should be a file {file} with the text {text}. Make it.",
                "Write a new file {file} whose text is {text}.",
            ),
            build=_write,
        ),
        medium=Level(
            train=(
                "Make the folder {folder} and in it the file {file} with the text {text}.",
                "Create a folder {folder}, then write the text {text} to {folder}/{file}.",
                "Make a folder {folder} and put the text {text} into {folder}/{file}.",
                "Create the file {folder}/{file} with the text {text}. Make the folder first.",
                "In a new folder {folder}, write the text {text} to {file}.",
                "Into a new folder {folder}, put a file {file} with the text {text}.",
                "Save the text {text} as {file} in a new folder {folder}.",
                "Make the folder {folder}. In it, make {file} with the text {text}.",
                "A new folder {folder} should hold {file} with the text {text}. Make it so.",
                "Create a folder {folder} that has a file {file} with the text {text}.",
                "I need a new folder {folder} with a file {file} that says {text}.",
                "Write {text} into {file} in the folder {folder}. Make the folder first.",
            ),
            heldout=(
                "Make a new folder {folder} and in it create {file} with the text {text}.",
                "Write the text {text} to {folder}/{file}; the folder {folder} has to be made first.",
                "A folder {folder} is needed, and in it {file} with the text {text}. Make both.",
            ),
            build=_write_deep,
        ),
        hard=noted(
            "word",
            _write_hard,
            train=(
                "Write that word to a new file {file} and say it.",
                "Create {file} with that word and say the word.",
                "Save that word in a new file {file} and say the word.",
                "Into a new file {file}, put that word. Say the word too.",
                "Make a new file {file} with only that word in it. Tell me the word.",
                "The new file {file} should hold that word. Make it and say the word.",
            ),
            heldout=(
                "Then make a file {file} with just that word, and say the word.",
                "Put just that word into a file named {file}, and say which word it is.",
            ),
        ),
    ),
    Family(
        name="append-line",
        easy=Level(
            train=_APPEND,
            heldout=_APPEND_HELDOUT,
            build=_append,
        ),
        medium=Level(
            train=_APPEND,
            heldout=_APPEND_HELDOUT,
            build=lambda d: _append(d, deep=True),
        ),
        hard=noted(
            "word",
            _append_hard,
            train=(
                "Add that word to the end of {file} and say it.",
                "Append that word to {file} and say the word.",
                "In {file}, add that word as a new last line. Say the word.",
                "To {file}, append a line with that word. Say the word too.",
                "The last line of {file} should be that word. Add it and say it.",
                "Write that word at the end of {file} and tell me the word.",
            ),
            heldout=(
                "Then add that word as the last line of {file}, and say the word.",
                "Put that word on a new line at the end of {file}, and say the word.",
            ),
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
                "Make the folder {folder} here.",
                "Add a new folder {folder}.",
                "There should be a folder named {folder}. Make it so.",
                "I need a folder called {folder}.",
                "Here, create a folder {folder}.",
                "Create an empty folder named {folder}.",
                "A new folder should be named {folder}. Create it.",
                "Make a directory called {folder}.",
                "Set up a folder with the name {folder}.",
            ),
            heldout=(
                "A folder {folder} is needed. Make it.",
                "Please create a folder that is named {folder}.",
                "Please make a new folder and name it {folder}.",
            ),
            build=_folder,
        ),
        medium=Level(
            train=(
                "Make a folder {outer} with a folder {inner} in it.",
                "Create the folder {inner} inside a new folder {outer}.",
                "Make the folder {outer}/{inner}.",
                "Create a new folder {outer} that contains a folder {inner}.",
                "In a new folder {outer}, make a folder {inner}.",
                "Inside a new folder {outer}, create the folder {inner}.",
                "There should be a folder {inner} in a new folder {outer}. Make it so.",
                "I need a folder {outer} with another folder {inner} inside it.",
                "Add a new folder {outer}, and the folder {inner} in it.",
                "Create the nested folders {outer}/{inner}.",
                "A new folder {outer} should hold a folder {inner}. Create both.",
                "Make a directory {outer} that has a directory {inner} in it.",
                "First make {outer}, then make {inner} inside it.",
            ),
            heldout=(
                "A folder {outer} with a folder {inner} in it is needed. Make both.",
                "Please create the folder {outer} and, inside it, the folder {inner}.",
                "Please make a new folder {outer} and put a new folder {inner} in it.",
            ),
            build=_nested,
        ),
        hard=noted(
            "folder",
            _folder_hard,
            train=(
                "Make that folder and say its name.",
                "Create a folder with that name and say the name.",
                "Add a new folder with that name and say the name.",
                "There should be such a folder. Make it and say its name.",
                "Create that folder here. Tell me its name.",
                "Make a directory with that name. Say the name too.",
            ),
            heldout=(
                "Then make that new folder, and say what it is named.",
                "Set up a new folder that has that name, and say the name.",
            ),
        ),
    ),
)
"""The families of this craft."""
