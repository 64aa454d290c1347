"""Worlds: the shell's from settings, anybody's from three parts."""

import pytest

from treadle import ConfigError, FencedParser, HermesParser, ListTaskset, ShellWorld, Task, World
from treadle.envs.unsafe import UnsafeSandbox
from treadle.testing import EchoEnv


def test_a_world_is_its_three_parts():
    tasks = ListTaskset([Task(id="a", prompt="go")])
    world = World(tasks=tasks, env=EchoEnv)
    assert world.taskset() is tasks
    assert isinstance(world.maker()(), EchoEnv)
    assert isinstance(world.parser(), HermesParser)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"tasks": [Task(id="a", prompt="go")], "env": EchoEnv}, r"world\.tasks: got a list, .*ListTaskset\(TRAIN"),
        ({"tasks": ListTaskset([]), "env": EchoEnv()}, r"world\.env: got one EchoEnv, expected its class"),
        ({"tasks": ListTaskset([]), "env": EchoEnv, "reads": FencedParser}, r"world\.reads: got the class Fenced"),
    ],
)
def test_parts_that_are_easily_mistaken_are_refused_where_the_world_is_made(parts, said):
    with pytest.raises(ConfigError, match=said):
        World(**parts)


def test_the_shell_world_draws_each_split_from_its_own_levels():
    taskset = ShellWorld(train_levels=("easy",), heldout_levels=("hard",)).taskset()
    assert {taskset.task("train", i).level for i in range(40)} == {"easy"}
    assert {taskset.task("heldout", i).level for i in range(40)} == {"hard"}
    assert taskset.size("train") is None
    assert taskset.demonstration(taskset.task("heldout", 3)) is not None
    assert isinstance(ShellWorld().parser(), FencedParser)


def test_the_shell_world_without_a_sandbox_must_be_asked_for_by_name():
    env = ShellWorld(sandbox="none-unsafe").maker()()
    assert env._make_sandbox is UnsafeSandbox
    with pytest.raises(ConfigError, match=r"world\.sandbox: got 'none', expected 'bubblewrap' or 'none-unsafe'"):
        ShellWorld(sandbox="none")


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"families": ("count-file",)}, "families: got"), ({"train_levels": ("trivial",)}, "levels: got")],
)
def test_what_the_shell_world_does_not_have_is_a_config_error(settings, said):
    with pytest.raises(ConfigError, match=said):
        ShellWorld(**settings).taskset()


def test_an_unknown_split_is_a_value_error():
    with pytest.raises(ValueError, match="split: got 'test'"):
        ShellWorld().taskset().size("test")
