from __future__ import annotations

import os
from pathlib import Path

import pytest

from treadle.envs import grading
from treadle.envs.grading import Kind


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "file").write_bytes(b"held\n")
    (root / "a" / "file").chmod(0o640)
    (tmp_path / "secret").write_text("top")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "out").symlink_to(tmp_path)
    (root / "dangling").symlink_to("nowhere")
    os.mkfifo(root / "pipe")
    return root


def test_a_regular_file_is_read(root: Path) -> None:
    assert grading.read_bytes(root, "a/file") == b"held\n"
    assert grading.read_text(root, "./a//file") == "held\n"


@pytest.mark.parametrize("path", ["link", "out/secret", "dangling", "pipe", "a", "none", "a/file/x", "none/x"])
def test_everything_else_reads_as_none(root: Path, path: str) -> None:
    assert grading.read_bytes(root, path) is None
    assert grading.read_text(root, path) is None


@pytest.mark.parametrize("path", ["", ".", "/etc/passwd", "..", "a/../../secret", "a\0b"])
def test_a_path_that_leaves_is_the_graders_own_fault(root: Path, path: str) -> None:
    with pytest.raises(ValueError, match="workspace path"):
        grading.read_bytes(root, path)


def test_a_file_above_the_cap_is_not_read(root: Path) -> None:
    assert grading.read_bytes(root, "a/file", most=5) == b"held\n"
    assert grading.read_bytes(root, "a/file", most=4) is None
    with (root / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert grading.read_bytes(root, "sparse") is None


def test_text_that_is_no_utf8_is_none(root: Path) -> None:
    (root / "raw").write_bytes(b"\xff")
    assert grading.read_text(root, "raw") is None


def test_entries_say_what_stands_there_without_following(root: Path) -> None:
    kinds = {path: grading.kind(root, path) for path in ("a", "a/file", "link", "dangling", "pipe", "none", "out/x")}
    assert kinds == {
        "a": Kind.FOLDER,
        "a/file": Kind.FILE,
        "link": Kind.LINK,
        "dangling": Kind.LINK,
        "pipe": Kind.OTHER,
        "none": None,
        "out/x": None,
    }
    found = grading.entry(root, "a/file")
    assert found is not None
    assert (found.size, found.mode, found.links) == (5, 0o640, 1)
    assert grading.mode(root, "a/file") == 0o640
    assert grading.mode(root, "none") is None
    assert grading.exists(root, "dangling")
    assert not grading.exists(root, "none")
    assert grading.link_target(root, "dangling") == "nowhere"
    assert grading.link_target(root, "a") is None
    assert grading.link_target(root, "none/x") is None


def test_a_listing_is_sorted_and_stays_inside(root: Path) -> None:
    found = grading.listing(root)
    assert found.complete
    assert found.paths == ("a", "a/b", "a/file", "dangling", "link", "out", "pipe")
    assert grading.listing(root, "a").paths == ("a/b", "a/file")


@pytest.mark.parametrize("path", ["link", "out", "none", "a/file"])
def test_what_is_no_folder_lists_as_incomplete(root: Path, path: str) -> None:
    assert grading.listing(root, path) == grading.Listing(entries=(), complete=False)


def test_listings_have_bounds(root: Path) -> None:
    short = grading.listing(root, most=3)
    assert (len(short.entries), short.complete) == (3, False)
    flat = grading.listing(root, depth=1)
    assert "a/file" not in flat.paths
    assert not flat.complete
    here = os.open(root, os.O_RDONLY)
    for _ in range(100):  # deeper than a listing goes
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert not grading.listing(root, "d").complete


def test_a_missing_root_reads_as_nothing(tmp_path: Path) -> None:
    assert grading.read_bytes(tmp_path / "none", "x") is None
    assert not grading.listing(tmp_path / "none").complete
