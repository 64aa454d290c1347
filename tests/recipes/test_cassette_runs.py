"""Runs on a cassette: recorded once, played without the world, and so bit for bit in a world that promises nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
from words_recipe import UnsureEnv, WordEnv, words

import treadle
from treadle import CassetteConfig
from treadle.cli.main import main

SAVED = ("model/model.safetensors", "optimiser.safetensors", "learner.json")
TAPE = Path("tape.db")


class MoodyEnv(UnsureEnv):
    """Says what nobody else hears: how many of it there were."""

    made = 0

    def __init__(self):
        type(self).made += 1
        self.mood = type(self).made

    async def step(self, action):
        return replace(await super().step(action), state_key=str(self.mood))

    async def score(self):
        return {"length": (len(self.heard) + self.mood % 3) / 8}


@pytest.fixture(autouse=True)
def _none_made():
    MoodyEnv.made = 0


def recipe(mode, *, deterministic=False, env=MoodyEnv):
    made = words(env=env)
    return replace(
        made, deterministic=deterministic, engine=replace(made.engine, deterministic=True),
        cassette=CassetteConfig(file=TAPE, mode=mode),
    )


def bits(result):
    return [(result.checkpoint / name).read_bytes() for name in SAVED]


def test_a_world_with_moods_trains_to_equal_bits_from_its_cassette():
    recorded = treadle.train(recipe("record"), view="none")
    made = MoodyEnv.made
    assert made > 20
    ends = [treadle.train(recipe("strict", deterministic=True), view="none") for _ in range(2)]

    assert MoodyEnv.made == made, "no world was made to play a cassette"
    assert ends[0].version > 2
    assert bits(recorded) == bits(ends[0]) == bits(ends[1])


def test_what_is_not_on_the_cassette_is_never_trained_on_as_reward():
    treadle.train(recipe("record"), view="none")
    other = replace(recipe("strict"), seed=1)
    with pytest.raises(treadle.TreadleError, match=r"tape\.db: task .* is not on it"):
        treadle.train(other, view="none")
    assert MoodyEnv.made < 100


def test_a_cassette_that_does_not_go_far_enough_is_completed_by_the_world():
    short = recipe("record", env=WordEnv)
    treadle.train(replace(short, pipeline=replace(short.pipeline, updates=1)), view="none")
    whole = treadle.train(recipe("fallback", env=WordEnv), view="none")
    again = treadle.train(recipe("strict", env=WordEnv), view="none")

    assert whole.reason == again.reason == "done"
    assert bits(whole) == bits(again)


def counts(ears):
    (end,) = ears.named("run.done") or ears.named("run.failed")
    return {key.removeprefix("cassette."): value for key, value in end.items() if key.startswith("cassette.")}


def told_in(folder, capsys):
    """What report and `show` say of the cassette."""
    capsys.readouterr()
    assert main(["show", str(folder), "--most", "1"]) == 0
    shown = capsys.readouterr().out.splitlines()[-1]
    report = next(line for line in (folder / "report.md").read_text().splitlines() if line.startswith("Cassette"))
    return shown, report


def test_a_run_says_how_many_answers_it_recorded_replayed_and_missed(ears, capsys):
    result = treadle.train(recipe("record"), listeners=[ears], view="none")
    recorded = counts(ears)
    assert recorded["recorded"] > recorded["differing"] > 0
    assert (recorded["replayed"], recorded["missed"]) == (0, 0)
    facts = f"{recorded['recorded']} answers recorded, {recorded['differing']} unlike the first to the same history"
    assert told_in(result.folder, capsys) == (
        f"(cassette: {facts}, 0 replayed, 0 missed)", f"Cassette: {facts}, 0 replayed, 0 missed.",
    )

    again = type(ears)()
    result = treadle.train(recipe("strict"), listeners=[again], view="lines")
    played = counts(again)
    assert (played["recorded"], played["differing"], played["missed"]) == (0, 0, 0)
    assert played["replayed"] >= recorded["recorded"]
    end = capsys.readouterr().out
    assert f"; cassette: 0 answers recorded, {played['replayed']} replayed, 0 missed\n" in end


def test_a_run_that_fails_for_want_of_answers_says_how_many(ears):
    treadle.train(recipe("record"), view="none")
    with pytest.raises(treadle.TreadleError):
        treadle.train(replace(recipe("strict"), seed=1), listeners=[ears], view="none")
    assert counts(ears)["missed"] > 0


def test_a_run_without_a_cassette_says_nothing_of_one(ears):
    result = treadle.train(words(epochs=0, updates=1, evaluation=0), listeners=[ears], view="none")
    assert counts(ears) == {}
    assert "assette" not in (result.folder / "report.md").read_text()


def test_a_world_without_promise_is_told_of_the_cassette():
    with pytest.raises(treadle.ConfigError, match=r"or play recorded answers: cassette\.file and cassette\.mode="):
        treadle.train(recipe("record", deterministic=True), view="none")


def test_a_cassette_that_is_not_there_costs_no_run_folder():
    with pytest.raises(treadle.StoreError, match=r"tape\.db does not exist: record it first"):
        treadle.train(recipe("strict"), view="none")
    assert not any(path.is_dir() for path in Path("runs").glob("*"))


def test_the_keys_are_set_like_all_others():
    changed = words().changed({"cassette.file": "a/b.db", "cassette.mode": "fallback", "cassette.reads": "actions"})
    assert changed.cassette == CassetteConfig(file=Path("a/b.db"), mode="fallback", reads="actions")
    assert changed.flat()["cassette.file"] == "a/b.db"
    with pytest.raises(treadle.ConfigError, match=r"cassette\.mode"):
        words().changed({"cassette.mode": "loose", "cassette.file": "a.db"})
