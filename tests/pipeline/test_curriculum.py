"""Which task a ticket plays: worth, skipping, forgetting, and what a choice may know."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.agents.limits import Rewards
from treadle.core.errors import ConfigError
from treadle.core.outcome import OK, Origin, Outcome, Status
from treadle.core.ports import Completion, Finish
from treadle.core.seeds import Stream
from treadle.envs.task import ListTaskset, Task
from treadle.pipeline.curriculum import MOST_SKIPS, ByDifficulty, InTicketOrder, Pool, TicketTasks
from treadle.pipeline.placebo import PermuteRewards
from treadle.testing.echo_env import EchoTaskset
from treadle.trajectory.group import Group, GroupKey

KINDS = ("some", "never", "always")
"""Words of a taskset whose families are solved sometimes, never and always."""


def begin(words=KINDS, *, seed=7, group_size=8, taskset=None, **config):
    return ByDifficulty(**config).begin(
        taskset or EchoTaskset(words), group_size=group_size, rewards=Rewards(main="correct"), seed=Stream(seed)
    )


def group_of(scores, part="correct"):
    """One rollout per score; None is one that the machinery lost."""
    group = Group(GroupKey(id="t0", ticket=0, task="t", family="", split="train", admitted_version=0))
    prompt = group.prompt(np.array([1, 2], np.int32))
    for index, score in enumerate(scores):
        rollout = group.begin(index).id
        said = Completion(
            ids=np.array([5], np.int32), logprobs=np.zeros(1, np.float32), entropy=np.zeros(1, np.float32),
            versions=((0, 1),), kv_version=0, finish=Finish.STOP,
        )
        group.sampled(rollout, said, after=prompt, turn=0)
        if score is not None:
            group.pay(rollout, part, score)
        group.end(rollout, Outcome(status=Status.ERROR, origin=Origin.INFRA) if score is None else OK)
    return group


def scores_of(task, ticket):
    """What eight rollouts of a task score."""
    return {"some": [float(i < 1 + ticket % 7) for i in range(8)], "never": [0.0] * 8, "always": [1.0] * 8}[task.family]


def play(curriculum, tickets, *, batch=4):
    """Families that so many tickets play, with what was learned after every batch."""
    chosen = []
    for first in range(0, tickets, batch):
        now = [(ticket, curriculum.choose(ticket).task) for ticket in range(first, first + batch)]
        for ticket, task in now:
            curriculum.learn(task, group_of(scores_of(task, ticket)))
        chosen += [task.family for _, task in now]
    return chosen


def holding(curriculum, pools):
    """The curriculum, remembering (solved, played) for every family."""
    rows = [[family, "easy", solved, played] for family, (solved, played) in pools.items()]
    curriculum.restore({"cursor": 0, "pools": rows})
    return curriculum


@pytest.mark.parametrize(
    ("solved", "played", "group_size", "worth"),
    [
        (0, 0, 2, 1 / 4), (0, 0, 4, 29 / 64), (0, 0, 8, 9949 / 16384), (1, 2, 2, 3 / 8), (0, 2, 2, 5 / 24),
        (4, 8, 8, 0.95466), (0, 8, 8, 0.28734), (8, 8, 8, 0.28734), (0, 16, 8, 0.18137), (1, 8, 8, 0.65491),
        (3, 8, 1, 0),
    ],
)
def test_worth_is_the_chance_that_the_next_group_has_something_to_compare(solved, played, group_size, worth):
    assert Pool(solved=solved, played=played).worth(group_size) == pytest.approx(worth, abs=5e-5)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(2, 8))
def test_worth_is_what_a_beta_binomial_says(solved, unsolved, size):
    def beta(a, b):
        return math.exp(math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b))

    a, b = solved + 0.5, unsolved + 0.5
    same = (beta(a + size, b) + beta(a, b + size)) / beta(a, b)
    assert Pool(solved=solved, played=solved + unsolved).worth(size) == pytest.approx(1 - same, abs=1e-9)


@pytest.mark.parametrize(
    ("solved", "played", "headroom", "worth"),
    [(0, 0, 1, 9949 / 32768), (0, 0, 2, 9949 / 65536), (4, 8, 1, 0.47733), (0, 8, 1, 0.27138), (8, 8, 1, 0.01596)],
)
def test_headroom_weighs_worth_with_what_is_still_unsolved(solved, played, headroom, worth):
    assert Pool(solved=solved, played=played).worth(8, headroom) == pytest.approx(worth, abs=5e-5)


def test_with_headroom_rarely_solved_kinds_come_before_those_solved_nearly_always():
    pools = {"never": (1, 16), "always": (15, 16), "some": (8, 16)}
    even, uneven = holding(begin(), pools), holding(begin(headroom=1), pools)
    share = [one.worth(one.pools["never", "easy"]) / one.worth(one.pools["always", "easy"]) for one in (even, uneven)]
    assert share[0] == pytest.approx(1)
    assert share[1] > 4


def test_before_anything_is_learned_tasks_come_in_ticket_order():
    curriculum = begin()
    chosen = [curriculum.choose(ticket) for ticket in range(30)]
    assert [choice.task.id for choice in chosen] == [f"echo-train-{i}" for i in range(30)]
    assert {choice.skipped for choice in chosen} == {0}


@pytest.mark.parametrize("score", [0.0, 0.5, 1.0])
def test_a_single_pool_is_never_skipped(score):
    tasks = [Task(id=str(i), prompt="go") for i in range(5)]
    curriculum = begin(taskset=ListTaskset(tasks))
    for ticket in range(40):
        choice = curriculum.choose(ticket)
        assert (choice.task, choice.skipped) == (tasks[ticket % 5], 0)
        curriculum.learn(choice.task, group_of([score] * 8))


@pytest.mark.parametrize(("family", "share"), [("never", 0.16), ("always", 0.16), ("some", 1.0)])
def test_pools_are_taken_at_their_worth_relative_to_the_best(family, share):
    curriculum = holding(begin(), {"never": (0, 20), "always": (20, 20), "some": (10, 20)})
    chosen = [curriculum.choose(ticket).task.family for ticket in range(2000)]
    looks = curriculum.cursor // 3
    expected = curriculum.worth(curriculum.pools[family, "easy"]) / curriculum.worth(curriculum.pools["some", "easy"])
    assert expected == pytest.approx(share, abs=0.005)
    spread = math.sqrt(looks * expected * (1 - expected))
    assert abs(chosen.count(family) - looks * expected) <= 4 * spread + 1


def test_no_pool_is_given_up_for_good():
    curriculum = holding(begin(floor=0.05), {"never": (0, 1e9), "always": (1e9, 1e9), "some": (50, 100)})
    assert curriculum.worth(curriculum.pools["never", "easy"]) == 0.05
    chosen = [curriculum.choose(ticket).task.family for ticket in range(2000)]
    assert all(0.04 <= chosen.count(family) / (curriculum.cursor / 3) <= 0.06 for family in ("never", "always"))


def test_a_ticket_passes_over_a_bounded_number_of_tasks_and_takes_the_best_of_them():
    curriculum = holding(begin(("a", "b"), floor=1e-12), {"a": (0, 1e9), "b": (0, 1e8), "gone": (4, 8)})
    choice = curriculum.choose(0)
    assert (choice.task.family, choice.task.id, choice.skipped) == ("b", "echo-train-1", MOST_SKIPS)
    assert curriculum.cursor == MOST_SKIPS + 1


def test_what_is_solved_sometimes_is_played_most():
    chosen = play(begin(), 120)
    assert [chosen.count(kind) for kind in KINDS] == [95, 10, 15]


def test_a_hopeless_pool_that_becomes_solvable_comes_back():
    curriculum = begin()
    play(curriculum, 60)
    pool = curriculum.pools["never", "easy"]
    assert (pool.kind, pool.worth(8) < 0.2) == ("hopeless", True)
    task = EchoTaskset(("never",)).task("train", 0)
    for _ in range(3):
        curriculum.learn(task, group_of([1.0, 0.0] * 4))
    assert (pool.kind, pool.worth(8) > 0.8) == ("mixed", True)


def test_older_groups_count_less_at_every_new_one_of_their_pool():
    curriculum = begin(memory=0.5)
    task = curriculum.choose(0).task
    for scores in ([1.0] * 4, [0.0] * 4, [0.5] * 2 + [7.0, -3.0]):
        curriculum.learn(task, group_of(scores))
    assert curriculum.pools["some", "easy"] == Pool(solved=4 * 0.25 + 2.0, played=1 + 2 + 4)


def test_failed_rollouts_never_count_and_a_lost_group_says_nothing():
    curriculum = begin()
    task = curriculum.choose(0).task
    curriculum.learn(task, group_of([None, 1.0, None, 0.0, 0.0]))
    curriculum.learn(task, group_of([None] * 5))
    assert curriculum.pools["some", "easy"] == Pool(solved=1.0, played=3.0)


def test_a_score_without_the_main_part_counts_by_its_sum():
    curriculum = begin()
    curriculum.learn(curriculum.choose(0).task, group_of([0.25, 0.5], part="other"))
    assert curriculum.pools["some", "easy"] == Pool(solved=0.75, played=2.0)


def test_the_same_seed_chooses_the_same_tasks_and_another_does_not():
    assert play(begin(), 80) == play(begin(), 80)
    assert play(begin(), 80) != play(begin(seed=8), 80)


def test_a_restored_curriculum_goes_on_as_the_first_would_have():
    first, other = begin(), begin()
    play(first, 40)
    other.restore(json.loads(json.dumps(first.state())))
    assert other.state() == first.state()
    assert [other.choose(t) for t in range(40, 80)] == [first.choose(t) for t in range(40, 80)]


@pytest.mark.parametrize(
    "state", [{}, {"cursor": "3", "pools": []}, {"cursor": 3, "pools": [["a", "b", 1]]}, {"cursor": 1, "pools": [7]}]
)
def test_a_state_of_something_else_is_refused(state):
    with pytest.raises(ValueError, match="curriculum state: got"):
        begin().restore(state)


def test_ticket_order_has_no_state_and_learns_nothing():
    curriculum = TicketTasks(EchoTaskset(KINDS))
    task = curriculum.choose(5).task
    curriculum.learn(task, group_of([1.0]))
    curriculum.restore(curriculum.state())
    assert (task.id, curriculum.state(), curriculum.statistics().values) == ("echo-train-5", {}, {})
    with pytest.raises(ValueError, match="expected none"):
        curriculum.restore({"cursor": 3})


def test_pools_are_counted_by_kind():
    curriculum = begin((*KINDS, "unseen"))
    for kind, scores in (("some", [0.0, 1.0]), ("never", [0.0]), ("always", [1.0])):
        curriculum.learn(EchoTaskset((kind,)).task("train", 0), group_of(scores))
    for ticket in range(4):
        curriculum.choose(ticket)
    assert curriculum.statistics().values == {
        "pools.unplayed": 1, "pools.hopeless": 1, "pools.mixed": 1, "pools.mastered": 1,
    }


@pytest.mark.parametrize("wrong", [{"memory": 1.5}, {"memory": -0.1}, {"floor": 0}, {"floor": 2}])
def test_numbers_out_of_range_name_their_key(wrong):
    with pytest.raises(ConfigError, match=rf"curriculum\.{next(iter(wrong))}: got"):
        ByDifficulty(**wrong)


# -- in the loop -----------------------------------------------------------------------------------------------


def by_family(turn):
    """Says the word always, never, or in half of the rollouts, as the prompt asks."""
    asked = bytes(int(i) for i in turn.request.prompt if i < 256).decode()
    index = int(turn.rollout.split(".")[1])
    return "no" if "never" in asked or ("some" in asked and index % 2) else asked.removeprefix("say ")


def prepare(bench, *, lag=0, plan=None, latency=None, **parts):
    """A loop over the three kinds."""
    bench.taskset, bench.script = EchoTaskset(KINDS), by_family
    bench.latency = latency or bench.latency
    bench.set(lag=lag, groups_per_update=6, updates=20)
    plan = plan or ByDifficulty()
    curriculum = plan.begin(bench.taskset, group_size=4, rewards=bench.rewards, seed=Stream(3))
    return bench.loop(curriculum=curriculum, **parts), curriculum


def tail(seed):
    return lambda turn: Stream(seed).at(turn.rollout).python().lognormvariate(0.0, 1.5)


def tasks_of(bench):
    return [event["task"] for event in bench.ears.named("group.admitted")]


def test_fewer_groups_have_nothing_to_compare_than_in_ticket_order(bench, make_bench):
    plain = make_bench()
    for one, plan in ((plain, InTicketOrder()), (bench, ByDifficulty())):
        loop, _ = prepare(one, plan=plan)
        one.clock.run(loop.run())
    plain.thread.close()
    dropped = [[e["reason"] for e in one.ears.named("group.dropped")] for one in (plain, bench)]
    assert [reasons.count("zero_variance") for reasons in dropped] == [80, 36]
    assert [len(reasons) for reasons in dropped] == [80, 36]


def test_every_skipped_task_is_told(bench):
    loop, curriculum = prepare(bench)
    bench.clock.run(loop.run())
    told = bench.ears.named("update.done") + bench.ears.named("update.skipped")
    skipped = sum(e["skipped_tasks"] for e in told)
    assert skipped == curriculum.cursor - 120 > 0
    assert skipped == sum(e["skipped_tasks"] for e in bench.ears.named("group.admitted"))
    last = bench.ears.named("update.done")[-1]
    assert {key: last[key] for key in last if key.startswith("pools.")} == {
        "pools.unplayed": 0, "pools.hopeless": 1, "pools.mixed": 1, "pools.mastered": 1,
    }


def test_without_lag_latencies_do_not_change_the_tasks(bench, make_bench):
    benches = [bench, make_bench(), make_bench()]
    for seed, one in enumerate(benches):
        loop, _ = prepare(one, latency=tail(seed))
        one.clock.run(loop.run())
        one.thread.close()
    assert tasks_of(benches[0]) == tasks_of(benches[1]) == tasks_of(benches[2])


def test_the_placebo_arm_plays_the_same_tasks(bench, make_bench):
    other = make_bench()
    for one, parts in ((bench, {}), (other, {"transform": PermuteRewards(seed=Stream(1))})):
        loop, _ = prepare(one, **parts)
        one.clock.run(loop.run())
    other.thread.close()
    assert tasks_of(bench) == tasks_of(other)


class Notes(TicketTasks):
    """Remembers what had been learned when a ticket chose."""

    def __init__(self, taskset):
        super().__init__(taskset)
        self.learned = []
        self.known = []

    def choose(self, ticket):
        self.known.append(list(self.learned))
        return super().choose(ticket)

    def learn(self, task, group):
        self.learned.append(group.key.ticket)


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_choice_knows_whole_batches_in_ticket_order_and_none_after_its_own_bound(bench, lag):
    bench.set(lag=lag, updates=8)
    bench.latency = tail(5)
    notes = Notes(bench.taskset)
    bench.run(curriculum=notes)
    for ticket, known in enumerate(notes.known):
        assert known == list(range(len(known)))
        assert len(known) % 3 == 0
        assert max(ticket // 3 - lag, 0) <= len(known) // 3 <= ticket // 3


def test_dropped_groups_are_learned_from_too(bench):
    bench.script = ["yes"]
    notes = Notes(bench.taskset)
    bench.run(curriculum=notes)
    assert len(bench.ears.named("group.dropped")) == 12
    assert notes.learned == list(range(12))
