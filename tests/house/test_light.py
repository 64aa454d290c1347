"""What must be quick to import stays free of heavy libraries, and the public names are what they are."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "matplotlib", "accelerate", "pydantic")
LIGHT = ("treadle", "treadle.core", "treadle.trajectory", "treadle.envs", "treadle.agents", "treadle.pipeline",
         "treadle.observability", "treadle.recipes", "treadle.testing", "treadle.cli", "treadle.cli.main")  # fmt: skip


def modules_after(statement: str) -> set[str]:
    code = f"import sys, json\n{statement}\nprint(json.dumps([m.split('.')[0] for m in sys.modules]))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr[-800:]
    return set(json.loads(found.stdout.splitlines()[-1]))


@pytest.mark.parametrize("module", LIGHT)
def test_importing_it_loads_nothing_heavy(module: str) -> None:
    assert modules_after(f"import {module}") & set(HEAVY) == set()


def test_the_public_namespace_lists_its_names_and_has_them() -> None:
    import treadle

    assert len(treadle.__all__) == len(set(treadle.__all__))
    assert set(treadle.__all__) <= set(dir(treadle))
    missing = [name for name in treadle.__all__ if getattr(treadle, name, None) is None]
    assert missing == []


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    import treadle

    with pytest.raises(AttributeError, match="nonsense"):
        _ = treadle.nonsense  # type: ignore[attr-defined]


def test_the_package_is_typed() -> None:
    from house_rules import SRC

    assert (SRC / "py.typed").exists()
