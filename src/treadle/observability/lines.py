"""Plain lines: what a person wants to see in a log. One line per stage, update, evaluation, failure."""

from __future__ import annotations

from collections.abc import Callable

from treadle.core.events import Event
from treadle.observability.facts import Evaluated, amount, counted, duration, listed, number, taped, text, whole

STAGES = {
    "evaluation": "evaluating", "demonstrations": "playing demonstrations", "coldstart": "cold start",
    "rl": "reinforcement learning",
}
REMEDIES = {
    "promote": "it goes first at the engine from now on", "cancel": "it was cancelled",
    "shrink": "it goes on with what there is", "restart": "it was started again",
}
"""What the watchdog did, in words."""
QUIET = ("zero_variance", "skipped", "cancelled", "overlong", "void_turn", "duplicate", "unprobed")
"""Reasons of a drop that each update counts; they get no lines of their own."""


class PlainLines:
    """Says each event that matters as one line through `write`."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._sayers: dict[str, Callable[[Event], str]] = {
            "run.started": _run_started,
            "run.resumed": _run_resumed,
            "replayed.update.done": lambda e: f"update {text(e, 'update')} trained again from what is stored",
            "stage.started": _stage_started,
            "coldstart.demos": _demos,
            "coldstart.update": _coldstart,
            "evaluation.done": _evaluation,
            "update.done": _update,
            "update.skipped": _skipped,
            "checkpoint.saved": lambda e: f"saved version {text(e, 'version')} to {text(e, 'path')}",
            "checkpoint.best": _best,
            "run.took_back": took_back,
            "rollout.done": _failure,
            "group.dropped": _dropped,
            "breaker.opened": _breaker,
            "breaker.closed": lambda e: f"family {text(e, 'family')} works again (group {text(e, 'group')})",
            "wait.expired": lambda e: f"{text(e, 'what')}; {text(e, 'action')}",
            "watchdog.acted": watchdog_line,
            "memory.planned": _memory,
            "memory.relieved": relief_line,
            "run.stopping": _stopping,
            "run.done": _done,
        }

    def emit(self, event: Event) -> None:
        """Take one event."""
        sayer = self._sayers.get(event.name)
        line = sayer(event) if sayer is not None else ""
        if line:
            self._write(" ".join(line.split("\n")))


def evaluation_line(found: Evaluated) -> str:
    """One evaluation: label, share, interval, levels."""
    levels = ", ".join(f"{name} {solved}/{total}" for name, (solved, total) in found.levels.items())
    return f"{found.label:<10} solved {found.overall}{'   ' + levels if levels else ''}"


def watchdog_line(event: Event) -> str:
    """One remedy: what waited for what, for how long, and what was done."""
    action = text(event, "action")
    return (
        f"{text(event, 'wait')} waited for {text(event, 'for')} for {duration(number(event, 'since_s'))}: "
        f"{REMEDIES.get(action, action)}"
    )


def relief_line(event: Event) -> str:
    """One act for want of memory: who gave way, and how."""
    held = f"{amount(number(event, 'resident_gb'))} of {amount(number(event, 'budget_gb'))} GB"
    if text(event, "who") == "learner":
        return f"memory: {held} in use, the learner cuts its packs to {text(event, 'tokens_per_pack')} tokens"
    return (
        f"memory: {held} in use, the engine evicted {text(event, 'evicted')} idle entries and gave "
        f"{amount(number(event, 'freed_gb'))} GB back"
    )


def _memory(event: Event) -> str:
    size = {key: amount(number(event, f"{key}_gb")) for key in ("budget", "fixed", "cache", "work")}
    return (
        f"memory: {size['budget']} GB, of which fixed {size['fixed']}, cache {size['cache']} "
        f"({text(event, 'kv_tokens')} tokens), packs {size['work']} ({text(event, 'tokens_per_pack')} tokens)"
    )


def _run_started(event: Event) -> str:
    return (
        f"run {text(event, 'run')}: {text(event, 'model')}, {text(event, 'updates')} updates of "
        f"{text(event, 'groups_per_update')} groups of {text(event, 'group_size')}, lag {text(event, 'lag')}, "
        f"seed {text(event, 'seed')}"
    )


def _run_resumed(event: Event) -> str:
    start = text(event, "checkpoint") or "no checkpoint, from the start"
    return (
        f"{_run_started(event)}; goes on from {start}: {text(event, 'replayed')} updates are trained again from what "
        f"is stored, {text(event, 'kept')} finished rollouts are kept, {text(event, 'again')} are played again"
    )


def _stage_started(event: Event) -> str:
    stage, label, total = text(event, "stage"), text(event, "label"), text(event, "total")
    what = STAGES.get(stage, stage)
    unit = {"evaluation": "tasks", "rl": "updates", "coldstart": "updates"}.get(stage, "at most")
    size = f"{unit} {total}" if unit == "at most" else f"{total} {unit}"
    return f"{what}{' ' + label if stage == 'evaluation' else ''}: {size}"


def _demos(event: Event) -> str:
    return (
        f"demonstrations: {text(event, 'kept')} kept of {text(event, 'families')} families, "
        f"{text(event, 'wrong')} wrong, {text(event, 'failed')} failed, {text(event, 'tokens')} tokens"
    )


def _coldstart(event: Event) -> str:
    return (
        f"cold start {text(event, 'update')}/{text(event, 'updates')}  loss {amount(number(event, 'loss'), '.3f')}  "
        f"{amount(number(event, 'seconds_s'), '.1f')} s"
    )


def _evaluation(event: Event) -> str:
    return evaluation_line(Evaluated.of(event))


def _best(event: Event) -> str:
    return (
        f"version {text(event, 'version')} is the best so far ({text(event, 'label')}, {text(event, 'solved')}/"
        f"{text(event, 'total')} solved): its checkpoint stays"
    )


def took_back(event: Event) -> str:
    """Which version a run ends with, and why not with its last."""
    return (
        f"taking back version {text(event, 'version')} ({text(event, 'label')}, {text(event, 'solved')}/"
        f"{text(event, 'total')} solved): version {text(event, 'from_version')}, the last one, solved no more"
    )


def _update(event: Event) -> str:
    idle = "  ".join(
        f"{stage} {amount(number(event, f'{stage}_idle_share'), '.0%')}"
        for stage in ("generate", "env", "score", "update")
    )
    return (
        f"update {text(event, 'update')}/{text(event, 'updates')}  reward {amount(number(event, 'reward_mean'))}  "
        f"solved {amount(number(event, 'solved_share'), '.0%')}  groups {text(event, 'groups')}"
        f"+{text(event, 'dropped')} dropped  {amount(number(event, 'tokens_per_s'), '.0f')} tok/s  "
        f"staleness {text(event, 'staleness')}  idle {idle}  {amount(number(event, 'seconds_s'), '.1f')} s  "
        f"left {duration(number(event, 'eta_s'))}{_counts(event)}"
        f"{'  SKIPPED: gradient not finite' if event.values.get('skipped') else ''}"
    )


def _skipped(event: Event) -> str:
    return (
        f"update {text(event, 'update')}/{text(event, 'updates')}  no group left to train "
        f"({text(event, 'dropped')} dropped, solved {amount(number(event, 'solved_share'), '.0%')})"
        f"{_counts(event)}"
    )


def _counts(event: Event) -> str:
    """Why groups were dropped, which rollouts do not train, which tasks the curriculum passed over; as far as told."""
    dropped, left_out, pools = (counted(event, prefix) for prefix in ("dropped.", "masked.", "pools."))
    skipped, too_old = whole(event, "skipped_tasks"), whole(event, "stale_tokens")
    grown = {name: whole(event, f"branching.{name}") for name in ("forks", "probes", "independent", "looks")}
    grown = {name: count for name, count in grown.items() if count}
    refused = counted(event, "branching.refused.")
    parts = [
        f"branching: {listed(grown)}" if grown else "", f"did not begin: {listed(refused)}" if refused else "",
        f"dropped: {listed(dropped)}" if dropped else "", f"rollouts left out: {listed(left_out)}" if left_out else "",
        f"tokens too old to train: {too_old}" if too_old else "",
        f"tasks passed over: {skipped}" if skipped or pools else "", f"kinds: {listed(pools)}" if pools else "",
    ]
    return "".join(f"  {part}" for part in parts if part)


def _stopping(event: Event) -> str:
    """The run itself says that it stops; that the loop stops too is no news."""
    return "" if "update" in event.values else f"stopping: {text(event, 'reason')}; once more ends at once"


def _done(event: Event) -> str:
    tape = taped([event])
    return f"{text(event, 'reason')} after {duration(number(event, 'seconds_s'))}{f'; {tape}' if tape else ''}"


def _failure(event: Event) -> str:
    if text(event, "status") != "error":
        return ""
    again = ", playing it again" if event.values.get("retried") else ""
    return (
        f"rollout {text(event, 'rollout')} failed ({text(event, 'origin')}, {text(event, 'type')}): "
        f"{text(event, 'message')}{again}"
    )


def _breaker(event: Event) -> str:
    return (
        f"family {text(event, 'family')}: {text(event, 'failures')} rollouts in a row failed, the last with "
        f"{text(event, 'message')}; no new tickets for it until {text(event, 'cool_down_tickets')} others have closed"
    )


def _dropped(event: Event) -> str:
    reason = text(event, "reason")
    return "" if reason in QUIET else f"group {text(event, 'group')} dropped: {reason}"
