"""Frames: what an engine's process and its owner say to each other, over one socket pair.

A frame is a JSON object with a `kind`, and after it the bytes of its arrays; two lengths go before. Nothing is pickled,
so neither side can make the other run anything. `Line` is one end on an event loop: writing never blocks, and what is
read is handed on frame by frame in the order it was sent. The end of the line is told once.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from treadle.core.errors import EngineError
from treadle.core.ports import CacheHint, Completion, Finish, Request, Sampling
from treadle.core.seeds import Stream

HEAD = struct.Struct("<II")
"""Bytes of the JSON, bytes of the arrays."""
MOST_BYTES = 1 << 28
"""Largest frame, and most bytes that wait to be read by the other side."""
Arrays = Sequence[NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One message."""

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = ()

    def encode(self) -> bytes:
        """As it goes over the line."""
        shapes = [[array.dtype.str, len(array)] for array in self.arrays]
        text = json.dumps({"kind": self.kind, "arrays": shapes, "values": self.values}).encode()
        blob = b"".join(np.ascontiguousarray(array).tobytes() for array in self.arrays)
        return HEAD.pack(len(text), len(blob)) + text + blob

    @classmethod
    def decode(cls, text: bytes, blob: bytes) -> Frame:
        """Back from the line."""
        said, arrays, at = json.loads(text), [], 0
        for dtype, count in said["arrays"]:
            array = np.frombuffer(blob, dtype=np.dtype(dtype), count=count, offset=at)
            arrays.append(array.copy())
            at += array.nbytes
        return cls(kind=said["kind"], values=said["values"], arrays=tuple(arrays))


class Line(asyncio.Protocol):
    """One end of the line."""

    def __init__(self, *, hear: Callable[[Frame], None], lost: Callable[[], None]) -> None:
        self._hear = hear
        self._lost = lost
        """Called once, when the other side is gone or the line was closed."""
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The line is up."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The line is down."""
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        """Cut what came into frames."""
        self._buffer += data
        while len(self._buffer) >= HEAD.size:
            text, blob = HEAD.unpack_from(self._buffer)
            end = HEAD.size + text + blob
            if end > MOST_BYTES:
                self.close()
                return
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[HEAD.size : end])
            del self._buffer[:end]
            self._hear(Frame.decode(body[:text], body[text:]))

    def send(self, kind: str, values: Mapping[str, Any] | None = None, arrays: Arrays = ()) -> None:
        """Say one thing; silence when the line is down. Raises EngineError when the other side reads nothing."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > MOST_BYTES:
            raise EngineError(f"the other side of an engine's line reads nothing: {MOST_BYTES} bytes wait for it")
        self._transport.write(Frame(kind=kind, values=values or {}, arrays=arrays).encode())

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()


def write_request(request: Request) -> tuple[dict[str, Any], Arrays]:
    """A request as values and arrays."""
    values = {
        "sampling": asdict(request.sampling), "seed": request.stream.seed, "path": request.stream.path,
        "cache": None if request.cache is None else asdict(request.cache), "priority": request.priority,
    }
    return values, (np.asarray(request.prompt, dtype=np.int32),)


def read_request(frame: Frame) -> Request:
    """Back from `write_request`."""
    said = frame.values
    sampling: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in said["sampling"].items()}
    cache = said["cache"]
    return Request(
        prompt=frame.arrays[0], stream=Stream(said["seed"], tuple(said["path"])), priority=said["priority"],
        sampling=Sampling(**sampling), cache=None if cache is None else CacheHint(**cache),
    )


def write_completion(done: Completion) -> tuple[dict[str, Any], Arrays]:
    """A completion as values and arrays."""
    values = {"versions": done.versions, "kv_version": done.kv_version, "finish": str(done.finish)}
    return values, (done.ids, done.logprobs, done.entropy)


def read_completion(frame: Frame) -> Completion:
    """Back from `write_completion`."""
    ids, logprobs, entropy = frame.arrays
    return Completion(
        ids=ids, logprobs=logprobs, entropy=entropy, kv_version=frame.values["kv_version"],
        versions=tuple((version, count) for version, count in frame.values["versions"]),
        finish=Finish(frame.values["finish"]),
    )
