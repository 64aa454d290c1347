"""What a layout costs, counted before anything runs: the arithmetic of its tokens and pairs, and its calls.

A tree computes a shared run of tokens once and never sees more pairs than its paths apart. It makes more calls of
attention: one per node and one more per node that others continue, in every layer, where a path alone makes one. So a
tree pays where what it saves outweighs its calls: nearly always for a prompt, not for a first token that happens to be
alike. Head and loss cost the same both ways: an edge is paid once.

    cost = token * T + pair * P + call * C        in floating-point operations, forward and backward

T tokens, P pairs of a token and one that it sees, C calls. `gain` is the ratio of paths apart to tree. On a 135M
model 8 rollouts that share 512 of 640 tokens gain 3.18; 8 that share 2,000 of 20,000 gain 1.03, because most of what
they do is attention to what they do not share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.learner.tree import Tree
from treadle.models.policy import Policy

FORWARD_AND_BACKWARD = 6
"""Operations per weight and token: two of the forward, four of the backward."""
PAIR = 12
"""Operations per layer, head, column and pair, forward and backward."""
CALL = 2e7
"""Operations that a CPU does in the time that one call of attention takes beside its arithmetic, per layer: 0.1 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Of one layout."""

    tokens: int
    pairs: int
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Operations of a model for one token, one pair and one call, over all layers."""

    token: float
    pair: float
    call: float

    @classmethod
    def of(cls, *, weights: int, layers: int, width: int, trained: float = 1.0) -> Costs:
        """Of a body of so many weights in so many layers, with heads of `width` columns together.

        `trained` is the share of the body that a backward goes through.
        """
        done = (1 + 2 * trained) / 3
        return cls(token=FORWARD_AND_BACKWARD * weights * done, pair=PAIR * layers * width * done,
                   call=CALL * layers * done)

    def __call__(self, tree: Tree, group: Sequence[int]) -> bool:
        """Whether a group is cheaper as a tree. A `Sharing`."""
        return self.gain(tree, group) >= 1.0

    def gain(self, tree: Tree, group: Sequence[int]) -> float:
        """How many times the tree's cost its paths apart cost."""
        return self.total(apart(tree, group)) / self.total(shared(tree, group))

    def total(self, count: Count) -> float:
        """Operations."""
        return self.token * count.tokens + self.pair * count.pairs + self.call * count.calls


def costs_of(policy: Policy, top_layers: int | None) -> Costs:
    """Of a policy whose last `top_layers` layers train, None for all."""
    outside = {id(p) for part in (policy.module.get_input_embeddings(), policy.module.get_output_embeddings())
               for p in part.parameters()}
    dims = policy.dims
    return Costs.of(
        weights=sum(p.numel() for p in policy.module.parameters() if id(p) not in outside), layers=dims.layers,
        width=dims.heads * dims.head_dim, trained=1.0 if top_layers is None else top_layers / dims.layers,
    )


def shared(tree: Tree, group: Sequence[int]) -> Count:
    """A group as a tree. Runs without a fork between them are one node."""
    depth = dict[int, int]()
    tokens = pairs = calls = 0
    for run in group:
        above, length = int(tree.parent[run]), int(tree.length[run])
        before = depth.get(above, 0)
        depth[run] = before + length
        tokens += length
        pairs += length * before + length * (length + 1) // 2
        joins = above in depth and len(tree.children[above]) == 1
        calls += (0 if joins else 1) + (1 if len(tree.children[run]) > 1 else 0)
    return Count(tokens=tokens, pairs=pairs, calls=calls)


def apart(tree: Tree, group: Sequence[int]) -> Count:
    """A group's paths, each by itself."""
    lengths = [int(tree.length[tree.path(run)].sum()) for run in group if not tree.children[run]]
    return Count(
        tokens=sum(lengths), pairs=sum(n * (n + 1) // 2 for n in lengths), calls=len(lengths)
    )
