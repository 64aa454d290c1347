"""The value head: what a state is worth, read off the policy's last hidden states.

V = head(h), h being the state that predicts a token: so the value at a token is that of the state before it. The head
trains beside the policy, in the same backward over the same packs: an edge whose token has a return adds

    coefficient / 2 * mass * max((V - R)^2, (V_old + clip(V - V_old) - R)^2) / denominator

where V_old is the value before the update. R is the mean return of the tokens that an edge stands for. With `joint` the
gradient goes on into the policy's layers. The head starts at 0 everywhere, so a run begins with advantages that are
returns. Its optimiser is its own; both are saved with a checkpoint and restored to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from treadle.algorithms.loss import LossTerms
from treadle.core.errors import StoreError
from treadle.core.seeds import Stream
from treadle.learner.config import ValueConfig
from treadle.trajectory.forest import Column, Forest, Mask

MOST_NORM = 1.0
"""The head's gradient is scaled down to this norm, apart from the policy's."""


class ValueHead:
    """A linear head, or one with a hidden layer, and its optimiser."""

    def __init__(self, hidden: int, config: ValueConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        self.config = config
        self.dtype = dtype
        self.module = regressor(hidden, config.width, device=device, dtype=dtype)
        self.optimiser = torch.optim.AdamW(self.module.parameters(), lr=config.lr, weight_decay=0.0)
        self._meter = ValueMeter()

    def __call__(self, states: Tensor) -> Tensor:
        """[E] values of states [E, hidden]."""
        found: Tensor = self.module(states.to(self.dtype))[:, 0]
        return found

    def read_before(self, before: Tensor, behind: Tensor, targets: Tensor) -> Tensor:
        """Reader of a scan: the value before each token."""
        return self(before)

    def read_after(self, before: Tensor, behind: Tensor, targets: Tensor) -> Tensor:
        """Reader of a scan: the value behind each token."""
        return self(behind)

    def backward(self, states: Tensor, terms: LossTerms) -> Tensor | None:
        """Adds the head's gradients; returns those of the states [E, hidden], None unless `joint`."""
        assert terms.ret is not None
        assert terms.ret_mass is not None
        leaf = states.detach().requires_grad_(self.config.joint)
        taught = terms.ret_mass > 0
        target = terms.ret / terms.ret_mass.where(taught, terms.ret_mass.new_ones(()))
        value = self(leaf)
        error = (value - target).square()
        if self.config.clip is not None and terms.value_old is not None:
            old = terms.value_old.where(taught, value.detach())  # there may be none where nothing is taught
            moved = (value - old).clamp(-self.config.clip, self.config.clip)
            error = torch.maximum(error, (old + moved - target).square())
        loss = self.config.coefficient / 2 * (terms.ret_mass * error.where(taught, error.new_zeros(()))).sum()
        (loss / terms.denominator).backward()  # type: ignore[no-untyped-call]
        self._meter.add(value.detach()[taught], target[taught])
        return leaf.grad

    def read(self) -> dict[str, float]:
        """What the update saw, by name: `value`, `value_error`, `value_explained`. Begins anew."""
        meter, self._meter = self._meter, ValueMeter()
        return meter.read()

    def step(self, share: float) -> None:
        """One step at this share of the peak learning rate. Gradients are finite: `norm` was asked before."""
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), MOST_NORM)
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.lr * share
        self.optimiser.step()

    def norm(self) -> float:
        """Of the gradient; 0 without one."""
        grads = [p.grad.norm() for p in self.module.parameters() if p.grad is not None]
        return float(torch.stack(grads).norm()) if grads else 0.0

    def drop_gradients(self) -> None:
        """Forget what was added up."""
        self.optimiser.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Parameters and moments, by name."""
        out = {f"head.{name}": p.detach().contiguous() for name, p in self.module.named_parameters()}
        for name, parameter in self.module.named_parameters():
            for key, moment in self.optimiser.state.get(parameter, {}).items():
                out[f"moment.{name}:{key}"] = moment.detach().contiguous()
        return out

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take what `state` gave. Raises StoreError when it is of another head."""
        own = {f"head.{name}": tuple(p.shape) for name, p in self.module.named_parameters()}
        given = {name: tuple(t.shape) for name, t in state.items() if name.startswith("head.")}
        if own != given:
            raise StoreError(
                f"value head: got {given or 'none'}, expected {own}: set learner.value as it was when it was saved"
            )
        self.optimiser.state.clear()
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                parameter.copy_(state[f"head.{name}"])
                mark = f"moment.{name}:"
                held = {key.removeprefix(mark): t.clone() for key, t in state.items() if key.startswith(mark)}
                if held:
                    self.optimiser.state[parameter] = {
                        k: t if k == "step" else t.to(parameter.device) for k, t in held.items()
                    }


class ValueMeter:
    """Adds up one update, over the edges that have a return."""

    def __init__(self) -> None:
        self._sums = np.zeros(6)  # edges; sums of value, return, return squared, error, error squared

    def add(self, value: Tensor, target: Tensor) -> None:
        """Values and returns of some edges."""
        v, r = value.double().cpu().numpy(), target.double().cpu().numpy()
        self._sums += [len(v), v.sum(), r.sum(), np.square(r).sum(), (r - v).sum(), np.square(r - v).sum()]

    def read(self) -> dict[str, float]:
        """Mean value, mean squared error, and the share of the returns' variance that values explain; empty when
        nothing was taught."""
        n, v, r, r2, e, e2 = self._sums.tolist()
        if not n:
            return {}
        spread = r2 / n - (r / n) ** 2
        explained = 1 - (e2 / n - (e / n) ** 2) / spread if spread > 1e-12 else 0.0
        return {"value": v / n, "value_error": e2 / n, "value_explained": explained}


def regressor(hidden: int, width: int | None, *, device: torch.device, dtype: torch.dtype) -> nn.Sequential:
    """[E, hidden] to [E, 1]: linear, or with one hidden layer of `width`; 0 everywhere. Equal calls are equal."""
    layers: list[nn.Module] = []
    if width is not None:
        first = nn.Linear(hidden, width, device=device, dtype=dtype)
        drawn = Stream(0).at("value", width).numpy().standard_normal((width, hidden)) / math.sqrt(hidden)
        with torch.no_grad():
            first.weight.copy_(torch.from_numpy(drawn).to(device, dtype))
            first.bias.zero_()
        layers += [first, nn.SiLU()]
    last = nn.Linear(hidden if width is None else width, 1, device=device, dtype=dtype)
    with torch.no_grad():
        last.weight.zero_()
        last.bias.zero_()
    return nn.Sequential(*layers, last)


def turn_starts(forest: Forest) -> Mask:
    """[T] the first token of every action: where a turn-level value stands. A cut action has one."""
    begins = forest.action & ~np.where(forest.parent >= 0, forest.action[forest.parent], False)
    out = np.zeros(forest.tokens, dtype=bool)
    out[forest.start[:-1][begins]] = True
    return out


def at_level(column: Column, forest: Forest, level: str) -> Column:
    """A token column [T] where values of this level stand; NaN elsewhere."""
    return np.where(turn_starts(forest), column, np.nan) if level == "turn" else column
