"""How a run's memory is divided: of one budget the fixed part is taken first, engine and learner share the rest.

    fixed       program, weights, their copies for faster products, gradients, moments, memo (learner/footprint.py),
                one step of the engine; with `engine.copies` program, weights and copies of its process too
    cache       kv_tokens * kv bytes                       the engine's KV arena, touched as it is used
    work        the larger of one pack and one checkpoint  what the learner holds for a while; with paths that are
                                                           longer than a pack, their keys and values too

    NEAR * budget = fixed + cache + work

The recipe's own sizes are upper bounds: `engine.kv_budget_tokens` for the cache, `learner.tokens_per_pack` for packs,
and of the two learners of a run, the larger one counts. The cache gets `engine_share` of the rest, packs get what it
leaves, and the cache what they leave. The program is measured: what is resident when the model is loaded, less weights
and copies. What the plan does not foresee is met while the run goes on (`core/memory.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.core.errors import ConfigError
from treadle.core.events import Value
from treadle.core.memory import GB, NEAR, resident_bytes

if TYPE_CHECKING:  # the recipe nests this module's config and must stay light
    from treadle.learner.footprint import Footprint
    from treadle.models.policy import Policy
    from treadle.recipes.recipe import Recipe

PROGRAM = int(0.3 * GB)
"""Bytes of interpreter and libraries, where the system does not say."""
STEP_STATES = 4
"""Of the widest states of a layer, alive at once in a forward of the engine."""
STEP_LOGITS = 4
"""Of all slots' logits, alive at once while tokens are drawn."""
LEAST_BLOCKS = 4
"""Blocks of the smallest KV arena."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """What a run may hold in memory. Raises ConfigError for values that make no sense."""

    budget_gb: float | None = None
    """Resident memory of the run's own processes, environments aside, in 10^9 bytes; None sets no limit."""
    engine_share: float = 0.5
    """Of what is left after the fixed part, the cache's, if it can use it."""

    def __post_init__(self) -> None:
        if self.budget_gb is not None and not self.budget_gb > 0:
            raise ConfigError(f"memory.budget_gb: got {self.budget_gb}, expected > 0 or none")
        if not 0 < self.engine_share < 1:
            raise ConfigError(f"memory.engine_share: got {self.engine_share}, expected between 0 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The sizes that a budget gives."""

    budget: int
    """Bytes."""
    fixed: Mapping[str, int]
    """Bytes of each fixed part, by name."""
    kv_tokens: int
    kv_bytes: int
    """Of one token."""
    pack_tokens: int
    """Most tokens of a pack of either learner."""
    work: int
    """Bytes of the larger of one pack and one checkpoint."""
    apart: int
    """Bytes of the fixed part that an engine's own process holds, 0 without one."""

    @property
    def cache(self) -> int:
        """Bytes of the KV arena."""
        return self.kv_tokens * self.kv_bytes

    @property
    def engine_budget(self) -> int | None:
        """Bytes of an engine's own process; None without one."""
        return int((self.apart + self.cache) / NEAR) if self.apart else None

    @property
    def own_budget(self) -> int:
        """Bytes of this process."""
        return self.budget - (self.engine_budget or 0)

    def applied(self, recipe: Recipe) -> Recipe:
        """The recipe with these sizes."""
        def smaller(tokens: int) -> int:
            return min(tokens, self.pack_tokens)

        cold = recipe.coldstart
        if cold is not None:
            tokens = smaller(cold.learner.tokens_per_pack)
            cold = replace(cold, learner=replace(cold.learner, tokens_per_pack=tokens))
        learner = replace(recipe.learner, tokens_per_pack=smaller(recipe.learner.tokens_per_pack))
        engine = replace(recipe.engine, kv_budget_tokens=self.kv_tokens)
        return replace(recipe, coldstart=cold, learner=learner, engine=engine)

    def facts(self) -> dict[str, Value]:
        """For the event that tells the plan."""
        return {
            "budget_gb": self.budget / GB, "fixed_gb": sum(self.fixed.values()) / GB, "kv_tokens": self.kv_tokens,
            "cache_gb": self.cache / GB, "tokens_per_pack": self.pack_tokens, "work_gb": self.work / GB,
            **{f"fixed.{name}_gb": size / GB for name, size in self.fixed.items()},
        }


def plan_memory(recipe: Recipe, policy: Policy, *, resident: int | None = None) -> MemoryPlan | None:
    """The plan for this recipe and its loaded model; None without a budget. `resident` is measured unless given.

    Raises ConfigError when the budget does not hold the fixed part, the smallest cache and the smallest pack.
    """
    if recipe.memory.budget_gb is None:
        return None
    from treadle.learner.footprint import footprint

    learners = [recipe.learner] + ([] if recipe.coldstart is None else [recipe.coldstart.learner])
    prints = [footprint(policy, config) for config in learners]
    element, engine = policy.weight_dtype.itemsize, recipe.engine
    kv, block = policy.dims.kv_bytes(element), engine.block_tokens
    held = _fixed(recipe, policy, prints, resident=resident_bytes() if resident is None else resident)
    apart = held.get("engine_process", 0)
    budget = int(recipe.memory.budget_gb * GB)
    rest = int(NEAR * budget) - sum(held.values())

    least_kv, checkpoint = LEAST_BLOCKS * block * kv, max(p.checkpoint for p in prints)
    longest = recipe.limits.max_context
    shelf = max(p.shelf(longest, config.tokens_per_pack) for p, config in zip(prints, learners, strict=True))
    least_pack = min(longest, max(config.tokens_per_pack for config in learners))
    least_work = max(checkpoint, *(p.pack(least_pack) + shelf for p in prints))
    if rest < least_kv + least_work:
        raise ConfigError(_refusal(recipe, held, least_kv, least_work))
    most = engine.kv_budget_tokens
    room = max(min(int(recipe.memory.engine_share * rest), rest - least_work), least_kv)
    tokens = min(most, room // kv) // block * block
    fits = min(p.tokens(rest - tokens * kv - shelf) for p in prints)
    pack = min(fits, max(config.tokens_per_pack for config in learners))
    work = max(checkpoint, *(p.pack(pack) + shelf for p in prints))
    tokens = max(min(most, (rest - work) // kv) // block * block, tokens)
    return MemoryPlan(
        budget=budget, fixed=held, kv_tokens=tokens, kv_bytes=kv, pack_tokens=pack, work=work, apart=apart
    )


def _fixed(recipe: Recipe, policy: Policy, prints: list[Footprint], *, resident: int) -> dict[str, int]:
    """Bytes of the fixed parts by name."""
    element, dims, engine = policy.weight_dtype.itemsize, policy.dims, recipe.engine
    weights, copies = policy.weight_bytes, policy.copied_bytes
    program = max(resident - weights - copies, 0) if resident else PROGRAM
    widest = policy.widest
    step = element * (
        engine.step_tokens * STEP_STATES * (widest + dims.hidden) + engine.slots * STEP_LOGITS * dims.vocab
    )
    largest = max(prints, key=lambda p: p.fixed)
    parts = {
        "program": program, "weights": weights, "copies": copies, "gradients": largest.gradients,
        "moments": largest.moments, "memo": largest.memo,
    }
    if "ref" in recipe.algorithm.columns and recipe.learner.lora_rank is None:
        parts["reference"] = weights + copies
    if (prm := recipe.algorithm.prm) is not None:
        files = Path(prm.folder, "model").glob("*.safetensors")
        parts["process_reward"] = copies + sum(file.stat().st_size for file in files)
    if engine.copies:
        return {**parts, "engine_process": program + weights + copies + step}
    return {**parts, "engine_step": step}


def _refusal(recipe: Recipe, held: Mapping[str, int], cache: int, work: int) -> str:
    """Why a budget is too small, in one line."""
    needed = (sum(held.values()) + cache + work) / NEAR
    parts = ", ".join(f"{name} {size / GB:.2f}" for name, size in held.items() if size >= GB / 200)
    return (
        f"memory.budget_gb: got {recipe.memory.budget_gb:g}, expected at least {needed / GB + 0.005:.2f}: {parts}, the "
        f"smallest cache {cache / GB:.2f}, the smallest pack or a checkpoint {work / GB:.2f} GB; raise it, or train "
        "fewer layers (learner.top_layers), lower limits.max_context or engine.slots, or take a smaller model"
    )
