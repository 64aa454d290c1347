"""Cassettes: the same history gives the same answer without a world, and nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from treadle.core.actions import Action, CodeBlock
from treadle.core.clock import SystemClock
from treadle.core.errors import ConfigError, StoreError
from treadle.core.messages import Message, ToolCall, user
from treadle.core.outcome import Origin, Status
from treadle.core.seeds import Stream
from treadle.envs.cassette import Cassette, CassetteConfig, Reads
from treadle.envs.env import Env, EnvContext
from treadle.envs.host import EnvHost, Host, HostConfig, Opened, Score
from treadle.envs.recorded import FallbackHost, RecordedHost, RecordingHost
from treadle.envs.step import Step
from treadle.envs.task import Task
from treadle.envs.tools import tool

SEED = Stream(3).at("ticket", 5)
TASK = Task(id="count", prompt="count to three")


class Counter(Env):
    """Counts calls. `moods` are what it adds to the count, one per episode in the order of making."""

    made = 0

    def __init__(self, moods: Sequence[int] = ()) -> None:
        self.mood = moods[Counter.made] if Counter.made < len(moods) else 0
        Counter.made += 1
        self.count = 0

    async def reset(self, task: Task, ctx: EnvContext) -> list[Message]:
        return [user(f"{task.prompt}, from {ctx.rng.randint(0, 9)}")]

    @tool
    async def add(self, n: int) -> str:
        """Add n."""
        self.count += n
        if n == 13:
            raise RuntimeError("thirteen")
        return f"now {self.count + self.mood}"

    async def score(self) -> dict[str, float]:
        return {"correct": float(self.count == 3), "half": self.count / 2}


class Talker(Env):
    """Reads the whole turn, not only its blocks."""

    async def reset(self, task: Task, ctx: EnvContext) -> list[Message]:
        return [user("say something")]

    async def step(self, action: Action) -> Step:
        return Step(messages=(user(f"heard {action.text}"),), terminated="bye" in action.text, state_key="s")

    async def score(self) -> float:
        return 1.0


@pytest.fixture(autouse=True)
def _none_made() -> None:
    Counter.made = 0


def add(n: int, *, id: str = "c0", text: str = "") -> Action:
    return Action(text=text, calls=(ToolCall(name="add", arguments={"n": n}, raw="{}", id=id),))


def live(make: Callable[[], Env] = Counter) -> EnvHost:
    return EnvHost(make, config=HostConfig(), clock=SystemClock())


async def play(
    host: Host, actions: Sequence[Action], *, task: Task = TASK, seed: Stream = SEED, who: str = ""
) -> tuple[Opened, list[Step], Score]:
    try:
        opened = await host.open(task, seed, rollout=who)
        steps: list[Step] = []
        for number, action in enumerate(actions):
            if opened.outcome is None and not (steps and steps[-1].done):
                steps.append(await host.act(action, step_id=str(number)))
        return opened, steps, await host.score()
    finally:
        await host.close()


def record(file: Path, actions: Sequence[Action], *, make: Callable[[], Env] = Counter, reads: Reads = "turns") -> None:
    with Cassette(file, writes=True, reads=reads) as cassette:
        asyncio.run(play(RecordingHost(live(make), cassette), actions))


def without_seconds(step: Step) -> tuple[object, ...]:
    return step.messages, step.reward, step.done, step.outcome, step.state_key, [r.content for r in step.results]


async def test_without_a_world_the_same_actions_get_the_same_answers(tmp_path: Path) -> None:
    actions = [add(1), add(2), Action(text="done")]
    with Cassette(tmp_path / "tape.db", writes=True) as cassette:
        first = await play(RecordingHost(live(), cassette), actions)
    made = Counter.made
    with Cassette(tmp_path / "tape.db", writes=False) as cassette:
        again = await play(RecordedHost(cassette), actions)

    assert Counter.made == made
    assert again[0] == first[0]
    assert [without_seconds(s) for s in again[1]] == [without_seconds(s) for s in first[1]]
    assert again[1][1].messages[0].content == "now 3"
    assert again[2] == first[2] == Score(parts={"correct": 1.0, "half": 1.5})
    assert (cassette.counts.found, cassette.counts.missing) == (5, 0)


@pytest.mark.parametrize(
    ("actions", "task", "seed"),
    [
        ([add(2), add(1)], TASK, SEED),
        ([add(1)], Task(id="count", prompt="count to four"), SEED),
        ([add(1)], TASK, Stream(3).at("ticket", 6)),
    ],
    ids=["history", "task", "seed"],
)
async def test_another_history_task_or_seed_is_not_on_it(
    tmp_path: Path, actions: list[Action], task: Task, seed: Stream
) -> None:
    with Cassette(tmp_path / "tape.db", writes=True) as cassette:
        await play(RecordingHost(live(), cassette), [add(1), add(2)])
    with Cassette(tmp_path / "tape.db", writes=False) as cassette:
        opened, steps, score = await play(RecordedHost(cassette), actions, task=task, seed=seed)

    outcome = opened.outcome or steps[0].outcome
    assert outcome is not None
    assert (outcome.status, outcome.origin, outcome.type) == (Status.ERROR, Origin.ENV, "EnvError")
    assert "is not on it" in outcome.message and "tape.db" in outcome.message
    assert score.outcome == outcome


async def test_calls_get_the_ids_of_the_turn_that_asks(tmp_path: Path) -> None:
    with Cassette(tmp_path / "tape.db", writes=True) as cassette:
        await play(RecordingHost(live(), cassette), [add(1, id="old")])
        _, (step,), _ = await play(RecordedHost(cassette), [add(1, id="new")])

    assert step.messages[0].tool_call_id == "new"
    assert step.results[0].call is not None and step.results[0].call.id == "new"


async def test_the_first_answer_stays_and_another_one_is_counted(tmp_path: Path) -> None:
    def moody() -> Counter:
        return Counter(moods=(0, 7))

    with Cassette(tmp_path / "tape.db", writes=True) as cassette:
        _, (first,), _ = await play(RecordingHost(live(moody), cassette), [add(1)])
        _, (second,), _ = await play(RecordingHost(live(moody), cassette), [add(1)])
        _, (found,), _ = await play(RecordedHost(cassette), [add(1)])

    assert [s.messages[0].content for s in (first, second, found)] == ["now 1", "now 8", "now 1"]
    assert cassette.counts.differing == 1


async def test_a_rollout_that_got_another_answer_gets_it_again_and_a_stranger_the_first(tmp_path: Path) -> None:
    def moody() -> Counter:
        return Counter(moods=(0, 7))

    with Cassette(tmp_path / "tape.db", writes=True) as cassette:
        for who in ("r0", "r1"):
            await play(RecordingHost(live(moody), cassette), [add(1)], who=who)
        found = [(await play(RecordedHost(cassette), [add(1)], who=who))[1][0] for who in ("r1", "r0", "stranger")]

    assert [s.messages[0].content for s in found] == ["now 8", "now 1", "now 1"]


async def test_who_never_acted_is_graded_as_recorded_too(tmp_path: Path) -> None:
    class Lucky(Counter):
        async def score(self) -> dict[str, float]:
            return {"luck": float(self.mood)}

    with Cassette(tmp_path / "tape.db", writes=True) as cassette:
        for who in ("r0", "r1"):
            await play(RecordingHost(live(lambda: Lucky(moods=(0, 7))), cassette), [], who=who)
        found = [(await play(RecordedHost(cassette), [], who=who))[2].parts for who in ("r1", "r0")]

    assert found == [{"luck": 7.0}, {"luck": 0.0}]


async def test_equal_answers_differ_by_no_more_than_their_seconds(tmp_path: Path) -> None:
    with Cassette(tmp_path / "tape.db", writes=True) as cassette:
        for id in ("a", "b"):
            await play(RecordingHost(live(), cassette), [add(1, id=id)])

    assert cassette.counts.differing == 0
    assert cassette.counts.kept == 3


async def test_failures_are_not_answers(tmp_path: Path) -> None:
    with Cassette(tmp_path / "tape.db", writes=True) as cassette:
        _, (failed,), _ = await play(RecordingHost(live(), cassette), [add(13)])
        assert failed.outcome is not None and not failed.outcome.scored
        _, (found,), _ = await play(RecordedHost(cassette), [add(13)])

    assert found.outcome is not None and "is not on it" in found.outcome.message


async def test_one_step_id_is_one_step(tmp_path: Path) -> None:
    with Cassette(tmp_path / "tape.db", writes=True) as cassette:
        host = RecordingHost(live(), cassette)
        await host.open(TASK, SEED)
        assert await host.act(add(1), step_id="0") == await host.act(add(1), step_id="0")
        await host.close()
        recorded = RecordedHost(cassette)
        await recorded.open(TASK, SEED)
        assert await recorded.act(add(1), step_id="0") is await recorded.act(add(1), step_id="0")
        missing = await recorded.act(add(1), step_id="1")

    assert missing.outcome is not None, "the same action again is another history"


async def test_what_reads_actions_passes_over_words_and_what_reads_turns_does_not(tmp_path: Path) -> None:
    def block(words: str) -> Action:
        return Action(text=f"{words}\n```bash\nls\n```", blocks=(CodeBlock(language="bash", code="ls"),))

    for reads, found in (("turns", False), ("actions", True)):
        with Cassette(tmp_path / f"{reads}.db", writes=True, reads=reads) as cassette:  # type: ignore[arg-type]
            await play(RecordingHost(live(Talker), cassette), [block("first")])
            _, (step,), _ = await play(RecordedHost(cassette), [block("now")])
        assert (step.outcome is None) is found


async def test_fallback_leads_the_world_to_where_the_episode_stands(tmp_path: Path) -> None:
    with Cassette(tmp_path / "tape.db", writes=True) as cassette:
        await play(RecordingHost(live(), cassette), [add(1)])
        host = FallbackHost(cassette, live)
        _, steps, score = await play(host, [add(1), add(2)])
        _, again, _ = await play(RecordedHost(cassette), [add(1), add(2)])

    assert [s.messages[0].content for s in steps] == ["now 1", "now 3"]
    assert score == Score(parts={"correct": 1.0, "half": 1.5})
    assert host.tier == "real"
    assert again[1].messages[0].content == "now 3", "what the world added is on it now"


async def test_fallback_without_a_gap_makes_no_world(tmp_path: Path) -> None:
    with Cassette(tmp_path / "tape.db", writes=True) as cassette:
        await play(RecordingHost(live(), cassette), [add(1)])
        made = Counter.made
        host = FallbackHost(cassette, live)
        _, _, score = await play(host, [add(1)])

    assert Counter.made == made
    assert host.tier == "recorded"
    assert score.reward == 0.5


async def test_fallback_to_a_world_that_answers_otherwise_ends_the_episode(tmp_path: Path) -> None:
    def moody() -> Counter:
        return Counter(moods=(0, 7))

    with Cassette(tmp_path / "tape.db", writes=True) as cassette:
        await play(RecordingHost(live(moody), cassette), [add(1)])
        _, steps, score = await play(FallbackHost(cassette, lambda: live(moody)), [add(1), add(2)])

    outcome = steps[1].outcome
    assert outcome is not None and outcome.type == "ReplayDiverged" and not outcome.trains
    assert score.outcome == outcome and score.reward is None
    assert cassette.counts.differing == 0, "what a world says that is not the recorded one is not kept"


async def test_fallback_grades_in_the_world_what_was_never_graded(tmp_path: Path) -> None:
    with Cassette(tmp_path / "tape.db", writes=True) as cassette:
        host = RecordingHost(live(), cassette)
        await host.open(TASK, SEED)
        await host.act(add(3), step_id="0")
        await host.close()
        _, _, score = await play(FallbackHost(cassette, live), [add(3)])

    assert score.parts == {"correct": 1.0, "half": 1.5}


def test_a_file_that_is_none_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"none\.db does not exist: record it first, cassette\.mode=record"):
        Cassette(tmp_path / "none.db", writes=False)
    (tmp_path / "text.db").write_text("no database at all, but long enough to look like one" * 40)
    with pytest.raises(StoreError, match=r"text\.db cannot be used: file is not a database"):
        Cassette(tmp_path / "text.db", writes=False)


def test_a_cassette_knows_what_it_reads(tmp_path: Path) -> None:
    record(tmp_path / "tape.db", [add(1)], reads="actions")
    with pytest.raises(StoreError, match="got format 1 that reads actions, expected 1 that reads turns"):
        Cassette(tmp_path / "tape.db", writes=False)


def test_keys_without_a_file_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cassette\.mode=strict .* cassette\.file is none"):
        CassetteConfig(mode="strict")
