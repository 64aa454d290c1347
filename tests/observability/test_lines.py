"""Plain lines: one per thing that matters, and nothing that can drive a terminal."""

from treadle.core.events import Event
from treadle.observability import PlainLines

GOLDEN = [
    "run shell-1: smollm2-135m, 3 updates of 8 groups of 8, lag 1, seed 3",
    "evaluating untouched: 50 tasks",
    "untouched  solved 0.020  (1/50, 95 % 0.000 to 0.120)   easy 1/20",
    "playing demonstrations: at most 96",
    "demonstrations: 96 kept of 24 families, 1 wrong, 1 failed, 4000 tokens",
    "cold start: 1 updates",
    "cold start 1/1  loss 1.250  2.5 s",
    "evaluating coldstart: 50 tasks",
    "coldstart  solved 0.300  (15/50, 95 % 0.200 to 0.400)   easy 15/20",
    "reinforcement learning: 3 updates",
    r"rollout t000001.0.0 failed (env, RuntimeError): this world is broken \x1b[31m, playing it again",
    "update 1/3  reward 0.25  solved 25%  groups 6+2 dropped  321 tok/s  staleness 1  "
    "idle generate 25%  env 50%  score 90%  update 60%  8.2 s  left 2 min 05 s",
    "group t000010 dropped: stale",
    "update 2/3  no group left to train (8 dropped, solved 50%)",
    "update 3/3  reward 0.75  solved 75%  groups 6+2 dropped  321 tok/s  staleness 1  "
    "idle generate 25%  env 50%  score 90%  update 60%  8.2 s  left 2 min 05 s",
    "saved version 3 to runs/shell-1/checkpoints/version-000003",
    "evaluating final: 50 tasks",
    "final      solved 0.800  (40/50, 95 % 0.700 to 0.900)   easy 20/20",
    "update 3 waited for group t000011 for 25 min 03 s: it goes on with what there is",
    "update 3 waits; nothing",
    "stopping: asked to stop; once more ends at once",
    "done after 2 min 05 s",
]


def test_a_run_in_lines(told):
    said = []
    told.to(PlainLines(said.append))
    assert said == GOLDEN


def test_an_update_that_was_skipped_says_why():
    said = []
    PlainLines(said.append).emit(Event(name="update.done", at=0.0, values={"update": 1, "updates": 2, "skipped": True}))
    assert said[0].endswith("SKIPPED: gradient not finite")


def test_strange_events_are_one_plain_line_each(strange):
    said = []
    strange.to(PlainLines(said.append))
    assert said
    assert [line for line in said if "\n" in line or "\x1b" in line] == []


def test_every_remedy_of_the_watchdog_is_said_in_words():
    said = []
    lines = PlainLines(said.append)
    for action in ("promote", "cancel", "restart", "unheard of"):
        values = {"wait": "rollout r", "for": "the engine", "since_s": 61.0, "action": action}
        lines.emit(Event(name="watchdog.acted", at=0.0, values=values))
    assert said == [
        "rollout r waited for the engine for 1 min 01 s: it goes first at the engine from now on",
        "rollout r waited for the engine for 1 min 01 s: it was cancelled",
        "rollout r waited for the engine for 1 min 01 s: it was started again",
        "rollout r waited for the engine for 1 min 01 s: unheard of",
    ]
