"""Folders of checkpoints: how they appear, and their files that are not weights."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from treadle.core import folders

BESIDE_WEIGHTS = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "chat_template*",
    "generation_config.json",
    "LICENSE*",
    "NOTICE*",
)
"""What a checkpoint carries besides weights and config: patterns of files that are copied as they are."""


@contextmanager
def atomic_folder(target: Path, *, replace: bool) -> Iterator[Path]:
    """`core.folders.atomic_folder` for weights. Raises OSError when the disk refuses, whatever library finds out."""
    try:
        with folders.atomic_folder(target, replace=replace) as fresh:
            yield fresh
    except SafetensorError as error:  # how safetensors reports it
        raise OSError(str(error)) from error


def copy_beside_weights(source: Path, target: Path) -> None:
    """Copy tokenizer, chat template and their like from one checkpoint folder to another, byte for byte."""
    for pattern in BESIDE_WEIGHTS:
        for path in source.glob(pattern):
            if path.is_file():
                shutil.copyfile(path, target / path.name)
    extra = source / "additional_chat_templates"
    if extra.is_dir():
        shutil.copytree(extra, target / extra.name, dirs_exist_ok=True)
