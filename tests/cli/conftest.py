"""A cache of its own for the tiny model, and a folder of its own for every test."""

from pathlib import Path

import pytest

from treadle.cli.main import main


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch, model_cache):
    """Runs land in a folder of the test."""
    monkeypatch.setenv("TREADLE_CACHE", str(model_cache))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def words_file():
    """The recipes of a test world."""
    return str(Path(__file__).parents[1] / "recipes" / "words_recipe.py")


class Said:
    """What a command printed, and its exit code."""

    def __init__(self, code, out, err):
        self.code = code
        self.out = out
        self.err = err

    @property
    def line(self):
        """The one line on standard error."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        return lines[0]


@pytest.fixture
def treadle(capsys):
    """Calls the command line in this process."""

    def call(*argv):
        capsys.readouterr()
        try:
            code = main([str(word) for word in argv])
        except SystemExit as left:  # how argparse reports usage faults
            code = left.code
        return Said(code, *capsys.readouterr())

    return call
