"""The canary: what a policy says about a few fixed prompts, as numbers that another copy of it must give again.

Prompts are random ids of the whole vocabulary, the same for every policy of that vocabulary, and of several lengths.
Each gives two numbers: the log-prob of the likeliest next token, and the entropy of the next token's distribution,
which every logit takes part in. They are computed here by plain causal forwards; an engine computes them on its own
way, with its own kernels and cache. What checksums cannot see (tensors that went to the wrong place before they were
summed, another config, a broken kernel) shows in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from treadle.core.seeds import Stream
from treadle.models.attention import CausalPlan
from treadle.models.policy import Policy

PROMPTS = 4
LENGTHS = (2, 5, 12, 32)
"""Tokens of each prompt after which it is asked, as far as they fit the context."""
TOLERANCE = 1e-4
"""Most that log-probs may differ between two copies that compute in float32."""
COARSE = 0.05
"""The same for half precision, where kernels round at every layer."""
ENTROPY = 10.0
"""Entropies may differ this many times as much: they are sums over the whole vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryPoint:
    """One question and the publisher's answer."""

    prompt: tuple[int, ...]
    logprob: float
    """Of the likeliest next token."""
    entropy: float
    """Of the next token, in nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """What the publisher's copy says."""

    points: tuple[CanaryPoint, ...]
    tolerance: float
    """Most difference of a log-prob."""

    def flat(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return asdict(self)

    @classmethod
    def of(cls, flat: Mapping[str, Any]) -> Canary:
        """Back from `flat`. Raises KeyError or TypeError for anything else."""
        points = tuple(CanaryPoint(**{**point, "prompt": tuple(point["prompt"])}) for point in flat["points"])
        return cls(points=points, tolerance=float(flat["tolerance"]))


def listen(policy: Policy) -> Canary:
    """What this policy says now. The caller sees to it that the weights stand still meanwhile."""
    lengths = [n for n in LENGTHS if n < policy.dims.context]
    points: list[CanaryPoint] = []
    device = next(policy.module.parameters()).device
    for number in range(PROMPTS):
        draws = Stream(0).at("canary", number).uniforms(0, lengths[-1])
        ids = torch.from_numpy((draws * policy.dims.vocab).astype("int64")).to(device)
        with torch.inference_mode():
            hidden = policy.hidden(ids, torch.arange(len(ids), device=device), CausalPlan())
            logp = policy.logits(hidden[[n - 1 for n in lengths]]).double().log_softmax(-1)  # [lengths, vocab]
        best, entropy = logp.amax(-1).tolist(), (-(logp.exp() * logp).sum(-1)).tolist()
        points += [
            CanaryPoint(prompt=tuple(ids[:n].tolist()), logprob=best[i], entropy=entropy[i])
            for i, n in enumerate(lengths)
        ]
    return Canary(points=tuple(points), tolerance=TOLERANCE if policy.exact else COARSE)
