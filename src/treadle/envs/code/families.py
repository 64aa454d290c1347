"""Kinds of functions to write: what is asked for, a solution, and how its inputs are drawn.

Every function is called `f`, takes one argument and gives a JSON value. A family draws its own parameters, so that its
tasks differ. What a solution should give is computed by the same source that is the scripted solution.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Value = int | str | list["Value"]
_LETTERS = "abcdeimnorst"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One function to write."""

    says: str
    """What `f` returns, as the end of a sentence."""
    argument: str
    """Name of the argument, as the sentence uses it."""
    source: str
    """Body of a solution."""
    draw: Callable[[random.Random], Value]
    """An input."""


def _numbers(rng: random.Random) -> Value:
    return [rng.randint(-20, 40) for _ in range(rng.randint(4, 12))]


def _sentence(rng: random.Random) -> Value:
    return " ".join("".join(rng.choices(_LETTERS, k=rng.randint(1, 7))) for _ in range(rng.randint(1, 8)))


def _runs(rng: random.Random) -> Value:
    return "".join(rng.choice(_LETTERS) * rng.randint(1, 4) for _ in range(rng.randint(1, 8)))


def _sum_multiples(rng: random.Random) -> Draft:
    k = rng.randint(2, 9)
    return Draft(
        says=f"the sum of the numbers in the list xs that can be divided by {k}", argument="xs", draw=_numbers,
        source=f"return sum(x for x in xs if x % {k} == 0)",
    )


def _count_letter(rng: random.Random) -> Draft:
    letter = rng.choice(_LETTERS)
    return Draft(
        says=f"how many words of the string text contain the letter {letter}", argument="text", draw=_sentence,
        source=f"return sum('{letter}' in word for word in text.split())",
    )


def _nth_largest(rng: random.Random) -> Draft:
    n = rng.randint(2, 4)
    return Draft(
        says=f"number {n} of the list xs when it is sorted from the largest to the smallest, counting from 1",
        argument="xs", draw=_numbers, source=f"return sorted(xs, reverse=True)[{n - 1}]",
    )


def _words_backwards(rng: random.Random) -> Draft:
    least = rng.randint(2, 5)
    return Draft(
        says=f"the string text with each word of at least {least} letters written backwards", argument="text",
        draw=_sentence,
        source=f"return ' '.join(word[::-1] if len(word) >= {least} else word for word in text.split())",
    )


def _run_lengths(rng: random.Random) -> Draft:
    least = rng.randint(1, 3)
    return Draft(
        says=f"the lengths of the runs of equal letters in the string text that are at least {least} long, in order, "
        "as a list",
        argument="text", draw=_runs,
        source="from itertools import groupby\n"
        f"return [n for n in (len(list(run)) for _, run in groupby(text)) if n >= {least}]",
    )


def _rotate(rng: random.Random) -> Draft:
    k = rng.randint(1, 5)
    return Draft(
        says=f"the list xs rotated to the left by {k} places", argument="xs", draw=_numbers,
        source=f"k = {k} % len(xs)\nreturn xs[k:] + xs[:k]",
    )


def _first_repeated(rng: random.Random) -> Draft:
    default = rng.choice([-1, -100, 0])
    return Draft(
        says=f"the first number of the list xs that stood in it before, or {default} when there is none",
        argument="xs", draw=lambda draws: [draws.randint(1, 9) for _ in range(draws.randint(1, 7))],
        source=f"seen = set()\nfor x in xs:\n    if x in seen:\n        return x\n    seen.add(x)\nreturn {default}",
    )


def _above_mean(rng: random.Random) -> Draft:
    more = rng.randint(0, 6)
    return Draft(
        says=f"how many numbers of the list xs are larger than its mean plus {more}", argument="xs", draw=_numbers,
        source=f"return sum(x > sum(xs) / len(xs) + {more} for x in xs)",
    )


FAMILIES: Mapping[str, Callable[[random.Random], Draft]] = {
    "sum-multiples": _sum_multiples, "count-letter": _count_letter, "nth-largest": _nth_largest,
    "words-backwards": _words_backwards, "run-lengths": _run_lengths, "rotate": _rotate,
    "first-repeated": _first_repeated, "above-mean": _above_mean,
}
"""Name to what draws a function."""


def solution(draft: Draft) -> str:
    """The source of a solution, whole."""
    body = "\n".join(f"    {line}" for line in draft.source.split("\n"))
    return f"def f({draft.argument}):\n{body}"


def expected(draft: Draft, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
    """What a right function gives for these inputs."""
    scope: dict[str, Callable[[Value], Value]] = {}
    exec(compile(solution(draft), f"<{draft.argument}>", "exec"), scope)  # our own source, from above
    return tuple(scope["f"](given) for given in inputs)
