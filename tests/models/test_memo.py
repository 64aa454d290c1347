"""Names of contexts, the ring of states, and the boundary that a forward may begin at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from treadle.models import CausalPlan, Policy, build_tiny
from treadle.models.memo import Names, StateMemo


def memo(tokens: int = 4) -> StateMemo:
    return StateMemo(tokens=tokens, width=3, like=torch.zeros(0))


def some(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 50_000, count).astype(np.int32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"), hidden=32, heads=4, kv_heads=2, layers=4)


def test_a_name_is_of_the_token_and_all_before_it() -> None:
    ids = some(50)
    sums = Names().sums(ids)
    assert len({tuple(row) for row in sums.tolist()}) == 50
    for place in (0, 20, 49):
        other = ids.copy()
        other[place] += 1
        differs = (Names().sums(other) != sums).any(1)
        assert differs.tolist() == [i >= place for i in range(50)]


def test_the_same_tokens_in_another_order_have_another_name() -> None:
    names = Names()
    assert (names.sums(np.array([5, 9, 7]))[-1] != names.sums(np.array([9, 5, 7]))[-1]).all()
    assert (names.sums(np.array([0]))[-1] != names.sums(np.array([0, 0]))[-1]).all()


def test_names_go_on_from_a_prefix_and_do_not_depend_on_what_was_asked_before() -> None:
    ids, names = some(3000), Names()
    names.sums(ids[:10])
    whole = names.sums(ids)
    rest = Names().sums(ids[1500:], start=1500, before=whole[1499])
    assert np.array_equal(whole, Names().sums(ids))
    assert np.array_equal(whole[1500:], rest)


def test_no_two_of_many_contexts_share_a_name() -> None:
    """Small ids and short contexts: what a weak sum confuses first."""
    names, seen = Names(), set()
    for first in range(60):
        for second in range(60):
            seen.add(names.sums(np.array([first, second, 1, 1]))[-1].tobytes())
    assert len(seen) == 3600


def test_what_was_put_is_taken_and_what_was_not_is_missed() -> None:
    held, sums = memo(), Names().sums(some(3))
    states = torch.arange(9.0).view(3, 3)
    held.put(sums[:2], states[:2])
    found = held.take(sums[:2], np.array([True, True]))
    assert found is not None and torch.equal(found, states[:2])
    assert held.take(sums, np.array([True, True, True])) is None
    assert (held.found, held.missed) == (2, 3)


def test_nobody_looks_at_a_state_that_is_not_wanted() -> None:
    held, sums = memo(), Names().sums(some(2))
    held.put(sums[:1], torch.ones(1, 3))
    found = held.take(sums, np.array([True, False]))
    assert found is not None and found.tolist() == [[1.0] * 3, [0.0] * 3]


def test_a_full_ring_forgets_the_oldest() -> None:
    held, sums = memo(tokens=4), Names().sums(some(7))
    states = torch.arange(21.0).view(7, 3)
    held.put(sums[:3], states[:3])
    held.put(sums[3:5], states[3:5])
    assert held.take(sums[:1], np.array([True])) is None
    found = held.take(sums[1:5], np.ones(4, dtype=bool))
    assert found is not None and torch.equal(found, states[1:5])
    held = memo(tokens=4)
    held.put(sums, states)  # more than fit: the last four stay
    found = held.take(sums[3:], np.ones(4, dtype=bool))
    assert found is not None and torch.equal(found, states[3:])


def test_what_is_known_stays_as_it_was_put_first() -> None:
    held, sums = memo(), Names().sums(some(1))
    held.put(sums, torch.ones(1, 3))
    held.put(sums, torch.zeros(1, 3))
    found = held.take(sums, np.array([True]))
    assert found is not None and found.tolist() == [[1.0] * 3]


def test_a_forward_from_the_boundary_is_the_forward(folder: Path) -> None:
    policy = Policy.load(folder)
    policy.train(2, memo_tokens=64)
    assert policy.memo is not None
    ids, pos = torch.arange(20, 40), torch.arange(20)
    sums = policy.memo.names.sums(ids.numpy())
    calls = [0] * 4
    for index, layer in enumerate(policy.module.model.layers):
        layer.register_forward_hook(lambda *_, index=index: calls.__setitem__(index, calls[index] + 1))
    with torch.no_grad():
        whole = policy.hidden(ids, pos, CausalPlan(), sums)
        states = policy.memo.take(sums, np.ones(20, dtype=bool))
        assert states is not None
        above = policy.hidden_above(states, pos, CausalPlan())
    assert torch.equal(whole, above)
    assert calls == [1, 1, 2, 2]
    assert len(policy.module.model.layers) == 4


def test_there_is_none_where_nothing_is_frozen_or_nobody_asks(folder: Path) -> None:
    policy = Policy.load(folder)
    for layers, tokens in ((None, 64), (2, 0), (4, 64)):
        policy.train(2, memo_tokens=64)
        policy.train(layers, memo_tokens=tokens)
        assert policy.memo is None


def test_a_model_that_does_more_with_embeddings_than_pass_them_on_has_none(folder: Path) -> None:
    policy = Policy.load(folder)
    policy.module.model.register_forward_pre_hook(_doubled, with_kwargs=True)
    policy.train(2, memo_tokens=64)
    assert policy.memo is None
    assert torch.isfinite(policy.hidden(torch.arange(5), torch.arange(5), CausalPlan())).all()


def _doubled(_module: object, args: tuple[object, ...], values: dict[str, object]) -> tuple[object, object]:
    """Scales embeddings that are given, as some models scale their own."""
    given = values.get("inputs_embeds")
    return args, {**values, "inputs_embeds": given * 2} if isinstance(given, torch.Tensor) else values


def test_other_weights_empty_it(folder: Path, tmp_path: Path) -> None:
    policy = Policy.load(folder)
    policy.save(tmp_path / "saved")
    policy.train(2, memo_tokens=64)
    assert policy.memo is not None
    sums = policy.memo.names.sums(np.arange(5))
    with torch.no_grad():
        policy.hidden(torch.arange(5), torch.arange(5), CausalPlan(), sums)
    policy.restore(tmp_path / "saved", version=3)
    assert policy.memo.take(sums, np.ones(5, dtype=bool)) is None
