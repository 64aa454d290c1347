"""A recipe names its curriculum, and the tiny model trains under it."""

from dataclasses import replace

import pytest
from words_recipe import WordEnv, Words, words

from treadle import ConfigError, PlainParser, Task, World, train
from treadle.core.config import read_toml
from treadle.pipeline.curriculum import ByDifficulty, InTicketOrder
from treadle.recipes.shell import shell_smoke


class PartlyDeaf(WordEnv):
    """Never pays for one kind of task."""

    async def reset(self, task, ctx):
        self.deaf = task.family == "deaf"
        return await super().reset(task, ctx)

    async def score(self):
        return {"length": 0.0} if self.deaf else await super().score()


class Kinds(Words):
    """Two kinds in turn."""

    def task(self, split, index):
        return Task(id=f"{split}-{index}", prompt="go", family=("hears", "deaf")[index % 2], split=split)


def test_ticket_order_is_what_is_not_named():
    assert shell_smoke().pipeline.curriculum == InTicketOrder()
    assert shell_smoke().flat()["pipeline.curriculum"] == "tickets"


def test_a_curriculum_is_chosen_by_name_and_set_below_it(tmp_path):
    recipe = shell_smoke().changed({"pipeline.curriculum": "pools", "pipeline.curriculum.memory": "0.9"})
    assert recipe.pipeline.curriculum == ByDifficulty(memory=0.9)
    (tmp_path / "printed.toml").write_text(recipe.toml())
    assert shell_smoke().changed(read_toml(tmp_path / "printed.toml")) == recipe


@pytest.mark.parametrize(
    ("overrides", "words_in_it"),
    [
        ({"pipeline.curriculum": "pool"}, ("pipeline.curriculum: ", "'pool'", "did you mean 'pools'?", "tickets")),
        ({"pipeline.curriculum.memory": 0.5}, ("pipeline.curriculum", "memory")),
        ({"pipeline.curriculum": "pools", "pipeline.curriculum.memory": 3}, ("pipeline.curriculum.memory: got 3",)),
        ({"pipeline.curriculum": "pools", "pipeline.curriculum.flor": 1}, ("pipeline.curriculum.flor", "floor")),
    ],
)
def test_a_wrong_name_or_number_is_one_line_with_its_key(overrides, words_in_it):
    with pytest.raises(ConfigError) as error:
        shell_smoke().changed(overrides)
    assert [word for word in words_in_it if word not in str(error.value)] == []
    assert "\n" not in str(error.value)


def test_a_tiny_model_plays_what_has_something_to_compare(ears):
    plain = words(epochs=0, updates=8, evaluation=0)
    recipe = replace(plain, world=World(tasks=Kinds(), env=PartlyDeaf, reads=PlainParser()))
    result = train(recipe.changed({"pipeline.curriculum": "pools"}), listeners=[ears], view="none")
    assert result.reason == "done"
    told = ears.named("update.done") + ears.named("update.skipped")
    assert len(told) == 8
    assert sum(e["skipped_tasks"] for e in told) > 0
    played = [e["family"] for e in ears.named("group.admitted")]
    assert (len(played), played.count("deaf") < 8) == (16, True)
    assert {e["family"] for e in ears.named("group.ready")} == {"hears"}
    assert max(told, key=lambda e: e["update"])["pools.hopeless"] == 1
