"""The policy: one Hugging Face decoder, our attention hook, a gate and a version. Engine and learner both hold it.

A forward is flat: T ids and T positions in one row, no padding and no cache inside the model; the `AttentionPlan`
given with it says who sees whom. `hidden` runs the decoder's body, `logits` the output head, apart from each other, so
that the head (a third of a small model's work) runs only on the tokens whose logits someone reads.

Invariants: the module is in eval mode and stays the same object with the same tensors for the policy's whole life;
they change only under `gate.write`, together with `version`, which also says that copies of them are old. `hidden` and
`logits` take no gate themselves: the caller brackets a whole step, and takes it to the compute thread. A model whose
flat forward would not equal its plain one is refused at load (see `proof`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig

from treadle.core import compute
from treadle.core.errors import ModelError
from treadle.models.attention import AttentionPlan, CausalPlan, register
from treadle.models.checkpoint import copy_weights, load_module, save_module
from treadle.models.dims import Dims
from treadle.models.embedding import add_in_place
from treadle.models.fused import fuse
from treadle.models.gate import Gate
from treadle.models.linear import quicken
from treadle.models.lora import Adapters, linear_layers
from treadle.models.memo import StateMemo, Sums
from treadle.models.proof import prove, refuse_config
from treadle.models.recompute import recompute
from treadle.models.source import resolve

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""Names of the number formats that weights can be held in."""
MIXED = {"bfloat16": torch.bfloat16}
"""Names of the number formats that factors of products can be rounded to, where weights are float32."""
PROBE = 8
"""Tokens on which the boundary of a memo is tried."""
CLOSE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What a model does to its logits after the output head; the neutral value of each field does nothing."""

    factor: float = 1.0
    cap: float | None = None
    """Soft-cap: logits become cap * tanh(logits / cap)."""

    @classmethod
    def of(cls, config: Any) -> Scaling:
        """Read it from a config: Cohere multiplies (`logit_scale`), Granite divides (`logits_scaling`), Gemma caps."""
        factor = float(getattr(config, "logit_scale", None) or 1.0) / float(
            getattr(config, "logits_scaling", None) or 1.0
        )
        cap = getattr(config, "final_logit_softcapping", None)
        return cls(factor=factor, cap=None if cap is None else float(cap))

    def __call__(self, logits: Tensor) -> Tensor:
        """Scaled logits, same shape."""
        if self.factor != 1.0:
            logits = logits * self.factor
        if self.cap is not None:
            logits = torch.tanh(logits / self.cap) * self.cap
        return logits


class Policy:
    """A model that acts and learns. Make one with `Policy.load`."""

    def __init__(self, module: Any, *, folder: Path, name: str, context: int) -> None:
        self.module = module
        """The transformers model, in eval mode; its parameters are the policy."""
        self.folder = folder
        """Where it was loaded from: tokenizer and chat template are there."""
        self.name = name
        """The reference it was loaded by."""
        self.gate = Gate()
        """Read around a forward, write around an optimiser step and its version bump."""
        self.memo: StateMemo | None = None
        """What frozen layers made of tokens; None when all layers train, or nobody asked for it."""
        self._above: Any = None
        """The layers that train, when there is a memo."""
        self._tap: Any = None
        self.adapters: Adapters | None = None
        """What trains beside weights that stay; None where the weights themselves train."""
        self._plainly: Callable[[], None] = lambda: None
        """Ends the recomputing of layers."""
        self._named: Sums | None = None
        """Names of the contexts of the forward that runs, for the memo."""
        self.compute_dtype: str | None = None
        """The number format that factors of products are rounded to; None multiplies weights as they are."""
        self._version = 0
        self._weights = quicken(module)
        add_in_place(module)
        self._body = module.get_decoder()
        self._head = module.get_output_embeddings()
        self._scaling = Scaling.of(module.config.get_text_config(decoder=True))
        self.dims: Dims = prove(name, module, self, context)
        """Measured on the model itself."""
        fuse(module, self._weights)  # the proof is of the model as it was written
        self._weights.forget()

    @classmethod
    def load(
        cls, ref: str | Path, *, dtype: str = "float32", compute_dtype: str | None = None, cache: Path | None = None,
        context: int | None = None,
    ) -> Policy:
        """Load a model: `smollm2-135m` (embedded), a GGUF file, a folder in Hugging Face format, or a hub id.

        `cache` is where unpacked weights are kept, see `source`; `context` limits the sequence length below the
        model's own, in tokens. With `compute_dtype` the products of the decoder's linear layers, the output head aside,
        are made in it (mixed precision). Raises ModelError when the model cannot be had or cannot be used, ValueError
        for a dtype that is not one of DTYPES, or a compute_dtype that is not one of MIXED or has no float32 weights.
        """
        if dtype not in DTYPES:
            raise ValueError(f"dtype: got {dtype!r}, expected one of {', '.join(DTYPES)}")
        if compute_dtype is not None and (compute_dtype not in MIXED or dtype != "float32"):
            raise ValueError(
                f"compute_dtype: got {compute_dtype!r} for weights in {dtype}, expected None, or one of "
                f"{', '.join(MIXED)} for weights in float32"
            )
        register()
        name = str(ref)
        folder = resolve(ref, cache)
        length = refuse_config(name, _config(name, folder), context)
        policy = compute.run(
            lambda: cls(load_module(name, folder, DTYPES[dtype]), folder=folder, name=name, context=length)
        )
        if compute_dtype is not None:  # the proof was in full precision
            policy._mix(compute_dtype)
        return policy

    def _mix(self, compute_dtype: str) -> None:
        """Round the factors of products. The head's stay exact: a logit of 20 would be rounded by 0.06."""
        self.compute_dtype = compute_dtype
        self._weights.mix(MIXED[compute_dtype], (m for m in self._body.modules() if isinstance(m, nn.Linear)))

    @property
    def version(self) -> int:
        """How many updates made these tensors. Raises RuntimeError when set outside `gate.write`."""
        return self._version

    @version.setter
    def version(self, value: int) -> None:
        if not self.gate.writing:
            raise RuntimeError("policy.version is set only by the thread that holds policy.gate.write")
        self._version = value
        self._weights.changed()

    def hidden(self, ids: Tensor, pos: Tensor, plan: AttentionPlan, sums: Sums | None = None) -> Tensor:
        """Last hidden states of flat tokens. ids, pos long [T]; returns [T, hidden]. Gradients flow unless disabled.

        `sums`, the names of the tokens' contexts, has the memo keep the states at the boundary, if there is one.
        """
        self._named = sums if self.memo is not None else None
        try:
            out = self._body(input_ids=ids[None], position_ids=pos[None], use_cache=False, plan=plan)
        finally:
            self._named = None
        states: Tensor = out.last_hidden_state[0]
        return states

    def hidden_above(self, states: Tensor, pos: Tensor, plan: AttentionPlan) -> Tensor:
        """`hidden` from the states that enter the lowest layer that trains: [T, hidden] to [T, hidden]."""
        every = self._body.layers
        self._body.layers = self._above
        try:
            out = self._body(inputs_embeds=states[None], position_ids=pos[None], use_cache=False, plan=plan)
        finally:
            self._body.layers = every
        found: Tensor = out.last_hidden_state[0]
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states. [E, hidden] -> [E, vocab], the model's own scaling and soft-cap included."""
        return self._scaling(self._head(hidden))

    def train(
        self, top_layers: int | None, *, memo_tokens: int = 0, recomputes: bool = False, lora_rank: int | None = None,
        lora_alpha: float = 16.0,
    ) -> list[nn.Parameter]:
        """Have gradients recorded for the last `top_layers` layers and what follows them but the head, None for all.

        Returns the parameters that train. Below the first of them nothing is kept for a backward and none runs. With
        `memo_tokens` a memo of so many tokens is kept at that boundary, where the model allows it. With `recomputes`
        the layers that train keep their inputs alone for the backward. With `lora_rank` only adapters of their linear
        layers train; those of before become part of the weights. Raises ModelError when the model has no list of
        layers, or fewer than asked for.
        """
        self._adapt(top_layers, lora_rank, lora_alpha)
        chosen = list(self.module.parameters())
        if self.adapters is not None:
            chosen = self.adapters.parameters()
        elif top_layers is not None:
            norms = [m for n, m in self._body.named_children() if "norm" in n]
            parts = [*self._top(top_layers, f"learner.top_layers={top_layers}"), *norms]
            chosen = [p for part in parts for p in part.parameters()]
        self._plainly()
        self._plainly = recompute(self._top(top_layers, "learner.recompute=true") if recomputes else ())
        wanted = {id(p) for p in chosen}
        for parameter in self.module.parameters():
            parameter.requires_grad_(id(parameter) in wanted)
            if not parameter.requires_grad:
                parameter.grad = None
        self._weights.forget()  # adapted layers read others, and frozen ones fewer
        compute.run(lambda: self._remember(0 if top_layers is None else top_layers, memo_tokens))
        return chosen

    def _adapt(self, top_layers: int | None, rank: int | None, alpha: float) -> None:
        """End the adapters that there are, by adding them to the weights, and begin those of the top layers."""
        before, self.adapters = self.adapters, None
        if before is None and rank is None:
            return
        with self.gate.write("adapters"):
            if before is not None:
                compute.run(before.fold)
            if rank is not None:
                layers = linear_layers(self.module, self._top(top_layers, f"learner.lora_rank={rank}"))
                self.adapters = compute.run(lambda: Adapters(layers, rank=rank, alpha=alpha))

    def _top(self, count: int | None, asked: str) -> Sequence[nn.Module]:
        """The last `count` layers, None for all. Raises ModelError when there are fewer, for the key that asked."""
        layers = getattr(self._body, "layers", None)
        if not isinstance(layers, nn.ModuleList) or len(layers) < (count or 0):
            have = len(layers) if isinstance(layers, nn.ModuleList) else "no list of"
            raise ModelError(f"model {self.name}: {asked}, but it has {have} layers")
        return list(layers)[-(count or len(layers)) :]

    def _remember(self, top_layers: int, tokens: int) -> None:
        """Begin a memo at the boundary below the last `top_layers` layers; none for 0 of either."""
        if self._tap is not None:
            self._tap.remove()
        self.memo = self._tap = self._above = None
        if not top_layers or not tokens or top_layers == len(self._body.layers):
            return
        self._above = self._body.layers[-top_layers:]
        self._tap = self._above[0].register_forward_pre_hook(self._keep)
        like = next(self.module.parameters()).detach()
        if _goes_on(self, StateMemo(tokens=PROBE, width=self.dims.hidden, like=like)):
            self.memo = StateMemo(tokens=tokens, width=self.dims.hidden, like=like)

    def _keep(self, _module: nn.Module, entering: tuple[Tensor, ...]) -> None:
        if self._named is not None and self.memo is not None and entering:
            self.memo.put(self._named, entering[0][0])

    @property
    def head_weight(self) -> nn.Parameter | None:
        """[vocab, hidden] when `logits` is nothing but the product with this weight; None for any other head."""
        head = self._head
        plain = type(head) is nn.Linear and head.bias is None and self._scaling == Scaling()
        return head.weight if plain else None

    @property
    def widest(self) -> int:
        """Columns of the widest states inside a layer, the output head aside."""
        linear = [m for m in self._body.modules() if isinstance(m, nn.Linear)]
        return max((max(m.in_features, m.out_features) for m in linear), default=self.dims.hidden)

    @property
    def weight_bytes(self) -> int:
        """Of all parameters."""
        return sum(p.numel() * p.element_size() for p in self.module.parameters())

    @property
    def copied_bytes(self) -> int:
        """Of what is held of weights a second time, in the order of a faster product or rounded for one."""
        return self._weights.copied_bytes

    @property
    def exact(self) -> bool:
        """Whether everything is computed in float32 at least, so that two ways to a number differ by little."""
        return self.compute_dtype is None and self.weight_dtype in (torch.float32, torch.float64)

    @property
    def weight_dtype(self) -> torch.dtype:
        """The number format of the weights."""
        found: torch.dtype = next(self.module.parameters()).dtype
        return found

    def state(self) -> dict[str, Tensor]:
        """The tensors of the model as transformers knows it, by name, adapters merged."""
        held: dict[str, Tensor] = self.module.state_dict(keep_vars=True)
        adapters = self.adapters
        return held if adapters is None else compute.run(lambda: adapters.merged(held))

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint that transformers loads unchanged; it appears whole or not at all, flushed to disk.

        Adapters are merged.
        Takes the gate for reading unless this thread holds it. Raises ModelError when the disk refuses.
        """
        with nullcontext() if self.gate.held else self.gate.read("save"):
            compute.run(lambda: save_module(self.module, self.state(), self.folder, Path(folder)))

    def restore(self, folder: str | Path, *, version: int) -> None:
        """Copy the weights of a checkpoint into this policy's own tensors and set its version.

        Adapters correct nothing then.
        Takes the gate for writing unless this thread holds it so. Raises ModelError, with nothing changed, when the
        checkpoint does not fit.
        """
        with nullcontext() if self.gate.writing else self.gate.write("restore"):
            compute.run(lambda: copy_weights(self.name, Path(folder), self.module, beside=self.adapters))
            if self.adapters is not None:
                self.adapters.reset()
            if self.memo is not None:
                self.memo.clear()
            self.version = version


def _goes_on(policy: Policy, memo: StateMemo) -> bool:
    """Whether a forward from the boundary is the forward: some models do more with embeddings than pass them on."""
    ids = torch.arange(PROBE) % policy.dims.vocab
    device = next(policy.module.parameters()).device
    ids, pos = ids.to(device), torch.arange(PROBE, device=device)
    sums = memo.names.sums(ids.cpu().numpy())
    with torch.no_grad():
        policy.memo = memo
        try:
            whole = policy.hidden(ids, pos, CausalPlan(), sums)
            states = memo.take(sums, np.ones(PROBE, dtype=bool))
            above = None if states is None else policy.hidden_above(states, pos, CausalPlan())
        finally:
            policy.memo = None
    return above is not None and torch.allclose(whole, above, rtol=CLOSE, atol=CLOSE)


def _config(name: str, folder: Path) -> Any:
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # border to transformers: a bad config raises anything from OSError to KeyError
        reason = (str(error).strip().splitlines() or [""])[0][:300]
        raise ModelError(f"model `{name}`: transformers does not know the config in {folder}: {reason}") from error
