"""Figures of an ablation: how far rules agree, and where their signal lies.

Everything is over actions, each weighted by its mass: how much the rule lets it count. Two rules are compared where
both judged, with the geometric mean of their masses, so that an action that one of them leaves out has no say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from treadle.observability.ablation import NOTHING, Ablation, Judged, Tree, Verdicts
from treadle.trajectory.forest import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far two rules say the same. A figure is None where nothing varies."""

    left: str
    right: str
    actions: int
    """That both let count."""
    pearson: float | None
    spearman: float | None
    """Pearson of the ranks: whether they put actions into the same order."""
    sign: float | None
    """Share of the weight on which both have a sign and it is the same, of that on which either has one."""


def agreements(found: Ablation) -> list[Agreement]:
    """Every pair of rules that judged something."""
    return [_agreement(a, b) for a, b in combinations([rule for rule in found.rules if not rule.silent], 2)]


def signal_by_turn(found: Ablation, rule: Verdicts) -> dict[int, float]:
    """Share of |A| times mass by number of the turn; empty when there is no signal."""
    signal = np.abs(np.nan_to_num(rule.advantage)) * rule.mass
    total = signal.sum()
    if not total > NOTHING:
        return {}
    return {int(turn): float(signal[found.turn == turn].sum() / total) for turn in np.unique(found.turn)}


def record(found: Ablation) -> dict[str, object]:
    """All of it as plain values, fit for strict JSON."""
    return {
        "batches": found.batches, "groups": found.groups, "groups_without_valid_rollout": found.invalid,
        "actions": len(found.turn),
        "rules": {rule.text: _rule(found, rule) for rule in found.rules},
        "agreement": [
            {"rules": [one.left, one.right], "actions": one.actions, "pearson": one.pearson, "spearman": one.spearman,
             "sign": one.sign}
            for one in agreements(found)
        ],
        "tree": None if found.tree is None else _tree(found, found.tree),
    }


def _rule(found: Ablation, rule: Verdicts) -> dict[str, object]:
    said: dict[str, object] = {"cannot_judge": dict(rule.reasons)} if rule.reasons else {}
    if rule.silent:
        return {"scope": rule.scope, "judged": 0, "singletons": rule.singletons, **said}
    return {
        "scope": rule.scope, "judged": rule.judged, "dead": rule.dead, "singletons": rule.singletons,
        "signal_by_turn": {str(turn): share for turn, share in signal_by_turn(found, rule).items()}, **said,
    }


def _tree(found: Ablation, tree: Tree) -> dict[str, object]:
    names = [rule.text for rule in found.rules]

    def action(one: Judged) -> dict[str, object]:
        return {
            "segment": one.segment, "before": one.before, "turn": one.turn, "tokens": len(one.ids),
            "rollouts": one.rollouts, "reward": one.reward, "ends": list(one.ends),
            "advantage": dict(zip(names, one.advantage, strict=True)), "mass": dict(zip(names, one.mass, strict=True)),
        }

    return {
        "group": tree.group, "task": tree.task, "family": tree.family, "rollouts": tree.rollouts,
        "probes": tree.probes, "actions": [action(one) for one in tree.actions],
    }


def _agreement(a: Verdicts, b: Verdicts) -> Agreement:
    both = (a.mass > 0) & (b.mass > 0) & ~np.isnan(a.advantage) & ~np.isnan(b.advantage)
    x, y, weight = a.advantage[both], b.advantage[both], np.sqrt(a.mass[both] * b.mass[both])
    left, right = _sign(x), _sign(y)
    signed = (left != 0) | (right != 0)
    same = (left == right) & signed
    return Agreement(
        left=a.text, right=b.text, actions=int(both.sum()), pearson=_pearson(x, y, weight),
        spearman=_pearson(_ranks(x), _ranks(y), weight),
        sign=float(weight[same].sum() / weight[signed].sum()) if signed.any() else None,
    )


def _sign(x: Column) -> Column:
    return np.where(np.abs(x) > NOTHING, np.sign(x), 0.0)


def _pearson(x: Column, y: Column, weight: Column) -> float | None:
    if not weight.sum() > 0:
        return None
    dx, dy = x - np.average(x, weights=weight), y - np.average(y, weights=weight)
    spread = math.sqrt(float(weight @ dx**2) * float(weight @ dy**2))
    return None if not spread > NOTHING**2 * float(weight.sum()) else float(weight @ (dx * dy)) / spread


def _ranks(x: Column) -> Column:
    """Ranks from 0; equal numbers, but for rounding, have their mean rank."""
    rounded = np.round(x, 9)
    _, place, times = np.unique(rounded, return_inverse=True, return_counts=True)
    first = np.concatenate([[0], np.cumsum(times)[:-1]])
    return np.asarray((first + (times - 1) / 2)[place], dtype=np.float64)
