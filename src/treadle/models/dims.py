"""The shape of a model: what engine and learner need to know to store keys and values and to size a batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Dims:
    """The shape of a model, as its attention shows it."""

    layers: int
    """Attention layers; a plan is called once for each, numbered from 0."""
    heads: int
    """Query heads, Hq."""
    kv_heads: int
    """Key and value heads, Hk; divides `heads`."""
    head_dim: int
    """D."""
    hidden: int
    vocab: int
    """Columns of the logits; may be more than the tokenizer has ids."""
    context: int
    """Most tokens of one sequence."""

    def kv_bytes(self, element: int) -> int:
        """Bytes of one token's keys and values over all layers, in numbers of `element` bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element
