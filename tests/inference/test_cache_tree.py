"""The tree against a plain reference: what is held of a sequence is what a list of token sequences says.

No model: an entry is a number that stands for all tokens up to it, so that an entry in the wrong place shows.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from treadle.core.ports import CacheHint, Ids
from treadle.inference import cache as cache_module
from treadle.inference.arena import Arena
from treadle.inference.cache import KvCache, Node
from treadle.testing import VirtualClock

KEYS = [f"r{i}" for i in range(6)]
GROUPS = ["", "g0", "g1", "g2"]


def mark(ids: Ids) -> float:
    """Stands for the last of these tokens after the others; exact in a float32."""
    return float(zlib.crc32(ids.tobytes()) % (1 << 24))


@dataclass
class Bench:
    """A cache, requests on it, and a plain list of what should be held."""

    tokens: int = 64 * 1024
    version: int = 0
    held: dict[str, list[int]] = field(default_factory=dict)
    """By rollout or group: the version of each token's entry; its tokens are in `said`."""
    said: dict[str, Ids] = field(default_factory=dict)

    def __post_init__(self) -> None:
        like = torch.zeros(1)
        self.arena = Arena(layers=1, kv_heads=2, head_dim=1, tokens=self.tokens, block_tokens=1024, like=like)
        self.cache = KvCache(self.arena, VirtualClock())

    @property
    def nodes(self) -> set[Node]:
        return self.cache._nodes

    def open(self, ids: Ids, key: str, group: str = "", length: int = 0) -> Node | None:
        self.cache.renew(self.version)
        return self.cache.open(ids, CacheHint(rollout=key, trunk=group, trunk_len=length), self.version)

    def compute(self, tip: Node) -> int:
        """Compute what is planned, as far as nobody has to wait. Returns the number of entries computed."""
        computed = 0
        for node in (*tip.above, tip):
            if node.ready:
                continue
            if not self.cache.begin(node, ()):
                break  # somebody else is at it
            computed += self.write(node, node.planned - node.run.length)
        return computed

    def write(self, node: Node, tokens: int) -> int:
        for _ in range(tokens):
            keys, values = self.arena.entries(0, node.run, node.run.length + 1)
            keys[:, -1] = values[:, -1] = mark(node.ids[: node.length + 1])
            node.run.append(1, self.version)
        return tokens

    def say(self, tip: Node, ids: Ids) -> bool:
        """Decode the rest of `ids`."""
        if not self.cache.grow(tip, len(ids)):
            return False
        tip.ids = ids
        self.write(tip, len(ids) - tip.length)
        return True

    def versions(self, tip: Node) -> list[int]:
        return [v for node in (*tip.above, tip) for v, n in node.run.versions for _ in range(n)]

    def reach(self, ids: Ids, floor: int) -> int:
        """How many leading tokens of `ids` are held by somebody, none older than `floor`."""
        most = 0
        for key, versions in self.held.items():
            for n, (a, b, version) in enumerate(zip(self.said[key], ids, versions, strict=False)):
                if a != b or version < floor:
                    break
                most = max(most, n + 1)
        return most

    def is_sound(self) -> None:
        """Every entry is where it belongs, no two runs overlap, nothing is held for nobody."""
        places: set[tuple[int, int]] = set()
        for node in self.nodes:
            assert node.parent is not None
            assert node in node.parent.children
            assert node.users or node.keys or node.groups or node.children
            assert not node.users or not node.children
            assert node.parent.parent is None or node.start == node.parent.start + node.parent.size
            keys, values = self.arena.entries(0, node.run, node.run.length)
            wanted = [mark(node.ids[: node.start + i + 1]) for i in range(node.run.length)]
            assert keys[1, :, 0].tolist() == values[0, :, 0].tolist() == wanted
            first = node.run.row * node.run.capacity + node.run.offset
            mine = {(0, place) for place in range(first, first + node.run.limit)}
            assert places.isdisjoint(mine)
            places |= mine
        assert self.cache.held_tokens == sum(node.run.length for node in self.nodes)


def sequence(rng: random.Random, bench: Bench) -> Ids:
    """Tokens that go on like something held, or like nothing."""
    known = [ids for ids in bench.said.values() if len(ids)]
    start = rng.choice(known)[: rng.randint(0, 60)] if known and rng.random() < 0.8 else np.zeros(0, np.int32)
    fresh = [rng.randint(0, 2) for _ in range(rng.randint(1, 30))]
    return np.concatenate([start, np.array(fresh, np.int32)]).astype(np.int32)




@pytest.mark.parametrize("share", [1, 5, 1000])
@given(seed=st.integers(0, 2**32))
def test_one_after_the_other_compute_exactly_what_nobody_holds(share: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_module, "SHARE", share)
        rng, bench = random.Random(seed), Bench()
        for _ in range(25):
            act = rng.random()
            if act < 0.12 and bench.held:
                gone = rng.choice(sorted(bench.held))
                bench.cache.release(gone)
                del bench.held[gone], bench.said[gone]
            elif act < 0.2:
                bench.version += 1
                bench.cache.renew(bench.version)
                for group in GROUPS[1:]:
                    bench.held.pop(group, None)
                    bench.said.pop(group, None)
            else:
                _play(rng, bench)
            bench.is_sound()
        for key in [*KEYS, *GROUPS]:
            bench.cache.release(key)
        assert bench.nodes == set()
        assert bench.arena.free_tokens == bench.tokens


def _play(rng: random.Random, bench: Bench) -> None:
    """One request from its first token to its last."""
    ids, key, group = sequence(rng, bench), rng.choice(KEYS), rng.choice(GROUPS)
    floor = min(bench.held.get(key, [bench.version]), default=bench.version)
    reach = bench.reach(ids[:-1], floor)
    tip = bench.open(ids, key, group, len(ids))
    assert tip is not None
    assert bench.compute(tip) == len(ids) - reach
    versions = bench.versions(tip)
    assert len(versions) == len(ids)
    assert min(versions) >= floor
    said = np.concatenate([ids, np.array([rng.randint(0, 2) for _ in range(rng.randint(0, 8))], np.int32)])
    assert bench.say(tip, said)
    if group not in bench.held and any(group in n.groups and n.floor == bench.version for n in tip.above):
        bench.held[group], bench.said[group] = versions[:-1], ids[:-1]
    bench.held[key], bench.said[key] = bench.versions(tip), said
    bench.cache.leave(tip, said)


@pytest.mark.parametrize("share", [1, 5, 1000])
@given(seed=st.integers(0, 2**32))
@example(seed=15911)  # a rollout comes back to a prompt that nobody computes any more
def test_whatever_runs_at_once_and_however_it_ends_every_entry_is_right(share: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_module, "SHARE", share)
        rng, bench = random.Random(seed), Bench(tokens=8 * 1024)
        running: dict[Node, list[str]] = {}
        for _ in range(25):
            _disturb(rng, bench, running)
            bench.is_sound()
        for tip, keys in running.items():
            for _ in keys:
                bench.cache.abandon(tip)
        for key in [*KEYS, *GROUPS]:
            bench.cache.release(key)
        assert bench.nodes == set()
        assert bench.arena.free_tokens == bench.tokens


def _disturb(rng: random.Random, bench: Bench, running: dict[Node, list[str]]) -> None:
    """Something that may happen between two steps."""
    act = rng.random()
    if act < 0.3:
        ids, key = sequence(rng, bench), rng.choice(KEYS)
        tip = bench.open(ids, key, rng.choice(GROUPS), rng.randint(1, len(ids)))
        if tip is not None:
            running[tip] = [key]
            bench.said[key] = ids
    elif act < 0.4:
        bench.cache.release(rng.choice([*KEYS, *GROUPS]))
    elif act < 0.45:
        bench.cache.forget_idle()
    elif running:
        tip = rng.choice(sorted(running, key=lambda n: (n.start, n.run.row)))
        keys = running[tip]
        if act < 0.6:
            bench.compute(tip)
        elif act < 0.7:
            key = rng.choice(KEYS)
            bench.cache.join(tip, key)
            keys.append(key)
        elif act < 0.8 and tip.ready and all(node.ready for node in tip.above):
            _go_on(rng, bench, tip, running)
        else:
            _end(rng, bench, tip, keys)
            if not keys:
                del running[tip]


def _go_on(rng: random.Random, bench: Bench, tip: Node, running: dict[Node, list[str]]) -> None:
    """Decode, and then perhaps part."""
    more = np.array([rng.randint(0, 2) for _ in range(rng.randint(1, 9))], np.int32)
    if not bench.say(tip, np.concatenate([tip.ids[: tip.length], more])):
        return
    keys = running[tip]
    if len(keys) < 2:
        return
    parting = keys.pop()
    fork = bench.cache.part(tip, [parting], tip.ids[: tip.length])
    if fork is None:
        keys.append(parting)
    else:
        running[fork] = [parting]


def _end(rng: random.Random, bench: Bench, tip: Node, keys: list[str]) -> None:
    key, how = keys.pop(), rng.random()
    if how < 0.4 and tip.ready and all(node.ready for node in tip.above):
        bench.said[key] = tip.ids[: tip.length]
        bench.cache.leave(tip, tip.ids[: tip.length])
    elif how < 0.6:
        bench.cache.leave(tip)
    elif how < 0.8:
        bench.cache.abandon(tip)
    else:
        keys.clear()
        for _ in range(tip.users):
            bench.cache.spoil(tip)


def row(bench: Bench, seed: int, *, tokens: int = 600) -> Ids:
    """A prompt whose tip takes a whole block."""
    return np.random.default_rng(seed).integers(0, 1000, tokens).astype(np.int32)


def visit(bench: Bench, key: str, ids: Ids, *, group: str = "") -> bool:
    """A request of a rollout from asking to leaving. Whether there was room."""
    bench.cache.absences.ask(key, group)
    tip = bench.open(ids, key, group, len(ids) if group else 0)
    if tip is None:
        return False
    bench.compute(tip)
    bench.cache.leave(tip, ids)
    bench.cache.absences.leave(key, group)
    return True


def kept(bench: Bench) -> set[str]:
    return {key for key in KEYS if bench.cache.age(key) is not None}


def test_who_waits_for_a_slow_tool_goes_before_one_about_to_return() -> None:
    bench, clock = Bench(tokens=4 * 1024), VirtualClock()
    bench.cache.absences._clock = clock
    for seconds in (1, 1, 1, 100):  # three fast calls and a slow one
        visit(bench, "r5", row(bench, 5))
        clock.advance_to(clock.now() + seconds)
    bench.cache.absences.ask("r5", "")
    bench.cache.release("r5")
    visit(bench, "r0", row(bench, 0))
    clock.advance_to(clock.now() + 5)  # longer than a fast call: it waits for the slow tool
    visit(bench, "r1", row(bench, 1))
    visit(bench, "r2", row(bench, 2))
    visit(bench, "r3", row(bench, 3))
    assert visit(bench, "r4", row(bench, 4))
    assert kept(bench) == {"r1", "r2", "r3", "r4"}


def test_where_all_stay_away_alike_the_last_to_leave_goes_first() -> None:
    bench, clock = Bench(tokens=4 * 1024), VirtualClock()
    bench.cache.absences._clock = clock
    for _ in range(3):
        visit(bench, "r5", row(bench, 5))
        clock.advance_to(clock.now() + 60)
    bench.cache.absences.ask("r5", "")
    bench.cache.release("r5")
    for i in range(4):
        visit(bench, f"r{i}", row(bench, i))
        clock.advance_to(clock.now() + 2)
    visit(bench, "r4", row(bench, 4))
    assert kept(bench) == {"r0", "r1", "r2", "r4"}


def test_while_nothing_is_known_what_was_used_longest_ago_goes_first() -> None:
    bench = Bench(tokens=4 * 1024)
    for i in range(5):
        visit(bench, f"r{i}", row(bench, i))
    assert kept(bench) == {"r1", "r2", "r3", "r4"}
    assert bench.cache.evicted == 1


def test_who_asked_already_and_waits_for_a_slot_goes_last() -> None:
    bench, clock = Bench(tokens=4 * 1024), VirtualClock()
    bench.cache.absences._clock = clock
    visit(bench, "r0", row(bench, 0))
    clock.advance_to(60)
    for i in (1, 2, 3):
        visit(bench, f"r{i}", row(bench, i))
    bench.cache.absences.ask("r0", "")  # back after a minute, the longest that anybody was away
    visit(bench, "r4", row(bench, 4))
    assert "r0" in kept(bench)


def test_a_leaf_goes_before_what_it_builds_on() -> None:
    bench = Bench(tokens=4 * 1024)
    shared = row(bench, 0, tokens=300)
    for i in range(3):
        visit(bench, f"r{i}", np.concatenate([shared, row(bench, i + 1, tokens=700)]), group="g0")
    visit(bench, "r3", row(bench, 9))
    visit(bench, "r4", row(bench, 10))
    assert any(node.size >= 300 for node in bench.nodes)


def test_a_cut_copies_nothing_and_its_parts_go_one_by_one() -> None:
    bench = Bench()
    ids = row(bench, 0)
    visit(bench, "r0", ids)
    fork = np.concatenate([ids[:400], row(bench, 1, tokens=50)])
    visit(bench, "r1", fork)
    assert bench.arena.copied_tokens == 0
    assert bench.cache.held_tokens == 600 + 50
    bench.cache.release("r0")
    assert bench.cache.held_tokens == 450
    bench.is_sound()
    bench.cache.release("r1")
    assert bench.arena.free_tokens == bench.tokens


def test_short_beginnings_are_copied() -> None:
    bench = Bench()
    ids = row(bench, 0, tokens=100)
    visit(bench, "r0", ids)
    visit(bench, "r1", np.concatenate([ids[:70], row(bench, 1, tokens=20)]))
    assert bench.arena.copied_tokens == 70
    assert bench.cache.held_tokens == 100 + 90


def test_forks_of_a_long_answer_share_it_where_it_lies() -> None:
    bench = Bench()
    ids = row(bench, 0, tokens=300)
    tip = bench.open(ids, "r0")
    assert tip is not None
    bench.compute(tip)
    for key in ("r1", "r2", "r3"):
        bench.cache.join(tip, key)
    forks = [bench.cache.part(tip, [key], ids) for key in ("r1", "r2", "r3")]
    assert all(fork is not None and fork.parent is tip.parent for fork in forks)
    assert bench.arena.copied_tokens == 0
    bench.is_sound()


def test_a_broken_node_is_taken_over_by_nobody_and_cleaned() -> None:
    bench = Bench()
    ids = row(bench, 0, tokens=300)
    visit(bench, "r0", ids)
    tip = bench.open(np.concatenate([ids, ids[:5]]), "r0")
    assert tip is not None
    keys, _ = bench.arena.entries(0, tip.run, tip.run.length)
    bench.cache.spoil(tip)
    assert not keys.any()
    assert bench.nodes == set()


def test_who_is_alone_fits_even_if_what_it_builds_on_leaves_no_room() -> None:
    bench = Bench(tokens=4 * 1024)
    first = row(bench, 0)
    second = np.concatenate([first[:300], row(bench, 1, tokens=170)])
    third = np.concatenate([second[:430], row(bench, 2, tokens=60)])
    visit(bench, "r0", first)
    visit(bench, "r1", second)
    bench.cache.release("r0")
    visit(bench, "r2", third, group="g0")
    bench.cache.release("r1")
    bench.cache.release("g0")
    assert len(bench.nodes) == 4  # each in a block of its own: none is left
    assert bench.arena.free_tokens == 0
    assert visit(bench, "r2", np.concatenate([third, row(bench, 3, tokens=400)]))
    bench.is_sound()
