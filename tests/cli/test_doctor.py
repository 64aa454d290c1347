"""`treadle doctor` looks at what a run needs, and names the remedy for what is missing."""

import shutil
import sys
from collections import namedtuple
from pathlib import Path

from treadle.models import build_tiny


def test_a_good_machine_passes_every_check(treadle):
    said = treadle("doctor", "--model", "tiny")
    assert said.code == 0, said.out
    names = [line.split(":")[0] for line in said.out.splitlines()]
    assert names == [
        f"ok    {name}"
        for name in ("python", "torch", "transformers", "machine", "sandbox", "model", "model cache", "run folder")
    ]
    assert "ok    model: tiny: tiny, " in said.out


def test_a_model_that_is_not_there_fails_its_check_alone(treadle, tmp_path):
    said = treadle("doctor", "--model", "smollm9")
    assert said.code == 1
    assert "FAIL  model: model `smollm9`" in said.out
    assert said.out.count("FAIL") == 1
    config = build_tiny(tmp_path / "model") / "tokenizer_config.json"
    config.write_text(config.read_text().replace("chat_template", "other"))
    assert "no chat template" in treadle("doctor", "--model", tmp_path / "model").out


def test_a_full_disk_and_a_cache_in_the_way_are_named(treadle, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, int(2e9)))
    said = treadle("doctor", "--model", "tiny")
    assert said.code == 1
    assert "FAIL  run folder: 2.0 GB free under" in said.out
    assert "set TREADLE_CACHE=FOLDER" in said.out
    Path("file").write_text("in the way")
    monkeypatch.setenv("TREADLE_CACHE", str(Path("file").absolute()))
    assert "file cannot be written" in treadle("doctor", "--model", "tiny").out


def test_a_torch_that_does_not_import_is_a_failed_check(treadle, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    said = treadle("doctor", "--model", "tiny")
    assert said.code == 1
    assert "FAIL  torch: cannot be checked" in said.out
