"""Forks of sandboxes: files and shell as they stood, walls and limits of the fork's own, nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from treadle.core.actions import Action, CodeBlock
from treadle.core.clock import SystemClock
from treadle.core.errors import EnvError, SandboxError
from treadle.core.outcome import Origin, Retry
from treadle.core.seeds import Stream
from treadle.envs import grading
from treadle.envs.bubblewrap import BubblewrapSandbox
from treadle.envs.fork import fork
from treadle.envs.host import EnvHost, HostConfig
from treadle.envs.image import Image
from treadle.envs.sandbox import MIB, SandboxLimits
from treadle.envs.shell import ShellEnv, ShellTaskset
from treadle.envs.snapshots import SnapshotStore
from treadle.envs.unsafe import UnsafeSandbox
from treadle.testing import check_forks

LOOK = r"""find . /tmp -path /tmp/.state -prune -o -printf '%p %y %m %T@ %n %s %l\n' | LC_ALL=C sort"""


class Forks:
    """Starts sandboxes and forks of them; all are closed whatever becomes of the test."""

    def __init__(self, stack: AsyncExitStack, make: type[BubblewrapSandbox] | type[UnsafeSandbox]) -> None:
        self.stack, self.make = stack, make

    async def start(self) -> BubblewrapSandbox | UnsafeSandbox:
        box = self.make()
        self.stack.push_async_callback(box.close)
        await box.start()
        return box

    async def of(self, box: BubblewrapSandbox | UnsafeSandbox) -> BubblewrapSandbox | UnsafeSandbox:
        image = await box.snapshot()
        other = await self.start()
        await other.restore(image)
        return other


@pytest.fixture
async def forks(bubblewrap: None) -> AsyncIterator[Forks]:
    async with AsyncExitStack() as stack:
        yield Forks(stack, BubblewrapSandbox)


@pytest.fixture(params=[BubblewrapSandbox, UnsafeSandbox])
async def both(request: pytest.FixtureRequest, bubblewrap: None) -> AsyncIterator[Forks]:
    async with AsyncExitStack() as stack:
        yield Forks(stack, request.param)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("mkdir -p 'a b' && cd 'a b'", 'basename "$PWD"', "a b\n"),
        ("x='one\ntwo $y'; export Z=5", 'echo "$x"; bash -c \'echo $Z\'', "one\ntwo $y\n5\n"),
        ("f() { echo inner; }", "f", "inner\n"),
        ("umask 077", "umask", "0077\n"),
        ("readonly R=3; many=(1 '2 3')", 'echo "$R ${many[1]}"', "3 2 3\n"),
        ("echo 1 > made; exit 3", "cat made", "1\n"),
        ("x=1; exec true", 'echo "[$x]"', "[]\n"),
        ("true", 'cd; [[ $PWD == "$HOME" ]] && echo home', "home\n"),
    ],
)
async def test_a_fork_has_the_shell_and_the_files(both: Forks, first: str, second: str, expected: str) -> None:
    box = await both.start()
    await box.run(first)
    one = await both.of(box)
    two = await both.of(one)
    assert (await two.run(second)).output == expected
    assert (await one.run(second)).output == expected
    assert (await (await both.of(one)).run(second)).output == expected
    assert (await box.run(second)).output == expected


async def test_forks_do_not_see_each_others_changes(both: Forks) -> None:
    box = await both.start()
    await box.run("echo 0 > shared; v=0")
    one, two = await both.of(box), await both.of(box)
    await one.run("echo 1 > shared; v=1; echo > only-one")
    await two.run("echo 2 >> shared; v=2")
    assert (await box.run("cat shared; echo $v; ls")).output == "0\n0\nshared\n"
    assert (await one.run("cat shared; echo $v; ls")).output == "1\n1\nonly-one\nshared\n"
    assert (await two.run("cat shared; echo $v; ls")).output == "0\n2\n2\nshared\n"


async def test_a_workspace_of_odd_things_is_the_same_in_the_fork(forks: Forks) -> None:
    box = await forks.start()
    await box.run(r"""
        mkdir -p empty deep/er shut; echo a > file; ln file hard; ln file deep/er/hard
        ln -s /etc/passwd out; ln -s / root; ln -s gone dangling; mkfifo pipe
        echo x > $'new\nline'; echo y > $'\xff\xfe'; echo z > ' lead'; echo s > -dash
        truncate -s 9000000 sparse; printf end >> sparse; truncate -s 10M hole; : > none
        echo in > shut/in; chmod 0 shut; echo u > unread; chmod 0 unread; chmod 4751 file; ln out hard-link-of-link
        touch -d @1.123456789 deep empty pipe; touch -h -d @7 out; mkdir /tmp/mine; echo t > /tmp/mine/t; chmod 500 deep
    """)
    seen = (await box.run(LOOK)).output
    fork = await forks.of(box)
    assert (await fork.run(LOOK)).output == seen
    assert "pipe p 644 1.1234567890" in seen and "out l 777 7.0000000000" in seen and "file f 4751" in seen
    told = "chmod 700 shut unread; cat shut/in unread; tail -c 3 sparse; cat $'new\\nline' $'\\xff\\xfe' -- -dash"
    assert (await fork.run(told)).output == "in\nu\nendx\ny\ns\n" == (await box.run(told)).output
    await fork.run("chmod 755 deep file; echo b > file")
    assert (await fork.run("cat hard deep/er/hard")).output == "b\nb\n"
    assert (await box.run("cat hard")).output == "a\n"
    assert grading.read_bytes(fork.workspace, "out") is None


async def test_links_to_the_hosts_files_are_never_followed(forks: Forks, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"host" * 1000)
    box = await forks.start()
    await box.run(f"ln -s {tmp_path} way; ln -s {secret} straight; rm -rf /tmp/.state; ln -s {tmp_path} /tmp/.state")
    image = await box.snapshot()
    assert all(b"hosthost" not in content for content in image.contents.by_digest.values())
    other = await forks.start()
    await other.restore(image)
    assert sorted(os.listdir(tmp_path)) == ["secret"]
    assert (await other.run("readlink way straight")).output == f"{tmp_path}\n{secret}\n"


async def test_eight_thousand_files_are_forked_and_the_limit_holds_in_the_fork(forks: Forks) -> None:
    box = await forks.start()
    filling = "mkdir many; cd many; for ((i = 0; i < 8000; i++)); do : > $i; done; echo last > 7999"
    made = await box.run(filling, timeout_s=60)
    assert made.status == 0
    fork = await forks.of(box)
    assert (await fork.run("ls | wc -l; cat 7999")).output == "8000\nlast\n"
    flood = await fork.run("i=9000; while :; do : > $((i++)); done", timeout_s=60)
    assert flood.killed == "files"


async def test_the_size_of_a_forks_workspace_is_the_kernels_limit(forks: Forks) -> None:
    box = await forks.start()
    await box.run("head -c 12000000 /dev/urandom > big")
    fork = await forks.of(box)
    more = await fork.run("cmp <(cat big) big && head -c 12000000 /dev/zero > more; stat -c %s more")
    assert "No space left" in more.output
    assert int(more.output.split()[-1]) < 5 * MIB


async def test_a_workspace_beyond_the_bounds_of_an_image_is_refused(forks: Forks) -> None:
    box = await forks.start()
    await box.run("for i in {1..80}; do mkdir d; cd d; done")
    with pytest.raises(EnvError, match="64 deep"):
        await box.snapshot()
    small = BubblewrapSandbox(limits=SandboxLimits(workspace_files=8))
    forks.stack.push_async_callback(small.close)
    await small.start()
    await small.run("for i in {1..60}; do echo > $i; done")
    with pytest.raises(EnvError, match="more files"):
        await small.snapshot()


async def test_equal_contents_are_held_once_and_a_fork_of_a_fork_costs_what_changed(forks: Forks) -> None:
    store = SnapshotStore()
    make = shell(store)
    host = await opened(make)
    await act(host, "head -c 3000000 /dev/urandom > big; cp big again")
    first = await host.snapshot()
    assert first is not None
    assert 3_000_000 < first.bytes < 3_100_000
    other = make()
    await other.resume(first, rollout="t.1.0")
    await act(other, "echo more > small")
    second = await other.snapshot()
    assert second is not None
    assert second.bytes < 20_000
    first.release()
    assert 3_000_000 < store.statistics().values["snapshots_bytes"] < 3_100_000
    third = make()
    await third.resume(second, rollout="t.2.0")
    await act(third, "cmp big again && [[ $(cat small) == more ]] && echo same > verdict")
    assert b"same" in (await third.act(block("cat verdict"), step_id="v")).messages[0].content.encode()
    second.release()
    assert store.statistics().values["snapshots_bytes"] == 0
    for one in (host, other, third):
        await one.close()


def shell(store: SnapshotStore, make: type[BubblewrapSandbox] = BubblewrapSandbox, most: int = 20):  # type: ignore[no-untyped-def]
    class Long(ShellEnv):
        max_turns = most

    return lambda: EnvHost(lambda: Long(make), config=HostConfig(), clock=SystemClock(), snapshots=store)


async def opened(make) -> EnvHost:  # type: ignore[no-untyped-def]
    host: EnvHost = make()
    task = ShellTaskset(1, families=("write-file",), levels=("easy",)).task("train", 0)
    assert (await host.open(task, Stream(0), rollout="t.0.0")).outcome is None
    return host


def block(code: str) -> Action:
    return Action(text=code, blocks=(CodeBlock(language="bash", code=code),))


async def act(host: EnvHost, code: str) -> None:
    step = await host.act(block(code), step_id=code)
    assert step.outcome is None, step.outcome


def left_behind() -> tuple[int, set[str]]:
    """Open descriptors of this process, and its children that run."""
    gc.collect()
    children = set()
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):
            children |= set(Path(f"/proc/self/task/{thread}/children").read_text().split())
    return len(os.listdir("/proc/self/fd")), children


async def test_each_fork_of_a_shell_is_scored_for_itself_and_nothing_is_left(bubblewrap: None) -> None:
    taskset = ShellTaskset(1, families=("write-file",), levels=("easy",))
    task = taskset.task("train", 0)
    solution = taskset.demonstration(task)
    assert solution is not None
    command = solution[0].partition("```bash\n")[2].partition("\n```")[0]
    before = left_behind()
    store = SnapshotStore()
    make = shell(store)
    host = make()
    await host.open(task, Stream(0), rollout="t.0.0")
    await act(host, "pwd")
    one, two = await fork(host, 2, make_host=make)
    await act(one.host, command)
    for other in (one.host, two.host, host):
        await other.act(Action(text="done"), step_id="end")
    assert [(await h.score()).parts for h in (host, one.host, two.host)] == [
        {"correct": 0.0}, {"correct": 1.0}, {"correct": 0.0}
    ]
    for other in (one.host, two.host, host):
        await other.close()
    assert store.statistics().values["snapshots_held"] == 0
    assert left_behind() == before


class Doomed(BubblewrapSandbox):
    """Killed from outside in the middle of a snapshot, or of a restore."""

    at = ""

    def _kill(self) -> None:
        assert self._box is not None
        os.kill(self._box.first, signal.SIGKILL)
        os.waitid(os.P_PID, self._box.process.pid, os.WEXITED | os.WNOWAIT)

    def _doom(self, at: str) -> None:
        if self.at == at:
            self._kill()
        elif self.at == f"within {at}":
            asyncio.get_running_loop().call_soon(self._kill)  # once a thread is at the files

    async def snapshot(self) -> Image:
        self._doom("snapshot")
        return await super().snapshot()

    async def restore(self, image: Image) -> None:
        self._doom("restore")
        await super().restore(image)


@pytest.mark.parametrize("at", ["restore", "within restore"])
async def test_a_sandbox_that_is_killed_in_a_resume_is_the_machinerys_failure(
    bubblewrap: None, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(int)  # the pool's own thread and descriptors
    before = left_behind()
    store = SnapshotStore()
    make = shell(store, Doomed)
    host = await opened(make)
    await act(host, "head -c 9000000 /dev/urandom > big")
    monkeypatch.setattr(Doomed, "at", at)
    (one,) = await fork(host, 1, make_host=make)
    monkeypatch.setattr(Doomed, "at", "")
    assert one.opened.outcome is not None
    assert (one.opened.outcome.origin, one.opened.outcome.type) == (Origin.INFRA, "SandboxError")
    assert one.opened.outcome.rule.retry is Retry.INFRA
    await act(host, "echo on")
    await host.close()
    assert left_behind() == before


@pytest.mark.parametrize("at", ["snapshot", "within snapshot"])
async def test_a_sandbox_that_is_killed_in_a_snapshot_has_none_and_its_next_step_says_why(
    bubblewrap: None, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(int)  # the pool's own thread and descriptors
    before = left_behind()
    store = SnapshotStore()
    host = await opened(shell(store, Doomed))
    await act(host, "head -c 9000000 /dev/urandom > big")
    monkeypatch.setattr(Doomed, "at", at)
    assert await host.snapshot() is None
    monkeypatch.setattr(Doomed, "at", "")
    assert store.statistics().values["snapshots_refused.SandboxError"] == 1
    step = await host.act(block("echo on"), step_id="1")
    assert step.outcome is not None and step.outcome.origin is Origin.INFRA
    await host.close()
    assert left_behind() == before


async def test_a_cancelled_resume_leaves_nothing(bubblewrap: None) -> None:
    before = left_behind()
    store = SnapshotStore()
    make = shell(store)
    host = await opened(make)
    await act(host, "head -c 9000000 /dev/urandom > big")
    snapshot = await host.snapshot()
    assert snapshot is not None
    for yields in (1, 20, 400):
        other = make()
        resuming = asyncio.ensure_future(other.resume(snapshot, rollout="x"))  # owned here: awaited below
        for _ in range(yields):
            await asyncio.sleep(0)
        resuming.cancel()
        await asyncio.wait({resuming}, timeout=20)
        await other.close()
    snapshot.release()
    await host.close()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert left_behind() == before


async def test_the_shell_environment_forks_well(bubblewrap: None) -> None:
    commands = ("x=1; echo a > f; cd /tmp", "x=$((x + 1)); pwd; echo $x", "cat /work/f; ls /work; echo $x")
    task = ShellTaskset(0).task("train", 3)
    await check_forks(ShellEnv, [task], actions=lambda _: [block(command) for command in commands])


async def test_a_sandbox_that_is_closed_has_no_snapshot(forks: Forks) -> None:
    box = await forks.start()
    await box.close()
    with pytest.raises(SandboxError, match="closed"):
        await box.snapshot()
