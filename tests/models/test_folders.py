"""Folders appear whole or not at all."""

import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from treadle.core import folders
from treadle.models import atomic_folder


def test_a_folder_appears_only_when_its_block_ends(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "out", replace=False) as fresh:
        (fresh / "a").write_text("1")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out" / "a").read_text() == "1"


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="broken"), atomic_folder(tmp_path / "out", replace=False) as fresh:
        raise KeyError((fresh / "a").write_text("1"), "broken")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_a_tensor_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="I/O error"), atomic_folder(tmp_path / "out", replace=False) as fresh:
        save_file({"a": torch.zeros(9)}, fresh / "missing" / "a.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_without_replace_the_first_one_wins(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "out", replace=False) as late:
        (late / "a").write_text("late")
        with atomic_folder(tmp_path / "out", replace=False) as early:
            (early / "a").write_text("early")
    assert (tmp_path / "out" / "a").read_text() == "early"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_with_replace_the_old_one_goes(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if kind == "folder":
        (out / "old").mkdir(parents=True)
    else:
        out.write_text("old")
    with atomic_folder(out, replace=True) as fresh:
        (fresh / "new").touch()
    assert [path.name for path in out.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_writers_that_replace_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    start = threading.Barrier(4)
    errors = []

    def write(name: str) -> None:
        try:
            start.wait(20)
            for _ in range(10):
                with atomic_folder(tmp_path / "out", replace=True) as fresh:
                    (fresh / "a").write_text(name)
                    (fresh / "b").write_text(name)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert (tmp_path / "out" / "a").read_text() == (tmp_path / "out" / "b").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_a_killed_process_left_is_swept_when_old(tmp_path: Path) -> None:
    old, young = tmp_path / ".out.aaaa.tmp", tmp_path / ".out.bbbb.tmp"
    old.mkdir()
    young.mkdir()
    past = old.stat().st_mtime - 2 * folders.STALE_S
    os.utime(old, (past, past))
    with atomic_folder(tmp_path / "out", replace=False):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.bbbb.tmp", "out"]


def test_files_are_as_readable_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_folder(tmp_path / "out", replace=False) as fresh:
            (fresh / "a").touch(mode=0o600)
    finally:
        os.umask(before)
    assert (tmp_path / "out" / "a").stat().st_mode & 0o777 == 0o640
