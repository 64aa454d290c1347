"""Checksums of checkpoints: written with them, checked before they are used, for every file and every bit."""

import json
import os

import pytest

from treadle.core.errors import StoreError
from treadle.pipeline.checkpoints import MARK, Checkpoints, Mark, begin_at
from treadle.pipeline.checksums import SUMS, verify, whole, write


def files(folder):
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "version-000001"
    (made / "model").mkdir(parents=True)
    (made / "model" / "weights.bin").write_bytes(os.urandom(70_000))
    (made / "learner.json").write_text("{}")
    (made / "empty").write_bytes(b"")
    write(made)
    return made


def flip(path, at, bit=0):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def test_a_folder_as_it_was_written_is_good(folder):
    assert verify(folder)
    listed = json.loads((folder / SUMS).read_text())["files"]
    assert sorted(listed) == sorted(set(files(folder)) - {SUMS})


@pytest.mark.parametrize("name", ["model/weights.bin", "learner.json", SUMS])
def test_a_flipped_bit_is_found_wherever_it_is(folder, name):
    size = len(files(folder)[name].read_bytes())
    for at in (0, size // 2, size - 2):
        flip(folder / name, at)
        with pytest.raises(StoreError, match=r"version-000001: "):
            verify(folder)
        flip(folder / name, at)
    assert verify(folder)


def test_a_file_that_is_cut_or_gone_is_named(folder):
    kept = (folder / "model" / "weights.bin").read_bytes()
    (folder / "model" / "weights.bin").write_bytes(kept[:-1])
    with pytest.raises(StoreError, match=r"model/weights\.bin has checksum \w{32}, \w{32} was written"):
        verify(folder)
    (folder / "model" / "weights.bin").unlink()
    with pytest.raises(StoreError, match=r"'model/weights\.bin' cannot be read"):
        verify(folder)


def test_what_was_put_there_later_is_nobodys_business(folder):
    (folder / "note.txt").write_text("mine")
    assert verify(folder)


def test_a_folder_without_checksums_says_so(folder):
    (folder / SUMS).unlink()
    assert verify(folder) is False


def test_a_folder_appears_with_its_checksums_or_not_at_all(tmp_path):
    target = tmp_path / "version-000002"
    with whole(target) as fresh:
        fresh.mkdir()
        (fresh / "a").write_text("a")
        assert not target.exists()
    assert sorted(files(target)) == ["a", SUMS]
    assert verify(target)

    def fail():
        with whole(target) as fresh:
            fresh.mkdir()
            (fresh / "a").write_text("b")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (target / "a").read_text() == "a"
    assert os.listdir(tmp_path) == ["version-000002"]


def test_a_target_that_is_there_is_replaced(folder):
    flip(folder / "learner.json", 0)
    with whole(folder) as fresh:
        fresh.mkdir()
        (fresh / "b").write_text("b")
    assert sorted(files(folder)) == ["b", SUMS]
    assert os.listdir(folder.parent) == [folder.name]


def test_a_disk_that_refuses_is_a_store_error(tmp_path):
    target = tmp_path / "version-000003"
    with pytest.raises(StoreError, match=r"version-000003: cannot write \(No such file or directory\)"), whole(target):
        pass  # nothing was saved there
    assert os.listdir(tmp_path) == []


class Saving:
    """Saves a number in a file."""

    version = 0

    def save(self, folder, *, beside):
        folder.mkdir()
        (folder / "weights").write_text(str(self.version))
        for name, text in beside.items():
            (folder / name).write_text(text)


@pytest.fixture
async def saved(bench, tmp_path):
    """Three checkpoints."""
    trainer = Saving()
    checkpoints = Checkpoints(tmp_path / "saved", trainer=trainer, thread=bench.thread, ledger=bench.ledger, keep=3)
    for version in (1, 2, 3):
        trainer.version = version
        checkpoints.mark = lambda version=version: Mark(stage="rl", update=version)
        assert await checkpoints.save(update=version) == tmp_path / "saved" / f"version-{version:06d}"
    return tmp_path / "saved"


async def test_checkpoints_carry_checksums_of_all_that_is_in_them(saved):
    assert [path.name for path in sorted(saved.iterdir())] == ["version-000001", "version-000002", "version-000003"]
    assert all(verify(path) for path in saved.iterdir())
    assert sorted(files(saved / "version-000002")) == sorted([SUMS, MARK, "weights"])


async def test_a_run_goes_on_from_the_newest_checkpoint_without_a_flipped_bit(saved):
    flip(saved / "version-000003" / "weights", 0)
    flip(saved / "version-000002" / MARK, 5)
    said, taken = [], []
    start, mark = begin_at(saved, lambda path, mark: taken.append(path.name), say=said.append)
    assert (start.name, mark.update, taken) == ("version-000001", 1, ["version-000001"])
    assert len(said) == 2
    assert "version-000003: weights has checksum" in said[0]
    assert all(line.endswith(": going back to the one before") for line in said)


async def test_a_checkpoint_that_was_saved_without_checksums_is_taken_and_that_is_said(saved):
    (saved / "version-000003" / SUMS).unlink()
    said = []
    start, _ = begin_at(saved, lambda path, mark: None, say=said.append)
    assert start.name == "version-000003"
    assert said == ["checkpoint version-000003 has no checksums, it was saved without: taking it as it can be read"]


async def test_what_a_killed_process_left_half_written_is_removed(saved):
    for name in (".version-000004.fresh.tmp", "..version-000004.fresh.tmp.0a1b.tmp", ".version-000003.old.tmp"):
        (saved / name).mkdir()
    begin_at(saved, lambda path, mark: None, say=print)
    assert [path.name for path in saved.iterdir() if path.name.startswith(".")] == []
