"""A run that its tokens ended before its updates did: what it says of its end, and that it is over."""

from pathlib import Path

import pytest

import treadle
from treadle.recipes.replay import replay
from treadle.trajectory.store import read_events

FILE = str(Path(__file__).parent / "words_recipe.py")


@pytest.fixture(scope="module")
def ended(tmp_path_factory, model_cache):
    keys = {
        "pipeline.tokens": 1, "pipeline.updates": 3, "engine.deterministic": True,
        "runs": str(tmp_path_factory.mktemp("runs")),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TREADLE_CACHE", str(model_cache))
        return treadle.train(FILE, overrides=keys, view="none")


def test_its_last_evaluation_is_of_the_update_that_ended_it(ended):
    told = [e.values for e in read_events(ended.folder, prefix="evaluation.done")]
    assert [(e["label"], e["update"]) for e in told] == [("untouched", 0), ("coldstart", 0), ("final", 1)]


def test_a_replay_says_how_many_updates_it_made(ended):
    found = replay(ended.folder)
    assert (found.updates, found.exact) == (1, True)


@pytest.mark.parametrize("updates", [3, 5])
def test_more_updates_do_not_take_it_on(ended, updates):
    with pytest.raises(treadle.ConfigError, match=r"is done: pipeline\.tokens=1 were sampled after 1 updates"):
        treadle.train(resume=ended.folder, overrides={"pipeline.updates": updates}, view="none")
