"""A wheel of the project installs and runs outside the checkout."""

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command, cwd):
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that nothing is left in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    run(
        sys.executable, "-m", "pip", "wheel", copy, "--no-deps", "--no-build-isolation", "--wheel-dir", folder,
        "--quiet", "--disable-pip-version-check", cwd=folder,
    )
    (made,) = folder.glob("treadle-*.whl")
    return made


@pytest.fixture(scope="module")
def elsewhere(wheel, tmp_path_factory):
    """The Python of a fresh environment that has the wheel, and borrows the dependencies of this one."""
    folder = tmp_path_factory.mktemp("elsewhere")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    run(
        sys.executable, "-m", "pip", "--python", python, "install", wheel, "--no-deps", "--quiet",
        "--disable-pip-version-check", cwd=folder,
    )
    place = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    borrowed = sysconfig.get_path("purelib")
    (place / "borrowed.pth").write_text(f"import sys; sys.path.append({borrowed!r})\n")
    return python


def test_the_wheel_holds_every_module_and_its_mark_of_types(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    ours = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "treadle").rglob("*.py")}
    assert ours - held == set()
    assert "treadle/py.typed" in held
    assert [name for name in held if name.startswith(("tests", "bench"))] == []


def test_the_installed_package_lists_its_recipes(elsewhere, tmp_path):
    said = run(elsewhere.parent / "treadle", "recipes", cwd=tmp_path)
    assert [line.split()[0] for line in said.splitlines()] == ["shell", "shell-smoke"]


def test_the_installed_package_is_the_one_that_runs(elsewhere, tmp_path):
    code = (
        "import treadle; from treadle.cli.main import main; print(treadle.__file__)\n"
        "main(['train', 'shell-smoke', '--dry-run'])\n"
    )
    said = run(elsewhere, "-c", code, cwd=tmp_path)
    assert Path(said.splitlines()[0]).is_relative_to(elsewhere.parents[1])
    assert 'model = "tiny"' in said
