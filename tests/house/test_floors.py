"""A room imports only rooms on strictly lower floors; rooms of one floor do not know each other."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from house_rules import FLOOR, SRC, Source, crossings, imported, sources


def test_imports_go_down() -> None:
    assert [line for source in sources() for line in crossings(source)] == []


def test_every_room_has_a_floor() -> None:
    rooms = {source.room for source in sources()} - {""}
    assert rooms <= set(FLOOR)
    assert {"core", "trajectory"} <= rooms


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("import treadle.cli.main", "treadle.cli.main"),
        ("import treadle.cli as c", "treadle.cli"),
        ("from treadle import cli", "treadle.cli"),
        ("from treadle.cli.main import main as m", "treadle.cli.main.main"),
        ("from ..cli import main", "treadle.cli.main"),
        ("from .. import cli", "treadle.cli"),
        ("from . import other", "treadle.envs.other"),
        ("def f():\n    from treadle.pipeline import loop", "treadle.pipeline.loop"),
        ("import importlib\nimportlib.import_module('treadle.cli')", "treadle.cli"),
        ("from importlib import import_module as load\nimport_module('..cli', __package__)", "treadle.cli"),
        ("__import__('treadle.cli')", "treadle.cli"),
        ("if TYPE_CHECKING:\n    import treadle.recipes", "treadle.recipes"),
    ],
)
def test_the_walk_finds_every_kind_of_import(line: str, name: str) -> None:
    assert name in [found for _, found in imported(ast.parse(line), ["treadle", "envs"])]


@pytest.mark.parametrize(
    ("room", "line", "lawful"),
    [
        ("envs", "from treadle.core.errors import EnvError", True),
        ("envs", "from treadle.envs.task import Task", True),
        ("envs", "from treadle.rendering import Renderer", False),
        ("core", "import treadle.trajectory.group", False),
        ("learner", "from treadle import train", False),
        ("learner", "from treadle.algorithms.losses import Nll", True),
        ("learner", "from treadle.inference.engine import LocalEngine", False),
        ("cli", "from treadle.recipes import shell", True),
        ("envs", "from treadle.nowhere import x", False),
    ],
)
def test_a_planted_crossing_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: str, line: str, lawful: bool
) -> None:
    file = tmp_path / "src" / "treadle" / room / "planted.py"
    file.parent.mkdir(parents=True)
    file.write_text(line)
    monkeypatch.setattr("house_rules.SRC", tmp_path / "src" / "treadle")
    monkeypatch.setattr("house_rules.ROOT", tmp_path)
    assert (crossings(Source(file)) == []) is lawful


def test_foreign_engines_and_hubs_are_each_imported_in_one_file() -> None:
    for foreign in ("vllm", "ray", "mcp", "gymnasium"):
        users = {s.name for s in sources() for _, name in imported(s.tree, s.package) if name.split(".")[0] == foreign}
        assert len(users) <= 1, f"{foreign} is imported in {sorted(users)}"


def test_environments_know_no_tokens_and_engines_no_messages() -> None:
    def users(room: str, module: str) -> list[str]:
        return [s.name for s in sources() if s.room == room for _, n in imported(s.tree, s.package)
                if n.startswith(module)]  # fmt: skip

    assert users("envs", "treadle.trajectory") == []
    assert users("envs", "transformers") == users("envs", "torch") == []
    assert users("inference", "treadle.core.messages") == users("inference", "treadle.core.actions") == []


def test_the_source_folder_is_the_installed_package() -> None:
    import treadle

    assert Path(treadle.__file__).parent == SRC
