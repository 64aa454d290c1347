"""One error instead of a group of them.

A TaskGroup reports every child's failure at once. At the pipeline's borders the first one is what a person, or an
`except InfraError`, can do something with; the others are its echo.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from treadle.core.errors import first_of


@contextmanager
def first_error() -> Iterator[None]:
    """Raise the first error inside nested exception groups, with its own traceback."""
    try:
        yield
    except BaseExceptionGroup as several:
        raise first_of(several) from None
