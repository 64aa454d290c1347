"""Settings of the learner, and the learning rate they give to each update."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from treadle.core.errors import ConfigError

SCHEDULES = ("constant", "linear", "cosine")
ATTENTION = ("auto", "node", "sdpa", "flex", "varlen")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueConfig:
    """A value head beside the policy. Raises ConfigError naming the key."""

    level: str = "token"
    """`token`: a value before every token of an action; `turn`: one value per action, before its first token."""
    lr: float = 1e-4
    """Peak learning rate of the head, with the warm-up and schedule of the policy's."""
    width: int | None = None
    """Units of one hidden layer; None is a linear head on the policy's last hidden states."""
    coefficient: float = 0.5
    """What the value loss counts beside the policy's."""
    clip: float | None = 0.2
    """A value earns nothing by moving further than this from what it was before the update, in units of return; None
    never clips."""
    joint: bool = True
    """The value loss also trains the policy's layers below the head; false trains the head alone."""

    def __post_init__(self) -> None:
        if self.level not in ("token", "turn"):
            raise ConfigError(f"value.level: got {self.level!r}, expected 'token' or 'turn'")
        for key, value in (
            ("lr", self.lr), ("coefficient", self.coefficient), ("clip", self.clip), ("width", self.width)
        ):
            if value is not None and not value > 0:
                raise ConfigError(f"value.{key}: got {value}, expected > 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrmConfig:
    """A process reward model as a step reward. Raises ConfigError naming the key."""

    folder: str = ""
    """What `treadle prm` wrote."""
    by: str = "difference"
    """What an action is paid: the `difference` of the values behind it and before it, or the `value` behind it."""
    coefficient: float = 1.0
    """What one unit of value pays, in units of reward."""

    def __post_init__(self) -> None:
        if self.by not in ("difference", "value"):
            raise ConfigError(f"prm.by: got {self.by!r}, expected 'difference' or 'value'")
        if not self.coefficient > 0:
            raise ConfigError(f"prm.coefficient: got {self.coefficient}, expected > 0; algorithm.prm=none turns it off")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """Optimiser, schedule and memory. Raises ConfigError for values that make no sense together."""

    lr: float = 1e-5
    """Peak learning rate of AdamW."""
    warmup_updates: int = 0
    """Updates in which the rate rises linearly to `lr`."""
    schedule: str = "constant"
    """After the warm-up: `constant`, or `linear` or `cosine` towards 0, which the update after the last would have."""
    total_updates: int | None = None
    """Length of the schedule, ignored by `constant`; None takes as many updates as the stage that trains has."""
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    """Decoupled; on matrices only, never on norms and biases."""
    max_grad_norm: float | None = 1.0
    """The gradient is scaled down to this norm; None never scales."""
    top_layers: int | None = None
    """Only so many of the last layers train, and the final norm; None trains everything. Embeddings and head stay.

    The backward ends there: of a model's update, which is one part forward and two parts backward, only the trained
    share of the backward is left, and no gradients or moments are held for the rest.
    """
    memo_tokens: int = 32768
    """With `top_layers`: so many tokens' states below the layers that train are kept, as engine or learner computed
    them, and not computed again. Each takes the model's width in floats. 0 keeps none; deterministic mode keeps none,
    because an engine's states differ from the learner's in the last bits."""
    tokens_per_pack: int = 1024
    """Most tokens of one forward and backward. A longer single path is taken in runs of so many tokens, for the time of
    one more forward.

    Activations grow with it (a 135M model: about 0.7 MB per token), speed hardly does beyond a thousand.
    """
    recompute: bool = False
    """Layers that train keep their inputs alone and compute the rest again in the backward (activation checkpointing):
    a pack takes a third of the memory where four layers train, an eighth where thirty do (counted on plain layers;
    fused ones keep half to begin with), and one more forward of these layers. Gradients are the same."""
    lora_rank: int | None = None
    """Rank of adapters beside the linear layers of the layers that train (LoRA): they alone train, and the norms, too,
    stay as they are. None trains the weights themselves. Wants a larger `lr`, about ten times."""
    lora_alpha: float = 16.0
    """Adapters count lora_alpha / lora_rank times."""
    weave_tolerance: float | None = 1e-4
    """How far recorded log-probs of equal tokens in equal contexts may differ to be computed once; None never joins."""
    attention: str = "auto"
    """`node` (calls per node of the tree, any device), `sdpa` (one call with a dense mask), and on CUDA `flex`
    (FlexAttention) or `varlen` (variable-length flash attention, half precision). `auto` takes what suits the device:
    `node` on a CPU."""
    temperature: float = 1.0
    """The sampling temperature that the behaviour log-probs were recorded at: logits are divided by it."""
    head_rows: int = 512
    """Loss edges whose logits are held at once: memory is head_rows x vocabulary."""
    max_skew: float | None = 1e-3
    """Most mean difference, in nats, between recorded log-probs and the learner's own for tokens of the same version.

    More means that engine and learner do not hold the same policy: the update is refused before it changes anything.
    float32 engines differ by less than 1e-5, bfloat16 ones by some 1e-2; None only reports.
    """
    value: ValueConfig | None = None
    """A value function, for rules that need one (`gae`, `turn_gae`); None has none."""
    gate_timeout_s: float = 120.0
    """How long a step waits for running forwards of the engine."""

    def __post_init__(self) -> None:
        self._at_least_one("total_updates", self.total_updates)
        self._at_least_one("top_layers", self.top_layers)
        self._at_least_one("lora_rank", self.lora_rank)
        self._at_least_one("tokens_per_pack", self.tokens_per_pack)
        self._at_least_one("head_rows", self.head_rows)
        if self.memo_tokens < 0:
            raise ConfigError(f"learner.memo_tokens: got {self.memo_tokens}, expected >= 0, where 0 keeps none")
        for key, value in (
            ("lr", self.lr), ("eps", self.eps), ("temperature", self.temperature),
            ("max_grad_norm", self.max_grad_norm), ("gate_timeout_s", self.gate_timeout_s), ("max_skew", self.max_skew),
            ("lora_alpha", self.lora_alpha),
        ):
            if value is not None and not value > 0:
                raise ConfigError(f"learner.{key}: got {value}, expected > 0")
        for key, value in (("weight_decay", self.weight_decay), ("warmup_updates", self.warmup_updates)):
            if value < 0:
                raise ConfigError(f"learner.{key}: got {value}, expected >= 0")
        if self.weave_tolerance is not None and not self.weave_tolerance >= 0:
            raise ConfigError(f"learner.weave_tolerance: got {self.weave_tolerance}, expected >= 0 or none")
        if self.schedule not in SCHEDULES:
            raise ConfigError(f"learner.schedule: got {self.schedule!r}, expected one of {', '.join(SCHEDULES)}")
        if self.attention not in ATTENTION:
            raise ConfigError(f"learner.attention: got {self.attention!r}, expected one of {', '.join(ATTENTION)}")

    def over(self, updates: int) -> LearnerConfig:
        """This config with a schedule of so many updates, unless its own length was set."""
        return self if self.total_updates is not None else replace(self, total_updates=max(updates, 1))

    def require_length(self) -> None:
        """Raise ConfigError when the schedule has no length yet."""
        if self.schedule != "constant" and self.total_updates is None:
            raise ConfigError(f"learner.total_updates: got None, expected a number for schedule {self.schedule!r}")

    def rate(self, update: int) -> float:
        """Learning rate of update number `update`, counted from 0: `linear` is lr * (1 - update / total_updates)."""
        return self.lr * self.share(update)

    def share(self, update: int) -> float:
        """The part of its peak that a learning rate has at update number `update`."""
        if update < self.warmup_updates:
            return (update + 1) / self.warmup_updates
        if self.schedule == "constant":
            return 1.0
        assert self.total_updates is not None, "a learner requires a length"
        span = max(self.total_updates - self.warmup_updates, 1)
        done = min((update - self.warmup_updates) / span, 1.0)
        return 1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2

    def _at_least_one(self, key: str, value: int | None) -> None:
        if value is not None and value < 1:
            raise ConfigError(f"learner.{key}: got {value}, expected >= 1")
