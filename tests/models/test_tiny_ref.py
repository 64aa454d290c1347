"""`tiny` is a model reference like another: built once, whole or not at all."""

from pathlib import Path

import pytest

from treadle.core.errors import ModelError
from treadle.models import Kind, Policy, locate, resolve


def test_tiny_is_built_once_into_the_cache_and_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = locate("tiny", tmp_path)
    assert (found.kind, found.ready) == (Kind.TINY, False)
    assert "to be built once" in found.line
    folder = resolve("tiny", tmp_path)
    assert locate("tiny", tmp_path).ready
    monkeypatch.setattr("treadle.models.tiny.build_tiny", None)
    assert resolve("tiny", tmp_path) == folder
    assert Policy.load("tiny", cache=tmp_path).dims.context == 1024


def test_a_half_written_tiny_model_is_built_again(tmp_path: Path) -> None:
    folder = resolve("tiny", tmp_path)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:100])
    assert not locate("tiny", tmp_path).ready
    assert (resolve("tiny", tmp_path) / "model.safetensors").read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("in the way")
    with pytest.raises(ModelError, match="TREADLE_CACHE"):
        resolve("tiny", tmp_path)
