"""The example of an environment of one's own runs as it is written."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from treadle import Action, HostConfig, ToolCall
from treadle.core.clock import SystemClock
from treadle.core.seeds import Stream
from treadle.envs.host import EnvHost
from treadle.recipes.catalog import find
from treadle.testing import check_env, check_forks

EXAMPLE = Path(__file__).parents[2] / "examples" / "guess.py"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_example_trains_the_tiny_model(elsewhere, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--model", "tiny", "--updates", "1"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    (report,) = elsewhere.glob("runs/guess-*/report.md")
    assert "Ended: done" in report.read_text()
    (events,) = elsewhere.glob("runs/guess-*/events.jsonl")
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert [e for e in told if e["name"] == "rollout.done" and e["status"] == "error"] == []
    assert sum(e["name"] == "rollout.done" and e["split"] == "train" for e in told) == 16
    assert "untouched  solved" in capsys.readouterr().out


def test_the_command_line_finds_the_recipe_of_the_example():
    recipe = find(str(EXAMPLE)).changed({"model": "tiny", "pipeline.updates": 2})
    assert (recipe.name, recipe.model, recipe.pipeline.updates) == ("guess", "tiny", 2)


async def test_the_example_keeps_the_contract_of_environments():
    names = runpy.run_path(str(EXAMPLE))
    await check_env(names["GuessEnv"], names["tasks"]("train", 2))
    assert names["GuessEnv"].max_turns == 8


async def test_a_tool_of_the_example_answers_the_model():
    names = runpy.run_path(str(EXAMPLE))
    host = EnvHost(names["GuessEnv"], config=HostConfig(), clock=SystemClock())
    await host.open(names["tasks"]("train", 1)[0], Stream(0))
    said = []
    for number, (tool, x) in enumerate((("guess", 0), ("guess", -1), ("submit", 3))):
        action = Action(text="", calls=(ToolCall(id=str(number), name=tool, arguments={"x": x}),))
        said += [message.content for message in (await host.act(action, step_id=str(number))).messages]
    score = await host.score()
    await host.close()
    assert said[0] == "higher"
    assert "x must be >= 0" in said[1]
    assert said[2] == "recorded"
    assert score.parts["turns"] == -0.02


async def test_the_example_can_be_forked():
    def guess(x):
        return Action(text=f"guess {x}", calls=(ToolCall(name="guess", arguments={"x": x}, id=str(x)),))

    names = runpy.run_path(str(EXAMPLE))
    await check_forks(names["GuessEnv"], names["tasks"]("train", 2), actions=lambda _: [guess(x) for x in (3, 5, 7, 9)])
