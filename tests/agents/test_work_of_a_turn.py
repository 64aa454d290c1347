"""What one more turn costs, as counts: they do not depend on the machine, as seconds would."""

import asyncio
from collections import Counter

import pytest

from treadle.testing.byte_renderer import ByteRenderer
from treadle.trajectory.group import Group


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts what it is asked for."""

    def __init__(self):
        self.asked = Counter()
        super().__init__()

    def create_task(self, *args, **options):
        self.asked["task"] += 1
        return super().create_task(*args, **options)

    def call_at(self, *args, **options):
        self.asked["timer"] += 1
        return super().call_at(*args, **options)

    def call_soon(self, *args, **options):
        self.asked["hop"] += 1
        return super().call_soon(*args, **options)


class CountingSink:
    """Counts what it is told."""

    def __init__(self):
        self.told = Counter()

    def segment(self, segment):
        self.told["segment"] += 1

    def reward(self, record):
        self.told["reward"] += 1

    def rollout(self, rollout):
        self.told["rollout"] += 1

    def group(self, key):
        self.told["group"] += 1


def played(stage, turns):
    """The loop and the sink of a rollout of so many turns."""
    loop, sink = CountingLoop(), CountingSink()
    group = Group(stage.group().key, sink=sink)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        rollout = runner.run(stage.player(stage.engine(["no"])).play(group, stage.plan(data={"turns": turns})))
    assert len(group.actions(rollout.id)) == turns
    return loop, sink


def of_a_turn(few, many, turns):
    """What one more turn adds, where the two rollouts differ by so many."""
    assert all(count % turns == 0 for count in (many - few).values())
    return {what: count // turns for what, count in (many - few).items()}


def test_a_turn_takes_one_task_two_timers_and_three_hops_of_the_loop(stage):
    """The world's task; the deadlines of engine and world; the engine's answer, the task, the player."""
    few, many = (played(stage, turns)[0].asked for turns in (3, 7))
    assert of_a_turn(few, many, 4) == {"task": 1, "timer": 2, "hop": 3}


def test_a_turn_is_two_segments_and_two_states_of_its_rollout(stage):
    few, many = (played(stage, turns)[1].told for turns in (3, 7))
    assert of_a_turn(few, many, 4) == {"segment": 2, "rollout": 2}


@pytest.fixture
def rendered(monkeypatch):
    """Counts what the renderer is asked for."""
    asked = Counter()
    for name in ("first", "bridge", "parse"):
        whole = getattr(ByteRenderer, name)
        monkeypatch.setattr(
            ByteRenderer, name, lambda *args, name=name, whole=whole, **options: asked.update([name])
            or whole(*args, **options),
        )
    return asked


@pytest.mark.parametrize("turns", [2, 7])
def test_each_observation_is_rendered_once(stage, turns, rendered):
    played(stage, turns)
    assert rendered == {"first": 1, "bridge": turns - 1, "parse": turns}


def test_a_prompt_is_rendered_once_for_all_members_of_a_group(stage, rendered):
    group = stage.group()
    stage.clock.run(stage.groups(stage.engine(["no"]), size=5).play(group, stage.plan().task))
    assert (len(group.valid), rendered["first"]) == (5, 1)
