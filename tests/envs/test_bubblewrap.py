from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from treadle.core.errors import EnvError, SandboxError
from treadle.envs import bubblewrap as module
from treadle.envs import grading
from treadle.envs.box import NICE
from treadle.envs.bubblewrap import BubblewrapSandbox
from treadle.envs.channel import MOST_COMMAND_BYTES
from treadle.envs.sandbox import MIB, SandboxLimits
from treadle.testing import check_sandbox

Limited = Callable[[SandboxLimits], Awaitable[BubblewrapSandbox]]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


async def test_it_passes_the_kit(bubblewrap: None) -> None:
    await check_sandbox(BubblewrapSandbox)
    assert BubblewrapSandbox.available() is None


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("cd /tmp", "pwd", "/tmp\n"),
        ("mkdir -p 'a b' && cd 'a b'", "pwd; cd -", "/work/a b\n/work\n"),
        ("x='one\ntwo $y `z`'", 'echo "$x"', "one\ntwo $y `z`\n"),
        ("declare -A m=([k]='v w'); declare -i n=4", 'n+=3; echo "${m[k]} $n"', "v w 7\n"),
        ("readonly R=3", "R=4; echo $R", "bash: line 1: R: readonly variable\n"),
        ("f() { echo inner; }; export -f f", "f; bash -c f", "inner\ninner\n"),
        ("PATH=/nowhere", "ls", "bash: line 1: ls: command not found\n"),
        ("umask 077", "umask", "0077\n"),
        ("IFS=,", 'a=1,2; set -- $a; echo "$1"', "1\n"),
        ("x=1; exit 0", "echo $x", "1\n"),
        ("x=1; set -eu", "false; echo on", "on\n"),
        ("trap 'echo bye' EXIT; x=2", "echo $x", "2\n"),
        ("x=1; false", "echo $x", "1\n"),
    ],
)
async def test_what_a_shell_keeps_lasts(sandbox: BubblewrapSandbox, first: str, second: str, expected: str) -> None:
    await sandbox.run(first)
    result = await sandbox.run(second)
    assert result.output == expected


@pytest.mark.parametrize(
    ("command", "status", "output"),
    [
        ("", 0, ""),
        ("exit 7", 7, ""),
        ("echo 'open", 2, "bash: eval: line 1: unexpected EOF while looking for matching `''\n"),
        ("if true; then", 2, "bash: eval: line 2: syntax error: unexpected end of file\n"),
        ("echo one\nnosuch\n", 127, "one\nbash: line 2: nosuch: command not found\n"),
        ("cat; read x; echo [$x]", 0, "[]\n"),
        ("printf 'no newline'", 0, "no newline"),
        ("printf '\\nready\\ndone 00 0 1\\n'", 0, "\nready\ndone 00 0 1\n"),
        ("echo out; echo err >&2; echo dev >/dev/stderr", 0, "out\nerr\ndev\n"),
        ("cat <<END\nheld $((1 + 1))\nEND", 0, "held 2\n"),
        ("exec 3>&-; exec 4>&-; echo done 1 2 3 >&3", 1, "bash: line 1: 3: Bad file descriptor\n"),
        ("bash -c 'exit 9'", 9, ""),
        ("awk 'BEGIN { print 5 }'; whoami; hostname; id -u", 0, "5\nagent\nsandbox\n65534\n"),
        ("printf 'h\\303\\251 \\377'", 0, "hé \ufffd"),
    ],
)
async def test_every_command_gets_its_own_status_and_output(
    sandbox: BubblewrapSandbox, command: str, status: int, output: str
) -> None:
    result = await sandbox.run(command)
    assert (result.status, result.output, result.restarted, result.killed) == (status, output, False, "")


@pytest.mark.parametrize("command", ["exec true", "kill -9 $BASHPID", "kill -9 $PPID", "x=2; exec ls", "kill -9 0"])
async def test_a_command_that_takes_its_shell_along_is_a_result_and_the_state_before_stays(
    sandbox: BubblewrapSandbox, command: str
) -> None:
    await sandbox.run("x=1; echo kept > file")
    result = await sandbox.run(command)
    assert result.restarted
    assert (await sandbox.run("echo $x; cat file")).output == "1\nkept\n"


async def test_process_one_does_not_die_of_signals_from_inside(sandbox: BubblewrapSandbox) -> None:
    result = await sandbox.run("for s in $(seq 1 31); do case $s in 10|17) ;; *) kill -$s 1;; esac; done; echo $$")
    assert (result.status, result.output) == (0, "1\n")
    assert (await sandbox.run("kill -USR1 1; sleep 20")).restarted
    assert (await sandbox.run("echo on")).output == "on\n"


async def test_a_sandbox_that_is_taken_down_from_inside_comes_back_with_its_files(sandbox: BubblewrapSandbox) -> None:
    await sandbox.run("mkdir -p d/e; echo kept > d/file; chmod 640 d/file; touch -d @1000000000 d/file; ln -s x link")
    running = asyncio.ensure_future(sandbox.run("echo before; touch begun; sleep 60"))
    await until(lambda: grading.exists(sandbox.workspace, "begun"))
    assert sandbox._box is not None
    os.kill(sandbox._box.first, signal.SIGKILL)
    result = await running
    assert (result.status, result.output, result.restarted) == (None, "before\n", True)
    seen = await sandbox.run("cat d/file; stat -c '%a %Y' d/file; readlink link; ls d; rm begun")
    assert seen.output == "kept\n640 1000000000\nx\ne\nfile\n"
    assert grading.read_bytes(sandbox.workspace, "d/file") == b"kept\n"


async def test_a_workspace_that_cannot_be_taken_over_is_the_machinerys_failure_and_leaves_nothing(
    sandbox: BubblewrapSandbox,
) -> None:
    await sandbox.run("for i in 1 2 3; do truncate -s 12M hole$i; done")
    held = len(os.listdir("/proc/self/fd"))
    running = asyncio.ensure_future(sandbox.run("touch begun; sleep 60"))
    await until(lambda: grading.exists(sandbox.workspace, "begun"))
    assert sandbox._box is not None
    os.kill(sandbox._box.first, signal.SIGKILL)
    with pytest.raises(SandboxError, match="could not take over the workspace"):
        await running
    await sandbox.close()
    assert len(os.listdir("/proc/self/fd")) < held


async def test_a_sandbox_lost_between_commands_is_an_error(sandbox: BubblewrapSandbox) -> None:
    await sandbox.run("true")
    assert sandbox._box is not None
    sandbox._box.process.kill()
    channel = sandbox._box.channel
    await until(lambda: channel.gone)
    with pytest.raises(SandboxError, match="lost while no command was running"):
        await sandbox.run("true")


@pytest.mark.parametrize(
    "command", ["sleep 60", "while :; do :; done", "trap '' INT TERM HUP USR1; while :; do :; done", "setsid sleep 60"]
)
async def test_a_time_out_kills_the_command_alone(sandbox: BubblewrapSandbox, command: str) -> None:
    await sandbox.run("x=1; cd /tmp")
    result = await sandbox.run(f"x=2; cd /; echo begun; {command}", timeout_s=0.2)
    assert (result.status, result.timed_out, result.killed, result.output) == (None, True, "time", "begun\n")
    assert (await sandbox.run("echo $x $PWD; set -- /proc/[0-9]*; echo $#")).output == "1 /tmp\n2\n"


async def test_background_jobs_end_with_their_command(sandbox: BubblewrapSandbox) -> None:
    await sandbox.run("setsid sh -c 'while :; do echo late; done' & sleep 0.05; disown -a")
    assert (await sandbox.run("set -- /proc/[0-9]*; echo $#")).output == "2\n"


async def test_a_flood_is_killed_at_the_cap(limited: Limited) -> None:
    sandbox = await limited(SandboxLimits(output_bytes=1000))
    started = time.perf_counter()
    result = await sandbox.run("yes", timeout_s=60)
    assert (result.status, result.killed, len(result.output)) == (None, "output", 1000)
    assert 0 < result.dropped_bytes < 256 * MIB  # `yes` writes gigabytes a second until it is killed
    assert time.perf_counter() - started < 10
    hundred = await sandbox.run("head -c 100000000 /dev/zero", timeout_s=60)
    assert (hundred.killed, len(hundred.output)) == ("output", 1000)


async def test_a_fork_bomb_stays_in_its_sandbox(bubblewrap: None) -> None:
    bomber, neighbour = BubblewrapSandbox(), BubblewrapSandbox()
    await asyncio.gather(bomber.start(), neighbour.start())
    bomb = asyncio.ensure_future(bomber.run("touch begun; :(){ :|:& };:; sleep 60", timeout_s=1.0))
    await until(lambda: grading.exists(bomber.workspace, "begun"))
    assert (await neighbour.run("echo fine | cat", timeout_s=30)).output == "fine\n"
    assert (await bomb).killed == "time"
    assert (await bomber.run("echo alive | cat", timeout_s=30)).output == "alive\n"
    assert (await bomber.run("ulimit -u")).output == "64\n"
    await asyncio.gather(bomber.close(), neighbour.close())


async def test_one_endless_file_meets_the_size_of_the_workspace(limited: Limited) -> None:
    sandbox = await limited(SandboxLimits(workspace_bytes=MIB, file_bytes=4 * MIB))
    result = await sandbox.run("yes > big", timeout_s=60)
    assert result.status == 1
    assert "No space left" in result.output
    assert (await sandbox.run("stat -c %s big")).output == f"{MIB}\n"
    assert (await sandbox.run("cat /dev/zero > /tmp/big; rm /tmp/big big; echo x > small; cat small")).status == 0


async def test_many_endless_files_meet_a_limit_and_can_be_cleaned_up(limited: Limited) -> None:
    sandbox = await limited(SandboxLimits(workspace_files=200))
    result = await sandbox.run("mkdir d; cd d; i=0; while :; do : > $((i++)); done", timeout_s=60)
    assert (result.status, result.killed) == (None, "files")
    assert (await sandbox.run("rm -rf d; ls", timeout_s=60)).status == 0


async def test_a_file_cannot_pass_its_own_limit(limited: Limited) -> None:
    sandbox = await limited(SandboxLimits(file_bytes=MIB))
    result = await sandbox.run("bash -c 'cat /dev/zero > big'; stat -c %s big")
    assert f"{MIB}\n" in result.output


async def test_memory_meets_a_limit_per_process_and_in_sum(limited: Limited) -> None:
    sandbox = await limited(SandboxLimits(memory_bytes=64 * MIB))
    alone = await sandbox.run("x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}", timeout_s=60)
    assert alone.output != "200000000\n"
    half = "head -c 40000000 /dev/zero | tail -c 40000000 | sleep 60"  # tail holds all of it
    together = await sandbox.run(f"{half} & {half} & {half} & wait", timeout_s=60)
    assert (together.status, together.killed) == (None, "memory")
    assert (await sandbox.run("echo alive")).output == "alive\n"


async def test_memory_that_no_limit_sees_is_refused(sandbox: BubblewrapSandbox) -> None:
    if (await sandbox.run("command -v python3")).status != 0:
        script = "ipcmk -M 1000"
    else:
        script = """python3 -c 'import ctypes, os
libc = ctypes.CDLL(None); print(libc.shmget(0, 1000, 0o1600))
try: os.memfd_create("x")
except OSError: print("refused")'"""
    result = await sandbox.run(script)
    assert result.status != 0 or result.output == "-1\nrefused\n"


async def test_commands_leave_the_processor_to_the_trainer(sandbox: BubblewrapSandbox) -> None:
    assert (await sandbox.run("nice")).output == f"{NICE}\n"
    assert sandbox._box is not None
    session = Path(f"/proc/{sandbox._box.first}/autogroup")
    if os.geteuid() == 0 and session.exists():  # for others the kernel takes one change in a tenth of a second
        assert session.read_text().split()[-1] == str(NICE)


async def test_no_host_file_and_no_host_process_is_in_reach(sandbox: BubblewrapSandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("top")
    os.environ["TREADLE_TEST_SECRET"] = "top"
    try:
        result = await sandbox.run(
            f"cat {secret} /etc/shadow; ls /root /home /var /usr/local/lib; env; cat /proc/*/environ; ls /"
        )
    finally:
        del os.environ["TREADLE_TEST_SECRET"]
    assert "top" not in result.output
    assert result.output.endswith("tmp\nusr\nwork\n")
    assert (await sandbox.run("set -- /proc/[0-9]*; echo $#")).output == "2\n"


async def test_nothing_but_work_and_tmp_can_be_written(sandbox: BubblewrapSandbox) -> None:
    result = await sandbox.run(
        "for d in / /etc /usr /usr/bin /usr/local /dev /proc /proc/sys/kernel /etc/alternatives; do"
        " touch $d/planted 2>/dev/null && echo $d; done; echo > /etc/passwd; touch /tmp/a /work/b && echo ok"
    )
    assert result.output == "bash: line 1: /etc/passwd: Read-only file system\nok\n"


@pytest.mark.parametrize(
    "command",
    [
        "unshare -Ur true",
        "mount -t tmpfs none /tmp",
        "chroot / true",
        "bwrap --dev-bind / / true",
        "nsenter -t 1 -m true",
    ],
)
async def test_no_way_out_through_namespaces(sandbox: BubblewrapSandbox, command: str) -> None:
    assert (await sandbox.run(command)).status not in (0, None)


async def test_the_network_is_cut(sandbox: BubblewrapSandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        result = await sandbox.run(f"echo hello > /dev/tcp/127.0.0.1/{port}")
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert "Connection refused" in result.output
    assert (await sandbox.run("cat /proc/net/dev | grep -vc lo:")).output == "2\n"


async def test_the_driver_cannot_be_spoken_to_from_inside(sandbox: BubblewrapSandbox) -> None:
    result = await sandbox.run("for fd in /proc/1/fd/*; do echo done x 0 1 > $fd; done 2>/dev/null; false")
    assert (result.status, result.killed) == (1, "")
    assert (await sandbox.run("echo on")).output == "on\n"


async def test_seeded_files_belong_to_the_agent(sandbox: BubblewrapSandbox) -> None:
    await sandbox.write_files(
        {"a/b.txt": b"1\n", "x.sh": b"echo ran\n", "empty": b""},
        modes={"x.sh": 0o755, "a": 0o700},
        mtimes={"a/b.txt": 1e9, "a": 1.1e9},
        folders=["e/f"],
    )
    result = await sandbox.run("stat -c '%U %a %s %n' a a/b.txt x.sh empty e/f; stat -c %Y a/b.txt a; ./x.sh")
    assert result.output == (
        "agent 700 60 a\nagent 644 2 a/b.txt\nagent 755 9 x.sh\nagent 644 0 empty\nagent 755 40 e/f\n"
        "1000000000\n1100000000\nbash: line 1: ./x.sh: cannot execute: required file not found\n"
    ) or result.output.endswith("1000000000\n1100000000\nran\n")


@pytest.mark.parametrize("path", ["", "/etc/x", "../x", "a/../../x"])
async def test_seeds_stay_inside(sandbox: BubblewrapSandbox, path: str) -> None:
    with pytest.raises(ValueError, match="workspace path"):
        await sandbox.write_files({path: b"x"})


async def test_seeds_do_not_go_through_planted_links(sandbox: BubblewrapSandbox, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    await sandbox.run(f"ln -s {tmp_path} out; ln -s {tmp_path}/file file")
    for path in ("out/file", "file"):
        with pytest.raises(EnvError, match="cannot write"):
            await sandbox.write_files({path: b"x"})
    assert list(tmp_path.iterdir()) == []


async def test_seeds_that_do_not_fit_are_the_environments_fault(limited: Limited) -> None:
    sandbox = await limited(SandboxLimits(workspace_bytes=MIB))
    with pytest.raises(EnvError, match="No space left"):
        await sandbox.write_files({"big": bytes(2 * MIB)})


async def test_a_cancelled_run_kills_its_command(sandbox: BubblewrapSandbox) -> None:
    running = asyncio.ensure_future(sandbox.run("touch begun; sleep 60", timeout_s=60))
    await until(lambda: grading.exists(sandbox.workspace, "begun"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await sandbox.run("set -- /proc/[0-9]*; echo $#")).output == "2\n"


async def test_a_command_that_is_too_long_is_answered(sandbox: BubblewrapSandbox) -> None:
    result = await sandbox.run("#" * (MOST_COMMAND_BYTES + 1))
    assert (result.status, result.output) == (126, "bash: command too long\n")
    long = "echo " + "x" * (MOST_COMMAND_BYTES - 5)
    assert len((await sandbox.run(long)).output) == MOST_COMMAND_BYTES - 4


async def test_sixty_four_run_at_once_and_the_loop_stays_free(bubblewrap: None) -> None:
    loop = asyncio.get_running_loop()
    late: list[float] = []

    def pulse(due: float) -> None:
        late.append(loop.time() - due)
        loop.call_at(loop.time() + 0.01, pulse, loop.time() + 0.01)

    async def live(number: int) -> str:
        sandbox = BubblewrapSandbox()
        await sandbox.start()
        await sandbox.run(f"x={number}; echo {number} > mine", timeout_s=60)
        result = await sandbox.run("sleep 0.2; echo $x; cat mine", timeout_s=60)
        await sandbox.close()
        return result.output

    pulse(loop.time())
    outputs = await asyncio.gather(*(live(number) for number in range(64)))
    assert outputs == [f"{number}\n{number}\n" for number in range(64)]
    assert sorted(late)[len(late) // 2] < 0.1


async def test_nothing_is_left_after_close(sandbox: BubblewrapSandbox) -> None:
    await sandbox.run("true")
    box = sandbox._box
    assert box is not None
    workspace = sandbox.workspace
    before = len(os.listdir("/proc/self/fd"))
    await sandbox.close()
    await sandbox.close()
    assert box.process.returncode is not None
    assert not Path(f"/proc/{box.first}").exists()
    assert len(os.listdir("/proc/self/fd")) == before - 5
    assert not grading.exists(workspace, "anything")
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.run("true")


async def test_a_sandbox_dies_with_its_trainer(bubblewrap: None) -> None:
    program = (
        "import asyncio, os\nfrom treadle.envs.bubblewrap import BubblewrapSandbox\n"
        "async def main():\n    box = BubblewrapSandbox()\n    await box.start()\n"
        "    print(box._box.first, flush=True)\n    os.kill(os.getpid(), 9)\nasyncio.run(main())\n"
    )
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True)
    first = Path(f"/proc/{int(done.stdout)}")
    await until(lambda: not first.exists())
    assert not first.exists()


async def test_a_missing_bubblewrap_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda name: None if name == "bwrap" else f"/usr/bin/{name}")
    module._available.cache_clear()
    try:
        with pytest.raises(SandboxError) as raised:
            await BubblewrapSandbox().start()
    finally:
        module._available.cache_clear()
    assert str(raised.value) == "sandbox: bubblewrap is not installed: apt-get install bubblewrap"


async def test_a_refused_bubblewrap_says_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    fake.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setattr(module, "_owner", lambda: None)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    module._available.cache_clear()
    try:
        reason = BubblewrapSandbox.available()
    finally:
        module._available.cache_clear()
    assert reason is not None
    assert reason.startswith(
        "sandbox: bwrap is refused (bwrap: setting up uid map: Permission denied): sudo sysctl -w "
    )
    assert "\n" not in reason
