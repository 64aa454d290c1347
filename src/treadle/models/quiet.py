"""transformers without its progress bars: Treadle has a progress view of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging as _logging

logging: Any = _logging
"""transformers' logging module, which is not annotated."""


@contextmanager
def quiet() -> Iterator[None]:
    """Switch transformers' progress bars off for the block, and back to what they were."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
