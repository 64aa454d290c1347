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
            ),
            heldout=("The file {new} should be a copy of {old}. Make it.", "Make {new}, a copy of the file {old}."),
            build=_copy,
        ),
        medium=Level(
            train=(
                "Copy {old} into the folder {folder}.",
                "Copy the file {old} to the folder {folder}.",
                "Put a copy of {old} into the folder {folder}.",
                "Make a copy of {old} in the folder {folder}.",
            ),
            heldout=(
                "Into the folder {folder}, copy the file {old}.",
                "The folder {folder} should have a copy of {old}. Make it.",
            ),
            build=_copy_into,
        ),
        hard=noted(
            "file",
            _copy_hard,
            train=(
                "Copy that file to {new} and say which file it was.",
                "Make a copy of it named {new}. Say its name.",
            ),
            heldout=("Then copy that file to {new}, and say the name of the file you copied.",),
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
            ),
            heldout=("The file {old} should be named {new}. Rename it.", "Change the name of {old} to {new}."),
            build=_rename,
        ),
        medium=Level(
            train=(
                "Move {old} into the folder {folder}.",
                "Move the file {old} to the folder {folder}.",
                "Put {old} into the folder {folder}; do not keep a copy.",
                "The file {old} belongs in the folder {folder}. Move it.",
            ),
            heldout=(
                "Into the folder {folder}, move the file {old}.",
                "The folder {folder} is the place for {old}. Move it there.",
            ),
            build=_move_into,
        ),
        hard=noted(
            "file",
            _move_hard,
            train=(
                "Move that file into the folder {folder} and say which file it was.",
                "Move it to the folder {folder}. Say its name.",
            ),
            heldout=("Then move that file into the folder {folder}, and say the name of the file you moved.",),
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
            ),
            heldout=("Get rid of the file {file}: delete it.", "The file {file} is not needed. Remove it."),
            build=_delete,
        ),
        medium=Level(
            train=(
                "Delete all files that end in .{ending}.",
                "Remove all .{ending} files.",
                "Delete every .{ending} file and nothing else.",
                "Remove the files that end in .{ending}.",
            ),
            heldout=(
                "Get rid of all .{ending} files: delete them.",
                "The files that end in .{ending} are not needed. Remove them.",
            ),
            build=_delete_ending,
        ),
        hard=noted(
            "file",
            _delete_hard,
            train=("Delete that file and say which file it was.", "Remove it. Say its name."),
            heldout=("Then delete that file, and say the name of the file you deleted.",),
        ),
    ),
)
"""The families of this craft."""
