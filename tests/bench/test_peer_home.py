"""Virtual environments of peers."""

import re
import sys

import pytest

from bench import peer_home


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path))
    return tmp_path


def test_a_peer_that_nobody_asked_for_is_missing_with_the_reason(cache) -> None:
    assert peer_home.python_of("trl", create=False) == (None, "trl is not installed; --with-peers installs it")
    assert list(cache.iterdir()) == []


def test_a_peer_that_is_there_is_taken_as_it_is(cache) -> None:
    home = peer_home.home("trl")
    home.mkdir(parents=True)
    (home / peer_home.MARKER).touch()
    assert peer_home.python_of("trl", create=True) == (home / "bin" / "python", "")


def test_an_installation_that_fails_is_missing_with_its_last_line(monkeypatch) -> None:
    asked = []

    def failed(command):
        asked.append(command)
        return "no such package" if "install" in command else ""

    monkeypatch.setattr(peer_home, "_failed", failed)
    assert peer_home.python_of("trl", create=True) == (None, "trl could not be installed: no such package")
    assert str(peer_home.CONSTRAINTS) in asked[1]
    assert not (peer_home.home("trl") / peer_home.MARKER).exists()


def test_a_half_made_environment_is_made_anew(monkeypatch) -> None:
    home = peer_home.home("trl")
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "left").touch()

    def made(command):
        home.mkdir(exist_ok=True)
        return ""

    monkeypatch.setattr(peer_home, "_failed", made)
    assert peer_home.python_of("trl", create=True) == (home / "bin" / "python", "")
    assert not (home / "bin" / "left").exists()


def test_another_pin_is_another_environment(tmp_path, monkeypatch) -> None:
    before = peer_home.home("trl")
    other = tmp_path / "trl.txt"
    other.write_text("trl==0.1\n")
    monkeypatch.setattr(peer_home, "pins", lambda name: other)
    assert peer_home.home("trl") != before


def test_every_package_of_a_peer_is_pinned_exactly() -> None:
    lines = [line for line in peer_home.pins("trl").read_text().splitlines() if line and not line.startswith("#")]
    assert any(line.startswith("trl==") for line in lines)
    assert all(re.fullmatch(r"[\w-]+==[\w.]+", line) for line in lines)


def test_the_last_line_of_a_failing_step_is_told() -> None:
    assert peer_home._failed([sys.executable, "-c", "print('first'); raise SystemExit('why')"]) == "why"
    assert peer_home._failed([sys.executable, "-c", ""]) == ""
    assert "No such file" in peer_home._failed(["/nowhere/at/all"])
