"""Checks of shell tasks: natural answers pass, dumps and guesses do not."""

import gzip
import io
import tarfile

import pytest

from treadle.envs.shell.archives import tar
from treadle.envs.shell.checks import (
    All,
    Evidence,
    Left,
    OneOf,
    Printed,
    PrintedPaths,
    Runnable,
    StatedNumber,
    StatedWord,
    TarOf,
    Tree,
)


def printed(text: str) -> Evidence:
    return Evidence(output=text, statement="Done.", commands=1, tree=Tree())


def said(text: str, *, commands: int = 2) -> Evidence:
    return Evidence(output="", statement=text, commands=commands, tree=Tree())


def left(**tree: object) -> Evidence:
    return Evidence(output="", statement="Done.", commands=1, tree=Tree(**tree))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["7", "7\n", "  7 \n\n", "7  notes.txt", "      7 notes.txt\n"])
def test_a_printed_answer_passes_in_each_accepted_form_blanks_aside(text: str):
    assert Printed(accept=("7", "7 notes.txt")).passes(printed(text))


@pytest.mark.parametrize("text", ["", "17", "7 8", "6\n7", "7 other.txt", "seven"])
def test_another_output_does_not_pass(text: str):
    assert not Printed(accept=("7", "7 notes.txt")).passes(printed(text))


def test_headings_that_a_tool_prints_are_left_out_where_a_check_says_so():
    check = Printed(accept=("-old\n+new",), aside=r"(---|\+\+\+) \S+ \d{4}-.*")
    assert check.passes(printed("--- a.txt\t2026-01-02 03:04\n+++ b.txt\t2026-01-02 03:04\n-old\n+new\n"))
    assert not check.passes(printed("--- a.txt\n-old\n+new\n"))


@pytest.mark.parametrize(
    "line", ["-rw-r--r-- 0/0 9 2023-11-14 22:13 a/x.txt", "-rw-r--r-- 1 me us 9 Nov 14 22:13 ./a/x.txt"]
)
def test_printed_paths_pass_in_a_long_listing(line: str):
    assert PrintedPaths(accept=(frozenset({"a/x.txt"}),)).passes(printed(line))


@pytest.mark.parametrize("text", ["a/x.txt\nb/y.txt", "./b/y.txt\n./a/x.txt\n", "/work/a/x.txt\n/work/b/y.txt"])
def test_printed_paths_pass_in_any_order_and_spelling(text: str):
    assert PrintedPaths(accept=(frozenset({"a/x.txt", "b/y.txt"}),)).passes(printed(text))


@pytest.mark.parametrize("text", ["", "a/x.txt", "a/x.txt\nb/y.txt\nc", "a/x.txt\n./a/x.txt\nb/y.txt"])
def test_too_few_too_many_or_repeated_paths_do_not_pass(text: str):
    assert not PrintedPaths(accept=(frozenset({"a/x.txt", "b/y.txt"}),)).passes(printed(text))


@pytest.mark.parametrize(
    "text", ["The answer is 42.", "42", "**42**", "It has 42 lines.", "The file notes.txt has `42` lines; yes, 42!"]
)
def test_a_stated_number_passes_in_a_sentence(text: str):
    assert StatedNumber(answer=42).passes(said(text))


@pytest.mark.parametrize(
    "text", ["", "Done.", "41 or 42", "The answer is 142.", "4.2", "1 2 3 42", "x42", "42nd", "42 " + "so " * 100]
)
def test_a_missing_wrong_or_hedged_number_does_not_pass(text: str):
    assert not StatedNumber(answer=42).passes(said(text))


def test_a_number_that_was_guessed_without_a_command_does_not_pass():
    assert not StatedNumber(answer=42).passes(said("The answer is 42.", commands=0))


@pytest.mark.parametrize("text", ["The answer is box.", "./box", "BOX", "The file hint.txt names the folder `box`."])
def test_a_stated_word_passes_in_a_sentence(text: str):
    assert StatedWord(answer="box", rivals=frozenset({"shed", "box"})).passes(said(text))


@pytest.mark.parametrize("text", ["", "boxes", "box or shed", "shed", "box.txt", "my-box"])
def test_a_missing_or_hedged_word_does_not_pass(text: str):
    assert not StatedWord(answer="box", rivals=frozenset({"shed", "box"})).passes(said(text))


def test_a_stated_file_name_keeps_its_ending_at_the_end_of_a_sentence():
    assert StatedWord(answer="plan.txt", rivals=frozenset()).passes(said("The answer is plan.txt."))


def test_a_word_that_was_guessed_without_a_command_does_not_pass():
    assert not StatedWord(answer="box", rivals=frozenset()).passes(said("box", commands=0))


WANTED = Left(files={"a": OneOf(texts=(b"1\n", b"1")), "d/b": OneOf(texts=(b"2\n",))}, folders=frozenset({"d"}))


def test_a_workspace_passes_when_each_file_is_as_expected():
    assert WANTED.passes(left(files={"a": b"1", "d/b": b"2\n"}, folders=frozenset({"d"})))


@pytest.mark.parametrize(
    "tree",
    [
        {"files": {"a": b"1"}, "folders": frozenset({"d"})},
        {"files": {"a": b"1", "d/b": b"3\n"}, "folders": frozenset({"d"})},
        {"files": {"a": b"1", "d/b": b"2\n", "c": b""}, "folders": frozenset({"d"})},
        {"files": {"a": b"1", "d/b": b"2\n"}, "folders": frozenset({"d", "e"})},
        {"files": {"a": b"1", "d/b": b"2\n"}, "folders": frozenset({"d"}), "odd": frozenset({"link"})},
    ],
)
def test_a_missing_changed_new_or_odd_file_does_not_pass(tree: dict[str, object]):
    assert not WANTED.passes(left(**tree))


MEMBERS = {"d/a": b"1\n", "d/b": b"2\n"}


def test_an_archive_passes_with_the_same_files_in_any_order():
    assert TarOf(members=MEMBERS).holds(tar(dict(reversed(MEMBERS.items()))))


def test_an_archive_passes_with_dotted_names():
    assert TarOf(members=MEMBERS).holds(tar({f"./{name}": content for name, content in MEMBERS.items()}))


def test_a_compressed_archive_passes_only_where_it_is_asked_for():
    plain, zipped = tar(MEMBERS), gzip.compress(tar(MEMBERS))
    assert TarOf(members=MEMBERS, zipped=True).holds(zipped)
    assert not TarOf(members=MEMBERS, zipped=True).holds(plain)
    assert not TarOf(members=MEMBERS).holds(zipped)


def link_archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("d/a")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(entry)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"junk",
        b"\x1f\x8bjunk",
        tar({"d/a": b"1\n"}),
        tar({**MEMBERS, "c": b""}),
        tar({"a": b"1\n", "b": b"2\n"}),
        link_archive(),
        tar(MEMBERS)[:700],
        bytes(range(256)) * 8,
    ],
)
def test_a_broken_or_other_archive_does_not_pass(content: bytes):
    assert not TarOf(members=MEMBERS).holds(content)


def test_a_compressed_bomb_is_read_only_up_to_a_bound():
    bomb = gzip.compress(tar({"d/a": bytes(64 << 20)}))
    assert not TarOf(members={"d/a": bytes(64 << 20)}, zipped=True).holds(bomb)


def test_a_damaged_compressed_archive_does_not_pass():
    whole = gzip.compress(tar({"d/a": b"hello"}))
    damaged = [whole[:at] + b"\xff\xff" + whole[at + 2 :] for at in range(len(whole))]
    assert not any(TarOf(members={"d/a": b"other"}, zipped=True).holds(content) for content in damaged)


def test_a_sparse_member_that_claims_to_be_huge_is_not_read():
    entry = tarfile.TarInfo("a")
    entry.size, entry.pax_headers = 1, {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(1 << 40)}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(entry, io.BytesIO(b"x"))
    with tarfile.open(fileobj=io.BytesIO(content.getvalue())) as archive:
        assert archive.getmember("a").size == 1 << 40
    assert not TarOf(members={"a": b"x"}).holds(content.getvalue())


@pytest.mark.parametrize(
    ("modes", "passes"),
    [
        ({"a": 0o755, "b": 0o644}, True),
        ({"a": 0o744, "b": 0o644}, True),
        ({"a": 0o755, "b": 0o755}, False),
        ({"a": 0o644, "b": 0o644}, False),
        ({"a": 0o111, "b": 0o644}, False),
        ({}, False),
    ],
)
def test_exactly_the_named_files_must_be_executable(modes: dict[str, int], passes: bool):
    assert Runnable(paths=frozenset({"a"})).passes(left(modes=modes)) is passes


def test_all_parts_must_pass():
    yes, no = Printed(accept=("1",)), Printed(accept=("2",))
    assert All(parts=(yes, yes)).passes(printed("1"))
    assert not All(parts=(yes, no)).passes(printed("1"))
