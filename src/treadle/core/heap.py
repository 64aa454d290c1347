"""The heap of a long run: what is there when it begins is not looked at again.

Libraries leave hundreds of thousands of objects that live as long as the process. Python's collector walks over all of
them in every full collection, with the event loop and every other thread standing still, and finds nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def settled() -> Iterator[None]:
    """Inside, objects that were there before are left out of collections; afterwards they are ordinary again.

    Nested in another one it changes nothing: the outer one ends it.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
