"""Copying, moving and deleting files."""

from __future__ import annotations

from treadle.envs.shell.checks import OneOf, StatedWord
from treadle.envs.shell.family import Draft, Draw, Family, Level, both, noted


def _same(d: Draw, path: str) -> OneOf:
    """The content that this file has now."""
    return OneOf(texts=(d.files[path],))


def _copy(d: Draw) -> Draft:
    old, *_ = d.crowd(4)
    new = d.file()
    return Draft(
        slots={"old": old, "new": new},
        check=d.left({new: _same(d, old)}),
        commands=(f"cp {old} {new}",),
        others=(f"cat {old} > {new}",),
        misses=(f"mv {old} {new}", f"touch {new}", f"echo {old} > {new}"),
    )


def _copy_into(d: Draw) -> Draft:
    folder = d.folder()
    old, *_ = d.crowd(3)
    d.crowd(1, folder=folder)
    return Draft(
        slots={"old": old, "folder": folder},
        check=d.left({f"{folder}/{old}": _same(d, old)}),
        commands=(f"cp {old} {folder}",),
        others=(f"cp {old} {folder}/{old}",),
        misses=(f"mv {old} {folder}", f"cp * {folder}", f"touch {folder}/{old}"),
    )


def _copy_hard(d: Draw) -> Draft:
    old, *others = d.crowd(4)
    new = d.file()
    note = d.note("file", old)
    return Draft(
        slots={"note": note, "new": new},
        check=both(StatedWord(answer=old, rivals=frozenset(others)), d.left({new: _same(d, old)})),
        commands=(f"cat {note}", f"cp {old} {new}"),
        answer=old,
        misses=(f"cp {old} {new}", f"cp {others[0]} {new}", f"cp {note} {new}"),
    )


def _rename(d: Draw) -> Draft:
    old, *_ = d.crowd(4)
    new = d.file()
    return Draft(
        slots={"old": old, "new": new},
        check=d.left({new: _same(d, old), old: None}),
        commands=(f"mv {old} {new}",),
        others=(f"cp {old} {new} && rm {old}",),
        misses=(f"cp {old} {new}", f"rm {old}", f"touch {new}"),
    )


def _move_into(d: Draw) -> Draft:
    folder = d.folder()
    old, *_ = d.crowd(3)
    d.crowd(1, folder=folder)
    return Draft(
        slots={"old": old, "folder": folder},
        check=d.left({f"{folder}/{old}": _same(d, old), old: None}),
        commands=(f"mv {old} {folder}",),
        others=(f"mv ./{old} {folder}/",),
        misses=(f"cp {old} {folder}", f"mv * {folder}", f"rm {old}"),
    )


def _move_hard(d: Draw) -> Draft:
    folder = d.folder()
    old, *others = d.crowd(4)
    note = d.note("file", old)
    return Draft(
        slots={"note": note, "folder": folder},
        check=both(
            StatedWord(answer=old, rivals=frozenset(others)), d.left({f"{folder}/{old}": _same(d, old), old: None})
        ),
        commands=(f"cat {note}", f"mv {old} {folder}"),
        answer=old,
        misses=(f"mv {old} {folder}", f"mv {others[0]} {folder}", f"cp {old} {folder}"),
    )


def _delete(d: Draw) -> Draft:
    old, *others = d.crowd(5)
    return Draft(
        slots={"file": old},
        check=d.left({old: None}),
        commands=(f"rm {old}",),
        others=(f"rm -f ./{old}",),
        misses=("rm *", f"rm {others[0]}", f"> {old}"),
    )


def _delete_ending(d: Draw) -> Draft:
    ending, other = d.rng.sample(["txt", "log", "csv", "md"], 2)
    gone = d.crowd(d.number(2, 3), ending=ending)
    kept = d.crowd(2, ending=other)
    return Draft(
        slots={"ending": ending},
        check=d.left(dict.fromkeys(gone)),
        commands=(f"rm *.{ending}",),
        others=(f'find . -name "*.{ending}" -delete',),
        misses=("rm *", f"rm {gone[0]}", f"rm {kept[0]}"),
    )


def _delete_hard(d: Draw) -> Draft:
    old, *others = d.crowd(5)
    note = d.note("file", old)
    return Draft(
        slots={"note": note},
        check=both(StatedWord(answer=old, rivals=frozenset(others)), d.left({old: None})),
        commands=(f"cat {note}", f"rm {old}"),
        answer=old,
        misses=(f"rm {old}", f"rm {note}", f"rm {others[0]}", "rm *"),
    )


FAMILIES = (
    Family(
        name="copy-file",
        easy=Level(
            train=(
                "Copy {old} to {new}.",
                "Copy the file {old} to a new file {new}.",
                "Make a copy of {old} named {new}.",
                "Create {new} as a copy of {old}.",
                "Duplicate {old} as {new}.",
                "From {old}, make a copy called {new}.",
                "I need a copy of {old} with the name {new}.",
                "There should be a copy of {old} named {new}. Make it so.",
                "Save a copy of the file {old} as {new}.",
                "Keep {old} and copy it to {new}.",
                "Into a new file {new}, copy the file {old}.",
                "To a new file {new}, copy what is in {old}.",
                "The copy of {old} should be named {new}. Make the copy.",
            ),
            heldout=(
                "The file {new} should be a copy of {old}. Make it.",
                "Make {new}, a copy of the file {old}.",
                "Make a second file {new} with the same content as {old}.",
            ),
            build=_copy,
        ),
        medium=Level(
            train=(
                "Copy {old} into the folder {folder}.",
                "Copy the file {old} to the folder {folder}.",
                "Put a copy of {old} into the folder {folder}.",
                "Make a copy of {old} in the folder {folder}.",
                "To the folder {folder}, add a copy of {old}.",
                "Into {folder}, put a copy of the file {old}.",
                "In the folder {folder}, make a copy of {old}.",
                "Duplicate {old} in the folder {folder}.",
                "I need a copy of {old} in the folder {folder}.",
                "There should be a copy of {old} in {folder}. Make it so.",
                "Keep {old} and copy it into {folder}.",
                "Add a copy of the file {old} to {folder}.",
                "A copy of {old} belongs in the folder {folder}. Make it.",
            ),
            heldout=(
                "Into the folder {folder}, copy the file {old}.",
                "The folder {folder} should have a copy of {old}. Make it.",
                "In the folder {folder} there should also be {old}. Copy it there.",
            ),
            build=_copy_into,
        ),
        hard=noted(
            "file",
            _copy_hard,
            train=(
                "Copy that file to {new} and say which file it was.",
                "Make a copy of that file named {new}. Say its name.",
                "Duplicate that file as {new} and say its name.",
                "To {new}, copy that file. Say which file you copied.",
                "That file should have a copy {new}. Make it and say which file it was.",
                "Save a copy of that file as {new}. Tell me which file it was.",
            ),
            heldout=(
                "Then copy that file to {new}, and say the name of the file you copied.",
                "Make {new} a copy of that file, and say the name of that file.",
            ),
        ),
    ),
    Family(
        name="move-file",
        easy=Level(
            train=(
                "Rename {old} to {new}.",
                "Rename the file {old} to {new}.",
                "Move {old} to {new}.",
                "Give {old} the new name {new}.",
                "Let {old} be called {new} from now on.",
                "The file {old} needs the new name {new}.",
                "Name the file {old} {new} instead.",
                "{old} should be called {new}. Make it so.",
                "From {old} to {new}: rename the file.",
                "Rename {old}; the new name is {new}.",
                "To {new}, move the file {old}.",
                "I want {old} renamed to {new}.",
                "Move the file {old} to the new name {new}.",
            ),
            heldout=(
                "The file {old} should be named {new}. Rename it.",
                "Change the name of {old} to {new}.",
                "Make {new} the new name of the file {old}.",
            ),
            build=_rename,
        ),
        medium=Level(
            train=(
                "Move {old} into the folder {folder}.",
                "Move the file {old} to the folder {folder}.",
                "Put {old} into the folder {folder}; do not keep a copy.",
                "The file {old} belongs in the folder {folder}. Move it.",
                "To the folder {folder}, move {old}.",
                "Into {folder}, put the file {old}; keep no copy here.",
                "{old} should be in the folder {folder}. Move it.",
                "Take {old} and move it to {folder}.",
                "I want {old} moved into the folder {folder}.",
                "Move the file named {old} inside {folder}.",
                "The file {old} should go into {folder}. Do it.",
                "Move {old} from here to the folder {folder}.",
                "The right folder for {old} is {folder}. Move the file.",
            ),
            heldout=(
                "Into the folder {folder}, move the file {old}.",
                "The folder {folder} is the place for {old}. Move it there.",
                "Let the folder {folder} have the file {old}: move it there.",
            ),
            build=_move_into,
        ),
        hard=noted(
            "file",
            _move_hard,
            train=(
                "Move that file into the folder {folder} and say which file it was.",
                "Move that file to the folder {folder}. Say its name.",
                "To the folder {folder}, move that file. Say its name.",
                "That file should be in the folder {folder}. Move it and say its name.",
                "Put that file into {folder}, keep no copy, and say its name.",
                "Take that file and move it to {folder}. Tell me its name.",
            ),
            heldout=(
                "Then move that file into the folder {folder}, and say the name of the file you moved.",
                "That file belongs in the folder {folder}: move it, and say its name.",
            ),
        ),
    ),
    Family(
        name="delete-file",
        easy=Level(
            train=(
                "Delete the file {file}.",
                "Remove {file}.",
                "Delete {file} and nothing else.",
                "Remove the file {file}.",
                "Get rid of {file}.",
                "I do not need {file}; delete it.",
                "The file {file} should be gone. Do it.",
                "Erase the file {file}.",
                "The file {file} should be removed. Make it so.",
                "Of all the files here, delete only {file}.",
                "Throw away the file {file}.",
                "From this folder, remove the file {file}.",
                "{file} is no longer needed. Delete it.",
                "Remove only {file}.",
            ),
            heldout=(
                "Get rid of the file {file}: delete it.",
                "The file {file} is not needed. Remove it.",
                "Make the file {file} go away: remove it.",
            ),
            build=_delete,
        ),
        medium=Level(
            train=(
                "Delete all files that end in .{ending}.",
                "Remove all .{ending} files.",
                "Delete every .{ending} file and nothing else.",
                "Remove the files that end in .{ending}.",
                "Get rid of every file that ends in .{ending}.",
                "I do not need the .{ending} files; delete them all.",
                "All .{ending} files should be gone. Do it.",
                "Erase all .{ending} files.",
                "Every .{ending} file should be removed. Make it so.",
                "Of all the files here, delete only the .{ending} files.",
                "Throw away the files that end in .{ending}.",
                "From this folder, remove every .{ending} file.",
                "The .{ending} files are no longer needed. Delete them.",
            ),
            heldout=(
                "Get rid of all .{ending} files: delete them.",
                "The files that end in .{ending} are not needed. Remove them.",
                "Make all files that end in .{ending} go away: remove them.",
            ),
            build=_delete_ending,
        ),
        hard=noted(
            "file",
            _delete_hard,
            train=(
                "Delete that file and say which file it was.",
                "Remove that file. Say its name.",
                "Get rid of that file and say its name.",
                "That file should be gone. Delete it and say its name.",
                "Erase that file. Tell me which file it was.",
                "That file is no longer needed. Remove it and say its name.",
            ),
            heldout=(
                "Then delete that file, and say the name of the file you deleted.",
                "Make that file go away: remove it, and say its name.",
            ),
        ),
    ),
)
"""The families of this craft."""
