"""`check_sandbox`: what every sandbox must hold, tried with commands that an agent may write.

The shell lasts from command to command, a command's failure is a result and never an exception, whatever it does, and
the files it leaves are seen from outside. With `confined=True` also: no way out, and no way to use more than its share.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

from treadle.envs import grading
from treadle.envs.sandbox import CommandResult, Sandbox

LASTING = (
    ("cd", "mkdir -p there && cd there", 'basename "$PWD"; cd ..', "there\n"),
    ("variables", "lasting='a b'", 'echo "$lasting"', "a b\n"),
    ("exports", "export LASTING=5", "bash -c 'echo $LASTING'", "5\n"),
    ("functions", "lasting_function() { echo inside; }", "lasting_function", "inside\n"),
    ("arrays", "many=(1 '2 3')", 'echo "${many[1]}"', "2 3\n"),
)
"""(what, first command, second command, what the second prints)"""

STATUS = (
    ("true", 0),
    ("false", 1),
    ("exit 3", 3),
    ("no_such_command_here", 127),
    ('echo "unbalanced', 2),
    ("cat", 0),
    ("exec true", 0),
    ("set -e; false; true", 1),
    ("kill -9 $BASHPID", 137),
    ("echo done 0000 0 1; echo ready", 0),
)
"""(command, its status)"""


async def check_sandbox(make_sandbox: Callable[[], Sandbox], *, confined: bool = True) -> None:
    """Hold a sandbox to its contract. Raises AssertionError naming the property."""
    sandbox = make_sandbox()
    await sandbox.start()
    try:
        await _check_lasting(sandbox)
        await _check_status(sandbox)
        await _check_files(sandbox)
        await _check_limits(sandbox)
        if confined:
            await _check_walls(sandbox)
    finally:
        await sandbox.close()
        await sandbox.close()


async def _check_lasting(sandbox: Sandbox) -> None:
    for what, first, second, expected in LASTING:
        await sandbox.run(first)
        result = await sandbox.run(second)
        assert result.output == expected, f"{what} must last: {second!r} printed {result.output!r}"


async def _check_status(sandbox: Sandbox) -> None:
    for command, status in STATUS:
        result = await sandbox.run(command, timeout_s=20)
        assert result.status == status, f"{command!r}: got status {result.status}, expected {status}"
        assert not result.timed_out, f"{command!r} timed out"
    assert (await sandbox.run("echo whole")).output == "whole\n", "the shell must survive every command"
    await sandbox.run("(while :; do echo late; done) & disown")
    result = await sandbox.run("echo alone")
    assert result.output == "alone\n", f"a background job leaked into the next output: {result.output[:80]!r}"


async def _check_files(sandbox: Sandbox) -> None:
    await sandbox.write_files(
        {"seeded/one.txt": b"1\n"}, modes={"seeded/one.txt": 0o640}, mtimes={"seeded/one.txt": 1e9}, folders=["empty"]
    )
    seen = await sandbox.run("cd; cat seeded/one.txt; stat -c '%a %Y' seeded/one.txt; ls -d empty")
    assert seen.output == "1\n640 1000000000\nempty\n", f"seeded files must be seen inside, got {seen.output!r}"
    await sandbox.run("echo 2 > made.txt; ln -s made.txt link; mkfifo pipe; ln -s / out")
    root = sandbox.workspace
    assert grading.read_bytes(root, "made.txt") == b"2\n", "a file made inside must be read outside"
    assert grading.read_bytes(root, "link") is None, "a link must not be followed"
    assert grading.read_bytes(root, "out/etc/passwd") is None, "a link on the way must not be followed"
    assert grading.read_bytes(root, "pipe") is None, "a FIFO must not be read"


async def _check_limits(sandbox: Sandbox) -> None:
    result = await sandbox.run("trap '' INT TERM HUP; while :; do :; done", timeout_s=0.3)
    assert result.timed_out, "a busy loop must time out"
    assert result.status is None, f"a killed command has no status, got {result.status}"
    flood = await sandbox.run("yes", timeout_s=20)
    assert flood.killed == "output", f"a flood must be killed at the cap, got {flood.killed!r}"
    assert (await sandbox.run('echo "$lasting"')).output == "a b\n", "a killed command must leave the shell's state"
    running = asyncio.ensure_future(sandbox.run("sleep 60", timeout_s=60))  # owned here: cancelled and awaited below
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled(), "cancellation must pass through"
    assert (await sandbox.run("echo on")).output == "on\n", "the shell must go on after a cancelled command"


async def _check_walls(sandbox: Sandbox) -> None:
    await _check_network(sandbox)
    secret = Path.home() / ".bashrc"
    seen = await sandbox.run(f"cat /etc/shadow {secret}; ls /root /home; cat /proc/{os.getpid()}/environ")
    assert seen.status != 0, f"the host's files must be out of reach, got {seen.output[:80]!r}"
    for command in ("touch /usr/bin/planted", "touch /planted", "unshare -Ur true", "mount -t tmpfs none /tmp"):
        assert (await sandbox.run(command)).status != 0, f"{command!r} must fail"
    for command in ("kill -9 $PPID", "kill -9 -1", "kill -9 1", ":(){ :|:& };: ; sleep 30"):
        await sandbox.run(command, timeout_s=0.5)
        assert await _alive(sandbox), f"the shell must survive {command!r}"
    big = await sandbox.run("head -c 1000000000 /dev/zero > big; rm -f big", timeout_s=20)
    assert big.seconds < 20, "a large file must meet its limit"
    many = await sandbox.run("mkdir many; cd many; i=0; while :; do : > $((i++)); done", timeout_s=30)
    assert many.killed == "files", f"many files must meet their limit, got {many.killed!r}"
    await sandbox.run("cd; rm -rf many", timeout_s=30)
    assert await _alive(sandbox), "the shell must survive floods of files"


async def _check_network(sandbox: Sandbox) -> None:
    """Nobody reaches a listener on this machine's loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        result: CommandResult = await sandbox.run(f"echo hello > /dev/tcp/127.0.0.1/{port}", timeout_s=5)
        assert result.status != 0, "the network must be cut"
        try:
            listener.accept()
        except BlockingIOError:
            return
    raise AssertionError("a connection left the sandbox")


async def _alive(sandbox: Sandbox) -> bool:
    return (await sandbox.run("echo alive", timeout_s=20)).output == "alive\n"
