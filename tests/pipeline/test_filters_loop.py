"""Filters in the loop: what trains, what is counted and told, what the curriculum still hears of."""

import pytest

from treadle.agents.limits import RolloutLimits
from treadle.pipeline.curriculum import TicketTasks
from treadle.pipeline.filters import DropEqualRewards
from treadle.pipeline.masks import MaskDuplicates, MaskOverlong, MaskVoidTurns
from treadle.testing.echo_env import EchoTaskset

ALL = (DropEqualRewards(), MaskOverlong())


def says(turn):
    """Rollouts 0 and 1 of each group differ; 2 talks on and on; 3 is like 1."""
    index = int(turn.rollout.split(".")[1])
    return ("no", "yes", "yes and more and more", "yes")[index]


@pytest.fixture
def chatty(bench):
    """Rollout 2 of every group is cut off by its token limit."""
    bench.script = says
    bench.limits = RolloutLimits(max_tokens_per_turn=8)
    return bench.set(filters=ALL)


def test_a_rollout_that_was_left_out_is_not_trained_and_is_counted(chatty):
    chatty.run()
    assert chatty.trainer.batches[0]["tickets"] == [0, 1, 2]
    assert chatty.trainer.batches[0]["rewards"] == [[0.0, 1.0, 1.0]] * 3
    first = chatty.ears.named("update.done")[0]
    assert (first["masked.overlong"], first["rollouts"], first["dropped"]) == (3, 12, 0)
    assert [e["masked.overlong"] for e in chatty.ears.named("group.ready")] == [1] * 12
    assert [key for key in first if key.startswith("dropped.")] == []


def test_statistics_tell_of_all_that_the_policy_did(chatty):
    chatty.run()
    first = chatty.ears.named("update.done")[0]
    assert first["truncated_share"] == 0.25
    assert first["solved_share"] == 0.5
    assert {e["valid"] for e in chatty.ears.named("group.ready")} == {4}


def test_groups_that_lose_too_much_are_dropped_with_the_reason_and_do_not_end_the_run(chatty):
    chatty.script = lambda turn: "on and on and on"
    chatty.set(updates=4, failed_batches=3)
    report = chatty.run()
    assert (report.updates, report.version) == (4, 0)
    assert {e["reason"] for e in chatty.ears.named("group.dropped")} == {"overlong"}
    skipped = chatty.ears.named("update.skipped")
    assert [(e["dropped.overlong"], e["masked.overlong"]) for e in skipped] == [(3, 12)] * 4


def test_reasons_are_counted_apart(chatty):
    """Ticket 1 says one thing, ticket 2 talks."""
    def script(turn):
        one = {"t000001": "yes", "t000002": "on and on and on"}
        return one.get(turn.rollout.partition(".")[0]) or says(turn)

    chatty.script = script
    chatty.set(updates=1).run()
    first = chatty.ears.named("update.done")[0]
    assert {k: v for k, v in first.items() if k.startswith(("dropped", "masked"))} == {
        "dropped": 2, "dropped.zero_variance": 1, "dropped.overlong": 1, "masked.overlong": 5
    }


def test_duplicates_are_left_out_only_where_a_recipe_says_so(bench, make_bench):
    bench.run()
    assert bench.trainer.batches[0]["rewards"][0] == [0.0, 1.0, 0.0, 1.0]
    other = make_bench()
    other.set(filters=(MaskDuplicates(), DropEqualRewards())).run()
    other.thread.close()
    assert other.trainer.batches[0]["rewards"][0] == [0.0, 1.0]
    assert other.ears.named("update.done")[0]["masked.duplicate"] == 6


def test_void_turns_are_those_that_the_world_could_not_use(bench):
    """Rollout 0 says nothing in its first turn."""
    bench.taskset = EchoTaskset(("yes",), data={"turns": 2})
    bench.script = lambda turn: "" if turn.rollout.split(".")[1] == "0" and turn.number == 0 else mixed(turn)
    bench.set(updates=1, filters=(MaskVoidTurns(parts=("text",)),)).run()
    assert bench.trainer.batches[0]["rewards"] == [[1.0, 0.0, 1.0]] * 3
    assert bench.ears.named("update.done")[0]["masked.void_turn"] == 3


def mixed(turn):
    return "yes" if int(turn.rollout.split(".")[1]) % 2 else "no"


def test_without_filters_groups_with_nothing_to_compare_train(bench):
    bench.script = lambda turn: "yes"
    bench.set(updates=1, filters=()).run()
    assert bench.trainer.batches[0]["tickets"] == [0, 1, 2]


class Listening(TicketTasks):
    """Keeps how many rollouts of each group it heard of."""

    def __init__(self, taskset):
        super().__init__(taskset)
        self.heard = []

    def learn(self, task, group):
        self.heard.append(len(group.valid))


def test_the_curriculum_hears_of_what_was_left_out(chatty):
    ears = Listening(chatty.taskset)
    chatty.set(updates=1).run(curriculum=ears)
    assert ears.heard == [4, 4, 4]

