"""One request on its way through the engine: its tokens so far, how it ends, and where its answer goes.

A flight is made on the event loop, then belongs to the worker thread until its answer is delivered. `ids[:count]` are
all tokens known, prompt first; those without a KV entry are *pending*. With one pending token it decodes, with more it
prefills; losing its KV only makes more tokens pending, so preemption and recomputation need no code of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from treadle.core.errors import EngineError, PromptTooLong
from treadle.core.ports import Completion, Finish, Ids, Request
from treadle.inference.cache import Node

Decode = Callable[[Sequence[int]], str]
Answer = Completion | Exception
AHEAD = 32
"""Random numbers that a flight draws at once: making the generator costs more than the numbers."""


@dataclass(slots=True, eq=False)
class Flight:
    """A request in progress."""

    request: Request
    ids: Ids
    """Prompt and room for the whole completion."""
    count: int
    """Tokens in `ids` that are known."""
    room: int
    """Most tokens that may be sampled: by max_tokens and by the context."""
    deliver: Callable[[Answer], None]
    """Hands the answer to whoever waits; called once, from the worker thread."""
    order: tuple[int, int] = (0, 0)
    """(priority, arrival): what is smaller goes first."""
    tip: Node | None = None
    """Where its KV is; None while it waits."""
    logprobs: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    oldest_kv: int | None = None
    """Oldest version among KV entries that it used and then lost; None when it lost none."""
    done: bool = False
    _uniforms: list[float] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The rollout for which its KV is kept; empty when it is for none."""
        return "" if self.request.cache is None else self.request.cache.rollout

    @property
    def group(self) -> str:
        """Whose prompt it begins with; empty when that is nobody's."""
        return "" if self.request.cache is None else self.request.cache.trunk

    @property
    def temperature(self) -> float:
        """Of its draws."""
        return self.request.sampling.temperature

    @property
    def narrowing(self) -> tuple[int, float]:
        """`top_k` and `top_p` of its draws."""
        return self.request.sampling.top_k, self.request.sampling.top_p

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def sampled(self) -> int:
        """Tokens sampled so far."""
        return self.count - self.prompt_len

    @property
    def pending(self) -> int:
        """Known tokens that have no KV entry yet."""
        return self.count - (0 if self.tip is None else self.tip.length)

    def uniform(self) -> float:
        """The number for the next token: a function of the request's stream and the token's place alone."""
        while len(self._uniforms) <= self.sampled:
            self._uniforms += self.request.stream.uniforms(len(self._uniforms), AHEAD).tolist()
        return self._uniforms[self.sampled]

    def take(self, token: int, logprob: float, entropy: float, version: int) -> None:
        """Note one sampled token."""
        self.ids[self.count] = token
        self.count += 1
        self.logprobs.append(logprob)
        self.entropy.append(entropy)
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1] = (version, self.versions[-1][1] + 1)
        else:
            self.versions.append((version, 1))

    def finished(self, decode: Decode | None) -> Finish | None:
        """Why the completion ends after its last token; None when it goes on."""
        sampling = self.request.sampling
        if int(self.ids[self.count - 1]) in sampling.stop_ids:
            return Finish.STOP
        if sampling.stop_strings and decode is not None and self._stopped_by_text(decode):
            return Finish.STOP
        if self.sampled >= self.room:
            return Finish.LENGTH if self.room == sampling.max_tokens else Finish.CONTEXT
        return None

    def completion(self, finish: Finish) -> Completion:
        """The answer."""
        ages = [self.oldest_kv, None if self.tip is None else self.tip.oldest]
        known = [a for a in ages if a is not None]
        return Completion(
            ids=self.ids[self.prompt_len : self.count].copy(),
            logprobs=np.asarray(self.logprobs, dtype=np.float32),
            entropy=np.asarray(self.entropy, dtype=np.float32),
            versions=tuple(self.versions),
            kv_version=min(known, default=self.versions[0][0] if self.versions else 0),
            finish=finish,
        )

    def lose_kv(self) -> None:
        """Its KV is gone; remember how old it was, if tokens were sampled on it."""
        age = None if self.tip is None else self.tip.oldest
        if age is not None and self.sampled:
            self.oldest_kv = age if self.oldest_kv is None else min(self.oldest_kv, age)
        self.tip = None

    def _stopped_by_text(self, decode: Decode) -> bool:
        """Whether a stop string is in the tail. Earlier ones would have ended it, so only the tail is decoded."""
        strings = self.request.sampling.stop_strings
        # A token has at least one byte; a few more tokens cover a character cut at the start.
        tail = max(len(s.encode()) for s in strings) + 4
        start = max(self.prompt_len, self.count - tail)
        text = decode(self.ids[start : self.count].tolist())
        return any(s in text for s in strings)


def prepare(
    request: Request, *, context: int, vocab: int, can_decode: bool, deliver: Callable[[Answer], None]
) -> Flight:
    """A flight for `request`.

    Raises PromptTooLong, or ValueError for a prompt that is empty, has unknown ids, or needs text that cannot be had.
    """
    prompt = np.asarray(request.prompt, dtype=np.int32)
    if prompt.ndim != 1 or not len(prompt):
        raise ValueError(f"request.prompt: got shape {prompt.shape}, expected at least one id in one dimension")
    if len(prompt) >= context:
        raise PromptTooLong(f"prompt of {len(prompt)} tokens leaves no room in the context of {context}")
    if prompt.min() < 0 or prompt.max() >= vocab:
        raise ValueError(f"request.prompt: got ids {prompt.min()}..{prompt.max()}, expected 0..{vocab - 1}")
    if request.sampling.stop_strings and not can_decode:
        raise ValueError("sampling.stop_strings: this engine was made without a `decode` function")
    room = min(request.sampling.max_tokens, context - len(prompt))
    ids = np.empty(len(prompt) + room, dtype=np.int32)
    ids[: len(prompt)] = prompt
    return Flight(request=request, ids=ids, count=len(prompt), room=room, deliver=deliver)


def broken(reason: str, cause: BaseException | None = None) -> EngineError:
    """The error that a flight's owner gets."""
    error = EngineError(reason)
    error.__cause__ = cause
    return error
