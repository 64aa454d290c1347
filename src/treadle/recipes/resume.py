"""Going on with a run: which recipe, and whether that makes sense.

A run goes on with the recipe that it began with. What decides how it comes out must not change in the middle; what only
decides how long it goes on, how often it is saved and how long it waits may.

A run may have begun before a key was there. It then ran as if nobody had set that key, so it goes on with the default,
whatever the recipe says by now, and that is said. A key that is there no longer cannot be kept: that is an error.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from treadle.core.config import read_toml
from treadle.core.errors import ConfigError, StoreError
from treadle.models.policy import Policy
from treadle.pipeline.checksums import verify
from treadle.recipes.catalog import find
from treadle.recipes.folder import RunFolder
from treadle.recipes.recipe import Recipe
from treadle.trajectory.store import read_events, read_meta

FREE = frozenset({
    "pipeline.save_every", "pipeline.keep_checkpoints", "pipeline.stall_s", "pipeline.update_s",
    "pipeline.failed_batches", "pipeline.skipped_updates", "pipeline.watchdog.promote_s",
    "pipeline.watchdog.rollout_s", "pipeline.watchdog.shrink_s", "pipeline.watchdog.restarts", "evaluation.at_once",
    "runs", "threads", "memory.budget_gb", "memory.engine_share",
})
"""Keys that may change in the middle of a run; `pipeline.updates` may grow. How many threads add up a product may show
in its last bit, so in deterministic mode `threads` must not."""
SHOWN = 4
"""Contradictions that an error names."""


def recipe_of(run: str | Path) -> Recipe:
    """The recipe that a run folder was made with. Raises ConfigError when it cannot be found again."""
    folder = RunFolder.existing(run)
    ref = read_meta(folder.database).get("recipe_ref", "")
    if not ref:
        raise ConfigError(
            f"{run}: it was trained from a Recipe object, which is not in the folder; name the recipe in its place "
            "(FILE.py[:FUNCTION], or the object in a script), with checkpoint "
            f"{str(folder.newest_checkpoint or folder.checkpoints)!r}"
        )
    return _as_begun(find(ref), folder)


def recipe_to_go_on(
    folder: RunFolder, given: Recipe | str | None, overrides: Mapping[str, object], *,
    say: Callable[[str], object] = lambda line: None,
) -> Recipe:
    """The recipe to go on with; `say` hears of keys that the run began without.

    Raises ConfigError for a recipe that contradicts the run, or when nothing is left to do.
    """
    if isinstance(given, str):
        given = _as_begun(find(given), folder)
    if given is None and not read_meta(folder.database).get("recipe_ref"):
        raise ConfigError(
            f"{folder.path}: it was trained from a Recipe object, which is not in the folder; pass that recipe beside "
            "resume: treadle.train(RECIPE, resume=RUN), or treadle train FILE.py[:FUNCTION] --resume RUN"
        )
    recipe = (given or recipe_of(folder.path)).changed(overrides)
    begun = _flat(read_toml(folder.recipe))
    added = _added(begun, recipe)
    _refuse_contradictions(folder, {**added, **begun}, recipe)
    _refuse_finished(folder, recipe)
    if told := [f"{key}={value}" for key, value in added.items() if key not in FREE]:
        say(f"{folder.path.name} began before these keys were there, and goes on with their defaults: {_some(told)}")
    return recipe


def require_writable(folder: RunFolder) -> None:
    """Raise StoreError unless this user may write in the folder."""
    if not os.access(folder.path, os.W_OK | os.X_OK):
        raise StoreError(f"{folder.path} cannot be written by this user: change its permissions, or copy it elsewhere")


def load_weights(policy: Policy, weights: Path) -> None:
    """Load a learner's checkpoint, with its version, or a plain model folder. Raises StoreError, ModelError.

    A checkpoint with checksums must be what was written; one without, and a plain folder, are taken as they are.
    """
    whole = weights / "learner.json"
    if not whole.is_file():
        policy.restore(weights, version=policy.version)
        return
    verify(weights)
    try:
        version = int(json.loads(whole.read_text(encoding="utf-8"))["version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"checkpoint {weights}: learner.json cannot be read ({error}); choose another") from error
    policy.restore(weights / "model", version=version)


def _as_begun(recipe: Recipe, folder: RunFolder) -> Recipe:
    """A recipe with what the run began with. Raises ConfigError when the recipe cannot be made so any more."""
    begun = read_toml(folder.recipe)
    held = recipe.flat()
    try:
        made = recipe.changed({key: value for key, value in begun.items() if held.get(key) != value})
        return made.changed(_added(_flat(begun), made))
    except ConfigError as error:
        raise ConfigError(
            f"{folder.recipe}: {error}; it was written by another version of Treadle, or of its recipe: go on with that"
            " one, or start a new run"
        ) from error


def _added(begun: Mapping[str, object], recipe: Recipe) -> dict[str, object]:
    """Keys of the recipe that the run began without, with the values that they have in it when nobody sets them.

    A key without such a value is left out: what the recipe says of it contradicts the run.
    """
    above = {start for key in begun for start in _starts(key)}
    first = [next((start for start in _starts(key) if start not in above), "") for key in recipe.flat()]
    out: dict[str, object] = {}
    for key in filter(None, dict.fromkeys(first)):
        with contextlib.suppress(ConfigError):
            out |= recipe.unset(key)
    with contextlib.suppress(ConfigError):  # where they fit: some keys decide about others
        held = recipe.changed(out).flat()
        out = {key: held.get(key, value) for key, value in out.items()}
    return {key: "none" if value is None else value for key, value in out.items()}


def _starts(key: str) -> list[str]:
    """`a.b.c`: `a`, `a.b`, `a.b.c`."""
    return list(accumulate(key.split("."), lambda start, part: f"{start}.{part}"))


def _some(named: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    return "; ".join(named[:SHOWN]) + (f" and {len(named) - SHOWN} more" if len(named) > SHOWN else "")


def _refuse_contradictions(folder: RunFolder, begun: Mapping[str, object], recipe: Recipe) -> None:
    now = {key: "none" if value is None else value for key, value in recipe.flat().items()}
    free = FREE - {"threads"} if recipe.deterministic else FREE
    changed = {key for key in begun.keys() | now.keys() if begun.get(key) != now.get(key)} - free
    more, fewer = _grown(begun.get("pipeline.updates"), now["pipeline.updates"])
    if more and now["learner.schedule"] != "constant" and now["learner.total_updates"] == "none":
        raise ConfigError(
            f"pipeline.updates={now['pipeline.updates']} would stretch learner.schedule={now['learner.schedule']!r}, "
            f"which {folder.path.name} began with {begun['pipeline.updates']} updates of: set "
            f"learner.total_updates only in a new run, or go on with the number that it began with"
        )
    if not fewer:
        changed.discard("pipeline.updates")
    if not changed:
        return
    named = [f"{key}={_said(begun, key)}, not {_said(now, key)}" for key in sorted(changed)]
    raise ConfigError(
        f"{folder.path.name} began with {_some(named)}: that cannot change in the middle of a run; leave it as it was, "
        "or start a new run"
    )


def _said(flat: Mapping[str, object], key: str) -> str:
    return repr(flat[key]) if key in flat else "(no such key)"


def _refuse_finished(folder: RunFolder, recipe: Recipe) -> None:
    if not is_done(folder):
        return
    begun, most = _flat(read_toml(folder.recipe)), recipe.pipeline.tokens
    updates = [event.values.get("updates") for event in read_events(folder.database, prefix="run.done")][-1]
    if most is not None and _grown(updates, begun.get("pipeline.updates"))[0]:
        raise ConfigError(
            f"{folder.path} is done: pipeline.tokens={most} were sampled after {updates} updates, and that cannot "
            f"change in the middle of a run: start a new run, or evaluate it with `treadle eval {folder.path}`"
        )
    if not _grown(begun.get("pipeline.updates"), recipe.pipeline.updates)[0]:
        raise ConfigError(
            f"{folder.path} is done, all of its {recipe.pipeline.updates} updates: nothing is left to do; set "
            f"pipeline.updates to more, or evaluate it with `treadle eval {folder.path}`"
        )


def _grown(before: object, now: object) -> tuple[bool, bool]:
    """Whether there are more updates, and whether there are fewer."""
    if not isinstance(before, int) or not isinstance(now, int):
        return False, True
    return now > before, now < before


def is_done(folder: RunFolder) -> bool:
    """Whether the run came to its end."""
    ends = [event for event in read_events(folder.database, prefix="run.") if event.name != "run.stopping"]
    return bool(ends) and ends[-1].name == "run.done" and ends[-1].values.get("reason") == "done"


def _flat(nested: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    out: dict[str, object] = {}
    for key, value in nested.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return out
