"""`treadle eval`: which checkpoint, how many tasks, at which temperature; one line where it cannot be."""

import re
from pathlib import Path

import pytest

import treadle as library

RECIPE = '''
from treadle import *

class Levels(Env):
    scored = 0

    async def reset(self, task, ctx):
        self.task = task
        return [user(task.prompt)]

    async def step(self, action):
        return Step(terminated=True)

    async def score(self):
        if self.task.split == "heldout":
            return {"easy": float(self.task.level == "easy")}
        Levels.scored += 1  # siblings differ, so that there is something to learn
        return {"easy": float(Levels.scored % 2)}

def tasks(split):
    return [Task(id=f"{split}{i}", prompt="go", split=split, level=("easy", "hard")[i % 2]) for i in range(6)]

def recipe():
    return Recipe(
        name="levels", model="tiny", limits=RolloutLimits(max_tokens_per_turn=4, max_context=128),
        world=World(env=Levels, tasks=ListTaskset(tasks("train"), tasks("heldout")), reads=PlainParser()),
        engine=EngineConfig(slots=8, context=128, kv_budget_tokens=8192), evaluation=EvaluationConfig(tasks=4),
        pipeline=PipelineConfig(group_size=2, groups_per_update=1, updates=2, evaluate_every=1),
    )
'''


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of two updates with an evaluation between them, whose tasks have levels."""
    folder = tmp_path_factory.mktemp("evaluated")
    recipe = folder / "levels.py"
    recipe.write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TREADLE_CACHE", str(folder / "cache"))
        return library.train(str(recipe), overrides={"runs": str(folder / "runs")}, view="none").folder


def test_eval_prints_counts_with_their_intervals_by_level(treadle, trained):
    said = treadle("eval", trained, "--checkpoint", "best", "--tasks", 5)
    assert said.code == 0, said.err
    assert said.out.splitlines()[:3] == [
        "solved   0.600  (3/5, 95 % 0.231 to 0.882)",
        "easy     1.000  (3/3, 95 % 0.439 to 1.000)",
        "hard     0.000  (0/2, 95 % 0.000 to 0.658)",
    ]
    last = r"version 1, temperature 0, one rollout per task, \d+ tokens, \d+\.\d s"
    assert re.fullmatch(last, said.out.splitlines()[-1])


@pytest.mark.parametrize(("which", "version"), [("best", 1), ("last", 2), ("version-1", 1), ("2", 2)])
def test_eval_takes_a_checkpoint_and_a_temperature(treadle, trained, which, version):
    said = treadle("eval", trained, "--checkpoint", which, "--tasks", 2, "--temperature", "0.5")
    assert said.code == 0, said.err
    assert f"version {version}, temperature 0.5, one rollout per task" in said.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--checkpoint", "77"), ("checkpoint '77': there is no such folder", "this run has version-", "expected")),
        (("--checkpoint", "bets"), ("checkpoint 'bets': there is no such folder", "this run has version-")),
        (("--temperature", "-1"), ("evaluation.temperature: got -1.0, expected >= 0",)),
        (("--temperature", "nan"), ("evaluation.temperature: got nan, expected >= 0",)),
    ],
)
def test_what_cannot_be_evaluated_is_one_line_and_exit_2(treadle, trained, words, said):
    answer = treadle("eval", trained, *words)
    assert answer.code == 2
    assert [word for word in said if word not in answer.line] == []


def test_a_run_without_checkpoints_is_one_line_and_exit_2(treadle, words_file):
    made = treadle("train", words_file, "--set", "pipeline.updates=0", "--set", "coldstart=none", "--view", "none")
    assert made.code == 0, made.err
    (folder,) = Path("runs").iterdir()
    for which, said in (("best", "has no evaluation of a trained version yet"), ("last", "has none yet; go on with")):
        answer = treadle("eval", folder, "--checkpoint", which)
        assert answer.code == 2
        assert said in answer.line


def test_a_recipe_has_no_checkpoints_to_choose_among(treadle, words_file):
    answer = treadle("eval", words_file, "--checkpoint", "best")
    assert answer.code == 2
    assert "checkpoint 'best': there is no such folder, and a recipe has no checkpoints of its own" in answer.line
