"""The error tree is what its drawing says."""

from __future__ import annotations

import inspect
import re

import pytest

from treadle.core import errors

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__]


def drawn() -> dict[str, int]:
    """Name to depth, as drawn at the top of the module."""
    found = re.findall(r"^    ([ |`-]*)\b([A-Z]\w+)", errors.__doc__ or "", flags=re.MULTILINE)
    return {name: len(indent) // 4 for indent, name in found}


def test_every_error_stands_in_the_drawing_at_its_depth() -> None:
    tree = [c for c in CLASSES if issubclass(c, errors.TreadleError)]
    assert drawn() == {c.__name__: c.__mro__.index(errors.TreadleError) for c in tree}


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_says_what_it_means(kind: type[Exception]) -> None:
    assert kind.__doc__


def test_a_tools_word_to_the_model_is_no_failure_of_treadle() -> None:
    assert not issubclass(errors.ToolError, errors.TreadleError)


def test_what_diverges_on_replay_is_the_environments_fault() -> None:
    assert issubclass(errors.ReplayDiverged, errors.EnvError)


def test_the_first_error_of_nested_groups() -> None:
    inner = ValueError("inner")
    assert errors.first_of(BaseExceptionGroup("a", [ExceptionGroup("b", [inner]), KeyError("later")])) is inner
    assert errors.first_of(inner) is inner


def test_one_line_of_an_error_is_short_and_never_fails() -> None:
    class Ugly(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert errors.one_line(ValueError("\n one \n two")) == "one"
    assert errors.one_line(ValueError("x" * 10**6)) == "x" * 400
    assert errors.one_line(ValueError()) == errors.one_line(Ugly()) == ""
