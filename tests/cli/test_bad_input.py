"""What a person gets wrong, or a machine lacks: one line on standard error, and the exit code."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from treadle.envs import bubblewrap
from treadle.models import build_tiny


def refused(treadle, *argv, code=2):
    """The one line of a command that must fail so."""
    said = treadle(*argv)
    assert said.code == code, said.err
    assert said.line.startswith("treadle: ")
    return said.line


def test_an_unknown_recipe_gets_the_nearest(treadle):
    assert "unknown recipe 'shell-smok'; did you mean 'shell-smoke'?" in refused(treadle, "train", "shell-smok")


def test_an_unknown_key_gets_the_nearest(treadle):
    line = refused(treadle, "train", "shell", "--set", "learner.lrr=1")
    assert "unknown key 'learner.lrr'; did you mean 'learner.lr'?" in line


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("learner.lr=fast",), ("learner.lr", "'fast'", "expected float")),
        (("limits.max_context=900",), ("limits.max_context=900", "engine.context=512", "at most")),
        (("pipeline.updates",), ("'pipeline.updates'", "expected key=value")),
        (("world.families=count-filez",), ("families", "count-filez", "expected")),
    ],
)
def test_wrong_values_name_key_got_and_expected(treadle, sets, words):
    line = refused(treadle, "train", "shell", *(word for text in sets for word in ("--set", text)))
    assert [word for word in words if word not in line] == []


def test_a_file_of_overrides_must_be_toml(treadle):
    Path("bad.toml").write_text("learner = {lr 3}\n")
    assert "bad.toml is not TOML" in refused(treadle, "train", "shell", "--with", "bad.toml")
    assert "none.toml cannot be read" in refused(treadle, "train", "shell", "--with", "none.toml")
    Path("odd.toml").write_text("[learner]\nlrr = 1\n")
    assert "did you mean 'learner.lr'?" in refused(treadle, "train", "shell", "--with", "odd.toml")


def test_a_recipe_file_that_does_not_import_names_its_line(treadle):
    Path("mine.py").write_text("import no_such_module_here\n")
    assert "mine.py, line 1: ModuleNotFoundError" in refused(treadle, "train", "mine.py")
    Path("empty.py").write_text("x = 1\n")
    assert "expected a function `recipe`" in refused(treadle, "train", "empty.py")


@pytest.mark.parametrize("command", ["show", "eval", "rollout"])
def test_what_is_not_a_run_folder_is_named(treadle, command):
    assert "expected a run folder" in refused(treadle, command, "./nowhere")
    Path("empty").mkdir()
    assert "got a folder without run.db" in refused(treadle, command, "empty")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("smollm3", ("model `smollm3`", "did you mean `smollm2-135m`?")),
        ("./nowhere", ("model `./nowhere`", "not an embedded model")),
        ("no-such/model-here", ("model `no-such/model-here`", "the hub did not give it", "check the name")),
    ],
)
def test_missing_weights_are_named_with_what_to_do(treadle, model, words):
    line = refused(treadle, "train", "shell-smoke", "--set", f"model={model}", code=1)
    assert [word for word in words if word not in line] == []
    assert not list(Path("runs").iterdir())


def test_a_folder_without_weights_is_named(treadle, tmp_path):
    (build_tiny(tmp_path / "model") / "model.safetensors").unlink()
    line = refused(treadle, "train", "shell-smoke", "--set", f"model={tmp_path / 'model'}", code=1)
    assert "has a config.json but no weights" in line


def test_a_model_without_a_chat_template_is_refused(treadle, tmp_path):
    config = build_tiny(tmp_path / "model") / "tokenizer_config.json"
    config.write_text(config.read_text().replace("chat_template", "other"))
    line = refused(treadle, "train", "shell-smoke", "--set", f"model={tmp_path / 'model'}", code=1)
    assert "no chat template" in line


def test_a_context_beyond_the_model_is_refused(treadle):
    line = refused(treadle, "train", "shell-smoke", "--set", "engine.context=4096")
    assert "engine.context=4096 contradicts model=tiny, whose context is 1024 tokens" in line


def test_more_layers_than_the_model_has_are_refused_before_anything_is_played(treadle):
    line = refused(treadle, "train", "shell-smoke", "--set", "learner.top_layers=99")
    assert "learner.top_layers=99 contradicts model=tiny, which has 2 layers" in line


def test_prompts_longer_than_the_context_are_said_in_one_line(treadle):
    line = refused(treadle, "train", "shell-smoke", "--set", "limits.max_context=64", "--view", "none", code=1)
    assert "its prompt has" in line
    assert "limits.max_context is 64" in line


@pytest.fixture
def no_bwrap(monkeypatch):
    bubblewrap._available.cache_clear()
    yield lambda folder: monkeypatch.setenv("PATH", str(folder))
    bubblewrap._available.cache_clear()


def test_without_bubblewrap_the_install_line_is_said(treadle, no_bwrap, tmp_path):
    no_bwrap(tmp_path)
    line = refused(treadle, "train", "shell-smoke", code=1)
    assert line == "treadle: sandbox: bubblewrap is not installed: apt-get install bubblewrap"
    said = treadle("doctor", "--model", "tiny")
    assert said.code == 1
    assert "FAIL  sandbox: sandbox: bubblewrap is not installed: apt-get install bubblewrap" in said.out


@pytest.fixture
def open_folder():
    """A folder that a sandbox's user can look into."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


def test_a_bubblewrap_that_is_refused_says_what_it_said_and_the_remedy(treadle, no_bwrap, open_folder):
    bin_ = open_folder
    for name in ("setpriv", "bash", "sh"):
        (bin_ / name).symlink_to(shutil.which(name))
    (bin_ / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    (bin_ / "bwrap").chmod(0o755)
    no_bwrap(bin_)
    line = refused(treadle, "train", "shell-smoke", code=1)
    assert "bwrap is refused (bwrap: No permissions to create new namespace): sudo sysctl -w" in line


def test_a_run_folder_that_cannot_be_made_is_exit_1(treadle, words_file):
    Path("runs").write_text("in the way")
    assert "set runs=FOLDER" in refused(treadle, "train", words_file, code=1)
    assert "set runs=FOLDER" in refused(treadle, "train", words_file, "--set", "runs=/proc/none", code=1)


def test_an_environment_that_always_raises_ends_with_its_line(treadle, words_file):
    line = refused(treadle, "train", f"{words_file}:broken", "--view", "none", code=1)
    assert "RuntimeError: this world is broken" in line


def test_a_rule_that_a_run_gives_nothing_to_judge_by_ends_it_with_one_line(treadle, words_file):
    sets = ("coldstart=none", "evaluation=none", "algorithm.rule=vine")
    line = refused(treadle, "train", words_file, "--view", "none", *(w for text in sets for w in ("--set", text)))
    assert "algorithm.rule=vine: got " in line
    assert "set branching=probe" in line


def test_a_task_that_is_not_there_is_named(treadle):
    Path("mine.py").write_text(
        "from treadle import *\n"
        "def recipe():\n"
        "    tasks = ListTaskset([Task(id='a', prompt='go')], [Task(id='b', prompt='go', split='heldout')])\n"
        "    return Recipe(name='x', model='tiny', world=World(env=Env, tasks=tasks, reads=PlainParser()),\n"
        "                  limits=RolloutLimits(max_context=128), engine=EngineConfig(context=128))\n"
    )
    line = refused(treadle, "rollout", "mine.py", "--task", "7")
    assert "task 7 of split 'heldout': split 'heldout' has 1 tasks, got index 7" in line


def test_output_that_cannot_be_written_is_one_line():
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            [sys.executable, "-m", "treadle.cli.main", "recipes"], stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=60, check=False,
        )
    assert found.returncode == 1
    assert found.stderr == "treadle: the disk refuses to be written: No space left on device; free some space\n"


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m treadle.cli.main train --help | head -n 1; exit ${{PIPESTATUS[0]}}"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("usage: treadle train")
