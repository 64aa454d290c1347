"""Recipes by name and from files, and the one line that says what a file lacks."""

import pytest

from treadle import ConfigError, Recipe
from treadle.recipes.catalog import BUILT_IN, find

HEAD = "from treadle import *\nfrom pathlib import Path\n"
MAKE = "World(env=Env, tasks=ListTaskset([Task(id='a', prompt='go')]))"


@pytest.fixture
def file(tmp_path):
    def write(text, name="mine.py"):
        path = tmp_path / name
        path.write_text(HEAD + text)
        return str(path)

    return write


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_recipes_are_found_by_name(name):
    assert isinstance(find(name), Recipe)
    assert find(name).name == name


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(ConfigError, match=r"unknown recipe 'shel'; did you mean 'shell'\?"):
        find("shel")


def test_a_file_gives_its_only_recipe_or_the_one_that_is_named(file):
    one = file(f"def mine() -> Recipe:\n    return Recipe(name='one', world={MAKE})\n")
    assert find(one).name == "one"
    two = file(
        f"def a() -> Recipe:\n    return Recipe(name='a', world={MAKE})\n"
        f"def recipe():\n    return Recipe(name='b', world={MAKE})\n"
    )
    assert (find(two).name, find(f"{two}:a").name) == ("b", "a")


def test_what_lies_beside_a_recipe_file_can_be_imported_and_dataclasses_work(file, tmp_path):
    (tmp_path / "treadle_test_beside.py").write_text("NAME = 'beside'\n")
    path = file(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport treadle_test_beside\n"
        "from treadle import *\n"
        "@dataclass(frozen=True)\nclass Own:\n    x: int = 1\n"
        f"def recipe():\n    return Recipe(name=treadle_test_beside.NAME, world={MAKE})\n".replace(HEAD, ""),
    )
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text().replace(HEAD, ""))
    assert find(path).name == "beside"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def recipe(:\n", r"recipe file .*mine\.py, line 3: SyntaxError"),
        ("import no_such_module_here\n", r"mine\.py, line 3: ModuleNotFoundError: No module named"),
        ("def recipe():\n    return 1 / 0\n", r"mine\.py:recipe, line 4: ZeroDivisionError: division by zero"),
        ("def recipe():\n    return 3\n", r"mine\.py:recipe returned int, expected a Recipe"),
        ("x = 1\n", r"expected a function `recipe` or just one annotated `-> Recipe` \(it has none\)"),
        ("def recipe(seed):\n    return 3\n", r"mine\.py:recipe, line .: TypeError: .*seed"),
    ],
)
def test_a_file_that_gives_no_recipe_says_why(file, text, said):
    with pytest.raises(ConfigError, match=said) as error:
        find(file(text))
    assert "\n" not in str(error.value)


def test_a_function_that_is_not_there_gets_the_nearest_one(file):
    path = file(f"def smoke() -> Recipe:\n    return Recipe(name='one', world={MAKE})\n")
    with pytest.raises(ConfigError, match=r"no function 'smok'; did you mean 'smoke'\?"):
        find(f"{path}:smok")


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match=r"recipe file nowhere\.py: no such file"):
        find("nowhere.py")
