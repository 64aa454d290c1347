"""Exact sampling by inverse CDF in two levels, with log-prob and entropy from the same exponentials.

Token id = the smallest i with p_0 + ... + p_i > u. The vocabulary is cut into blocks of 256: the blocks' sums and their
running sum find the block, the running sum inside it finds the token. A full running sum over the vocabulary, or a
Gumbel draw for each entry, costs several times more and gives the same distribution.
Each draw reads one number u in [0, 1), so what is drawn does not depend on the others, and requests with the same
context draw from one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 256
FIRST = 512
"""How many of the likeliest tokens are looked at first for a share of the mass."""
FAR = 1e4
"""Below the likeliest logit: its exponential is 0, and 0 times it is a number, as 0 times infinity is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What was drawn B times; all on the CPU."""

    ids: list[int]
    logprobs: list[float]
    """log p of each id, after temperature."""
    entropy: list[float]
    """Nats."""
    finite: list[bool]
    """False where the logits were not finite; the other columns mean nothing there."""


class Sampler:
    """Draws ids. Keeps one buffer of exponentials, so a step allocates nothing of the size of the logits."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, BLOCK)

    def draw(
        self, logits: Tensor, *, uniforms: Tensor, temperature: Tensor, rows: Tensor | None = None,
        narrowing: Sequence[tuple[int, float]] = (),
    ) -> Drawn:
        """Draw B ids from R rows of logits.

        logits [R, V], changed in place; temperature float32 [R], 0 is greedy; uniforms float64 [B] in [0, 1); rows
        int64 [B], the row that each draw reads; None: one draw a row, in order. `narrowing` is (top_k, top_p) of every
        row, (0, 1.0) for the whole distribution; empty: none is narrowed.
        """
        logits = logits.float()
        greedy = temperature == 0
        if not bool((greedy | (temperature == 1)).all()):
            logits.div_(torch.where(greedy, 1.0, temperature)[:, None].to(logits))
        for row, (top_k, top_p) in enumerate(narrowing):
            if top_k or top_p < 1:
                narrow(logits[row], top_k=top_k, top_p=top_p)
        count, vocab = logits.shape
        rows = (torch.arange(count) if rows is None else rows).to(logits.device)
        top = logits.amax(-1, keepdim=True)
        mass = self._exponentials(logits, top)  # [B, blocks, 256]
        sums = mass.sum(-1)
        total = sums.sum(-1, dtype=torch.float64)
        # sum p log p: one batched dot product over what is already in memory.
        weighted = torch.bmm(mass.view(count, 1, -1)[..., :vocab], logits[:, :, None])[:, 0, 0].double()
        log_total = total.log() + top[:, 0].double()
        ids = _inverse_cdf(mass, sums, rows, uniforms.to(logits.device)).clamp_max_(vocab - 1)  # only nan can pass it
        if bool(greedy.any()):
            ids = torch.where(greedy.to(ids.device)[rows], logits.argmax(-1)[rows], ids)
        logprobs = logits[rows, ids].double() - log_total[rows]
        entropy = (log_total - weighted / total).clamp_min_(0.0)[rows]
        finite = torch.isfinite(log_total)[rows] & torch.isfinite(logprobs)
        return Drawn(ids=ids.tolist(), logprobs=logprobs.tolist(), entropy=entropy.tolist(), finite=finite.tolist())

    def _exponentials(self, logits: Tensor, top: Tensor) -> Tensor:
        rows, vocab = logits.shape
        blocks = -(-vocab // BLOCK)
        if self._buffer.shape[0] < rows * blocks or self._buffer.device != logits.device:
            self._buffer = torch.empty(rows * blocks, BLOCK, dtype=torch.float32, device=logits.device)
        mass = self._buffer[: rows * blocks].view(rows, blocks * BLOCK)
        mass[:, vocab:] = 0.0
        torch.sub(logits, top, out=mass[:, :vocab]).exp_()
        return mass.view(rows, blocks, BLOCK)


def narrow(logits: Tensor, *, top_k: int, top_p: float) -> None:
    """Leave the likeliest tokens of one row [V], in place: the `top_k`, and of those the fewest that have `top_p` of
    their mass together. Ties with the last one stay. The others get a logit whose exponential is 0."""
    top = logits.amax()
    least = logits.topk(min(top_k, len(logits))).values[-1] if top_k else logits.amin()
    if top_p < 1:
        kept = (logits - top).double().exp_().masked_fill_(logits < least, 0.0)
        goal = top_p * kept.sum()
        count = min(FIRST, len(logits))
        while True:  # a few hundred nearly always hold the mass: sorting all costs more than all the rest
            likeliest = logits.topk(count).values
            running = (likeliest - top).double().exp_().masked_fill_(likeliest < least, 0.0).cumsum(0)
            if count == len(logits) or running[-1] >= goal:
                break
            count = min(16 * count, len(logits))
        least = torch.maximum(least, likeliest[int((running < goal).sum().clamp_max(count - 1))])
    logits.masked_fill_(logits < least, float(top) - FAR)


def _inverse_cdf(mass: Tensor, sums: Tensor, rows: Tensor, uniforms: Tensor) -> Tensor:
    """Ids [B] from unnormalised masses [R, blocks, 256], their block sums [R, blocks], and B rows and uniforms."""
    block, rest = _find(sums.double()[rows], uniforms)
    inner, _ = _find(mass[rows, block].double(), rest)
    return block * BLOCK + inner


def _find(weights: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Where the running sum of weights [B, n] passes share [B] of its total, and how far into that entry, in [0, 1)."""
    running = weights.cumsum(-1)
    total = running[:, -1]
    # The last number below the total: an entry of weight 0 at the end is never chosen by rounding.
    goal = torch.minimum(share * total, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(running, goal[:, None], right=True).clamp_max_(weights.shape[1] - 1)
    weight = weights.gather(1, index)[:, 0]
    before = running.gather(1, index)[:, 0] - weight
    return index[:, 0], ((goal - before) / weight).clamp_(0.0, 1.0)
