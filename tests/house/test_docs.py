"""The documents name files, commands and dependencies that are there."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from house_rules import FLOORS, ROOT, sources

import treadle

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_every_file_that_a_document_names_is_there(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    named = set(re.findall(r"\b((?:tests|docs|src|examples|bench|scripts)/[\w/.-]+\.(?:py|md|sh|png))\b", text))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_picture_of_the_floors_is_the_floors() -> None:
    drawn = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {s.room for s in sources()} - {""}
    for number, floor in enumerate(FLOORS):
        shown = re.search(rf"^F{number}  (.*)$", drawn, flags=re.MULTILINE)
        assert shown is not None
        missing = [room for room in floor if room in rooms and not re.search(rf"\b{room}\b", shown[1])]
        assert missing == []


def test_every_dependency_is_explained_and_no_other() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [re.split(r"[<>=!~\[ ]", line)[0] for line in project["dependencies"]]
    table = re.findall(r"^\| (\w[\w-]*) \| ", (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8"), re.M)
    assert table[0] == "package"
    assert sorted(table[1:]) == sorted(wanted)


def test_every_dependency_is_used() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = "\n".join(s.text for s in sources())
    wanted = {re.split(r"[<>=!~\[ ]", line)[0] for line in project["dependencies"]}
    idle = {name for name in wanted if not re.search(rf"\b(import|from) {name.replace('-', '_')}\b", text)}
    assert idle == set()


def test_the_version_has_a_line_in_the_changelog() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert treadle.__version__ == project["version"]
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_machine_script_is_sound_and_finds_a_python() -> None:
    script = ROOT / "scripts" / "machine.sh"
    assert subprocess.run(["sh", "-n", str(script)], timeout=30).returncode == 0
    told = subprocess.run(["sh", str(script)], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    assert "python" in told.stdout


def test_a_python_that_is_too_old_or_missing_is_one_clear_error() -> None:
    command = ["env", "PYTHON=/nowhere/python3", "sh", str(ROOT / "scripts" / "machine.sh")]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert told.returncode == 1
    assert "needs Python >= 3.11, found none" in told.stderr
