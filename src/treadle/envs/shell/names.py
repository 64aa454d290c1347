"""Pools of ordinary nouns: what files, folders and file contents are made of.

The two splits share no file and no folder name, so a policy cannot score on held-out tasks by remembering names.
Content words are shared, and none is part of another or of any name: a search for one word then finds exactly the
lines that were meant.
"""

from __future__ import annotations

from dataclasses import dataclass


def _nouns(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names of one split."""

    files: tuple[str, ...]
    """Stems of file names, without extension."""
    folders: tuple[str, ...]
    notes: tuple[str, ...]
    """File names of the notes that hard tasks begin with."""


TRAIN = Names(
    files=_nouns(
        "report letter recipe diary orders items plan draft poem songs movies books tasks goals trips prices sales "
        "staff guests teams scores stock bills cards maps tools parts rooms birds trees fish cities rivers roads "
        "towns games"
    ),
    folders=_nouns("box drawer shelf attic cellar garage office desk closet cabin tent barn shed lab"),
    notes=("hint.txt", "note.txt", "clue.txt"),
)
HELDOUT = Names(
    files=_nouns(
        "story essay menu journal budget goods agenda sketch verse tunes shows novels chores wishes tours costs income "
        "crew visitors clubs marks supply fees badges charts gear pieces halls cats plants bugs lands lakes streets "
        "shops sports"
    ),
    folders=_nouns("crate basket rack loft pantry porch studio bench locker lodge hut stable depot cave"),
    notes=("tip.txt", "memo.txt", "pointer.txt"),
)
SPLITS = {"train": TRAIN, "heldout": HELDOUT}

WORDS = _nouns(
    "apple bridge candle dragon engine forest hammer island jacket kettle lemon mirror needle orange pencil queen "
    "rabbit silver tiger umbrella violin window yellow zebra quiet bright early gentle heavy lucky narrow proud rapid "
    "silent warm young brave calm copper velvet winter summer monkey turtle pepper butter cotton doctor"
)
"""Words of file contents."""
