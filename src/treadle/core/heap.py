"""The heap of a long run: what is there when it begins is not looked at again.

Libraries leave hundreds of thousands of objects that live as long as the process. Python's collector walks over all of
them in every full collection, with the event loop and every other thread standing still, and finds nothing. What a run
makes is no different: segments and events stay, and the rest goes when its last reference does. With Python's own
threshold the collector looks at them so often that it takes a fifth of a turn's time, so it waits for more of them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 50_000
"""New objects, beyond those that went again, at which the collector looks for knots: some ten megabytes."""


@contextmanager
def settled() -> Iterator[None]:
    """Inside, objects that were there before are left out of collections, which are rarer; afterwards all is as before.

    Nested in another one it changes nothing: the outer one ends it.
    """
    if gc.get_freeze_count():
        yield
        return
    young, *older = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(max(young, YOUNG) if young else 0, *older)  # 0 says that nothing is to be collected by itself
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
        gc.unfreeze()
