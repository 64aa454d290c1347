"""Recipes by name, or from a file: a Python file with a function that returns a `Recipe`.

A file is run as Python runs a script: what lies beside it can be imported. Whatever goes wrong in it is a ConfigError
that names the file and the line.

    treadle train shell                 a built-in recipe
    treadle train my_recipe.py          the function `recipe` of that file, or its only one that returns a Recipe
    treadle train my_recipe.py:tiny     the function `tiny`
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from treadle.core.config import did_you_mean
from treadle.core.errors import ConfigError

if TYPE_CHECKING:  # recipes need torch; a list of their names does not
    from treadle.recipes.recipe import Recipe

BUILT_IN = {
    "shell": "SmolLM2-135M learns file tasks in a real sandboxed shell; about 15 minutes on 2 cores",
    "shell-smoke": "the same way in about a minute: a tiny random model learns one command by heart",
}
"""Name to one line for `treadle recipes`."""


def find(ref: str) -> Recipe:
    """The recipe of this name or file. Raises ConfigError with the nearest name, or what the file lacks."""
    if ref in BUILT_IN:
        from treadle.recipes import shell

        makers: dict[str, Callable[[], Recipe]] = {"shell": shell.shell, "shell-smoke": shell.shell_smoke}
        return makers[ref]()
    path, _, function = ref.partition(":")
    if path.endswith(".py"):
        return _from_file(Path(path), function)
    raise ConfigError(
        f"unknown recipe {ref!r}{did_you_mean(ref, BUILT_IN)} (built in: {', '.join(BUILT_IN)}; or FILE.py[:FUNCTION])"
    )


def _from_file(path: Path, function: str) -> Recipe:
    from treadle.recipes.recipe import Recipe

    module = _load(path)
    makers = _makers(module, path)
    if function and function not in makers:
        raise ConfigError(f"{path}: no function {function!r}{did_you_mean(function, makers)} ({_list(makers)})")
    if not function and "recipe" not in makers and len(makers) != 1:
        raise ConfigError(f"{path}: expected a function `recipe` or just one annotated `-> Recipe` ({_list(makers)})")
    chosen = function or ("recipe" if "recipe" in makers else next(iter(makers)))
    made = _ours(path, makers[chosen], f"{path}:{chosen}")
    if not isinstance(made, Recipe):
        raise ConfigError(f"{path}:{chosen} returned {type(made).__name__}, expected a Recipe")
    return made


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"recipe file {path}: no such file")
    spec = importlib.util.spec_from_file_location(f"treadle_recipe_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look a class's module up there
    if str(path.parent.resolve()) not in sys.path:
        sys.path.append(str(path.parent.resolve()))
    loader = spec.loader
    _ours(path, lambda: loader.exec_module(module), f"recipe file {path}")
    return module


def _ours(path: Path, call: Callable[[], object], what: str) -> object:
    """The result of a user's code. Raises ConfigError naming the line when it raises."""
    try:
        return call()
    except ConfigError:
        raise
    except Exception as error:  # the border to a user's recipe file, which may raise anything
        frames = traceback.extract_tb(error.__traceback__)
        at = [frame.lineno for frame in frames if Path(frame.filename).absolute() == path.absolute()]
        line = at[-1] if at else getattr(error, "lineno", None) or "?"
        said = (str(error).strip().splitlines() or [""])[0]
        raise ConfigError(f"{what}, line {line}: {type(error).__name__}: {said}") from error


def _makers(module: ModuleType, path: Path) -> dict[str, Callable[[], object]]:
    """Functions of the file itself that are named `recipe` or annotated to return a Recipe."""
    own = [
        (name, value) for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    return {
        name: value for name, value in own
        if name == "recipe" or "Recipe" in str(inspect.signature(value).return_annotation)
    }


def _list(makers: dict[str, Callable[[], object]]) -> str:
    return f"it has {', '.join(makers)}" if makers else "it has none"
