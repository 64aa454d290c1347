"""One closed loop beside TRL's `GRPOTrainer`: generate, play, score, update, new weights, on the same work.

    this process -- wire --> bench.closed_treadle   (this interpreter)
                 -- wire --> bench.closed_trl       (a virtual environment of its own, made on request)

Model, weights, prompts, tool, group size, tokens of a turn, loss and optimiser are the same; both sides train every
layer, and both take their limit of tokens for the end of a turn, so that they train equally many tokens. That is
asserted from both sides' own counts, as are equal prompts. Runs alternate, one update of the one and one of the other,
and the other waits meanwhile. TRL's batch size is swept for each length of rollouts, and its best is taken.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.closed_wire import ROOT, Facts, Side, environment, note
from bench.closed_world import ANSWER, SCENARIOS, Scenario, Work
from bench.machine import machine, steal_s
from bench.peer_home import python_of

if TYPE_CHECKING:
    from treadle.rendering.renderer import Renderer

LINE = "one closed loop beside TRL's GRPOTrainer: single-turn, three turns, three turns with a slow tool"
PHASES = ("seconds", "generate_s", "update_s")
"""What is timed of an update: the whole, up to the scored rollouts, and the rest."""
ANSWER_S = 3600.0
"""The longest that a side may take for one answer."""
CALL_PART = "{% if message.get('tool_calls') %}{{ message['tool_calls'] | tojson }}{% endif %}"
"""What TRL's copy of the template says of calls: TRL refuses templates that leave them out. No prompt here has any."""


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("--with-peers", action="store_true", help="install TRL into its own environment if it lacks")
    parser.add_argument("--model", default="smollm2-135m", help="model (default smollm2-135m)")
    parser.add_argument("--groups", type=int, default=4, help="groups of an update (default 4)")
    parser.add_argument("--size", type=int, default=8, help="rollouts of a group (default 8)")
    parser.add_argument("--prompt", type=int, default=145, help="tokens of a prompt (default 145)")
    parser.add_argument("--tokens", type=int, default=62, help="tokens of a turn (default 62)")
    parser.add_argument("--lr", type=float, default=1e-6, help="learning rate of AdamW (default 1e-6)")
    parser.add_argument("--batches", default="4,8,16", help="TRL's batch sizes to try (default 4,8,16)")
    parser.add_argument("--repeats", type=int, default=2, help="pairs of updates behind the warm-up (default 2)")
    parser.add_argument(
        "--scenarios", default=",".join(s.name for s in SCENARIOS), help="which, with commas (default all)"
    )


def run(args: argparse.Namespace) -> dict[str, object]:
    """The record."""
    stolen = steal_s()
    scenarios = chosen(args.scenarios)
    batches = sizes(args.batches, rows=args.groups * args.size)
    python, missing = python_of("trl", create=args.with_peers)
    with tempfile.TemporaryDirectory(prefix="treadle-closed-loop-") as scratch, ExitStack() as stack:
        work, theirs, observed = prepared(args, Path(scratch))
        us = stack.enter_context(started("treadle", sys.executable, work))
        them = None if python is None else stack.enter_context(started("trl", str(python), theirs))
        versions = {} if them is None else them.ask("work", **theirs.facts())
        us.ask("work", **work.facts())
        swept = {} if them is None else sweep(them, work, scenarios, observed=observed, batches=batches, args=args)
        pairs = {
            scenario.name: alternated(us, them, scenario, batch=best(swept, scenario), repeats=args.repeats)
            for scenario in scenarios
        }
    return {
        **{s.name: compared(work, s, pairs[s.name], missing=missing) for s in scenarios},
        "equal_trained_tokens": f"missing: {missing}" if missing else True,
        "trl": versions or f"missing: {missing}",
        "trl_batch": {str(turns): {"update_s": tried, "taken": fastest(tried)} for turns, tried in swept.items()},
        "rollouts": work.rows, "groups": work.groups, "prompt_tokens": args.prompt, "turn_tokens": work.tokens,
        "observed_tokens_per_answer": observed, "lr": work.lr, "repeats": args.repeats, "dtype": "float32",
        "threads": os.environ.get("OMP_NUM_THREADS", "one per core"), "steal_s": steal_s() - stolen, **machine(),
    }


# -- what is played -----------------------------------------------------------------------------------------------


def chosen(names: str) -> list[Scenario]:
    """The scenarios of these names."""
    known = {scenario.name: scenario for scenario in SCENARIOS}
    if unknown := [name for name in names.split(",") if name not in known]:
        raise SystemExit(f"--scenarios: got {', '.join(unknown)}, expected some of {', '.join(known)}")
    return [known[name] for name in names.split(",")]


def sizes(text: str, *, rows: int) -> list[int]:
    """Batch sizes, each of which divides the rollouts of an update: TRL trains on equal batches."""
    found = [int(part) for part in text.split(",")]
    if odd := [size for size in found if size < 1 or rows % size]:
        raise SystemExit(f"--batches: got {odd}, expected divisors of the {rows} rollouts of an update")
    return found


def prepared(args: argparse.Namespace, scratch: Path) -> tuple[Work, Work, int]:
    """The work of both sides, which differ in the checkpoint's folder alone, and tokens of the tool's answer."""
    from treadle import PlainParser, ToolCall
    from treadle.core.messages import tool_result
    from treadle.models.source import resolve
    from treadle.rendering.renderer import Renderer

    folder = resolve(args.model)
    renderer = Renderer.load(folder, parser=PlainParser())
    work = Work(
        folder=str(folder), prompts=prompts(renderer, args.groups * (args.repeats + 1), tokens=args.prompt),
        groups=args.groups, size=args.size, tokens=args.tokens, lr=args.lr,
    )
    answer = [tool_result(ToolCall(name="look", arguments={}), ANSWER)]
    observed = len(renderer.bridge(answer, ended=False))
    return work, replace(work, folder=str(told_of_calls(folder, scratch / "model"))), observed


def prompts(renderer: Renderer, count: int, *, tokens: int) -> list[str]:
    """So many different prompts, each of exactly `tokens` tokens with all that the template adds."""
    from treadle import user

    made = []
    for number in range(count):
        text = f"You wake up in room {number} of an old house. Look around and say what you do."
        while (length := len(renderer.first([user(text)]))) < tokens:
            text += " now" if length % 3 else " and"
        if length != tokens:
            raise SystemExit(f"--prompt: got {tokens}, expected at least {length} tokens for this model")
        made.append(text)
    return made


def told_of_calls(folder: Path, target: Path) -> Path:
    """A copy of the checkpoint, by links, whose chat template also writes the calls of an assistant's turn."""
    from treadle.models.source import require_chat_template

    target.mkdir()
    for file in folder.iterdir():
        if file.name != "chat_template.jinja":
            (target / file.name).symlink_to(file.resolve())
    template = require_chat_template(folder)
    content = "message['content'] + '<|im_end|>'"
    if template.count(content) != 1:
        raise SystemExit("the model's chat template is not SmolLM2's: this benchmark does not know it")
    template = template.replace(content, f"message['content'] }}}}{CALL_PART}{{{{ '<|im_end|>'")
    (target / "chat_template.jinja").write_text(template, encoding="utf-8")
    return target


# -- the two sides ------------------------------------------------------------------------------------------------


def started(name: str, python: str, work: Work) -> Side:
    """A side's process."""
    paths = ROOT if name == "trl" else os.pathsep.join([ROOT, os.path.join(ROOT, "src")])
    return Side(
        name, [python, "-m", f"bench.closed_{name}"], limit_s=ANSWER_S,
        environment=environment(PYTHONPATH=paths, TRL_EXPERIMENTAL_SILENCE="1"),
    )


def sweep(
    them: Side, work: Work, scenarios: Sequence[Scenario], *, observed: int, batches: Sequence[int],
    args: argparse.Namespace,
) -> dict[int, dict[str, float]]:
    """By turns of a rollout: seconds of TRL's update alone, by batch size."""
    turns = sorted({scenario.turns for scenario in scenarios})
    shapes = [(args.prompt, n * work.tokens + (n - 1) * (observed - 1)) for n in turns]
    note(f"TRL's update at batch sizes {', '.join(map(str, batches))}")
    seconds = them.ask("sweep", shapes=shapes, batches=batches)["seconds"]
    return {n: seconds[f"{prompt}+{completion}"] for n, (prompt, completion) in zip(turns, shapes, strict=True)}


def fastest(tried: Mapping[str, float]) -> int:
    """The batch size that took the least."""
    return int(min(tried, key=lambda size: tried[size]))


def best(swept: Mapping[int, Mapping[str, float]], scenario: Scenario) -> int:
    """The batch size for rollouts of this length; 0 where there is nobody to take it."""
    return fastest(swept[scenario.turns]) if swept else 0


def alternated(
    us: Side, them: Side | None, scenario: Scenario, *, batch: int, repeats: int
) -> list[dict[str, Facts]]:
    """What each update said, in pairs. A warm-up comes first; who begins a pair alternates."""
    sides = [us] if them is None else [us, them]
    begin = {"name": scenario.name, "turns": scenario.turns, "tool_s": scenario.tool_s, "updates": repeats + 1}
    for side in sides:
        side.ask("begin", batch=batch, **begin)
    pairs = []
    for repeat in range(repeats):
        pair = {}
        for side in sides if repeat % 2 == 0 else sides[::-1]:
            pair[side.name] = side.ask("update")
            note(f"{scenario.name}: {side.name} took {pair[side.name]['seconds']:.1f} s")
        pairs.append(pair)
    for side in sides:
        side.ask("end")
    return pairs


# -- the figures --------------------------------------------------------------------------------------------------


def compared(
    work: Work, scenario: Scenario, pairs: Sequence[Mapping[str, Facts]], *, missing: str
) -> dict[str, object]:
    """The figures of a scenario. Raises SystemExit when the sides did not do the same work."""
    for pair in pairs:
        require_equal(work, scenario, pair)
    us = medians([pair["treadle"] for pair in pairs])
    if missing:
        return {"ratio_trl": f"missing: {missing}", "treadle": us, "trl": f"missing: {missing}"}
    them = medians([pair["trl"] for pair in pairs])
    return {
        "ratio_trl": them["seconds"] / us["seconds"],
        "ratio_generate": them["generate_s"] / us["generate_s"], "ratio_update": them["update_s"] / us["update_s"],
        "trained_tokens": work.trained(scenario), "treadle": us, "trl": them,
    }


def require_equal(work: Work, scenario: Scenario, pair: Mapping[str, Facts]) -> None:
    """Raise SystemExit unless every side of a pair trained the tokens that it should, on the same prompts."""
    for key, expected in (("trained_tokens", work.trained(scenario)), ("prompts", pair["treadle"]["prompts"])):
        for name, said in pair.items():
            if said[key] != expected:
                raise SystemExit(f"{scenario.name}: {key} of {name}: got {said[key]}, expected {expected}")


def medians(updates: Sequence[Facts]) -> dict[str, Any]:
    """Medians of the phases, with every run's seconds and the counts beside them."""
    return {
        **{phase: statistics.median(update[phase] for update in updates) for phase in PHASES},
        "runs_s": [update["seconds"] for update in updates],
        "observed_tokens": updates[0]["observed_tokens"], "trained_tokens": updates[0]["trained_tokens"],
        "peak_rss_gb": max(update["peak_rss_gb"] for update in updates),
    }


