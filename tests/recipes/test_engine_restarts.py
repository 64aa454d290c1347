"""A run whose engine has a process of its own outlives the death of that process, and says what it did about it."""

import os
import signal

import pytest
from words_recipe import words

import treadle


@pytest.fixture
def deaths(ears):
    """The run to be killed at, once it is there, and how often its engine is killed: when a ticket is admitted."""
    tickets, runs = [], []

    def react(event):
        if event.name == "group.admitted" and event.values["ticket"] in tickets:
            tickets.remove(event.values["ticket"])
            os.kill(runs[0].engine.pid, signal.SIGKILL)

    ears.react = react
    return tickets, runs


async def train(ears, deaths, *tickets, **overrides):
    deaths[0].extend(tickets)
    recipe = words(epochs=0, updates=3, evaluation=0).changed({"engine.copies": True, **overrides})
    async with treadle.compose(recipe, listeners=[ears]) as run:
        deaths[1].append(run)
        return await run.train()


async def test_what_was_in_flight_is_played_again_and_nothing_is_lost(ears, deaths):
    result = await train(ears, deaths, 3)
    assert result.reason == "done"
    (act,) = ears.named("watchdog.acted")
    assert (act["wait"], act["action"]) == ("the run", "restart")
    assert "its engine (the engine's process" in act["for"]
    assert "ended with signal SIGKILL" in act["for"]
    lost = [end for end in ears.named("rollout.done") if end["status"] == "error"]
    assert {(end["origin"], end["type"], end["retried"]) for end in lost} == {("infra", "EngineError", True)}
    closed = [e["ticket"] for name in ("group.trained", "group.dropped") for e in ears.named(name)]
    assert sorted(closed) == list(range(6))
    assert {e["reason"] for e in ears.named("group.dropped")} <= {"zero_variance"}


async def test_without_restarts_left_the_run_ends_with_what_its_engine_died_of(ears, deaths):
    with pytest.raises(treadle.InfraError, match="ended with signal SIGKILL"):
        await train(ears, deaths, 3, **{"pipeline.watchdog.restarts": 0, "pipeline.failed_batches": 1})
    assert ears.named("watchdog.acted") == []
    assert [e["type"] for e in ears.named("run.failed")] == ["InfraError"]
