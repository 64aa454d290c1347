"""The code environment: programs run, hidden tests decide, live episodes fork."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from treadle.core.actions import Action, CodeBlock
from treadle.core.clock import SystemClock
from treadle.core.errors import ConfigError
from treadle.core.seeds import Stream
from treadle.envs.bubblewrap import BubblewrapSandbox
from treadle.envs.code import CodeEnv, CodeTaskset
from treadle.envs.code.env import NOT_PYTHON
from treadle.envs.code.families import FAMILIES
from treadle.envs.code.taskset import hidden
from treadle.envs.host import EnvHost, HostConfig
from treadle.envs.task import Task
from treadle.recipes.world import CodeWorld
from treadle.testing import check_env, check_forks

TASK = CodeTaskset(0, families=("sum-multiples",)).task("train", 0)


def block(code: str, *, language: str = "python") -> Action:
    return Action(text=code, blocks=(CodeBlock(language=language, code=code),))


def gold(task: Task) -> list[Action]:
    return [block(hidden(task).solution), Action(text="Done.")]


@pytest.fixture
async def host(bubblewrap: None) -> AsyncIterator[EnvHost]:
    made = EnvHost(CodeEnv, config=HostConfig(), clock=SystemClock())
    assert (await made.open(TASK, Stream(0))).outcome is None
    yield made
    await made.close()


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_scripted_solution_of_each_family_passes_and_junk_does_not(bubblewrap: None, family: str) -> None:
    await check_env(CodeEnv, [CodeTaskset(3, families=(family,)).task("train", 5)], gold=gold)


async def test_a_program_is_run_and_what_it_prints_is_seen(host: EnvHost) -> None:
    step = await host.act(block("print(6 * 7)\nopen('kept', 'w').write('x')"), step_id="0")
    assert step.messages[0].content == "42"
    step = await host.act(block("print(open('kept').read(), 1 / 0)"), step_id="1")
    assert "ZeroDivisionError" in step.messages[0].content and "[exit 1]" in step.messages[0].content
    step = await host.act(block("ls", language="bash"), step_id="2")
    assert step.messages[0].content == NOT_PYTHON


@pytest.mark.parametrize(
    "code",
    [
        "def f(xs): return 0",
        "def f(xs): return None",
        "def f(xs): return float('nan')",
        "def f(xs): raise ValueError",
        "print([0] * 8)",
        "import atexit\ndef f(xs): return 0\natexit.register(lambda: print([0] * 8))",
        "def f(xs):\n    while True: pass",
    ],
)
async def test_a_wrong_solution_scores_nothing(bubblewrap: None, code: str) -> None:
    host = EnvHost(lambda: CodeEnv(command_timeout_s=1), config=HostConfig(), clock=SystemClock())
    await host.open(TASK, Stream(0))
    await host.act(block(code), step_id="0")
    score = await host.score()
    await host.close()
    assert (score.parts, score.outcome) == ({"correct": 0.0}, None)


async def test_no_result_of_the_tests_is_ever_inside(host: EnvHost) -> None:
    spy = "def f(xs):\n    import sys\n    open('/work/seen', 'w').write(repr(sys.argv))\n    return 0"
    await host.act(block(spy), step_id="0")
    assert (await host.score()).parts == {"correct": 0.0}
    env = host._env
    assert isinstance(env, CodeEnv) and isinstance(env._sandbox, BubblewrapSandbox)
    seen = (env._sandbox.workspace / "seen").read_text()
    assert str(list(hidden(TASK).inputs[0]))[1:-1] in seen
    assert str(list(hidden(TASK).results)) not in seen


async def test_a_live_episode_forks_with_its_files_and_its_solution(bubblewrap: None) -> None:
    solution = hidden(TASK).solution
    actions = [
        block("open('n', 'w').write('1')"), block(solution + "\nprint(open('n').read())"),
        block(solution + "\nprint(open('n').read() + '!')"),
    ]
    await check_forks(CodeEnv, [TASK], actions=lambda _: actions)


def test_tasks_are_counted_and_splits_are_apart() -> None:
    taskset = CodeTaskset(1)
    first = [taskset.task("train", i) for i in range(16)]
    assert [t.prompt for t in first] == [CodeTaskset(1).task("train", i).prompt for i in range(16)]
    assert [t.family for t in first] == list(FAMILIES) * 2
    assert not {t.prompt for t in first} & {taskset.task("heldout", i).prompt for i in range(16)}
    assert all(hidden(t).solution not in t.prompt for t in first)


def test_the_world_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ConfigError, match="families"):
        CodeWorld(families=("none",)).taskset()
    with pytest.raises(ConfigError, match=r"world\.sandbox"):
        CodeWorld(sandbox="docker")
    assert CodeWorld().taskset().task("train", 0).family == "sum-multiples"
