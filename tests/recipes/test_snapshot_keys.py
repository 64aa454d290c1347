"""Snapshots of live environments: bounded by the recipe, held for the whole run, refusals said and reported."""

import json

import pytest
from words_recipe import WordEnv, words

import treadle
from treadle import Fork
from treadle.core.seeds import Stream
from treadle.recipes.compose import compose


class CopiedEnv(WordEnv):
    fork = Fork.COPY


async def test_a_runs_hosts_share_one_store_with_the_recipes_bounds(capfd):
    recipe = words(env=CopiedEnv).changed({"snapshots.most": 2})
    assert recipe.flat()["snapshots.most_bytes"] == 512 << 20
    async with compose(recipe) as run:
        task = run.tools.taskset.task("train", 0)
        hosts = [run.tools.make_host() for _ in range(3)]
        for number, host in enumerate(hosts):
            assert (await host.open(task, Stream(0), rollout=f"t.{number}.0")).outcome is None
        assert [await host.snapshot() is not None for host in hosts] == [True, True, False]
        assert run.tools.snapshots.statistics().values["snapshots_refused.count"] == 1
        for host in hosts:
            await host.close()
    assert "cannot be forked" not in capfd.readouterr().err


async def test_an_environment_that_cannot_be_forked_is_a_line_on_the_terminal(capfd):
    async with compose(words()) as run:
        for number in range(2):
            host = run.tools.make_host()
            await host.open(run.tools.taskset.task("train", number), Stream(0))
            assert await host.snapshot() is None
            await host.close()
    assert capfd.readouterr().err.count("WordEnv cannot be forked (fork=none)") == 1


def test_bounds_below_one_are_refused_by_their_key():
    with pytest.raises(treadle.ConfigError, match=r"^snapshots\.most: got 0"):
        words().changed({"snapshots.most": 0})


def test_a_run_that_asks_for_no_snapshot_reports_none():
    result = treadle.train(words(), view="none")
    told = [json.loads(line) for line in (result.folder / "events.jsonl").read_text().splitlines()]
    assert not [event for event in told if any("snapshots_" in key for key in event)]
