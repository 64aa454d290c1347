"""A recipe names its filters, its horizon and dynamic sampling, and the tiny model trains under them."""

import pytest
from words_recipe import words

from treadle import ConfigError, train
from treadle.core.config import read_toml
from treadle.pipeline.dynamic import UntilFull
from treadle.pipeline.filters import DropEqualRewards
from treadle.pipeline.horizon import Horizon
from treadle.pipeline.masks import MaskDuplicates, MaskOverlong, MaskVoidTurns
from treadle.recipes.shell import shell_smoke

SET = {
    "pipeline.filters": "overlong,void_turn,duplicate,zero_variance",
    "pipeline.filters.overlong.limits": "tokens,context", "pipeline.filters.void_turn.parts": "code",
    "pipeline.filters.duplicate.keep": "2",
    "pipeline.horizon.updates": "5", "pipeline.schedule": "dynamic", "pipeline.schedule.most": "4",
}  # fmt: skip


def test_equal_rewards_and_no_horizon_are_what_is_not_named():
    recipe = shell_smoke()
    assert (recipe.pipeline.filters, recipe.pipeline.horizon) == ((DropEqualRewards(),), None)
    flat = recipe.flat()
    assert (flat["pipeline.filters"], flat["pipeline.horizon"]) == (["zero_variance"], None)


def test_all_of_it_is_set_by_name_and_read_back_as_printed(tmp_path):
    recipe = shell_smoke().changed(SET)
    assert recipe.pipeline.filters == (
        MaskOverlong(limits=("tokens", "context")), MaskVoidTurns(parts=("code",)), MaskDuplicates(keep=2),
        DropEqualRewards(),
    )
    assert recipe.pipeline.horizon == Horizon(first=1, updates=5)
    assert recipe.pipeline.schedule == UntilFull(most=4)
    (tmp_path / "printed.toml").write_text(recipe.toml())
    assert shell_smoke().changed(read_toml(tmp_path / "printed.toml")) == recipe
    assert shell_smoke().changed({"pipeline.filters": ""}).pipeline.filters == ()


@pytest.mark.parametrize(
    ("overrides", "words_in_it"),
    [
        ({"pipeline.filters": "overlog"}, ("pipeline.filters: ", "'overlog'", "did you mean 'overlong'?", "duplicate")),
        ({"pipeline.filters.overlong.limits": "tokens"}, ("pipeline.filters.overlong.limits", "zero_variance")),
        (
            {"pipeline.filters": "overlong", "pipeline.filters.overlong.limits": "token"},
            ("pipeline.filters.overlong.limits: ", "'token'", "did you mean 'tokens'?"),
        ),
        ({"pipeline.horizon.first": 0}, ("pipeline.horizon.first: got 0",)),
        ({"pipeline.horizon.first": 3}, ("pipeline.horizon.first=3 contradicts limits.max_turns=2",)),
        ({"pipeline.horizon.first": 1, "limits.max_turns": "none"}, ("limits.max_turns=none",)),
        ({"pipeline.schedule": "dynamic", "pipeline.schedule.most": 1}, ("pipeline.schedule.most: got 1",)),
    ],
)
def test_a_wrong_name_or_number_is_one_line_with_its_key(overrides, words_in_it):
    with pytest.raises(ConfigError) as error:
        shell_smoke().changed(overrides)
    assert [word for word in words_in_it if word not in str(error.value)] == []
    assert "\n" not in str(error.value)


def test_a_tiny_model_trains_without_what_was_left_out_and_tells_its_ages(ears):
    overrides = {
        "pipeline.filters": "overlong,zero_variance", "pipeline.schedule": "dynamic", "pipeline.lag": 1,
        "pipeline.updates": 4,
    }
    recipe = words(epochs=0, evaluation=0).changed(overrides)
    result = train(recipe, listeners=[ears], view="none")
    assert result.reason == "done"
    told = ears.named("update.done")
    assert told
    for update in told:
        tokens = [value for key, value in update.items() if key.startswith("age.") and key.endswith(".tokens")]
        assert sum(tokens) == update["tokens_trained"]
        assert {int(key.split(".")[1]) for key in update if key.startswith("age.")} <= {0, 1}
        assert update["staleness"] <= 1
    taken = [(e["tickets"].split(","), [t for t in e["trains"].split(",") if t]) for e in ears.named("batch.taken")]
    assert all(len(trains) == 2 or len(tickets) == 6 or not trains for tickets, trains in taken)
    every = [ticket for tickets, _ in taken for ticket in tickets]
    assert len(set(every)) == len(every)
    assert "## Trained tokens by age" in (result.folder / "report.md").read_text()
