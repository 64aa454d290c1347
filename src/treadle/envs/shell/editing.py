"""Changing lines of a file in place."""

from __future__ import annotations

from treadle.envs.shell.checks import StatedWord
from treadle.envs.shell.family import Draft, Draw, Family, Level, both, exactly, noted
from treadle.envs.shell.names import WORDS

_REPLACE = (
    "Replace {old} with {new} in {file}.",
    "In {file}, replace the word {old} with {new}.",
    "Change the word {old} to {new} in {file}.",
    "Replace every {old} in {file} with {new}.",
)
_REPLACE_HELDOUT = (
    "In the file {file}, change every {old} to {new}.",
    "The word {old} in {file} should be {new}. Replace it.",
)


def _with_word(d: Draw, word: str, *, doubled: bool = False) -> list[str]:
    """Shuffled lines of which some contain the word, once or, if doubled, twice."""
    plain = d.phrases(7, avoid=[word])
    inside = d.number(2, 3)
    lines = [f"{word} {line} {word}" if doubled else f"{word} {line}" for line in plain[:inside]] + plain[inside:]
    d.rng.shuffle(lines)
    return lines


def _replace(d: Draw, *, deep: bool = False) -> Draft:
    old, new = d.words(2)
    path = d.put(f"{d.folder()}/{d.file()}" if deep else d.file(), lines := _with_word(d, old, doubled=deep))
    d.crowd(3)
    return Draft(
        slots={"old": old, "new": new, "file": path},
        check=d.left({path: exactly(*(line.replace(old, new) for line in lines))}),
        commands=(f"sed -i s/{old}/{new}/g {path}",),
        misses=(f"sed s/{old}/{new}/g {path}", f"sed -i s/{new}/{old}/g {path}", f"echo {new} > {path}"),
    )


def _replace_hard(d: Draw) -> Draft:
    old, new = d.words(2)
    paths = [d.put(d.file(), _with_word(d, old)) for _ in range(4)]
    path, *others = paths
    lines = d.files[path].decode().splitlines()
    note = d.note("file", path)
    return Draft(
        slots={"note": note, "old": old, "new": new},
        check=both(
            StatedWord(answer=path, rivals=frozenset(others)),
            d.left({path: exactly(*(line.replace(old, new) for line in lines))}),
        ),
        commands=(f"cat {note}", f"sed -i s/{old}/{new}/g {path}"),
        answer=path,
        misses=(f"sed -i s/{old}/{new}/g {path}", f"sed -i s/{old}/{new}/g *"),
    )


def _drop_word(d: Draw) -> Draft:
    word = d.word()
    path = d.put(d.file(), lines := _with_word(d, word))
    d.crowd(3)
    return Draft(
        slots={"word": word, "file": path},
        check=d.left({path: exactly(*(line for line in lines if word not in line))}),
        commands=(f"sed -i /{word}/d {path}",),
        misses=(f"sed /{word}/d {path}", f"sed -i s/{word}//g {path}", f"rm {path}", f"grep -v {word} {path}"),
    )


def _drop_number(d: Draw) -> Draft:
    path = d.put(d.file(), lines := d.phrases(d.number(5, 8)))
    d.crowd(3)
    which = d.number(2, len(lines) - 1)
    return Draft(
        slots={"n": str(which), "file": path},
        check=d.left({path: exactly(*(line for n, line in enumerate(lines, 1) if n != which))}),
        commands=(f"sed -i {which}d {path}",),
        misses=(f"sed {which}d {path}", f"sed -i {which - 1}d {path}", f"rm {path}"),
    )


def _drop_hard(d: Draw) -> Draft:
    word = d.word()
    path = d.put(d.file(), lines := _with_word(d, word))
    d.crowd(2)
    note = d.note("word", word)
    return Draft(
        slots={"note": note, "file": path},
        check=both(
            StatedWord(answer=word, rivals=frozenset(WORDS)),
            d.left({path: exactly(*(line for line in lines if word not in line))}),
        ),
        commands=(f"cat {note}", f"sed -i /{word}/d {path}"),
        answer=word,
        misses=(f"sed -i /{word}/d {path}", f"sed -i /{word}/d *", f"rm {path}"),
    )


FAMILIES = (
    Family(
        name="replace-word",
        easy=Level(train=_REPLACE, heldout=_REPLACE_HELDOUT, build=_replace),
        medium=Level(train=_REPLACE, heldout=_REPLACE_HELDOUT, build=lambda d: _replace(d, deep=True)),
        hard=noted(
            "file",
            _replace_hard,
            train=(
                "Replace {old} with {new} in that file and say which file it was.",
                "Change the word {old} to {new} in it. Say its name.",
            ),
            heldout=("Then change every {old} to {new} in that file, and say the name of the file you changed.",),
        ),
    ),
    Family(
        name="delete-lines",
        easy=Level(
            train=(
                "Delete the lines of {file} that contain the word {word}.",
                "Remove all lines with the word {word} from {file}.",
                "In {file}, delete the lines with the word {word}.",
                "Delete from {file} every line that contains the word {word}.",
            ),
            heldout=(
                "Remove from {file} the lines that contain the word {word}.",
                "The file {file} should lose every line with the word {word}. Delete them.",
            ),
            build=_drop_word,
        ),
        medium=Level(
            train=(
                "Delete line {n} of {file}.",
                "Remove line {n} from {file}.",
                "In {file}, delete line {n}.",
                "Delete only line {n} in the file {file}.",
            ),
            heldout=("From {file}, remove line {n}.", "The file {file} should lose line {n}. Delete it."),
            build=_drop_number,
        ),
        hard=noted(
            "word",
            _drop_hard,
            train=(
                "Delete the lines of {file} that contain it and say the word.",
                "Remove all lines with that word from {file} and say the word.",
            ),
            heldout=("Then delete every line of {file} that contains that word, and say the word.",),
        ),
    ),
)
"""The families of this craft."""
