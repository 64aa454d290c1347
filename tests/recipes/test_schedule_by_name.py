"""A recipe names its schedule."""

import pytest

from treadle import ConfigError
from treadle.cli.simulate import SCHEDULES as NAMED
from treadle.core.config import read_toml
from treadle.pipeline.counting import InOrder
from treadle.pipeline.orders import SCHEDULES
from treadle.recipes.shell import shell_smoke


def test_ticket_order_with_the_counting_check_is_what_is_not_named():
    assert shell_smoke().pipeline.schedule == InOrder()
    assert shell_smoke().flat()["pipeline.schedule"] == "tickets"


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_a_schedule_is_chosen_by_name_and_printed_by_it(tmp_path, name):
    recipe = shell_smoke().changed({"pipeline.schedule": name, "pipeline.on_stale": "drop"})
    assert recipe.pipeline.schedule == SCHEDULES[name]()
    (tmp_path / "printed.toml").write_text(recipe.toml())
    assert shell_smoke().changed(read_toml(tmp_path / "printed.toml")) == recipe


def test_the_command_line_offers_the_same_names():
    assert list(NAMED) == list(SCHEDULES)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"pipeline.schedule": "fresh"}, ("pipeline.schedule", "'fresh'", "did you mean 'freshest'?")),
        ({"pipeline.on_stale": "forget"}, ("pipeline.on_stale", "forget", "wait")),
    ],
)
def test_a_wrong_name_is_one_line_with_its_key(overrides, words):
    with pytest.raises(ConfigError) as error:
        shell_smoke().changed(overrides)
    assert [word for word in words if word not in str(error.value)] == []
