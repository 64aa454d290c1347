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
        "towns games albums animals artists authors awards bands bikes boats cakes cars chairs coins colors courses "
        "drinks events flights jobs"
    ),
    folders=_nouns(
        "box drawer shelf attic cellar garage office desk closet cabin tent barn shed lab "
        "kitchen hall vault tower corner chest"
    ),
    notes=("hint.txt", "note.txt", "clue.txt"),
)
HELDOUT = Names(
    files=_nouns(
        "story essay menu journal budget goods agenda sketch verse tunes shows novels chores wishes tours costs income "
        "crew visitors clubs marks supply fees badges charts gear pieces halls cats plants bugs lands lakes streets "
        "shops sports actors banks beaches buses coffees concerts cups dances dogs dresses exams farms flowers gifts "
        "hotels houses insects lessons"
    ),
    folders=_nouns(
        "crate basket rack loft pantry porch studio bench locker lodge hut stable depot cave "
        "library yard mill castle alcove trunk"
    ),
    notes=("tip.txt", "memo.txt", "pointer.txt"),
)
SPLITS = {"train": TRAIN, "heldout": HELDOUT}

WORDS = _nouns(
    "apple bridge candle dragon engine forest hammer island jacket kettle lemon mirror needle orange pencil queen "
    "rabbit silver tiger umbrella violin window yellow zebra quiet bright early gentle heavy lucky narrow proud rapid "
    "silent warm young brave calm copper velvet winter summer monkey turtle pepper butter cotton doctor "
    "anchor basil desert feather ginger honey magnet ocean planet rocket saddle walnut"
)
"""Words of file contents."""
