from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from treadle.core.errors import SandboxError
from treadle.envs import grading
from treadle.envs.unsafe import UnsafeSandbox
from treadle.testing import check_sandbox


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


async def test_it_passes_the_kit_but_for_the_walls() -> None:
    await check_sandbox(UnsafeSandbox, confined=False)
    assert UnsafeSandbox.available() is None


async def test_a_killed_driver_comes_back_in_the_same_workspace() -> None:
    sandbox = UnsafeSandbox()
    await sandbox.start()
    result = await sandbox.run("echo kept > file; kill -9 $$; sleep 60")
    assert (result.status, result.restarted) == (None, True)
    assert (await sandbox.run("cat file")).output == "kept\n"
    await sandbox.close()


async def test_a_command_cannot_kill_its_trainer_by_its_parent() -> None:
    sandbox = UnsafeSandbox()
    await sandbox.start()
    result = await sandbox.run("echo $PPID")
    assert int(result.output) != os.getpid()
    await sandbox.close()


async def test_close_ends_a_running_command_and_removes_the_workspace() -> None:
    sandbox = UnsafeSandbox()
    await sandbox.start()
    assert sandbox._folder is not None
    folder, workspace = sandbox._folder, sandbox.workspace
    running = asyncio.ensure_future(sandbox.run("echo $BASHPID > id; sleep 600", timeout_s=600))
    await until(lambda: bool(grading.read_bytes(workspace, "id")))
    inside = Path(f"/proc/{int(grading.read_bytes(workspace, 'id') or b'0')}")
    await sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        await running
    await until(lambda: not inside.exists())
    assert not folder.exists()
