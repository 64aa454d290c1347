"""Many threads at one policy's gate: nobody ever sees tensors of two versions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from treadle.models import Policy, build_tiny

READERS, WRITERS, ROUNDS = 6, 3, 40


class Crowd:
    """Threads that start together and keep what went wrong."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._start = threading.Barrier(READERS + WRITERS)

    def add(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                self._start.wait(60)
                work()
            except BaseException as error:
                self.errors.append(error)

        self._threads.append(threading.Thread(target=run))

    def run(self) -> bool:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(120)
        return not any(thread.is_alive() for thread in self._threads)


def test_no_reader_ever_sees_tensors_of_two_versions(tmp_path: Path) -> None:
    policy = Policy.load(build_tiny(tmp_path, hidden=32))
    tensors = [p.detach() for p in policy.module.parameters()]
    for tensor in tensors:
        tensor.zero_()
    seen: list[int] = []
    crowd = Crowd()

    def read() -> None:
        for _ in range(ROUNDS):
            with policy.gate.read("engine step", timeout_s=60):
                version = policy.version
                values = {float(value) for tensor in tensors for value in (tensor.min(), tensor.max())}
                assert values == {float(version)}, f"version {version}, but the tensors hold {sorted(values)}"
                assert policy.version == version
                seen.append(version)

    def write() -> None:
        for _ in range(ROUNDS):
            with policy.gate.write("optimiser step", timeout_s=60):
                version = policy.version
                for tensor in tensors:
                    tensor.add_(1.0)
                policy.version = version + 1

    for _ in range(READERS):
        crowd.add(read)
    for _ in range(WRITERS):
        crowd.add(write)
    assert crowd.run(), "every thread came to its end"
    assert crowd.errors == []
    assert policy.version == WRITERS * ROUNDS
    assert len(seen) == READERS * ROUNDS
    assert policy.gate.holders() == policy.gate.waiting() == ()


def test_a_writer_gets_in_between_readers_that_never_pause(tmp_path: Path) -> None:
    policy = Policy.load(build_tiny(tmp_path, hidden=32))
    crowd, written = Crowd(), threading.Event()

    def read() -> None:
        while not written.is_set():
            with policy.gate.read("engine step", timeout_s=60):
                assert not policy.gate.writing

    def write() -> None:
        for _ in range(ROUNDS):
            with policy.gate.write("optimiser step", timeout_s=60):
                policy.version += 1
        if policy.version == WRITERS * ROUNDS:  # the last writer is done
            written.set()

    for _ in range(READERS):
        crowd.add(read)
    for _ in range(WRITERS):
        crowd.add(write)
    assert crowd.run(), "every thread came to its end"
    assert crowd.errors == []
    assert written.is_set()
