"""Demonstrations: played in the real world, kept only when the world says they are right."""

import pytest

from treadle.agents.demonstrator import DemonstrationPlan, Demonstrator
from treadle.agents.limits import Rewards
from treadle.core.errors import EnvError
from treadle.core.seeds import Stream
from treadle.envs.host import EnvHost
from treadle.testing.byte_renderer import END, ByteRenderer
from treadle.testing.echo_env import EchoEnv, EchoTaskset
from treadle.trajectory.segment import Author


def collect(stage, taskset, **plan):
    async def make_env():
        return EchoEnv()

    demonstrator = Demonstrator(
        ByteRenderer(), taskset=taskset, make_host=lambda: EnvHost(make_env, config=stage.host, clock=stage.clock),
        rewards=Rewards(main="correct"), seed=Stream(7), max_context=200,
    )
    return stage.clock.run(demonstrator.collect(DemonstrationPlan(**plan)))


class Wrong(EchoTaskset):
    """Every other script is wrong."""

    def demonstration(self, task):
        number = int(task.id.rsplit("-", 1)[1])
        return ["nonsense"] if number % 2 else [task.data["word"]]


def test_a_demonstration_is_what_the_policy_would_have_sampled(stage):
    found = collect(stage, EchoTaskset(("yes",), data={"turns": 2}), most=1)
    group = found.groups[0]
    actions = [s for s in group.segments.values() if s.is_action]
    assert {s.author for s in actions} == {Author.DEMO}
    assert all(s.ids[-1] == END and s.logprobs is None for s in actions)
    rollout = group.valid[0]
    assert ByteRenderer().decode(group.context_ids(rollout.leaves[-1])) == "say yesyesyou said yesyes"


def test_at_most_so_many_are_kept_per_family_and_in_all(stage):
    found = collect(stage, EchoTaskset(("a", "b", "c")), most=7, per_family=3, at_once=4)
    families = [g.key.family for g in found.groups]
    assert len(families) == 7
    assert max(map(families.count, families)) <= 3


def test_wrong_scripts_are_thrown_away(stage):
    found = collect(stage, Wrong(("a", "b", "c")), most=4, per_family=4, tries=12)
    assert len(found.groups) == 4
    assert found.wrong > 0
    assert all(g.valid[0].reward == 1.0 for g in found.groups)


def test_failing_worlds_are_counted_apart(stage):
    found = collect(stage, EchoTaskset(("a",), faults={0: "reset", 1: "score"}), most=2, per_family=2, tries=6)
    assert (len(found.groups), found.failed, found.wrong) == (2, 2, 0)


def test_the_search_ends_when_no_family_has_room(stage):
    found = collect(stage, EchoTaskset(("a", "b")), most=50, per_family=2, tries=40)
    assert (len(found.groups), found.tried) == (4, 4)


def test_a_demonstration_longer_than_the_context_fails(stage):
    found = collect(stage, EchoTaskset(("a" * 300, "b")), most=2, tries=2)
    assert ([g.key.ticket for g in found.groups], found.failed) == ([1], 1)


def test_a_world_in_which_no_script_can_be_played_says_why(stage):
    with pytest.raises(EnvError, match=r"none of 3 demonstrations .*echo: reset failed"):
        collect(stage, EchoTaskset(("a",), data={"fault": "reset"}), most=3, tries=3)


def test_a_hopeless_search_ends_early(stage):
    with pytest.raises(EnvError, match=r"none of 32 demonstrations"):
        collect(stage, EchoTaskset(("a",), data={"fault": "reset"}), most=96, per_family=96)


@pytest.mark.parametrize("at_once", [1, 5])
def test_demonstrations_come_in_the_order_of_the_tasks(stage, at_once):
    found = collect(stage, Wrong(("a", "b", "c")), most=5, per_family=2, tries=30, at_once=at_once)
    tickets = [g.key.ticket for g in found.groups]
    assert tickets == sorted(tickets)
    assert tickets[:3] == [0, 2, 4]
