"""The shell environment: what it runs, what it answers, when it ends, what it scores."""

import os

import pytest

from treadle.core.actions import Action, CodeBlock
from treadle.core.errors import SandboxError
from treadle.envs.sandbox import CommandResult
from treadle.envs.shell import ShellEnv, ShellTaskset
from treadle.envs.shell.env import NOT_BASH, NOT_CLOSED, SYSTEM_PROMPT, look, observation
from treadle.envs.shell.taskset import scene
from treadle.envs.task import Task


def a_task(family: str, level: str = "easy") -> Task:
    return ShellTaskset(0, families=[family], levels=[level]).task("train", 0)


def blocks(*found: CodeBlock) -> Action:
    return Action(text="some turn", blocks=found)


def bash(code: str, *, language: str = "bash", closed: bool = True) -> CodeBlock:
    return CodeBlock(language=language, code=code, closed=closed)


def ended(output: str, *, status: int | None = 0, **more: object) -> CommandResult:
    return CommandResult(status=status, output=output, **more)  # type: ignore[arg-type]


async def test_reset_fills_the_workspace_and_tells_the_task(env, sandbox, ctx):
    task = a_task("count-files")
    messages = await env.reset(task, ctx)
    assert [(message.role, message.content) for message in messages] == [
        ("system", SYSTEM_PROMPT),
        ("user", task.prompt),
    ]
    assert look(sandbox).files == scene(task).files
    assert look(sandbox).folders == scene(task).folders


async def test_a_task_of_another_kind_is_refused(env, ctx):
    with pytest.raises(ValueError, match="expected a shell scene"):
        await env.reset(Task(id="x", prompt="y", data={"answer": 3}), ctx)


@pytest.mark.parametrize("language", ["bash", "sh", ""])
async def test_the_block_is_run_and_its_output_is_a_user_message(env, sandbox, ctx, language: str):
    await env.reset(a_task("count-lines"), ctx)
    sandbox.results.append(ended("7\n"))
    step = await env.step(blocks(bash("wc -l < a", language=language)))
    assert sandbox.commands == ["wc -l < a"]
    assert [(message.role, message.content) for message in step.messages] == [("user", "7")]
    assert not step.done


async def test_only_the_first_block_of_a_turn_is_run(env, sandbox, ctx):
    await env.reset(a_task("count-lines"), ctx)
    sandbox.results.append(ended(""))
    await env.step(blocks(bash("one"), bash("two")))
    assert sandbox.commands == ["one"]


async def test_a_block_that_was_not_closed_is_not_run_and_the_model_is_told(env, sandbox, ctx):
    await env.reset(a_task("count-lines"), ctx)
    step = await env.step(blocks(bash("rm -r .", closed=False)))
    assert sandbox.commands == []
    assert [message.content for message in step.messages] == [NOT_CLOSED]
    assert not step.done


async def test_a_block_of_another_language_is_not_run_and_the_model_is_told(env, sandbox, ctx):
    await env.reset(a_task("count-lines"), ctx)
    step = await env.step(blocks(bash("print(1)", language="python")))
    assert sandbox.commands == []
    assert [message.content for message in step.messages] == [NOT_BASH]


async def test_a_turn_without_a_block_ends_the_rollout(env, sandbox, ctx):
    await env.reset(a_task("count-lines"), ctx)
    step = await env.step(Action(text="Done."))
    assert step.terminated
    assert step.messages == ()


async def test_the_last_output_counts_and_not_an_earlier_one(env, sandbox, ctx):
    task = a_task("show-file")
    right = scene(task).check.accept[0]
    await env.reset(task, ctx)
    sandbox.results += [ended(right), ended("")]
    await env.step(blocks(bash("cat a")))
    assert await env.score() == {"correct": 1.0}
    await env.step(blocks(bash("true")))
    assert await env.score() == {"correct": 0.0}


async def test_a_turn_that_was_refused_leaves_the_last_output_as_it_was(env, sandbox, ctx):
    task = a_task("show-file")
    await env.reset(task, ctx)
    sandbox.results.append(ended(scene(task).check.accept[0]))
    await env.step(blocks(bash("cat a")))
    await env.step(blocks(bash("cat", closed=False)))
    assert await env.score() == {"correct": 1.0}


async def test_an_untouched_workspace_and_no_command_score_zero(env, ctx):
    await env.reset(a_task("delete-file"), ctx)
    assert await env.score() == {"correct": 0.0}


async def test_the_answer_of_a_hard_task_must_be_said_in_the_final_message(env, sandbox, ctx):
    task = a_task("count-lines", "hard")
    await env.reset(task, ctx)
    sandbox.results.append(ended(str(scene(task).check.answer)))
    await env.step(blocks(bash("wc -l < a")))
    assert await env.score() == {"correct": 0.0}
    await env.step(Action(text=f"The answer is {scene(task).check.answer}."))
    assert await env.score() == {"correct": 1.0}


async def test_a_planted_link_is_not_followed_and_does_not_score(env, sandbox, ctx, tmp_path):
    task = a_task("copy-file")
    made = scene(task)
    (new,) = made.check.files.keys() - made.files.keys()
    outside = tmp_path / "outside"
    outside.write_bytes(made.check.files[new].texts[0])
    await env.reset(task, ctx)
    sandbox.effect = lambda workspace: os.symlink(outside, workspace / new)
    sandbox.results.append(ended(""))
    await env.step(blocks(bash("ln -s")))
    assert look(sandbox).odd == {new}
    assert await env.score() == {"correct": 0.0}


async def test_a_workspace_full_of_files_is_looked_at_only_up_to_a_bound(env, sandbox, ctx):
    await env.reset(a_task("make-folder"), ctx)
    for i in range(2000):
        (sandbox.workspace / f"f{i}").touch()
    assert look(sandbox).odd
    assert await env.score() == {"correct": 0.0}


async def test_a_lost_sandbox_passes_through_as_an_error_of_the_machinery(env, sandbox, ctx):
    await env.reset(a_task("count-lines"), ctx)
    sandbox.results.append(SandboxError("lost"))
    with pytest.raises(SandboxError, match="lost"):
        await env.step(blocks(bash("ls")))


async def test_close_frees_the_sandbox(env, sandbox, ctx):
    await env.reset(a_task("count-lines"), ctx)
    await env.close()
    assert sandbox.closed


async def test_close_before_reset_is_quiet(env, sandbox):
    await env.close()
    assert not sandbox.closed


@pytest.mark.parametrize(
    ("result", "seen"),
    [
        (ended("7\n"), "7"),
        (ended(""), "(no output)"),
        (ended("\n"), "(no output)"),
        (ended("", status=1), "[exit 1]"),
        (ended("no such file\n", status=2), "no such file\n[exit 2]"),
        (ended("abc", status=None, killed="time", timed_out=True), "abc\n[killed: time]"),
        (ended("", status=137, restarted=True), "[exit 137]\n[shell restarted]"),
        (ended("abc", status=None, killed="output", dropped_bytes=9), "abc\n[9 more bytes]\n[killed: output]"),
    ],
)
def test_what_the_model_reads_after_a_command(result: CommandResult, seen: str):
    assert observation(result) == seen


def test_a_long_output_keeps_its_head_and_tail_and_tells_how_much_is_missing():
    seen = observation(ended("a" * 500 + "ü" * 300 + "b" * 500, dropped_bytes=7))
    assert seen.startswith("a" * 100 + "\n[... 1447 bytes ...]\n")
    assert seen.endswith("\n" + "b" * 60)
    assert len(seen) < 200


async def test_states_have_equal_names_when_files_and_output_are_equal(sandbox, ctx):
    env = ShellEnv(lambda: sandbox, state_keys=True)
    await env.reset(a_task("count-lines"), ctx)
    sandbox.results += [ended("7\n"), ended("7\n"), ended("8\n"), ended("8\n")]
    keys = [(await env.step(blocks(bash("one")))).state_key for _ in range(3)]
    assert keys[0] is not None
    assert keys[0] == keys[1] != keys[2]
    (sandbox.workspace / "new").write_text("x")
    assert (await env.step(blocks(bash("two")))).state_key != keys[2]
    refused = await env.step(blocks(bash("three", closed=False)))
    assert refused.state_key is not None


async def test_states_have_no_names_unless_they_are_asked_for(env, sandbox, ctx):
    await env.reset(a_task("count-lines"), ctx)
    sandbox.results.append(ended("7\n"))
    assert (await env.step(blocks(bash("one")))).state_key is None
