from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from treadle.envs.bubblewrap import INSTALL, BubblewrapSandbox
from treadle.envs.sandbox import SandboxLimits


@pytest.fixture(scope="session")
def bubblewrap() -> None:
    if shutil.which("bwrap") is None:
        pytest.fail(f"bubblewrap is not installed: {INSTALL}", pytrace=False)
    if (reason := BubblewrapSandbox.available()) is not None:
        pytest.fail(reason, pytrace=False)


@pytest.fixture
async def sandbox(bubblewrap: None) -> AsyncIterator[BubblewrapSandbox]:
    box = BubblewrapSandbox()
    await box.start()
    yield box
    await box.close()


@pytest.fixture
async def limited(bubblewrap: None) -> AsyncIterator[Callable[[SandboxLimits], Awaitable[BubblewrapSandbox]]]:
    """Starts a sandbox with limits; it is closed whatever becomes of the test."""
    async with AsyncExitStack() as stack:

        async def start(limits: SandboxLimits) -> BubblewrapSandbox:
            box = BubblewrapSandbox(limits=limits)
            stack.push_async_callback(box.close)
            await box.start()
            return box

        yield start
