"""An environment of somebody's own in a sandbox: it opens, forks without a line for it, and frees its sandbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from treadle.core.actions import Action
from treadle.core.clock import SystemClock
from treadle.core.errors import SandboxError, ToolError
from treadle.core.messages import Message, ToolCall, user
from treadle.core.outcome import Origin, Outcome
from treadle.core.seeds import Stream
from treadle.envs.env import EnvContext, Fork
from treadle.envs.fork import fork
from treadle.envs.grading import read_bytes
from treadle.envs.host import EnvHost, HostConfig
from treadle.envs.image import Image
from treadle.envs.sandboxed import SandboxedEnv, observation
from treadle.envs.snapshots import SnapshotStore
from treadle.envs.task import Task
from treadle.envs.tools import tool
from treadle.envs.unsafe import UnsafeSandbox
from treadle.testing import check_env, check_forks

TASK = Task(id="list", prompt="Write a list.", data={"begun": "milk"})


class Watched(UnsafeSandbox):
    """Remembers whom it was made for, and fails where the test wants it to."""

    made: ClassVar[list[Watched]] = []
    failing = ""

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)

    def _fail(self, at: str) -> None:
        if Watched.failing == at:
            raise SandboxError(f"lost in {at}")

    async def start(self) -> None:
        await super().start()
        self._fail("start")

    async def write_files(self, files: Mapping[str, bytes], **options: Any) -> None:
        self._fail("write_files")
        await super().write_files(files, **options)

    async def snapshot(self) -> Image:
        self._fail("snapshot")
        return await super().snapshot()

    async def restore(self, image: Image) -> None:
        await super().restore(image)
        self._fail("restore")

    @property
    def freed(self) -> bool:
        return self._folder is not None and not self._folder.exists() and (self._box is None or not self._box.alive)


class Shopping(SandboxedEnv):
    """A list in a file, which a tool adds to; the words are counted on this side."""

    async def reset(self, task: Task, ctx: EnvContext) -> Sequence[Message]:
        self.task, self.rng, self.words = task, ctx.rng, [str(task.data["begun"])]
        sandbox = await self.open_sandbox()
        await sandbox.write_files({"list": f"{self.words[0]}\n".encode()})
        return [user(task.prompt)]

    @tool
    async def add(self, word: str) -> str:
        "Add a word to the list."
        if word == "nothing":
            raise ToolError("say what to add")
        if word == "poison":
            raise ValueError("a bug of the environment")
        self.words.append(word)
        return observation(await self.ran(f"echo {word} >> list; n=$((n + 1)); echo $n; cat list"))

    @tool
    async def wait(self) -> str:
        "Wait for ever."
        return observation(await self.ran("tail -f /dev/null"))

    async def score(self) -> float:
        return float((read_bytes(self.sandbox.workspace, "list", most=999) or b"").decode().split() == self.words)


@pytest.fixture(autouse=True)
def _nobody_fails(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Watched, "made", [])
    monkeypatch.setattr(Watched, "failing", "")
    yield
    assert all(one.freed for one in Watched.made)


def calls(name: str, **arguments: object) -> Action:
    return Action(text="", calls=(ToolCall(name=name, arguments=arguments, id=name),))


def makes(store: SnapshotStore | None = None, *, command_timeout_s: float = 10.0) -> Callable[[], EnvHost]:
    return lambda: EnvHost(
        lambda: Shopping(Watched, command_timeout_s=command_timeout_s), config=HostConfig(), clock=SystemClock(),
        snapshots=store or SnapshotStore(),
    )


def blamed(outcome: Outcome | None) -> tuple[Origin | None, str]:
    assert outcome is not None
    return outcome.origin, outcome.type


async def test_it_opens_runs_commands_and_is_scored_by_its_files() -> None:
    host = makes()()
    assert (await host.open(TASK, Stream(0))).outcome is None
    step = await host.act(calls("add", word="eggs"), step_id="0")
    assert [message.content for message in step.messages] == ["1\nmilk\neggs"]
    assert (await host.score()).reward == 1.0
    await host.close()
    assert [one.freed for one in Watched.made] == [True]


async def test_it_keeps_the_contract_of_environments_and_of_forks_without_a_line_for_it() -> None:
    assert Shopping.fork is Fork.NATIVE
    await check_env(lambda: Shopping(Watched), [TASK], junk_most=1.0)
    added = [calls("add", word=word) for word in ("eggs", "flour", "salt", "rice")]
    await check_forks(lambda: Shopping(Watched), [TASK], actions=lambda _: added)


async def test_a_fork_has_attributes_and_a_sandbox_of_its_own() -> None:
    store = SnapshotStore()
    make = makes(store)
    host = make()
    await host.open(TASK, Stream(0))
    await host.act(calls("add", word="eggs"), step_id="0")
    (one,) = await fork(host, 1, make_host=make, rng="split")
    await one.host.act(calls("add", word="flour"), step_id="1")
    mine, its = host._env, one.host._env  # type: ignore[attr-defined]
    assert isinstance(mine, Shopping)
    assert isinstance(its, Shopping)
    assert (mine.words, its.words) == (["milk", "eggs"], ["milk", "eggs", "flour"])
    assert its.task is mine.task
    assert its.rng is not mine.rng
    assert its.sandbox is not mine.sandbox
    await one.host.close()
    step = await host.act(calls("add", word="salt"), step_id="1")
    assert [message.content for message in step.messages] == ["2\nmilk\neggs\nsalt"]
    await host.close()


async def test_a_command_that_takes_too_long_is_killed_and_the_model_is_told() -> None:
    host = makes(command_timeout_s=0.2)()
    await host.open(TASK, Stream(0))
    step = await host.act(calls("wait"), step_id="0")
    assert [message.content for message in step.messages] == ["[killed: time]"]
    assert not step.done
    await host.close()


@pytest.mark.parametrize("at", ["start", "write_files"])
async def test_a_sandbox_that_fails_while_it_opens_is_the_machinerys_failure_and_is_freed(at: str) -> None:
    Watched.failing = at
    opened = await makes()().open(TASK, Stream(0))
    assert blamed(opened.outcome) == (Origin.INFRA, "SandboxError")
    assert [one.freed for one in Watched.made] == [True]


async def test_a_sandbox_that_fails_while_a_fork_resumes_is_freed_and_its_parent_goes_on() -> None:
    make = makes(SnapshotStore())
    host = make()
    await host.open(TASK, Stream(0))
    Watched.failing = "restore"
    (one,) = await fork(host, 1, make_host=make)
    assert blamed(one.opened.outcome) == (Origin.INFRA, "SandboxError")
    assert [box.freed for box in Watched.made] == [False, True]
    assert not (await host.act(calls("add", word="eggs"), step_id="0")).done
    await host.close()


async def test_a_sandbox_without_an_image_has_no_snapshot_and_the_episode_goes_on() -> None:
    store = SnapshotStore()
    host = makes(store)()
    await host.open(TASK, Stream(0))
    Watched.failing = "snapshot"
    assert await host.snapshot() is None
    assert store.statistics().values["snapshots_refused.SandboxError"] == 1
    assert not (await host.act(calls("add", word="eggs"), step_id="0")).done
    await host.close()


async def test_a_bug_of_the_environment_frees_the_sandbox_and_an_error_for_the_model_does_not() -> None:
    host = makes()()
    await host.open(TASK, Stream(0))
    assert not (await host.act(calls("add", word="nothing"), step_id="0")).done
    assert [one.freed for one in Watched.made] == [False]
    step = await host.act(calls("add", word="poison"), step_id="1")
    assert blamed(step.outcome) == (Origin.ENV, "ValueError")
    assert [one.freed for one in Watched.made] == [True]


async def test_a_sandbox_that_is_opened_again_frees_the_one_before() -> None:
    env = Shopping(Watched)
    await env.open_sandbox()
    await env.open_sandbox()
    assert [one.freed for one in Watched.made] == [True, False]
    await env.close()
    await env.close()
    assert [one.freed for one in Watched.made] == [True, True]


async def test_a_sandbox_that_was_never_opened_is_named_and_closing_is_quiet() -> None:
    env = Shopping(Watched)
    await env.close()
    with pytest.raises(AssertionError, match="no sandbox before reset"):
        await env.ran("ls")
    assert Watched.made == []
