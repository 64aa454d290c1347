"""The policy: one Hugging Face decoder, our attention hook, a gate and a version. Engine and learner both hold it.

A forward is flat: T ids and T positions in one row, no padding and no cache inside the model; the `AttentionPlan`
given with it says who sees whom. `hidden` runs the decoder's body, `logits` the output head, apart from each other, so
that the head (a third of a small model's work) runs only on the tokens whose logits someone reads.

Invariants: the module is in eval mode and stays the same object with the same tensors for the policy's whole life; they
change only under `gate.write`, together with `version`. `hidden` and `logits` take no gate themselves: the caller
brackets a whole step. A model whose flat forward would not equal its plain one is refused at load (see `proof`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from treadle.core.errors import ModelError
from treadle.models.attention import NAME, AttentionPlan, register
from treadle.models.gate import Gate
from treadle.models.source import resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class Dims:
    """The shape of a model, as its attention shows it."""

    layers: int
    heads: int
    """Query heads, Hq."""
    kv_heads: int
    """Key and value heads, Hk; divides `heads`."""
    head_dim: int
    """D."""
    hidden: int
    vocab: int
    """Rows of the output head; may be more than the tokenizer has ids."""
    context: int
    """Most tokens of one sequence."""


class Policy:
    """A model that acts and learns. Make one with `Policy.load`."""

    def __init__(self, module: Any, *, folder: Path, dims: Dims) -> None:
        self.module = module
        """The transformers model, in eval mode; its parameters are the policy."""
        self.folder = folder
        """Where it was loaded from: tokenizer and chat template are there."""
        self.dims = dims
        self.gate = Gate()
        """Read around a forward, write around an optimiser step and its version bump."""
        self._version = 0
        self._body: Any = self.module.get_decoder()
        self._head: Any = self.module.get_output_embeddings()

    @classmethod
    def load(
        cls, ref: str | Path, *, dtype: str = "float32", cache: Path | None = None, context: int | None = None
    ) -> Policy:
        """Load a model by reference."""
        register()
        folder = resolve(ref, cache)
        module: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation=NAME, local_files_only=True
        )
        module.eval()
        c = module.config
        dims = Dims(
            layers=c.num_hidden_layers,
            heads=c.num_attention_heads,
            kv_heads=c.num_key_value_heads,
            head_dim=getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
            hidden=c.hidden_size,
            vocab=c.vocab_size,
            context=context or c.max_position_embeddings,
        )
        return cls(module, folder=folder, dims=dims)

    @property
    def version(self) -> int:
        """How many updates made these tensors. Raises RuntimeError when set outside `gate.write`."""
        return self._version

    @version.setter
    def version(self, value: int) -> None:
        if not self.gate.writing:
            raise RuntimeError("policy.version is set only by the thread that holds policy.gate.write")
        self._version = value

    def hidden(self, ids: Tensor, pos: Tensor, plan: AttentionPlan) -> Tensor:
        """Last hidden states of flat tokens. ids, pos long [T]; returns [T, hidden]. Gradients flow unless disabled."""
        out = self._body(input_ids=ids[None], position_ids=pos[None], use_cache=False, plan=plan)
        states: Tensor = out.last_hidden_state[0]
        return states

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states. [E, hidden] -> [E, vocab], the model's own scaling and soft-cap included."""
        logits: Tensor = self._head(hidden)
        return logits

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint that transformers loads unchanged."""
        raise ModelError("not yet")
