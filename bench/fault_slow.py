"""slow_rollout: rollouts that outlive ten policy versions, where the update waits for them, drops them, or masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from bench.fault_judge import Verdict
from bench.fault_lab import Lab, Setting
from bench.fault_worlds import FaultyEnv, mixed
from treadle.pipeline.config import PipelineConfig
from treadle.pipeline.schedule import OnStale
from treadle.testing.scripted_engine import ScriptedEngine, Turn
from treadle.testing.virtual_clock import VirtualClock

SLOW = PipelineConfig(group_size=4, groups_per_update=4, updates=26, lag=1, max_staleness=13)
SLOW_TICKETS = (0, 9, 40, 49)
"""Each has one slow rollout; with all four out at once, half of the permits are still free for the others."""
SLOW_S = 40.0
"""A turn of a slow rollout; of others it takes one second."""
OUTLIVED = 10
ENDS: Mapping[OnStale, tuple[str, str]] = {"wait": ("ok", "-"), "drop": ("cancelled", "-"), "mask": ("ok", "-")}
"""How a rollout ends that the bound cannot wait for."""


def slow_rollout(setting: Setting) -> Verdict:
    """In virtual time, once for every way to treat them."""
    verdict = Verdict()
    for on_stale in ENDS:
        verdict.add(_outlives(setting, on_stale))
    return verdict


def _outlives(setting: Setting, on_stale: OnStale) -> Verdict:
    clock, begun, end = VirtualClock(), set[str](), ENDS[on_stale]

    def seconds(turn: Turn) -> float:
        ticket, index = int(turn.rollout[1:7]), turn.rollout.split(".")[1]
        if ticket not in SLOW_TICKETS or index != "1":
            return 1.0
        if turn.rollout not in begun:
            begun.add(turn.rollout)
            setting.injector.note(f"slow, under {on_stale}", rollout=turn.rollout, status=end[0], origin=end[1])
        return SLOW_S

    async def make_env() -> FaultyEnv:  # no thread, for which virtual time would stand still
        return FaultyEnv(setting.injector)

    lab = Lab(
        folder=setting.folder / on_stale, config=replace(SLOW, on_stale=on_stale), make_env=make_env, clock=clock,
        engine=ScriptedEngine(mixed, clock=clock, latency=seconds),
    )
    report = clock.run(lab.run())
    verdict = Verdict()
    verdict.require(report.updates == SLOW.updates, f"{on_stale}: {report.updates} updates of {SLOW.updates}")
    stale = report.worst_staleness
    verdict.require(stale <= SLOW.staleness_bound, f"{on_stale}: something {stale} versions old was trained")
    _judge_slow(lab, on_stale, begun, verdict)
    return verdict


def _judge_slow(lab: Lab, on_stale: OnStale, begun: set[str], verdict: Verdict) -> None:
    """What was slow outlived ten versions and ended as it must; everything else ended well; every ticket once."""
    version, admitted = 0, dict[str, int]()
    for event in lab.told.events:
        values = event.values
        version += event.name == "update.done"
        if event.name == "group.admitted":
            admitted[str(values["group"])] = version
        if event.name != "rollout.done":
            continue
        rollout, group = str(values["rollout"]), str(values["group"])
        got, slow = (str(values["status"]), str(values["origin"])), rollout in begun
        verdict.require(got == (ENDS[on_stale] if slow else ("ok", "-")), f"{on_stale}: {rollout} ended {got}")
        lived = version - admitted[group]
        verdict.require(not slow or lived >= OUTLIVED, f"{on_stale}: {rollout} outlived {lived} versions only")
    verdict.require(len(begun) == len(SLOW_TICKETS), f"{on_stale}: {len(begun)} rollouts were slow")
    trained = Counter(str(e["group"]) for e in lab.told.named("group.trained"))
    dropped = Counter(str(e["group"]) for e in lab.told.named("group.dropped"))
    verdict.require(
        set((trained + dropped).values()) == {1} and len(trained + dropped) == SLOW.tickets,
        f"{on_stale}: not every ticket ended once",
    )
    slow_groups = {rollout.partition(".")[0] for rollout in begun}
    verdict.require(set(dropped) <= slow_groups, f"{on_stale}: groups were dropped that had nothing slow")
    verdict.require(on_stale != "wait" or not dropped, "wait: groups were dropped")
    verdict.require(on_stale != "drop" or set(dropped) == slow_groups, "drop: groups were kept that were too slow")
    cancelled = {str(e["rollout"]) for e in lab.told.named("rollout.done") if e["status"] == "cancelled"}
    verdict.as_reward += sum(rollout in cancelled for rollout, _ in lab.book)
