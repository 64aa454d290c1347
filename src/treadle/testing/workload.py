"""What simulated agents do: how long their rollouts are, how the world answers, who solves what.

The length of a rollout is lognormal around the median of its task's family, cut at a limit as every real one is. It is
spent in turns, and after each turn but the last the world takes its time. `sigma` is the spread of all rollouts;
`family_sigma` is the part of it that lies between families and so can be learned.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

import numpy as np

from treadle.agents.limits import RolloutLimits
from treadle.agents.player import Play
from treadle.core.errors import EnvError
from treadle.core.outcome import CANCELLED, OK, Origin, Outcome, failure, limit
from treadle.core.ports import CacheHint, Clock, Generate, Request, Sampling
from treadle.core.seeds import Stream
from treadle.envs.task import Task
from treadle.testing.fleet import Fleet
from treadle.trajectory.group import Group, Rollout

NORMAL = NormalDist()
UNUSED = Stream(0)
"""The fleet draws nothing."""
NOTHING = np.zeros(1, np.int32)
"""A prompt; the fleet reads none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Raises ValueError for a spread that does not hold its part."""

    median_tokens: float = 500.0
    """Sampled tokens of a rollout, all turns together."""
    sigma: float = 1.5
    family_sigma: float = 0.75
    families: int = 8
    most_tokens: int = 16_384
    """A rollout that gets here is truncated; it trains."""
    tokens_per_turn: int = 500
    env_s: float = 2.0
    """Mean seconds that the world takes after a turn (exponential)."""
    failing_share: float = 0.0
    """Share of the turns after which the environment fails."""

    def __post_init__(self) -> None:
        if not 0 <= self.family_sigma <= self.sigma:
            raise ValueError(f"workload.family_sigma: got {self.family_sigma}, expected 0 to sigma ({self.sigma})")

    def median(self, family: int) -> float:
        """Median tokens of a family: the families stand evenly over their spread."""
        return self.median_tokens * math.exp(self.family_sigma * NORMAL.inv_cdf((family + 0.5) / self.families))

    @property
    def own_sigma(self) -> float:
        """Spread within a family."""
        return math.sqrt(self.sigma**2 - self.family_sigma**2)

    @property
    def mean_tokens(self) -> float:
        """Of a rollout, cut lengths included."""
        return fmean(self._mean(self.median(family)) for family in range(self.families))

    def tokens(self, family: int, draw: random.Random) -> int:
        """One rollout's tokens."""
        drawn = self.median(family) * math.exp(self.own_sigma * draw.gauss(0.0, 1.0))
        return max(1, round(min(drawn, self.most_tokens)))

    def _mean(self, median: float) -> float:
        """E[min(X, c)] of a lognormal."""
        mu, s, cut = math.log(median), self.own_sigma, float(self.most_tokens)
        if s == 0:
            return min(median, cut)
        below = math.exp(mu + s * s / 2) * NORMAL.cdf((math.log(cut) - mu - s * s) / s)
        return below + cut * (1 - NORMAL.cdf((math.log(cut) - mu) / s))


class SimulatedTasks:
    """Families in turn. Endless."""

    def __init__(self, families: int) -> None:
        self.families = families

    def size(self, split: str) -> int | None:
        """Endless."""
        return None

    def task(self, split: str, index: int) -> Task:
        """Task `index` is of family `index` modulo their number, each round in an order of its own."""
        family = (index * 5 + index // self.families) % self.families
        return Task(id=f"{split}-{index}", prompt="", family=f"f{family}", split=split, data={"family": family})

    def demonstration(self, task: Task) -> Sequence[str] | None:
        """None: nobody knows how."""
        return None


class SimulatedPlayer:
    """Plays rollouts that only take time. Satisfies `agents.group_player.Plays`."""

    def __init__(self, workload: Workload, *, fleet: Fleet, clock: Clock) -> None:
        self.workload = workload
        self.generate: Generate = fleet
        self.clock: Clock = clock
        self.limits = RolloutLimits()
        self.tokens: dict[str, int] = {}
        """Sampled by each rollout that ended."""

    async def play(self, group: Group, plan: Play) -> Rollout:
        """Turn after turn until its tokens are spent, the environment fails or its engine breaks down."""
        rollout = group.begin(plan.index, attempt=plan.attempt).id
        outcome = CANCELLED
        try:
            outcome = await self._turns(group, plan, rollout)
        except EnvError as error:
            outcome = failure(Origin.ENV, error)
        except Exception as error:  # the border of a rollout, as the real player has it
            outcome = failure(Origin.INFRA, error)
        finally:
            self.generate.release(rollout)
            ended = group.end(rollout, outcome)
        return ended

    async def _turns(self, group: Group, plan: Play, rollout: str) -> Outcome:
        draw = plan.sample_stream.python()
        workload = self.workload
        family = int(plan.task.data["family"])
        total = workload.tokens(family, draw)
        turns = math.ceil(total / workload.tokens_per_turn)
        at = group.prompt(NOTHING)
        for turn in range(turns):
            asked = min(workload.tokens_per_turn, total - turn * workload.tokens_per_turn)
            completion = await self.generate.generate(_request(plan, rollout, asked))
            at = group.sampled(rollout, completion, after=at, turn=turn)
            if draw.random() < workload.failing_share:
                raise EnvError("the environment failed as it was told to")
            if turn + 1 < turns and workload.env_s:
                await self.clock.sleep(draw.expovariate(1 / workload.env_s))
        self.tokens[rollout] = total
        group.pay(rollout, "correct", float(draw.random() < (family + 0.5) / workload.families))
        return limit("tokens", f"{total} tokens") if total >= workload.most_tokens else OK


def _request(plan: Play, rollout: str, tokens: int) -> Request:
    return Request(
        prompt=NOTHING, sampling=Sampling(max_tokens=tokens), stream=UNUSED, cache=CacheHint(rollout=rollout),
        priority=plan.priority(),
    )


