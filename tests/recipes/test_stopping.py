"""Interrupting a run: the first time what is under way is finished and saved, the second time it is cancelled."""

import asyncio
import os
import signal
import threading

import pytest
from words_recipe import RELEASE, Words, endless_coldstart, endless_rl, endless_update, hanging_evaluation, words

import treadle
from treadle.models import Policy
from treadle.recipes.blocking import Brake, block


@pytest.fixture(autouse=True)
def released():
    RELEASE.clear()
    yield
    RELEASE.set()


def held(folder):
    return sorted(path.name for path in (folder / "checkpoints").glob("version-*"))


def test_ctrl_c_in_the_cold_start_finishes_the_update_and_saves(interrupts):
    ears = interrupts("coldstart.update", signal.SIGINT)
    result = treadle.train(endless_coldstart(), view="none", listeners=[ears])
    assert result.reason == "interrupted"
    assert 1 <= len(ears.named("coldstart.update")) <= 3
    assert result.version == len(ears.named("coldstart.update"))
    assert held(result.folder) == [f"version-{result.version:06d}"]
    assert Policy.load(result.checkpoint / "model").dims.layers == 2
    assert "coldstart" not in result.evaluations


def test_ctrl_c_in_reinforcement_learning_finishes_the_update_and_saves(interrupts):
    ears = interrupts("update.started", signal.SIGINT)
    result = treadle.train(endless_rl(), view="none", listeners=[ears])
    assert result.reason == "interrupted"
    assert [e["version"] for e in ears.named("update.done")] == [result.version]
    assert held(result.folder) == [f"version-{result.version:06d}"]


def test_sigterm_in_an_evaluation_gives_it_up_and_saves_what_was_trained(ears):
    def react(event):
        if event.name == "evaluation.progress" and event.values["label"] == "coldstart" and event.values["done"] == 2:
            signal.raise_signal(signal.SIGTERM)  # the other tasks hang

    ears.react = react
    result = treadle.train(hanging_evaluation(), view="none", listeners=[ears])
    assert result.reason == "interrupted"
    assert list(result.evaluations) == ["untouched"]
    assert held(result.folder) == [f"version-{result.version:06d}"]
    assert ears.named("run.done")[0]["reason"] == "interrupted"


def test_ctrl_c_in_the_untouched_evaluation_saves_nothing(interrupts):
    tasks = Words(hang=lambda split, number: number >= 2)
    result = treadle.train(words(tasks), view="none", listeners=[interrupts("evaluation.progress", signal.SIGINT)])
    assert (result.reason, result.checkpoint, result.evaluations) == ("interrupted", None, {})


def test_a_second_ctrl_c_cancels_the_run_and_raises(interrupts):
    ears = interrupts("update.started", signal.SIGINT, times=1)
    second = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    ears_react, before = ears.react, signal.getsignal(signal.SIGINT)

    def react(event):
        ears_react(event)
        if event.name == "run.stopping" and "update" not in event.values:
            second.start()

    ears.react = react
    with pytest.raises(KeyboardInterrupt):
        treadle.train(endless_update(), view="none", listeners=[ears])
    assert ears.named("run.failed")[0]["type"] == "CancelledError"
    assert signal.getsignal(signal.SIGINT) is before


def test_in_a_running_loop_ctrl_c_stops_the_run_in_its_thread(interrupts):
    ears = interrupts("update.done", signal.SIGINT)

    async def cell():
        return treadle.train(endless_rl(), view="none", listeners=[ears]), threading.active_count()

    result, _ = asyncio.run(cell())
    assert result.reason == "interrupted"
    assert held(result.folder) == [f"version-{result.version:06d}"]


def test_in_a_running_loop_a_second_ctrl_c_raises_at_once_and_the_thread_tidies_up(interrupts):
    ears = interrupts("update.started", signal.SIGINT)
    gone = threading.Event()
    first = ears.react

    def react(event):
        first(event)
        if event.name == "run.stopping" and "update" not in event.values:
            os.kill(os.getpid(), signal.SIGINT)
        if event.name == "run.failed":
            gone.set()

    ears.react = react

    async def cell():
        treadle.train(endless_update(), view="none", listeners=[ears])

    loop = asyncio.new_event_loop()
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(cell())
    loop.close()
    assert gone.wait(30)


@pytest.mark.parametrize("call", [treadle.evaluate, treadle.rollout])
def test_ctrl_c_gives_up_an_evaluation_or_a_rollout(call):
    class Interrupting(Words):
        def task(self, split, index):
            if index == 0:
                os.kill(os.getpid(), signal.SIGINT)
            return super().task(split, index)

    with pytest.raises(KeyboardInterrupt):
        call(words(Interrupting(hang=lambda split, number: True)))


def test_a_brake_that_was_pulled_early_stops_what_comes():
    async def work(brake):
        stopped = []
        with brake.governs(lambda: stopped.append(1)):
            return stopped

    brake = Brake()
    brake.pull()
    assert asyncio.run(work(brake)) == [1]


def test_an_error_of_the_run_comes_out_of_a_running_loop_as_itself():
    async def work(brake):
        raise treadle.EnvError("as it is")

    async def cell():
        return block(work)

    with pytest.raises(treadle.EnvError, match="as it is"):
        asyncio.run(cell())


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        async def work(brake):
            signal.raise_signal(signal.SIGINT)
            return brake.pulled

        assert block(work) is False
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
