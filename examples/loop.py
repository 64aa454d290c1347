"""The whole algorithm in one file: act, get feedback, correct. No library but torch, a model class and the sandbox.

A tiny random Llama writes lines into a real shell. Each line goes through a pipe that keeps its digits in a file and
answers with how many there were; after a few lines the rollout is paid for the digits in the file. GRPO teaches the
model to write digits. Everything that Treadle does for you stands here in its plainest form:

    rollouts    sample a turn token by token, keep the ids and their log-probs exactly as sampled, run it in the
                sandbox, append what the shell answered, go on; score the workspace from outside
    credit      compare the rollouts of one task with each other (2402.03300); a rollout that the machinery lost has
                no reward, no vote and no loss, and a group in which all earned the same teaches nothing
    loss        clipped ratio against the log-probs recorded at sampling, with dual clip (1707.06347, 1912.09729), on
                the sampled tokens only, averaged over all of them
    update      one AdamW step with a clipped gradient

Run it:  python examples/loop.py --updates 20
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import statistics
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from treadle.envs.bubblewrap import BubblewrapSandbox
from treadle.envs.grading import read_bytes
from treadle.envs.sandbox import Sandbox

BYTES, END = 256, 256
"""Token ids 0..255 are bytes; one more ends a turn."""


# -- what is kept of a rollout -----------------------------------------------------------------------------------


@dataclass
class Rollout:
    """One play of one task: a flat run of tokens, some of them sampled."""

    ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    """Whether the policy wrote the token. Only these are trained."""
    logprobs: list[float] = field(default_factory=list)
    """log p at the time of sampling; 0 on tokens of the world."""
    turn: list[int] = field(default_factory=list)
    """What the policy sampled last."""
    reward: float | None = None
    """None: not scored, which is not 0."""

    def observe(self, ids: Sequence[int]) -> None:
        """Append what the world said."""
        self.ids += ids
        self.sampled += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def act(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Append what the policy sampled, exactly as sampled."""
        self.turn = list(ids)
        self.ids += ids
        self.sampled += [True] * len(ids)
        self.logprobs += logprobs


# -- the policy --------------------------------------------------------------------------------------------------


def tiny_model(seed: int = 0) -> Any:
    """A random Llama over bytes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=BYTES + 1, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, eos_token_id=END,
            bos_token_id=None, pad_token_id=None,
        )
    )
    return model.eval()


@torch.inference_mode()
def sample(
    model: Any, prompts: Sequence[Sequence[int]], *, most: int, end: int, generator: torch.Generator
) -> list[tuple[list[int], list[float]]]:
    """For each prompt at most `most` tokens, up to and including `end`, and their log-probs.

    Prompts are padded on the right, where causal attention does not look.
    """
    turns: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
    for _ in range(most):
        texts = [[*prompt, *ids] for prompt, (ids, _) in zip(prompts, turns, strict=True)]
        longest = max(len(text) for text in texts)
        padded = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
        last = torch.tensor([len(text) - 1 for text in texts])
        logits = model(input_ids=padded, use_cache=False).logits[torch.arange(len(texts)), last]
        logp = logits.double().log_softmax(-1)
        drawn = torch.multinomial(logp.exp(), 1, generator=generator)[:, 0].tolist()
        for row, ((ids, logprobs), token) in enumerate(zip(turns, drawn, strict=True)):
            if end not in ids:
                ids.append(token)
                logprobs.append(float(logp[row, token]))
    return turns


def logprobs_of(model: Any, rollout: Rollout) -> Tensor:
    """log p of every token after the first, given all before it. [n - 1]"""
    ids = torch.tensor(rollout.ids)
    logits = model(input_ids=ids[None, :-1], use_cache=False).logits[0]
    return torch.as_tensor(logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0])


# -- the world ---------------------------------------------------------------------------------------------------


class DigitWorld:
    """A shell that counts digits. The file they are kept in is read from outside the sandbox."""

    prompt = b"Write digits.\n"

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def start(self) -> bytes:
        """The first words of the world."""
        await self.sandbox.start()
        return self.prompt

    async def step(self, text: bytes) -> bytes:
        """Run one turn of the policy; what the shell printed."""
        line = shlex.quote(text.replace(b"\0", b"").decode(errors="replace"))
        result = await self.sandbox.run(f"printf %s {line} | tr -cd 0-9 | tee -a digits | wc -c", timeout_s=10)
        return result.output.encode()[:32]

    async def score(self, most: int) -> float:
        """Digits kept, as a share of the `most` that could have been written."""
        kept = read_bytes(self.sandbox.workspace, "digits", most=4096) or b""
        return len(kept) / most

    async def close(self) -> None:
        """Free the sandbox."""
        await self.sandbox.close()


async def play_group(
    model: Any, worlds: Sequence[DigitWorld], *, turns: int, tokens: int, generator: torch.Generator
) -> list[Rollout]:
    """One rollout per world: act, see, go on. One that the machinery loses goes without a reward, the others go on."""
    rollouts = [Rollout() for _ in worlds]
    live = dict(zip(worlds, rollouts, strict=True))

    async def each(what: Callable[[DigitWorld, Rollout], Awaitable[None]]) -> None:
        async def guarded(world: DigitWorld, rollout: Rollout) -> None:
            try:
                await what(world, rollout)
            except Exception as error:  # the border to the machinery: whatever breaks there is not the policy's doing
                print(f"lost a rollout: {error}")
                del live[world]

        await asyncio.gather(*(guarded(world, rollout) for world, rollout in list(live.items())))

    async def begin(world: DigitWorld, rollout: Rollout) -> None:
        rollout.observe(list(await world.start()))

    async def answer(world: DigitWorld, rollout: Rollout) -> None:
        rollout.observe(list(await world.step(bytes(i for i in rollout.turn if i < BYTES))))

    async def score(world: DigitWorld, rollout: Rollout) -> None:
        rollout.reward = await world.score(turns * tokens)

    try:
        await each(begin)
        for _ in range(turns):
            prompts = [rollout.ids for rollout in live.values()]
            drawn = sample(model, prompts, most=tokens, end=END, generator=generator) if prompts else []
            for rollout, (ids, logprobs) in zip(live.values(), drawn, strict=True):
                rollout.act(ids, logprobs)
            await each(answer)
        await each(score)
    finally:
        await asyncio.gather(*(world.close() for world in worlds))
    return rollouts


# -- credit ------------------------------------------------------------------------------------------------------


def grpo(rewards: Sequence[float], eps: float = 1e-6) -> list[float]:
    """(R - mean) / (sample standard deviation + eps) within one group."""
    if len(rewards) < 2:
        return [0.0 for _ in rewards]
    mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
    return [(reward - mean) / (deviation + eps) for reward in rewards]


def assign(groups: Iterable[Sequence[Rollout]]) -> list[tuple[Rollout, float]]:
    """The rollouts to train on, with their advantages."""
    out: list[tuple[Rollout, float]] = []
    for group in groups:
        scored = [(rollout, rollout.reward) for rollout in group if rollout.reward is not None]
        if len({reward for _, reward in scored}) < 2:
            continue
        advantages = grpo([reward for _, reward in scored])
        out += [(rollout, a) for (rollout, _), a in zip(scored, advantages, strict=True)]
    return out


# -- loss and update ---------------------------------------------------------------------------------------------


def ppo_loss(
    new: Tensor, old: Tensor, advantage: float, *, eps_low: float = 0.2, eps_high: float = 0.28, dual: float = 3.0
) -> Tensor:
    """Sum over tokens of the clipped loss."""
    ratio = (new - old).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - eps_low, 1 + eps_high) * advantage)
    if advantage < 0:
        gain = gain.clamp(min=dual * advantage)
    return -gain.sum()


def backward(model: Any, batch: Sequence[tuple[Rollout, float]]) -> float:
    """Add the gradient of the mean loss over all sampled tokens, one rollout at a time; returns the loss."""
    denominator = sum(sum(rollout.sampled) for rollout, _ in batch)
    total = 0.0
    for rollout, advantage in batch:
        mine = torch.tensor(rollout.sampled[1:])
        old = torch.tensor(rollout.logprobs[1:])[mine]
        loss = ppo_loss(logprobs_of(model, rollout)[mine], old, advantage) / denominator
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total


def update(model: Any, optimiser: torch.optim.Optimizer, batch: Sequence[tuple[Rollout, float]]) -> float:
    """One step on one batch; returns the loss."""
    optimiser.zero_grad()
    loss = backward(model, batch)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    return loss


# -- the loop ----------------------------------------------------------------------------------------------------


async def train(
    *, updates: int, groups: int = 2, group_size: int = 8, turns: int = 2, tokens: int = 8, lr: float = 1e-2,
    seed: int = 0, make_sandbox: Callable[[], Sandbox] = BubblewrapSandbox,
) -> list[float]:
    """Mean reward of each update."""
    model, generator = tiny_model(seed), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    history: list[float] = []
    for number in range(updates):
        played = [
            await play_group(
                model, [DigitWorld(make_sandbox()) for _ in range(group_size)], turns=turns, tokens=tokens,
                generator=generator,
            )
            for _ in range(groups)
        ]
        rewards = [rollout.reward for group in played for rollout in group if rollout.reward is not None]
        history.append(statistics.fmean(rewards) if rewards else 0.0)
        batch = assign(played)
        loss = update(model, optimiser, batch) if batch else 0.0
        print(f"update {number}: reward {history[-1]:.3f}, loss {loss:+.4f}, {len(batch)} rollouts trained")
    return history


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="GRPO on a real shell, in one file.")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    missing = BubblewrapSandbox.available()
    if missing:
        print(missing)
        return 1
    asyncio.run(train(updates=chosen.updates, seed=chosen.seed))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
