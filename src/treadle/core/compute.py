"""The compute thread: all heavy arithmetic of a process happens in one thread, one piece after the other.

PyTorch's loops over two or more cores come from an OpenMP runtime that keeps helper threads for every thread that ever
ran such a loop. While helpers and their owners are no more than the cores, a helper spins between two loops and the
next one starts at once. A second owner makes them too many: then every helper sleeps after every loop and has to be
woken for the next, which costs more than most loops of a decoding step. On two cores an engine's step took 1.3 to 1.6
times as long once a second thread, say the one that loaded the model, had run a single loop.

So engine, learner and loader keep their own threads for waiting, and `run` has the compute thread do the arithmetic.
Pieces go in the order of asking: where an engine and a learner work at the same time, a step of the one follows a pack
of the other, and neither slows the other's loops down.

A piece must not wait for what another piece gives, above all not for a policy's gate: take the gate, then `run`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class _Piece(Generic[T]):
    """Work on its way through the thread."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.done = threading.Event()
        self.results: list[T] = []
        """One result, when it went well."""
        self.error: BaseException | None = None

    def do(self) -> None:
        """Run in the compute thread."""
        try:
            self.results.append(self.work())
        except BaseException as error:  # raised again where it was asked for
            self.error = error
        self.done.set()


class ComputeThread:
    """A thread that does what others ask for, and starts with the first of it. It ends with the process."""

    def __init__(self, name: str = "treadle-compute") -> None:
        self._name = name
        self._pieces: SimpleQueue[_Piece[object]] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """Pieces that were asked for and are not begun."""
        return self._pieces.qsize()

    def run(self, work: Callable[[], T]) -> T:
        """What `work` gives, run in the compute thread; what it raises is raised here.

        Blocks until it is done, behind the pieces that were asked for before. A piece may call it again: that part
        runs at once.
        """
        if threading.current_thread() is self._started():
            return work()
        piece = _Piece(work)
        self._pieces.put(piece)  # type: ignore[arg-type]  # a queue of pieces of any kind
        piece.done.wait()
        if piece.error is not None:
            try:
                raise piece.error
            finally:
                piece.error = None  # it holds this frame, which holds the piece: no circle may stay
        return piece.results[0]

    def _started(self) -> threading.Thread:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()
        return self._thread

    def _serve(self) -> None:
        while True:
            self._pieces.get().do()


_PROCESS = ComputeThread()


def run(work: Callable[[], T]) -> T:
    """Have the compute thread of this process do `work`. See `ComputeThread.run`."""
    return _PROCESS.run(work)
