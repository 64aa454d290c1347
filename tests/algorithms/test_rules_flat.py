"""The literature's numbers for rules that need no tree: on groups of rollouts, on single chains, on tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from treadle.algorithms.aggregation import TokenMean
from treadle.algorithms.credit import assign
from treadle.algorithms.dapo import Dapo
from treadle.algorithms.gae import Gae, TurnGae
from treadle.algorithms.gigpo import GiGpo
from treadle.algorithms.graph import Graph
from treadle.algorithms.igpo import IgPo
from treadle.algorithms.mt_grpo import MtGrpo
from treadle.algorithms.reinforce_pp import ReinforcePP
from treadle.algorithms.rules import RULES
from treadle.algorithms.turns import Turns
from treadle.algorithms.vine import Vine
from treadle.core.outcome import limit
from treadle.testing.forests import Node, action, grow, observation
from treadle.testing.planted import plant
from treadle.trajectory.forest import Column, Forest

REWARDS, LENGTHS = [1.0, 0.0, 0.0, 1.0, 0.0], [2, 4, 1, 3, 2]
GAE = [0.7232, 0.6560, 0.48, 0.40]
VALUES = [0.2, 0.3, 0.9, -0.7, 0.5, 0.6]


def flat_group(rewards: Sequence[float] = REWARDS, lengths: Sequence[int] = LENGTHS) -> Forest:
    plays = [action(f"a{i}", n, reward=r) for i, (r, n) in enumerate(zip(rewards, lengths, strict=True))]
    return Forest.of([grow(observation("prompt", 3, *plays)).group])


def chain(name: str, *turns: tuple[float, str | None], length: int = 1) -> Node:
    """A rollout with these rewards and state keys, one per turn."""
    (reward, key), *rest = turns
    below = [observation(f"{name}e{len(rest)}", 1, chain(name, *rest, length=length))] if rest else []
    return action(f"{name}a{len(rest)}", length, *below, reward=reward, state_key=key)


def one_group(*chains: Node) -> Forest:
    return Forest.of([grow(observation("prompt", 1, *chains)).group])


def noted(forest: Forest, name: str, *columns: Sequence[float]) -> Forest:
    """The note, from the numbers of each rollout's tokens behind the prompt, rollouts one after the other."""
    prompt = np.full(int(forest.length[0]), np.nan)
    return replace(forest, notes={**forest.notes, name: np.concatenate([prompt, *map(np.asarray, columns)])})


def of_actions(forest: Forest, column: Column) -> Column:
    """The numbers of actions, from a column of rows or tokens."""
    acts = forest.action if len(column) == len(forest) else np.repeat(forest.action, forest.length)
    return column[acts]


# -- groups ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("opo", [0.583333, -0.416667, -0.416667, 0.583333, -0.416667]),
        ("max_rl", [1.499996, -0.999998, -0.999998, 1.499996, -0.999998]),
        ("dapo", [1.095443, -0.730295, -0.730295, 1.095443, -0.730295]),
        ("tree_grpo", [1.095443, -0.730295, -0.730295, 1.095443, -0.730295]),
    ],
)
def test_rules_of_a_flat_group_give_the_numbers_of_the_papers(name: str, expected: list[float]):
    np.testing.assert_allclose(RULES[name]()(flat_group()).advantage, expected, atol=1e-6)


def test_dapo_punishes_length_softly():
    rule = Dapo(longest=10, margin=4)
    np.testing.assert_allclose(rule.punishment(np.array([5, 6, 8, 10, 11])), [0, 0, -0.5, -1, -1])


def test_dapo_compares_punished_returns():
    forest = flat_group(rewards=[1.0, 1.0, 0.0], lengths=[6, 8, 6])
    shaped = np.array([1.0, 0.5, 0.0])
    expected = (shaped - shaped.mean()) / (shaped.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(Dapo(longest=10, margin=4)(forest).advantage, expected)


def test_reinforce_pp_baseline_whitens_over_tokens():
    one = observation("p", 1, action("a", 1, reward=1.0), action("b", 3))
    two = observation("p", 1, action("c", 2, reward=1.0), action("d", 2, reward=1.0))
    forest = Forest.of([grow(one, id="g0").group, grow(two, id="g1", ticket=1).group])
    got = RULES["reinforce_pp_baseline"]()(forest).advantage
    np.testing.assert_allclose(got, [1.767767, -1.06066, 0.353553, 0.353553], atol=1e-6)


# -- tokens ----------------------------------------------------------------------------------------------------


def two_turns() -> Forest:
    """Two action tokens, two of the world, two action tokens; 1 is earned at the end."""
    return one_group(action("a1", 2, observation("e1", 2, action("a2", 2, reward=1.0))))


def test_reinforce_pp_counts_the_discount_by_action_tokens():
    forest = two_turns()
    returns = ReinforcePP(gamma=0.9).returns(forest)
    np.testing.assert_allclose(returns, [0, 0.729, 0.81, 0, 0, 0.9, 1.0])
    np.testing.assert_allclose(of_actions(forest, ReinforcePP().returns(forest)), [1, 1, 1, 1])


def test_reinforce_pp_pays_the_kl_on_each_token():
    forest = noted(two_turns(), "ref", [-1.5, -1.0, np.nan, np.nan, -0.5, -2.0])  # the policy's are -1 each
    returns = of_actions(forest, ReinforcePP(beta=0.2).returns(forest))
    np.testing.assert_allclose(returns, np.array([1, 1, 1, 1]) - 0.2 * np.array([1.0, 0.5, 0.5, 1.0]))


def test_reinforce_pp_whitens_over_all_action_tokens_of_the_update():
    plays = (action("a", 1, reward=1.0), action("b", 3))
    forest = Forest.of([grow(observation("p", 1, play), id=f"g-{play.name}").group for play in plays])
    got = of_actions(forest, RULES["reinforce_pp"]()(forest).advantage)
    tokens = np.array([1.0, 0, 0, 0])
    np.testing.assert_allclose(got, (tokens - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8))


def test_reinforce_pp_needs_a_reference_only_for_its_kl():
    assert ReinforcePP().needs == frozenset()
    assert ReinforcePP(beta=0.1).needs == {"ref"}


def test_gae_sees_action_tokens_only():
    forest = noted(two_turns(), "value", VALUES)
    credit = Gae()(forest)
    np.testing.assert_allclose(of_actions(forest, credit.advantage), GAE, atol=1e-12)
    assert credit.returns is not None
    np.testing.assert_allclose(of_actions(forest, credit.returns), np.add(GAE, [0.2, 0.3, 0.5, 0.6]))
    assert np.isnan(credit.returns[np.repeat(~forest.action, forest.length)]).all()


def test_gae_of_three_tokens():
    forest = noted(one_group(action("a", 3, reward=1.0)), "value", [0.2, 0.5, 0.6])
    np.testing.assert_allclose(of_actions(forest, Gae()(forest).advantage), [0.756, 0.48, 0.4])


def test_a_reward_on_an_observation_is_that_of_the_action_before_it():
    last = action("a2", 2, replace(observation("e2", 2), reward=1.0))
    moved = one_group(action("a1", 2, observation("e1", 2, last)))
    forest = noted(moved, "value", [*VALUES, 9.0, 9.0])
    np.testing.assert_allclose(of_actions(forest, Gae()(forest).advantage), GAE, atol=1e-12)


def test_turn_gae_is_gae_over_actions():
    forest = one_group(chain("r", (0, None), (0, None), (1.0, None), length=2))
    forest = noted(forest, "value", [0.2, 7, 8, 0.5, 7, 8, 0.6, 7])
    credit = TurnGae()(forest)
    np.testing.assert_allclose(of_actions(forest, credit.advantage), np.repeat([0.756, 0.48, 0.4], 2))
    assert credit.returns is not None
    learned = np.flatnonzero(~np.isnan(credit.returns))
    assert learned.tolist() == forest.start[:-1][forest.action].tolist()
    np.testing.assert_allclose(credit.returns[learned], [0.956, 0.98, 1.0])


def cut_off(value_after: float | None = None) -> Forest:
    """One action of two tokens worth .5 and .6 before them, then the limit."""
    forest = noted(one_group(replace(action("a", 2), end=limit("turns"))), "value", [0.5, 0.6])
    return forest if value_after is None else noted(forest, "value_after", [np.nan, value_after])


def test_an_ending_by_a_limit_is_followed_by_the_value_of_the_state_at_the_end():
    forest = cut_off(0.8)
    np.testing.assert_allclose(of_actions(forest, Gae(lam=0.0)(forest).advantage), [0.1, 0.2])
    np.testing.assert_allclose(of_actions(forest, TurnGae(lam=0.0)(forest).advantage), [0.3, 0.3])


def test_without_a_value_at_the_end_the_last_one_stands_in():
    forest = cut_off()
    np.testing.assert_allclose(of_actions(forest, Gae(lam=0.0)(forest).advantage), [0.1, 0.0], atol=1e-12)
    np.testing.assert_allclose(of_actions(forest, TurnGae(lam=0.0)(forest).advantage), [0.0, 0.0], atol=1e-12)


def test_gae_takes_the_mean_over_branches():
    forest = one_group(action("a1", 1, observation("e1", 1, action("a2", 1, reward=1.0), action("a3", 1))))
    forest = noted(forest, "value", [0.5, np.nan, 0.6, 0.2])
    for rule in (Gae(lam=1.0), TurnGae(lam=1.0)):
        np.testing.assert_allclose(of_actions(forest, rule(forest).advantage), [0.0, 0.4, -0.2], atol=1e-12)


@pytest.mark.parametrize("name", ["gae", "turn_gae"])
def test_rules_with_a_value_take_a_group_of_one(name: str):
    forest = plant(one_group(chain("r", (0, None), (1.0, None))), {"value"})
    collapsed, _ = assign(forest, RULES[name](), TokenMean())
    assert RULES[name]().min_rollouts == 1
    assert (collapsed.pos - collapsed.neg).any()


# -- turns -----------------------------------------------------------------------------------------------------


def test_vine_credits_a_turn_with_what_it_changed():
    forest = one_group(chain("r", (0, None), (0, None), (1.0, None)))
    forest = replace(forest, probed=np.array([0.25, np.nan, 0.5, np.nan, 1.0, np.nan]))
    np.testing.assert_allclose(of_actions(forest, Vine()(forest).advantage), [0.25, 0.5, 0.0])


def test_vine_on_a_chain_gives_the_segment_advantages_of_spo():
    forest = one_group(chain("r", (0, None), (0, None), (1.0, None)))
    forest = replace(forest, probed=np.array([0.3, np.nan, 0.3, np.nan, 0.7, np.nan]))
    np.testing.assert_allclose(of_actions(forest, Vine()(forest).advantage), [0.0, 0.4, 0.3], atol=1e-12)


def test_vine_adds_what_a_turn_was_paid():
    forest = one_group(chain("r", (0.5, None), (1.0, None)))
    forest = replace(forest, probed=np.array([0.25, np.nan, 0.75, np.nan]))
    np.testing.assert_allclose(of_actions(forest, Vine()(forest).advantage), [1.0, 0.25])


def test_mt_grpo_before_and_after_the_tool_result():
    turn, outcome = [1.0, 1.0, 0.0, 0.5], [1.0, 0.0, 0.0, 1.0]
    paid = zip(turn, outcome, strict=True)
    forest = one_group(*(chain(f"r{i}", (t, None), (o, None)) for i, (t, o) in enumerate(paid)))
    got = of_actions(forest, MtGrpo()(forest).advantage)
    np.testing.assert_allclose(got[0::2], [1.649061, -0.08269, -2.171185, 0.604813], atol=1e-6)
    np.testing.assert_allclose(got[1::2], [0.865875, -0.865875, -0.865875, 0.865875], atol=1e-6)


def test_mt_grpo_compares_turn_rewards_within_a_turn():
    forest = one_group(chain("a", (1, None), (5, None), (0, None)), chain("b", (0, None), (3, None), (0, None)))
    got = of_actions(forest, MtGrpo(turn=2.0, eps=1e-9)(forest).advantage)
    half = 2 / np.sqrt(2)
    np.testing.assert_allclose(got, [half, half, 0, -half, -half, 0], rtol=1e-6)


def test_igpo_standardises_gains_over_the_group_and_sums_what_follows():
    forest = one_group(chain("a", (0, None), (0, None), (0, None)), chain("b", (0, None), (0, None), (1.0, None)))
    said = np.log([0.1, 0.3, 0.3, 0.25, 0.25, 0.25, 0.1, 0.1, 0.6, 0.6, 0.6])
    forest = replace(forest, notes={"answer_prob": np.array([said[0], *_behind(said[1:6]), *_behind(said[6:])])})
    np.testing.assert_allclose(IgPo().gains(forest), [0.2, -0.05, 0.0, 0.0, 0.5, 1.0], atol=1e-12)
    got = of_actions(forest, IgPo(eps=1e-12)(forest).advantage)
    expected = [-1.805357, -1.604762, -0.735516, 1.805357, 2.540873, 1.939087]
    np.testing.assert_allclose(got, expected, atol=1e-6)


def _behind(said: Column) -> list[float]:
    """Numbers for action, answer, action, answer, action: only the world's answers are looked at."""
    return [np.nan, said[0], np.nan, said[2], np.nan]


def test_igpo_discounts_by_actions():
    forest = one_group(chain("a", (0, None), (0, None)), chain("b", (0, None), (1.0, None)))
    forest = plant(forest, {"answer_prob"})
    rule = IgPo(gamma=0.5)
    gains = rule.gains(forest)
    z = (gains - gains.mean()) / (gains.std() + 1e-6)
    expected = [z[0] + 0.5 * z[1], z[1], z[2] + 0.5 * z[3], z[3]]
    np.testing.assert_allclose(of_actions(forest, rule(forest).advantage), expected)


# -- states ----------------------------------------------------------------------------------------------------


def anchored() -> Forest:
    """Three rollouts through states that they share."""
    return one_group(
        chain("a", (0, "s0"), (0, "s1"), (1.0, "s2")), chain("b", (0, "s0"), (0, "s1")),
        chain("c", (0, "s0"), (0, "s3"), (1.0, "s1")),
    )


def test_gigpo_compares_steps_from_one_state():
    forest = anchored()
    both = of_actions(forest, GiGpo()(forest).advantage)
    rollout = of_actions(forest, GiGpo(omega=0.0)(forest).advantage)
    outcome = np.repeat([0.333333, -0.666667, 0.333333], [3, 2, 3])
    np.testing.assert_allclose(rollout, outcome, atol=1e-6)
    step = [0.300833, 0.3, 0.0, -0.601667, -0.65, 0.300833, 0.0, 0.35]
    np.testing.assert_allclose(both - rollout, step, atol=1e-6)
    total = [0.634167, 0.633333, 0.333333, -1.268333, -1.316667, 0.634167, 0.333333, 0.683333]
    np.testing.assert_allclose(both, total, atol=1e-6)


def test_first_actions_without_a_key_share_the_start_of_their_group():
    keyed = one_group(chain("a", (0, "s0"), (1.0, "s1")), chain("b", (0, "s0"), (0, "s1")))
    unkeyed = one_group(chain("a", (0, None), (1.0, "s1")), chain("b", (0, None), (0, "s1")))
    np.testing.assert_allclose(GiGpo()(keyed).advantage, GiGpo()(unkeyed).advantage)


def test_states_of_other_tasks_are_other_states():
    groups = [
        grow(observation("p", 1, chain("a", (1.0, "s")), chain("b", (0.0, "s"))), id=f"g{t}", ticket=t).group
        for t in (0, 1)
    ]
    states = Turns.of(Forest.of(groups)).states("gigpo").tolist()
    assert states[0] == states[1] != states[2] == states[3]


def test_graph_credit_is_the_way_that_an_action_saves():
    forest = one_group(
        chain("a", (0, "s0"), (0, "s1"), (1.0, "s2")),  # 3 actions from s0 to the goal
        chain("b", (0, "s0"), (1.0, "s3")),  # 2 actions
        chain("c", (0, "s0"), (0, "s1"), (0, "s4")),  # lost: s4 leads nowhere
    )
    # to the goal: s0 2, s1 2, s2 1, s3 1, s4 and a lost end 3
    np.testing.assert_allclose(of_actions(forest, Graph()(forest).advantage), [0, 1, 1, 1, 1, 0, -1, 0])


def test_a_failed_rollout_still_has_credit_for_coming_closer():
    forest = one_group(chain("a", (0, "s0"), (1.0, "s1")), chain("b", (0, "s0"), (0, "s1")))
    np.testing.assert_allclose(of_actions(forest, Graph()(forest).advantage), [1, 1, 1, -2])


def test_a_task_without_success_has_no_distances():
    forest = one_group(chain("a", (0, "s0"), (0, "s1")), chain("b", (0, "s0"), (0.5, "s1")))
    assert not Graph()(forest).advantage.any()
