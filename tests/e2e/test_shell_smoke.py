"""The built-in smoke recipe through the front door: a tiny model, a real shell, the whole way, and what one can do with
the run afterwards."""

import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from treadle.cli.main import main


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("smoke")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TREADLE_CACHE", str(folder / "cache"))
        assert main(["train", "shell-smoke", "--set", f"runs={folder / 'runs'}", "--view", "none"]) == 0
        (made,) = (folder / "runs").iterdir()
        yield made


@pytest.fixture
def treadle(run, capsys):
    """Calls a command, which must succeed, and gives what it printed."""

    def call(*argv):
        capsys.readouterr()
        assert main(list(argv)) == 0
        return capsys.readouterr().out

    return call


def told(run, name):
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event["name"] == name]


def test_the_run_folder_is_complete(run):
    files = {path.name for path in run.iterdir()}
    assert {
        "recipe.toml", "run.db", "events.jsonl", "metrics.jsonl", "report.md", "learning-curve.png", "checkpoints",
    } <= files
    report = (run / "report.md").read_text()
    words = ("Ended: done", "untouched", "coldstart", "final", "## Updates")
    assert [word for word in words if word not in report] == []


def test_the_model_learns_its_command_and_is_updated_by_what_the_shell_paid(run):
    assert told(run, "update.done") != []
    assert all(event["grad_norm"] > 0 for event in told(run, "update.done"))
    solved = {event["label"]: event["solved"] for event in told(run, "evaluation.done")}
    assert solved["untouched"] == 0
    assert solved["coldstart"] > 0


def test_the_checkpoint_is_loaded_by_transformers(run):
    (checkpoint,) = (run / "checkpoints").iterdir()
    model = AutoModelForCausalLM.from_pretrained(checkpoint / "model", local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint / "model", local_files_only=True)
    assert model.config.num_hidden_layers == 2
    assert tokenizer.chat_template is not None


def test_show_lists_rollouts_and_prints_one_with_its_tokens(run, treadle):
    listed = treadle("show", str(run), "--split", "train", "--most", "5")
    assert len(listed.splitlines()) == 6
    rollout = next(
        line.split()[0] for line in treadle("show", str(run), "--most", "0").splitlines()
        if line.startswith("t0") and " reward 1 " in line
    )
    turns = treadle("show", str(run), rollout)
    assert "ls -S | head -n 1" in turns
    assert "trained" in turns
    assert "ended ok (-), reward 1" in turns
    tokens = treadle("show", str(run), rollout, "--tokens")
    marked = [line for line in tokens.splitlines() if line.split()[4:5] == ["*"]]
    assert len(marked) >= 30
    assert treadle("show", str(run), rollout, "--tokens") == tokens


def test_an_unknown_rollout_is_answered_with_near_ones(run, capsys):
    assert main(["show", str(run), "t000000.9.9"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "has no rollout 't000000.9.9' among" in line
    assert "nearest: t000000." in line


def test_eval_counts_held_out_tasks_under_the_checkpoint(run, treadle):
    said = treadle("eval", str(run), "--tasks", "3")
    assert said.splitlines()[0].startswith("solved   ")
    assert "/3, 95 % " in said


def test_rollout_plays_one_task_and_prints_the_turns(run, treadle):
    said = treadle("rollout", str(run), "--temperature", "0")
    (version,) = {event["version"] for event in told(run, "run.done")}
    assert f"v{version} x " in said
    assert "ls -S | head -n 1" in said
    assert "reward" in said.splitlines()[-1]


def test_the_printed_recipe_makes_the_same_run_possible(run, treadle, tmp_path):
    printed = tmp_path / "printed.toml"
    printed.write_text(treadle("train", "shell", "--seed", "3", "--dry-run"))
    again = treadle("train", "shell", "--with", str(printed), "--dry-run")
    assert again == printed.read_text()
    assert "seed = 3\n" in again
    mine = treadle("train", "shell-smoke", "--with", str(run / "recipe.toml"), "--dry-run")
    assert mine == (run / "recipe.toml").read_text()
