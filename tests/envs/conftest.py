from __future__ import annotations

import shutil
from collections.abc import AsyncIterator

import pytest

from treadle.envs.bubblewrap import INSTALL, BubblewrapSandbox


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
