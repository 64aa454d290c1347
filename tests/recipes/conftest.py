"""A cache of its own for the tiny model, a folder of its own for every test, and the test recipes to import."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch, model_cache):
    """Runs land in a folder of the test."""
    monkeypatch.setenv("TREADLE_CACHE", str(model_cache))
    monkeypatch.chdir(tmp_path)


class Ears:
    """Keeps every event, and does something at one."""

    def __init__(self, react=lambda event: None):
        self.events = []
        self.react = react

    def emit(self, event):
        self.events.append(event)
        self.react(event)

    def named(self, name):
        return [dict(e.values) for e in self.events if e.name == name]


@pytest.fixture
def ears():
    return Ears()


@pytest.fixture
def interrupts():
    """Ears that send a signal to this process at the first event of a name."""

    def make(name, number, times=1):
        sent = []

        def react(event):
            if event.name == name and len(sent) < times:
                sent.append(event)
                os.kill(os.getpid(), number)

        return Ears(react)

    return make
