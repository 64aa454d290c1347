"""Where weights come from: a reference becomes a local folder in Hugging Face format.

placeholder
"""

from __future__ import annotations

from pathlib import Path

from treadle.core.errors import ModelError


def resolve(ref: str | Path, cache: Path | None = None) -> Path:
    """The local folder."""
    folder = Path(ref)
    if not (folder / "config.json").is_file():
        raise ModelError(f"model `{ref}`: no such folder")
    return folder
