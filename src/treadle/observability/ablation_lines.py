"""An ablation as lines for a terminal: the tree of one group, then a table of the rules and one of their agreement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from treadle.observability.ablation import Ablation, Judged, Tree
from treadle.observability.ablation_figures import agreements, signal_by_turn
from treadle.observability.facts import amount, printable

Decode = Callable[[Sequence[int]], str]
WIDTH = 62
"""Columns of the tree itself."""
TURNS = 8
"""Turns whose share of the signal is listed; the rest is one figure."""


def ablation_lines(found: Ablation, decode: Decode | None) -> list[str]:
    """All of it. `decode` turns ids into text; None shows the ids."""
    lines = [] if found.tree is None else [*_tree(found, found.tree, decode), ""]
    rest = f", {found.invalid} more without a valid rollout" if found.invalid else ""
    lines.append(f"{found.batches} batches, {found.groups} groups{rest}, {len(found.turn)} actions")
    return [*lines, "", *_rules(found), *_agreement(found)]


def _rules(found: Ablation) -> Iterator[str]:
    wide = max(len(rule.text) for rule in found.rules)
    yield f"{'rule':<{wide}}  scope {'judged':>7} {'dead':>6} {'single':>6}  signal by turn"
    for rule in found.rules:
        if rule.silent:
            why = "; ".join(rule.reasons) or "every group has fewer valid rollouts than it compares"
            yield f"{rule.text:<{wide}}  cannot judge this run: {printable(why)}"
            continue
        shares = signal_by_turn(found, rule)
        told = [f"{turn}: {share:.0%}" for turn, share in list(shares.items())[:TURNS]]
        if len(shares) > TURNS:
            told.append(f"later: {sum(list(shares.values())[TURNS:]):.0%}")
        yield (
            f"{rule.text:<{wide}}  {rule.scope:<5} {rule.judged:>7} {rule.dead:>6} {rule.singletons:>6}  "
            f"{', '.join(told) or 'none: all credit is 0'}"
        )
        for why, times in rule.reasons.items():
            yield f"{'':<{wide}}  {times} batches not judged: {printable(why)}"


def _agreement(found: Ablation) -> Iterator[str]:
    pairs = agreements(found)
    if pairs:
        wide = max(len(f"{one.left} ~ {one.right}") for one in pairs)
        yield ""
        yield f"{'agreement':<{wide}}  {'actions':>7} {'pearson':>8} {'spearman':>8} {'sign':>6}"
    for one in pairs:
        yield (
            f"{f'{one.left} ~ {one.right}':<{wide}}  {one.actions:>7} {amount(one.pearson, '.3f'):>8} "
            f"{amount(one.spearman, '.3f'):>8} {amount(one.sign, '.2f'):>6}"
        )


def _tree(found: Ablation, tree: Tree, decode: Decode | None) -> Iterator[str]:
    names = [rule.text for rule in found.rules]
    widths = [max(8, len(name)) for name in names]
    probes = f", {tree.probes} probes" if tree.probes else ""
    yield printable(
        f"group {tree.group}  task {tree.task}  family {tree.family or '-'}  {tree.rollouts} rollouts{probes}"
    )
    head = " ".join(f"{name:>{wide}}" for name, wide in zip(names, widths, strict=True))
    yield f"{'':<{WIDTH}} {'paths':>5} {'reward':>7} {head}  ends"
    prefixes = _prefixes(tree.actions)
    for one, prefix in zip(tree.actions, prefixes, strict=True):
        said = f"{prefix}{one.turn} {_words(one, decode)}"
        credit = " ".join(
            f"{'-' if a is None or not mass else f'{a:+.3f}':>{wide}}"
            for a, mass, wide in zip(one.advantage, one.mass, widths, strict=True)
        )
        reward = f"{one.reward:+g}" if one.reward else ""
        yield f"{_cut(said, WIDTH):<{WIDTH}} {one.rollouts:>5} {reward:>7} {credit}  {', '.join(one.ends)}".rstrip()


def _prefixes(actions: Sequence[Judged]) -> list[str]:
    """The lines of the tree in front of each action."""
    below: dict[int, list[int]] = {}
    for place, one in enumerate(actions):
        below.setdefault(one.before, []).append(place)
    stems, out = {-1: ""}, []
    for place, one in enumerate(actions):
        stem, siblings = stems[one.before], below[one.before]
        alone = len(siblings) == 1 and one.before >= 0
        last = siblings[-1] == place
        out.append(stem + ("" if alone else "└─ " if last else "├─ "))
        stems[place] = stem + ("" if alone else "   " if last else "│  ")
    return out


def _words(one: Judged, decode: Decode | None) -> str:
    """The action's text in one line, or its ids."""
    if decode is None:
        return " ".join(map(str, one.ids))
    return " ".join(printable(decode(list(one.ids))).split())


def _cut(text: str, wide: int) -> str:
    return text if len(text) <= wide else text[: wide - 1] + "…"
