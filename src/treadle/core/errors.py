"""The error tree. Every error that Treadle raises on purpose stands in it.

    TreadleError
    |-- ConfigError              a recipe, an override or a command line that contradicts itself (exit 2)
    |-- ModelError               weights, template or architecture that cannot be used
    |-- PromptTooLong            a prompt that leaves no room for one sampled token
    |-- StoreError               the run folder cannot be written or read
    |-- RenderError              a template that breaks the bridge, or a message it cannot render
    |-- EnvError                 the environment's own fault: the rollout ends (error, env), never scored
    |   `-- ReplayDiverged       a replayed action log led to another state digest
    |-- InfraError               the machinery's fault: the rollout ends (error, infra), retried
    |   |-- SandboxError         a sandbox cannot start, or was lost with no command running
    |   |-- EngineError          the inference engine failed
    |   `-- WeightMismatch       copied weights differ from the published ones
    |-- GraderError              scoring raised or timed out: only grading is retried
    |-- TrainingDiverged         update after update had a gradient that is not finite
    `-- DeadlineExceeded         a named wait ran out

`ToolError` stands outside the tree: it is how a tool speaks to the model, not a failure of anything.
The message of each error is one line: what, where, got, expected, what to do.
"""

from __future__ import annotations


class TreadleError(Exception):
    """Root of every error that Treadle raises on purpose."""


class ConfigError(TreadleError):
    """A recipe, override or command line that names an unknown key, a wrong type or a contradiction."""


class ModelError(TreadleError):
    """Weights, chat template or architecture that Treadle cannot use; says which and why."""


class PromptTooLong(TreadleError):
    """A prompt that leaves no room in the context for one sampled token."""


class StoreError(TreadleError):
    """The run folder or its database cannot be written or read."""


class RenderError(TreadleError):
    """A chat template that breaks the incremental bridge, or a message that it cannot render."""


class EnvError(TreadleError):
    """The environment's own fault. The rollout ends (error, env) and is never scored or trained."""


class ReplayDiverged(EnvError):
    """A replayed action log led to a state whose digest differs from the recorded one."""


class InfraError(TreadleError):
    """The machinery's fault. The rollout ends (error, infra) and is retried on its own budget."""


class SandboxError(InfraError):
    """A sandbox cannot start, or was lost while no command was running."""


class EngineError(InfraError):
    """The inference engine failed; the request may be sent again."""


class WeightMismatch(InfraError):
    """Copied weights differ from the published ones; carries both figures in its message."""


class GraderError(TreadleError):
    """Scoring raised or timed out. Only the grading is retried, never the rollout."""


class TrainingDiverged(TreadleError):
    """Update after update had a gradient that is not finite. The weights are those of before the first of them."""


class DeadlineExceeded(TreadleError):
    """A named wait ran out: the message says what waited for what and for how long."""


class ToolError(Exception):
    """Raised by a tool to tell the model that its call failed. The rollout goes on."""


def first_of(error: BaseException) -> BaseException:
    """The first error inside nested exception groups; an error that is no group is itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def one_line(error: BaseException) -> str:
    """The first line of an error's message, cut to 400 characters. User code's errors may fail even at this: empty."""
    try:
        text = str(error)
    except Exception:  # the border to an exception class of user code
        return ""
    lines = text[:4000].strip().splitlines()
    return lines[0].rstrip()[:400] if lines else ""
