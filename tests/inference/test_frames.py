"""What goes over an engine's line comes out as it went in, however it was cut."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from treadle.core.errors import EngineError
from treadle.core.ports import CacheHint, Completion, Finish, Request, Sampling
from treadle.core.seeds import Stream
from treadle.inference.frames import (
    HEAD,
    MOST_BYTES,
    Frame,
    Line,
    read_completion,
    read_request,
    write_completion,
    write_request,
)


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.sent, self.waiting, self.closed = b"", 0, False

    def write(self, data: bytes) -> None:
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class End:
    """One end of a line, and what it heard."""

    def __init__(self) -> None:
        self.heard: list[Frame] = []
        self.lost = 0
        self.wire = Wire()
        self.line = Line(hear=self.heard.append, lost=self._lose)
        self.line.connection_made(cast(Any, self.wire))

    def _lose(self) -> None:
        self.lost += 1


def sent(kind: str, values: dict[str, Any], arrays: Any = ()) -> bytes:
    end = End()
    end.line.send(kind, values, arrays)
    return end.wire.sent


def heard(data: bytes, *, step: int) -> list[Frame]:
    end = End()
    for at in range(0, len(data), step):
        end.line.data_received(data[at : at + step])
    return end.heard


@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_frames_come_out_whole_and_in_order_however_they_are_cut(step: int) -> None:
    arrays = (np.arange(5, dtype=np.int32), np.array([], np.float32), np.array([1.5, -2], np.float32))
    data = b"".join(sent("a", {"number": i, "text": "é\n"}, arrays) for i in range(3))
    frames = heard(data, step=step)
    assert [(f.kind, f.values["number"], f.values["text"]) for f in frames] == [("a", i, "é\n") for i in range(3)]
    for frame in frames:
        assert [(a.dtype, a.tolist()) for a in frame.arrays] == [(a.dtype, a.tolist()) for a in arrays]


def test_a_request_comes_out_as_it_went_in() -> None:
    request = Request(
        prompt=np.array([5, 3, 9], np.int32), stream=Stream(7).at("ticket", 3, "3"), priority=-4,
        sampling=Sampling(temperature=0.7, max_tokens=9, stop_ids=(2, 4), stop_strings=("é", "\n")),
        cache=CacheHint(rollout="r", trunk="t", trunk_len=2),
    )
    (frame,) = heard(sent("generate", *write_request(request)), step=11)
    found = read_request(frame)
    assert found.prompt.tolist() == [5, 3, 9]
    assert found.prompt.dtype == np.int32
    assert (found.sampling, found.stream, found.priority, found.cache) == (
        request.sampling, request.stream, request.priority, request.cache,
    )
    assert found.stream.key == request.stream.key


def test_a_completion_comes_out_bit_for_bit() -> None:
    numbers = np.random.default_rng(0).normal(size=3).astype(np.float32)
    done = Completion(
        ids=np.array([1, 2, 3], np.int32), logprobs=numbers, entropy=numbers**2, versions=((4, 1), (5, 2)),
        kv_version=3, finish=Finish.STOP,
    )
    (frame,) = heard(sent("completion", *write_completion(done)), step=64)
    found = read_completion(frame)
    assert found.logprobs.tobytes() == numbers.tobytes()
    assert (found.ids.tolist(), found.versions, found.kv_version, found.finish) == (
        [1, 2, 3], ((4, 1), (5, 2)), 3, Finish.STOP,
    )


def test_a_frame_that_is_too_large_ends_the_line() -> None:
    end = End()
    end.line.data_received(HEAD.pack(10, MOST_BYTES))
    assert end.wire.closed
    assert end.heard == []


def test_a_side_that_reads_nothing_is_an_error_and_no_heap_of_bytes() -> None:
    end = End()
    end.wire.waiting = MOST_BYTES + 1
    with pytest.raises(EngineError, match="reads nothing"):
        end.line.send("pulse")


def test_a_line_that_is_down_is_told_once_and_takes_no_more() -> None:
    end = End()
    end.line.connection_lost(None)
    end.line.send("pulse")
    end.line.close()
    assert (end.lost, end.wire.sent) == (1, b"")
