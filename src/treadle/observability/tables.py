"""Tables of a report that sum up all updates of a run. Each is a list of lines, empty where there is nothing to say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from treadle.core.events import Event
from treadle.observability.facts import amount, counted, number, text, whole

POOLS = ("unplayed", "hopeless", "mixed", "mastered")
"""Kinds of pools, as `pools.KIND` counts them."""
MEANS = ("ratio", "kl", "ess")
"""What `age.N.*` tells beside the tokens."""


def tally(updates: Sequence[Event], prefix: str) -> dict[str, int]:
    """Sums over all updates of what they count under this prefix, by name."""
    total: Counter[str] = Counter()
    for event in updates:
        total.update(counted(event, prefix))
    return dict(sorted(total.items()))


def branching(updates: Sequence[Event]) -> list[str]:
    """What forks came to, over the whole run."""
    grown = {
        name: count for name, count in tally(updates, "branching.").items()
        if not name.startswith(("snapshot", "refused."))
    }
    if not grown:
        return []
    refused = tally(updates, "branching.refused.")
    sampled = sum(whole(event, "tokens_sampled") for event in updates)
    held = max(whole(event, "branching.snapshots_held") for event in updates)
    size = max(whole(event, "branching.snapshot_bytes") for event in updates)
    lines = ["", "## Branching", "", "| what | count |", "|---|---|"]
    lines += [f"| {name.replace('_', ' ')} | {count} |" for name, count in grown.items()]
    lines += [f"| did not begin: {name} | {count} |" for name, count in refused.items()]
    lines += [f"| most snapshots of one group at a time | {held} ({size / 1e6:.1f} MB) |"] if held else []
    return [*lines, f"| tokens sampled, looks and probes included | {sampled} |"]


def curriculum(updates: Sequence[Event]) -> list[str]:
    """How many tasks were passed over, and which kinds there were at the beginning, in the middle and at the end."""
    skipped = sum(whole(event, "skipped_tasks") for event in updates)
    told = [event for event in updates if counted(event, "pools.")]
    if not told:
        return ["", "## Curriculum", "", f"{skipped} tasks were passed over."] if skipped else []
    lines = [
        "", "## Curriculum", "",
        f"{skipped} tasks were passed over: their kinds (family and level) had lately been solved always or never.",
        "", f"| after update | {' | '.join(POOLS)} |", f"|---|{'---|' * len(POOLS)}",
    ]
    for place in sorted({0, len(told) // 2, len(told) - 1}):
        event = told[place]
        cells = " | ".join(str(whole(event, f"pools.{kind}")) for kind in POOLS)
        lines.append(f"| {text(event, 'update')} | {cells} |")
    return lines


def ages(updates: Sequence[Event]) -> list[str]:
    """What the trained tokens of each age were like, over the whole run."""
    sums: dict[int, list[float]] = {}
    for event in updates:
        for age, tokens, means in _told(event):
            held = sums.setdefault(age, [0.0] * (1 + len(MEANS)))
            held[0] += tokens
            for place, mean in enumerate(means, 1):
                held[place] += tokens * mean
    if not sums:
        return []
    lines = [
        "", "## Trained tokens by age", "",
        "Age: versions between sampling a token and training it. Means over tokens, before each step: the ratio of the "
        "new probability to the sampled one, KL(behaviour, new), and the effective sample size, which is the share of "
        "an update's tokens that would count if they were reweighted by the ratio.",
        "", "| age | tokens | ratio | KL, nats | effective share |", "|---|---|---|---|---|",
    ]
    for age, (tokens, ratio, kl, share) in sorted(sums.items()):
        lines.append(
            f"| {age} | {tokens:.0f} | {amount(ratio / tokens, '.4f')} | {amount(kl / tokens, '.2e')} "
            f"| {amount(share / tokens, '.3f')} |"
        )
    return lines


def _told(event: Event) -> Iterator[tuple[int, float, list[float]]]:
    """Age, tokens and means that an update tells of; what is no number is left out."""
    for key in event.values:
        word, _, rest = key.partition(".")
        age, _, name = rest.partition(".")
        if word != "age" or name != "tokens" or not age.isdecimal():
            continue
        values = [number(event, f"age.{age}.{name}") for name in ("tokens", *MEANS)]
        found = [value for value in values if value is not None and math.isfinite(value)]
        if len(found) == len(values) and found[0] > 0:
            yield int(age), found[0], found[1:]
