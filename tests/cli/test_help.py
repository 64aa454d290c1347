"""The command line explains itself, at once."""

import subprocess
import sys

import pytest

from treadle.cli.main import COMMANDS, parser

NAMES = ("train", "eval", "rollout", "replay", "show", "credit", "prm", "simulate", "doctor", "recipes")


def test_help_lists_every_command(treadle):
    said = treadle("--help")
    assert said.code == 0
    assert [name for name in NAMES if name not in said.out] == []
    assert len(NAMES) == len(COMMANDS)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_explains_its_options(treadle, name):
    said = treadle(name, "--help")
    assert said.code == 0
    assert f"usage: treadle {name}" in said.out
    lone = [a for a in parser()._subparsers._group_actions[0].choices[name]._actions if not a.help and not a.choices]
    assert lone == []


def test_help_loads_neither_numpy_nor_torch():
    code = (
        "import sys\nfrom treadle.cli.main import main\n"
        "try:\n    main(['train', '--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'numpy', 'transformers', 'rich', 'asyncio'} & set(sys.modules), sorted(sys.modules)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr


def test_train_without_a_recipe_says_what_it_needs(treadle):
    said = treadle("train")
    assert said.code == 2
    assert "got no recipe, expected shell, shell-smoke, FILE.py[:FUNCTION], or --resume RUN" in said.err


@pytest.mark.parametrize(
    "argv", [(), ("tarin",), ("show", "x", "--most", "many"), ("eval", "x", "--tasks", "0")]
)
def test_a_usage_fault_is_exit_2(treadle, argv):
    said = treadle(*argv)
    assert said.code == 2
    assert "usage: treadle" in said.err


def test_the_recipes_are_listed(treadle):
    said = treadle("recipes")
    assert said.code == 0
    assert [line.split()[0] for line in said.out.splitlines()] == ["shell", "shell-smoke"]
