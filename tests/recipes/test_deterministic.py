"""Deterministic mode: equal runs end with equal bits, whoever is slow, stopped or not; what cannot is refused."""

import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from words_recipe import SlowEnv, words

import treadle
from treadle.recipes.shell import shell_smoke

FILE = str(Path(__file__).parent / "words_recipe.py")
SAVED = ("model/model.safetensors", "optimiser.safetensors", "learner.json")


def jittery(seed, **engine):
    """Two turns in a world that answers late, each time in another order."""
    chance = random.Random(seed)
    made = words(env=lambda: SlowEnv(chance), updates=3)
    return replace(made, deterministic=True, engine=replace(made.engine, **engine))


def bits(result):
    return [(result.checkpoint / name).read_bytes() for name in SAVED]


def test_late_answers_and_other_slots_change_no_bit_of_the_weights():
    ends = [
        treadle.train(jittery(1), view="none"),
        treadle.train(jittery(2), view="none"),
        treadle.train(jittery(3, slots=3, kv_budget_tokens=4096), view="none"),
    ]
    assert ends[0].version > 2  # two updates of the cold start, then some of reinforcement learning
    assert bits(ends[0]) == bits(ends[1]) == bits(ends[2])
    found = [end.evaluations["final"].reward_mean for end in ends]
    assert found[0] == found[1] == found[2]


def test_a_run_that_was_stopped_and_resumed_ends_with_the_bits_of_one_that_was_not(interrupts):
    overrides = {"pipeline.updates": 4, "deterministic": True}
    stopped = treadle.train(
        FILE, overrides=overrides, view="none", listeners=[interrupts("update.done", signal.SIGINT)]
    )
    assert stopped.reason == "interrupted"
    whole = treadle.train(FILE, overrides=overrides, view="none")
    again = treadle.train(resume=stopped.folder, view="none")
    assert again.reason == "done"
    assert bits(again) == bits(whole)


def test_it_turns_on_the_mode_of_the_engine():
    recipe = words().changed({"deterministic": True, "engine.rows": 24})
    assert recipe.engine.deterministic
    assert recipe.flat()["engine.rows"] == 24
    assert not words().engine.deterministic


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"pipeline.lag": 1}, r"pipeline\.lag=1 contradicts deterministic=true: .*; set pipeline\.lag=0"),
        ({"pipeline.spare_rollouts": 2}, r"pipeline\.spare_rollouts=2 contradicts deterministic=true"),
        ({"engine.copies": True}, r"engine\.copies=true contradicts deterministic=true"),
    ],
)
def test_what_depends_on_timing_is_refused_by_key(overrides, said):
    with pytest.raises(treadle.ConfigError, match=said):
        words().changed({"deterministic": True, **overrides})


def test_a_world_that_does_not_promise_it_is_refused_before_anything_is_made():
    with pytest.raises(treadle.ConfigError, match=r"UnsureEnv\.deterministic is False; set deterministic=false, or"):
        treadle.train(f"{FILE}:unsure", overrides={"deterministic": True}, view="none")
    assert not any(path.is_dir() for path in Path("runs").glob("*"))


def test_a_shell_promises_nothing_because_commands_can_ask_for_the_time():
    recipe = shell_smoke().changed({"deterministic": True, "world.sandbox": "none-unsafe"})
    with pytest.raises(treadle.ConfigError, match=r"ShellEnv\.deterministic is False"):
        treadle.train(recipe, view="none")


def test_a_world_that_cannot_be_made_is_one_clear_error():
    def broken():
        raise OSError("no such device")

    with pytest.raises(treadle.EnvError, match="environment cannot be made: OSError: no such device"):
        treadle.train(words(env=broken).changed({"deterministic": True}), view="none")


def test_threads_may_not_change_in_the_middle(interrupts):
    overrides = {"pipeline.updates": 4, "deterministic": True, "threads": 1}
    stopped = treadle.train(
        FILE, overrides=overrides, view="none", listeners=[interrupts("update.done", signal.SIGINT)]
    )
    with pytest.raises(treadle.ConfigError, match="threads=1, not 2: that cannot change"):
        treadle.train(resume=stopped.folder, overrides={"threads": 2}, view="none")


def test_it_keeps_no_states_that_an_engine_computed():
    recipe = words().changed({"deterministic": True})
    assert recipe.learner.memo_tokens == recipe.coldstart.learner.memo_tokens == 0
    assert words().changed({"engine.deterministic": True}).learner.memo_tokens == 0
    assert words().learner.memo_tokens > 0
