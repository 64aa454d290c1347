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
    "Swap the word {old} for {new} in {file}.",
    "Change all {old} to {new} in the file {file}.",
    "Inside {file}, put {new} in place of {old}.",
    "Each {old} in {file} should become {new}. Do it.",
    "Where {file} says {old}, it should say {new}. Make it so.",
    "Edit {file}: change {old} into {new}.",
    "Substitute {new} for {old} in {file}.",
    "In {file}, swap every {old} for {new}.",
    "Write {new} instead of {old} in {file}.",
)
_REPLACE_HELDOUT = (
    "In the file {file}, change every {old} to {new}.",
    "The word {old} in {file} should be {new}. Replace it.",
    "Make every {old} in the file {file} a {new}.",
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
        others=(
            f"sed -i 's/\\b{old}\\b/{new}/g' {path}",
            f"sed s/{old}/{new}/g {path} > t && mv t {path}",
        ),
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
        others=(f"grep -v {word} {path} > t && mv t {path}",),
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
        others=(f"awk NR!={which} {path} > t && mv t {path}",),
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
                "Change the word {old} to {new} in that file. Say its name.",
                "In that file, swap {old} for {new}. Say its name.",
                "Each {old} in that file should become {new}. Do it and say its name.",
                "Put {new} in place of {old} in that file. Tell me its name.",
                "Edit that file: change {old} into {new}. Say its name.",
            ),
            heldout=(
                "Then change every {old} to {new} in that file, and say the name of the file you changed.",
                "Where that file says {old}, make it {new}, and say its name.",
            ),
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
                "Get rid of the lines with the word {word} in {file}.",
                "From {file}, delete all lines with {word} in them.",
                "Take out of {file} each line that has the word {word}.",
                "Lines with {word} should be gone from {file}. Do it.",
                "Edit {file}: delete every line with {word}.",
                "Drop all lines that contain {word} from the file {file}.",
                "No line of {file} should contain {word}. Delete those lines.",
                "Out of {file}, erase the lines that contain {word}.",
                "I do not want the lines with {word} in {file}. Delete them.",
            ),
            heldout=(
                "Remove from {file} the lines that contain the word {word}.",
                "The file {file} should lose every line with the word {word}. Delete them.",
                "In the file {file}, get rid of each line that contains the word {word}.",
            ),
            build=_drop_word,
        ),
        medium=Level(
            train=(
                "Delete line {n} of {file}.",
                "Remove line {n} from {file}.",
                "In {file}, delete line {n}.",
                "Delete only line {n} in the file {file}.",
                "Get rid of line {n} in {file}.",
                "From the file {file}, take out line {n}.",
                "Line {n} should be gone from {file}. Do it.",
                "Edit {file}: delete line {n}.",
                "Drop line {n} of {file}.",
                "Erase the line with the number {n} from {file}.",
                "Out of {file}, delete only line {n}.",
                "I do not want line {n} in {file}. Delete it.",
                "Line {n} of {file} is not needed. Remove it.",
            ),
            heldout=(
                "From {file}, remove line {n}.",
                "The file {file} should lose line {n}. Delete it.",
                "In the file {file}, get rid of line {n}.",
            ),
            build=_drop_number,
        ),
        hard=noted(
            "word",
            _drop_hard,
            train=(
                "Delete the lines of {file} that contain it and say the word.",
                "Remove all lines with that word from {file} and say the word.",
                "From {file}, delete all lines with that word. Say the word.",
                "Get rid of the lines in {file} that have that word. Say the word.",
                "Lines with that word should be gone from {file}. Do it and say the word.",
                "In {file}, drop each line with that word. Tell me the word.",
            ),
            heldout=(
                "Then delete every line of {file} that contains that word, and say the word.",
                "Remove from {file} the lines that have that word, and say the word.",
            ),
        ),
    ),
)
"""The families of this craft."""
