"""`check_engine`: what every engine must hold, whatever computes behind it.

The kit knows ids only. It asks for completions alone, together, with and without cache hints, over several turns, and
compares; it cancels, releases, overlong-prompts and floods. An engine whose draws do not follow the request's stream
(a server with its own random numbers) is checked with `streams=False`: what is then left is everything but equality of
sampled ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import numpy as np

from treadle.core.errors import EngineError, PromptTooLong
from treadle.core.ports import CacheHint, Completion, Finish, Ids, Request, Sampling
from treadle.core.seeds import Stream
from treadle.inference import Engine

MakeEngine = Callable[[], AbstractAsyncContextManager[Engine]]
T = TypeVar("T")

TOLERANCE = 1e-4
"""Most that a log-prob may differ between two ways to compute it."""


async def check_engine(
    make_engine: MakeEngine, *, vocab: int, context: int, streams: bool = True, reuse: bool = False,
    timeout_s: float = 60.0,
) -> None:
    """Hold an engine to its contract. Raises AssertionError naming the property.

    `make_engine` gives a fresh engine for each property; prompts use ids below `vocab`; `context` is the most tokens
    of one sequence that the engine takes, at least 64. `reuse` asks for one engine only, which all properties are then
    held against: for engines that take long to start.
    """
    if context < 64:
        raise ValueError(f"check_engine: got context {context}, expected at least 64")
    kit = _Kit(vocab=vocab, context=context, timeout_s=timeout_s)
    checks = [
        kit.completions_are_well_formed,
        kit.limits_end_a_completion,
        kit.overlong_prompts_are_refused,
        kit.a_cancelled_request_frees_its_slot,
        kit.unknown_keys_are_released_in_silence,
        kit.a_flood_is_answered,
    ]
    if streams:
        checks += [
            kit.draws_follow_the_stream_alone,
            kit.greedy_ignores_the_stream,
            kit.a_stop_id_ends_and_is_kept,
            kit.cache_hints_change_nothing,
        ]
    for check in [] if reuse else checks[1:]:
        async with make_engine() as engine:
            await check(engine)
    async with make_engine() as engine:
        for check in checks if reuse else checks[:1]:
            await check(engine)
    await kit.a_closed_engine_refuses(engine)


class _Kit:
    """The properties, each on a fresh engine."""

    def __init__(self, *, vocab: int, context: int, timeout_s: float) -> None:
        self._vocab, self._context, self._timeout_s = vocab, context, timeout_s

    def prompt(self, length: int, seed: int = 0) -> Ids:
        """Random ids, int32[length]."""
        return np.random.default_rng((seed, length)).integers(0, self._vocab, length).astype(np.int32)

    def request(self, prompt: Ids, *, name: str = "a", most: int = 8, cache: CacheHint | None = None) -> Request:
        """A request with a stream of its own name."""
        return Request(prompt=prompt, sampling=Sampling(max_tokens=most), stream=Stream(3).at(name), cache=cache)

    async def within(self, what: Awaitable[T], name: str) -> T:
        """Await with a deadline, so that a hanging engine is named."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await what
        except TimeoutError:
            raise AssertionError(f"{name}: no answer in {self._timeout_s:g} s") from None

    async def ask(self, engine: Engine, *requests: Request) -> list[Completion]:
        """Completions of requests sent together."""
        return await self.within(asyncio.gather(*(engine.generate(r) for r in requests)), "generate")

    async def completions_are_well_formed(self, engine: Engine) -> None:
        """Ids in range, log-probs and entropies of distributions, versions known."""
        (done,) = await self.ask(engine, self.request(self.prompt(12)))
        assert len(done.ids), "a completion has at least one token"
        assert ((done.ids >= 0) & (done.ids < self._vocab)).all(), "sampled ids are in the vocabulary"
        assert (done.logprobs <= 1e-6).all(), "log-probs are at most 0"
        assert (done.entropy >= 0).all(), "entropies are at least 0"
        assert all(count > 0 for _, count in done.versions), "version runs are not empty"
        assert done.kv_version <= max(v for v, _ in done.versions), "no KV is newer than the tokens sampled on it"

    async def limits_end_a_completion(self, engine: Engine) -> None:
        """max_tokens gives LENGTH; a full context gives CONTEXT."""
        short, full = await self.ask(
            engine,
            self.request(self.prompt(8), most=3),
            self.request(self.prompt(self._context - 4), name="b", most=40),
        )
        assert (len(short.ids), short.finish) == (3, Finish.LENGTH), "max_tokens ends a completion as LENGTH"
        assert (len(full.ids), full.finish) == (4, Finish.CONTEXT), "a full context ends a completion as CONTEXT"

    async def overlong_prompts_are_refused(self, engine: Engine) -> None:
        """A prompt that fills the context raises, and the engine goes on."""
        try:
            await self.ask(engine, self.request(self.prompt(self._context)))
        except PromptTooLong:
            pass
        else:
            raise AssertionError("a prompt as long as the context raises PromptTooLong")
        await self.ask(engine, self.request(self.prompt(8)))

    async def a_cancelled_request_frees_its_slot(self, engine: Engine) -> None:
        """Cancellation comes through and leaves nothing running."""
        long = self.request(self.prompt(16), most=self._context)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(engine.generate(long))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
        assert task.cancelled() or task.done(), "a cancelled await ends"
        await self.ask(engine, self.request(self.prompt(8), name="b"))
        signal = engine.load_signal()
        assert (signal.running, signal.waiting) == (0, 0), "nothing runs after a cancellation"

    async def unknown_keys_are_released_in_silence(self, engine: Engine) -> None:
        """Release takes any key, twice, and is no end of the rollout."""
        hint = CacheHint(rollout="r", trunk="t", trunk_len=12)
        engine.release("never seen")
        (first,) = await self.ask(engine, self.request(self.prompt(12), cache=hint))
        for key in ("r", "r", "t"):
            engine.release(key)
        (again,) = await self.ask(engine, self.request(self.prompt(12), cache=hint))
        assert len(first.ids) == len(again.ids), "a released rollout may ask again"

    async def a_flood_is_answered(self, engine: Engine) -> None:
        """Many more requests than slots: every one is answered in full."""
        flood = [self.request(self.prompt(4 + i % 7, seed=i), name=f"f{i}", most=2 + i % 3) for i in range(200)]
        done = await self.ask(engine, *flood)
        assert [len(d.ids) for d in done] == [r.sampling.max_tokens for r in flood], "every request is answered"

    async def draws_follow_the_stream_alone(self, engine: Engine) -> None:
        """The same requests give the same ids alone and in company; another stream gives others."""
        requests = [self.request(self.prompt(9 + i, seed=i), name=f"o{i}", most=5 + i) for i in range(6)]
        company = await self.ask(engine, *requests)
        alone = [(await self.ask(engine, request))[0] for request in requests]
        _same(alone, company, "company changes nothing")
        (other,) = await self.ask(engine, self.request(requests[5].prompt, name="z", most=10))
        assert not np.array_equal(alone[5].ids, other.ids), "another stream draws other ids"

    async def greedy_ignores_the_stream(self, engine: Engine) -> None:
        """Temperature 0 takes the likeliest id."""
        greedy = Sampling(temperature=0.0, max_tokens=6)
        prompts = [self.prompt(10, seed=i) for i in range(4)]
        one, two = [
            await self.ask(engine, *(Request(prompt=p, sampling=greedy, stream=Stream(seed)) for p in prompts))
            for seed in (1, 2)
        ]
        _same(one, two, "greedy ignores the stream")

    async def a_stop_id_ends_and_is_kept(self, engine: Engine) -> None:
        """The first of the stop ids that is sampled is the last token."""
        plain = self.request(self.prompt(10), most=12)
        (free,) = await self.ask(engine, plain)
        stop = int(free.ids[5])
        sampling = Sampling(max_tokens=12, stop_ids=(stop,))
        (done,) = await self.ask(engine, Request(prompt=plain.prompt, sampling=sampling, stream=plain.stream))
        first = free.ids.tolist().index(stop)
        assert done.finish is Finish.STOP, "a stop id ends a completion as STOP"
        assert done.ids.tolist() == free.ids[: first + 1].tolist(), "the stop id is kept as the last token"

    async def cache_hints_change_nothing(self, engine: Engine) -> None:
        """Two turns of three rollouts of a group, with and without hints, and a broken context: the same answers."""
        prompt, news = self.prompt(14), self.prompt(5, seed=1)
        hints = [CacheHint(rollout=f"r{i}", trunk="t", trunk_len=len(prompt)) for i in range(3)]
        first = [self.request(prompt, name=f"first{i}", cache=h) for i, h in enumerate(hints)]
        done = await self.ask(engine, *first)
        turns = [np.concatenate([prompt, d.ids, news]) for d in done]
        turns[2] = np.concatenate([prompt, done[2].ids[:2], news])  # a context edit: part of the first turn is gone
        second = [
            self.request(t, name=f"second{i}", cache=h) for i, (t, h) in enumerate(zip(turns, hints, strict=True))
        ]
        done += await self.ask(engine, *second)
        bare = [Request(prompt=r.prompt, sampling=r.sampling, stream=r.stream) for r in (*first, *second)]
        _same(await self.ask(engine, *bare), done, "a cache hint changes nothing")

    async def a_closed_engine_refuses(self, engine: Engine) -> None:
        """After closing, a request raises EngineError instead of waiting."""
        try:
            await self.within(engine.generate(self.request(self.prompt(8))), "generate on a closed engine")
        except EngineError:
            return
        raise AssertionError("a closed engine raises EngineError")


def _same(some: Sequence[Completion], others: Sequence[Completion], name: str) -> None:
    """Equal ids, log-probs and entropies.

    One of the pairs may differ in its ids: another batch rounds otherwise, and a number may fall on the edge between
    two ids.
    """
    pairs = list(zip(some, others, strict=True))
    equal = [(a, b) for a, b in pairs if a.ids.tolist() == b.ids.tolist()]
    assert len(equal) >= len(pairs) - 1, f"{name}: other ids"
    for a, b in equal:
        assert np.allclose(a.logprobs, b.logprobs, atol=TOLERANCE, rtol=0), f"{name}: other log-probs"
        assert np.allclose(a.entropy, b.entropy, atol=10 * TOLERANCE, rtol=0), f"{name}: other entropies"
