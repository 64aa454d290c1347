"""How a call, a turn or a rollout ended, and whose doing it was.

One table decides what is scored, what trains and what is retried. It is data, not code spread over the house:

    status, origin        scored  trains  retried
    ok, -                 yes     yes     no
    truncated, limit      yes     yes     no
    timeout, tool         yes     yes     no        the policy caused it; the env is closed
    error, env            no      no      from reset, k times
    error, infra          no      no      yes, own budget
    error, grader         no      no      grading only
    cancelled, -          no      no      no

A pair outside the table is refused when the outcome is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from treadle.core.errors import first_of, one_line


class Status(StrEnum):
    """How it ended."""

    OK = "ok"
    TRUNCATED = "truncated"
    TIMEOUT = "timeout"
    ERROR = "error"
    CANCELLED = "cancelled"


class Origin(StrEnum):
    """Whose doing it was; NONE when nobody's."""

    NONE = "-"
    LIMIT = "limit"
    TOOL = "tool"
    ENV = "env"
    INFRA = "infra"
    GRADER = "grader"


class Retry(StrEnum):
    """From where a failed rollout may be tried again."""

    NO = "no"
    RESET = "reset"
    INFRA = "infra"
    GRADING = "grading"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What follows from an outcome."""

    scored: bool
    trains: bool
    retry: Retry


TABLE: dict[tuple[Status, Origin], Rule] = {
    (Status.OK, Origin.NONE): Rule(scored=True, trains=True, retry=Retry.NO),
    (Status.TRUNCATED, Origin.LIMIT): Rule(scored=True, trains=True, retry=Retry.NO),
    (Status.TIMEOUT, Origin.TOOL): Rule(scored=True, trains=True, retry=Retry.NO),
    (Status.ERROR, Origin.ENV): Rule(scored=False, trains=False, retry=Retry.RESET),
    (Status.ERROR, Origin.INFRA): Rule(scored=False, trains=False, retry=Retry.INFRA),
    (Status.ERROR, Origin.GRADER): Rule(scored=False, trains=False, retry=Retry.GRADING),
    (Status.CANCELLED, Origin.NONE): Rule(scored=False, trains=False, retry=Retry.NO),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How something ended. Raises ValueError for a (status, origin) pair outside the table."""

    status: Status
    origin: Origin = Origin.NONE
    type: str = ""
    """Short machine-readable kind, such as `turns`, `tokens`, `context`, or an exception's class name."""
    message: str = ""
    """One line for a person."""

    def __post_init__(self) -> None:
        if (self.status, self.origin) not in TABLE:
            raise ValueError(f"outcome ({self.status}, {self.origin}) is not in the outcome table")

    @property
    def rule(self) -> Rule:
        """What the table says about this outcome."""
        return TABLE[self.status, self.origin]

    @property
    def scored(self) -> bool:
        """Whether the environment scores a rollout that ended so."""
        return self.rule.scored

    @property
    def trains(self) -> bool:
        """Whether a rollout that ended so may vote in a baseline and enter the loss."""
        return self.rule.trains

    @property
    def retryable(self) -> bool:
        """Whether the rollout (not only its grading) may be played again."""
        return self.rule.retry in (Retry.RESET, Retry.INFRA)

    @property
    def failed(self) -> bool:
        """True for failures of environment, machinery or grader."""
        return self.status is Status.ERROR


OK = Outcome(status=Status.OK)
CANCELLED = Outcome(status=Status.CANCELLED)


def limit(type_: str, message: str = "") -> Outcome:
    """A turn, token, context or time limit of the rollout was reached."""
    return Outcome(status=Status.TRUNCATED, origin=Origin.LIMIT, type=type_, message=message)


def tool_timeout(message: str) -> Outcome:
    """A tool timed out and could not be cancelled: the env is dirty and must be closed."""
    return Outcome(status=Status.TIMEOUT, origin=Origin.TOOL, type="tool_timeout", message=message)


def failure(origin: Origin, error: BaseException) -> Outcome:
    """An error outcome that carries the exception's class and first line; of a group, those of its first error."""
    first = first_of(error)
    return Outcome(status=Status.ERROR, origin=origin, type=type(first).__name__, message=one_line(first))
