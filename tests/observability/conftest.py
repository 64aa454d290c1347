"""A short run as events, told by hand."""

import pytest

from treadle.core.events import Event


class Told:
    """Makes events, one second apart."""

    def __init__(self):
        self.events = []

    def tell(self, name, **values):
        facts = {key.replace("__", "."): value for key, value in values.items()}
        self.events.append(Event(name=name, at=1000.0 + len(self.events), values=facts))
        return self

    def to(self, *listeners):
        for event in self.events:
            for listener in listeners:
                listener.emit(event)
        return self


def evaluated(told, label, update, solved, total=50, easy=20):
    told.tell("stage.started", stage="evaluation", label=label, total=total)
    told.tell("evaluation.progress", label=label, done=total, total=total, solved=solved)
    told.tell(
        "evaluation.done", label=label, version=update, update=update, solved=solved, total=total, unscored=1,
        solved_share=solved / total, low_share=max(0.0, solved / total - 0.1), high_share=solved / total + 0.1,
        reward_mean=solved / total, tokens=900, seconds_s=3.0, temperature=0.0,
        level__easy__solved=min(easy, solved), level__easy__total=easy, family__count__solved=solved,
        family__count__total=total,
    )
    told.tell("stage.done", stage="evaluation", label=label, seconds_s=3.0)


def updated(told, update, solved, **more):
    told.tell(**{
        "name": "update.done", "update": update, "updates": 3, "version": update, "groups": 6, "dropped": 2,
        "rollouts": 64, "reward_mean": solved, "reward_std": 0.4, "solved_share": solved, "loss": 0.0125,
        "grad_norm": 0.5, "lr": 1e-5, "tokens_trained": 2000, "tokens_generated": 3000, "tokens_per_s": 321.0,
        "staleness": 1, "staleness_mean": 0.5, "seconds_s": 8.2, "eta_s": 125.0, "generate_idle_share": 0.25,
        "env_idle_share": 0.5, "score_idle_share": 0.9, "update_idle_share": 0.6, "skipped": False, **more,
    })


@pytest.fixture
def told():
    """The events of a run with three updates, one of them empty."""
    told = Told()
    told.tell(
        "run.started", run="shell-1", recipe="shell", seed=3, model="smollm2-135m", updates=3, groups_per_update=8,
        group_size=8, lag=1, max_staleness=1,
    )
    evaluated(told, "untouched", 0, 1)
    told.tell("stage.started", stage="demonstrations", label="demonstrations", total=96)
    told.tell("coldstart.demos", tried=98, kept=96, wrong=1, failed=1, families=24, tokens=4000, seconds_s=5.0)
    told.tell("stage.started", stage="coldstart", label="coldstart", total=1)
    told.tell(
        "coldstart.update", update=1, updates=1, epoch=1, version=1, loss=1.25, grad_norm=2.0, lr=1e-5,
        tokens_trained=900, seconds_s=2.5,
    )
    told.tell("stage.done", stage="coldstart", label="coldstart", seconds_s=2.5)
    evaluated(told, "coldstart", 0, 15)
    told.tell("stage.started", stage="rl", label="rl", total=3)
    for i, status in enumerate(("ok", "ok", "truncated")):
        told.tell(
            "rollout.done", rollout=f"t000000.{i}.0", split="train", status=status, origin="-", type="", message="",
            retried=False,
        )
    told.tell(
        "rollout.done", rollout="t000001.0.0", split="train", status="error", origin="env", type="RuntimeError",
        message="this world\nis broken \x1b[31m", retried=True,
    )
    updated(told, 1, 0.25)
    told.tell("group.dropped", group="t000009", reason="zero_variance")
    told.tell("group.dropped", group="t000010", reason="stale")
    told.tell("update.skipped", update=2, updates=3, version=1, dropped=8, solved_share=0.5, reward_mean=0.5)
    updated(told, 3, 0.75)
    told.tell("checkpoint.saved", update=3, version=3, path="runs/shell-1/checkpoints/version-000003", seconds_s=1.0)
    told.tell("stage.done", stage="rl", label="rl", seconds_s=25.0)
    evaluated(told, "final", 3, 40)
    told.tell("watchdog.acted", wait="update 3", action="shrink", since_s=1503.0, **{"for": "group t000011"})
    told.tell("wait.expired", what="update 3 waits", action="nothing")
    told.tell("run.stopping", reason="asked to stop")
    told.tell("run.stopping", update=3, reason="asked to stop")
    told.tell("run.done", reason="done", updates=3, version=3, seconds_s=125.4, peak_rss_gb=2.31)
    return told


@pytest.fixture
def strange():
    """Events that no reader knows, and known ones without what they should say or with other things in it."""
    told = Told()
    names = (
        "run.started", "stage.started", "stage.done", "evaluation.progress", "evaluation.done", "coldstart.demos",
        "coldstart.update", "group.admitted", "rollout.done", "group.ready", "group.dropped", "group.trained",
        "update.started", "update.done", "update.skipped", "checkpoint.saved", "wait.expired", "run.stopping",
        "watchdog.acted", "run.failed", "run.done", "weather.changed", "",
    )
    values = (None, "words", True, float("nan"), float("inf"), -1, object(), [1], "\x1b[2J\n| a |")
    keys = (
        "update", "updates", "total", "done", "solved", "solved_share", "reward_mean", "eta_s", "seconds_s", "label",
        "stage", "status", "reason", "loss", "level.easy.total", "level.easy.solved", "family.|.total", "low_share",
    )
    for name in names:
        told.tell(name)
        for value in values:
            told.events.append(Event(name=name, at=float("nan"), values=dict.fromkeys(keys, value)))
    return told
