"""TRL's side of `closed_loop`: its `GRPOTrainer` with an `environment_factory`, in a virtual environment of its own.

What is set apart from what the comparison needs (equal loss, equal optimiser, equal tokens) is set in TRL's favour: no
activation checkpointing (on by default), no logging, nothing saved, no reference model, generation in one batch of all
rollouts.

What is patched, since a model that cannot call tools would end every rollout with its first turn:

- `grpo_trainer.parse_response`, which reads a completion: every completion is read as one call of the tool with its
  text as the argument. The original decodes the ids too, and then searches the text: it does more.
- No end token: an id that does not exist is given to `generate` (`generation_kwargs`, which is TRL's own option) and to
  `GRPOTrainer.eos_token_ids`, which cuts completions. Comparisons of ids cost the same with any id.
- The tokenizer gets a `response_template`, which nothing reads once `parse_response` is replaced; TRL asks for one
  because it does not know the model's template. The benchmark has added to that template how calls are written, which
  TRL asks for as well, and which no prompt of this world has in it.

How many turns there are is TRL's own option, `max_tool_calling_iterations`.

    PEER/bin/python -m bench.closed_trl     answers on the wire, see `closed_wire`
"""

from __future__ import annotations

import importlib
import resource
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from bench.closed_wire import Facts, Wire
from bench.closed_world import WARM_TOKENS, Scenario, Work, answered, digests, worth

MOST_COMPLETION = 900
"""`max_completion_length` holds for all turns and answers of a rollout together; tokens of a turn are set apart."""
SHORT = 8
"""Tokens of the shape that a sweep warms up on."""


class Room:
    """The world as TRL wants it: `reset`, and every other public method is a tool."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    def reset(self, **row: object) -> None:
        """Nothing is added to the task's own prompt."""

    def look(self, said: str) -> str:
        """Look around in the room.

        Args:
            said: What is said meanwhile.
        """
        return answered(self._scenario.tool_s)


def scored(completions: Sequence[Sequence[Facts]], **_: object) -> list[float]:
    """The reward function: what the last turn is worth."""
    return [worth(turns[-1]["content"]) for turns in completions]


def read_as_call(tokenizer: Any, ids: Sequence[int], prefix: object = None, tools: object = None) -> Facts:
    """Stands in for TRL's `parse_response`: a completion is a call."""
    text = tokenizer.decode(ids, skip_special_tokens=True)
    call = {"type": "function", "function": {"name": "look", "arguments": {"said": text}}}
    return {"role": "assistant", "content": text, "tool_calls": [call]}


class Meter:
    """What one update did, by TRL's own counts."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.generate_s = 0.0
        self.facts: Facts = {}

    def around(self, score: Any, inputs: Any) -> Any:
        """TRL's `_generate_and_score_completions`, timed."""
        begun = time.perf_counter()
        out = score(inputs)
        self.generate_s = time.perf_counter() - begun
        said = int(out["completion_mask"].sum())
        own = int(out["num_items_in_batch"])
        masks = out["prompt_mask"][:: self._size].bool()
        prompts = [ids[mask].tolist() for ids, mask in zip(out["prompt_ids"][:: self._size], masks, strict=True)]
        self.facts = {
            "trained_tokens": own, "sampled_tokens": own, "observed_tokens": said - own, "prompts": digests(prompts),
            "prompt_tokens": sorted(map(len, prompts)),
        }
        return out


class Trl:
    """Makes trainers and runs them."""

    def __init__(self, work: Work, wire: Wire) -> None:
        self.work, self.wire = work, wire
        self.torch = importlib.import_module("torch")
        self.transformers = importlib.import_module("transformers")
        self.trl = importlib.import_module("trl")
        inside: Any = importlib.import_module("trl.trainer.grpo_trainer")
        inside.parse_response = read_as_call

    def trainer(self, scenario: Scenario, *, batch: int, updates: int, scratch: str, step_end: Any) -> Any:
        """A trainer, ready to train so many updates; `step_end` is called after each of them."""
        work = self.work
        tokenizer = self.transformers.AutoTokenizer.from_pretrained(work.folder, padding_side="left")
        tokenizer.response_template = {"defaults": {"role": "assistant"}, "fields": {}}
        never = len(tokenizer)
        arguments = self.trl.GRPOConfig(
            output_dir=scratch, use_cpu=True, bf16=False, fp16=False, activation_checkpointing=False, seed=0,
            per_device_train_batch_size=batch, gradient_accumulation_steps=work.rows // batch, max_steps=updates,
            num_generations=work.size, num_iterations=1, shuffle_dataset=False, temperature=1.0,
            max_completion_length=MOST_COMPLETION, max_tool_calling_iterations=scenario.calls,
            generation_kwargs={"max_new_tokens": work.tokens, "eos_token_id": never},
            beta=0.0, epsilon=0.2, epsilon_high=0.28, loss_type="dapo", scale_rewards="group",
            optim="adamw_torch_fused", learning_rate=work.lr, lr_scheduler_type="constant", weight_decay=0.0,
            adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8, max_grad_norm=1.0,
            save_strategy="no", logging_strategy="no", eval_strategy="no", report_to=[], disable_tqdm=True,
            dataloader_pin_memory=False, model_init_kwargs={"dtype": "float32"},
        )
        rows = [{"prompt": [{"role": "user", "content": prompt}]} for prompt in work.prompts]
        made = self.trl.GRPOTrainer(
            model=work.folder, args=arguments, processing_class=tokenizer, reward_funcs=scored,
            train_dataset=importlib.import_module("datasets").Dataset.from_list(rows),
            environment_factory=lambda: Room(scenario), callbacks=[self._callback(step_end)],
        )
        made.eos_token_ids = [never]
        return made

    def _callback(self, step_end: Any) -> Any:
        def on_step_end(_self: Any, _args: Any, _state: Any, control: Any, **_: Any) -> Any:
            if not step_end():
                control.should_training_stop = True
            return control

        return type("Pacer", (self.transformers.TrainerCallback,), {"on_step_end": on_step_end})()

    def play(self, scenario: Scenario, *, batch: int, updates: int) -> None:
        """A warm-up update, then as many as are asked for; seconds go from the question to the end of the step."""
        meter, begun = Meter(self.work.size), time.perf_counter()

        def step_end() -> bool:
            nonlocal begun
            seconds = time.perf_counter() - begun
            self.wire.say(
                seconds=seconds, generate_s=meter.generate_s, update_s=seconds - meter.generate_s,
                peak_rss_gb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, **meter.facts,
            )
            asked = self.wire.hear()["do"]
            trainer.generation_config.max_new_tokens = self.work.tokens
            begun = time.perf_counter()
            return bool(asked == "update")

        with tempfile.TemporaryDirectory(prefix="treadle-trl-") as scratch:
            trainer = self.trainer(scenario, batch=batch, updates=updates, scratch=scratch, step_end=step_end)
            trainer.generation_config.max_new_tokens = WARM_TOKENS
            trainer._generate_and_score_completions = partial(meter.around, trainer._generate_and_score_completions)
            trainer.train()

    def sweep(self, shapes: Sequence[tuple[int, int]], batches: Sequence[int]) -> Facts:
        """Seconds of the update alone, on random tokens, by shape (prompt, completion) and batch size.

        The batch size is of no account for generation, which takes all rollouts at once.
        """
        taken: dict[str, dict[str, float]] = {f"{p}+{c}": {} for p, c in shapes}
        for batch in batches:
            self._sweep_one([(SHORT, SHORT), *shapes], batch, taken)
        return taken

    def _sweep_one(self, shapes: Sequence[tuple[int, int]], batch: int, taken: dict[str, dict[str, float]]) -> None:
        turn, begun, made_s = iter(shapes), 0.0, 0.0
        shape = shapes[0]

        def generated(_inputs: Any) -> Any:
            nonlocal shape, made_s
            entered = time.perf_counter()
            shape = next(turn)
            out = self._random(*shape)
            made_s = time.perf_counter() - entered
            return out

        def step_end() -> bool:
            nonlocal begun
            key = f"{shape[0]}+{shape[1]}"
            if key in taken:
                taken[key][str(batch)] = time.perf_counter() - begun - made_s
            begun = time.perf_counter()
            return True

        with tempfile.TemporaryDirectory(prefix="treadle-trl-") as scratch:
            scenario = Scenario(name="sweep", turns=1)
            trainer = self.trainer(scenario, batch=batch, updates=len(shapes), scratch=scratch, step_end=step_end)
            trainer._generate_and_score_completions = generated
            trainer.train()

    def _random(self, prompt: int, completion: int) -> Facts:
        """What TRL's generation hands to its update, of this shape."""
        torch, rows = self.torch, self.work.rows
        ids = torch.randint(100, 10_000, (rows, prompt + completion))
        ones = torch.ones_like(ids)
        return {
            "prompt_ids": ids[:, :prompt], "prompt_mask": ones[:, :prompt], "completion_ids": ids[:, prompt:],
            "completion_mask": ones[:, prompt:], "tool_mask": ones[:, prompt:],
            "advantages": torch.linspace(-1, 1, rows), "num_items_in_batch": torch.tensor(rows * completion),
        }


def main() -> None:
    """Answer until told to quit."""
    wire = Wire()
    side = Trl(Work.of(wire.hear()), wire)
    wire.say(
        trl=side.trl.__version__, transformers=side.transformers.__version__, torch=side.torch.__version__,
        threads=side.torch.get_num_threads(),
    )
    while (asked := wire.hear())["do"] != "quit":
        if asked["do"] == "sweep":
            wire.say(seconds=side.sweep([(p, c) for p, c in asked["shapes"]], asked["batches"]))
            continue
        scenario = Scenario(name=asked["name"], turns=asked["turns"], tool_s=asked["tool_s"])
        side.play(scenario, batch=asked["batch"], updates=asked["updates"])
        wire.say(ended=scenario.name)


if __name__ == "__main__":
    main()
