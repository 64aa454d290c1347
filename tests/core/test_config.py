"""Overrides by type, errors that name key, got and expected, named objects, and the round trip through TOML."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.config import apply, did_you_mean, flatten, read_sets, read_toml, to_toml, unset
from treadle.core.errors import ConfigError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Rule(Protocol):
    def __call__(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo:
    std: bool = True

    def __call__(self) -> float:
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rloo:
    def __call__(self) -> float:
        return 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    lr: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.95)
    warmup: int = 0
    schedule: Literal["constant", "linear"] = "constant"

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise ValueError(f"lr: got {self.lr}, expected > 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    low: int = 0
    high: int = 10

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low {self.low} and high {self.high}: expected low <= high")


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    name: str = "run"
    seed: int | None = None
    learner: Learner = Learner()
    reach: Range = Range()
    extra: Range | None = None
    rule: Rule = Grpo()
    colour: Colour = Colour.RED
    folder: Path = Path("runs")
    layers: tuple[int, ...] = ()
    fast: bool = False
    mix: Mapping[str, float] = field(default_factory=lambda: {"easy": 1.0})
    either: int | str = 0


NAMES = {Rule: {"grpo": Grpo, "rloo": Rloo}}


def test_a_text_is_read_by_the_type_of_its_field() -> None:
    got = apply(Whole(), {
        "learner.lr": "3e-5", "learner.betas": "0.8,0.9", "learner.schedule": "linear", "seed": "7", "colour": "blue",
        "folder": "/tmp/x", "layers": "[1, 2]", "fast": "true", "learner.warmup": "1e3", "name": "5",
    })  # fmt: skip
    assert got.learner == Learner(lr=3e-5, betas=(0.8, 0.9), schedule="linear", warmup=1000)
    assert (got.seed, got.colour, got.folder, got.layers, got.fast) == (7, Colour.BLUE, Path("/tmp/x"), (1, 2), True)
    assert got.name == "5"


def test_what_nobody_sets_is_the_default_of_its_field_whatever_the_config_holds() -> None:
    held = Whole(learner=Learner(lr=0.5), extra=Range(low=3), rule=Rloo(), seed=9)
    assert unset(held, "learner.lr") == {"learner.lr": 1e-5}
    assert unset(held, "reach") == {"reach.low": 0, "reach.high": 10}
    assert unset(held, "extra") == {"extra": None}
    assert unset(held, "extra.low") == {"extra.low": 0}
    assert unset(held, "rule", names=NAMES) == {"rule": "grpo", "rule.std": True}
    for key in ("learner.gone", "gone.lr", "name.lr"):
        with pytest.raises(ConfigError, match=f"{key}: it has no default"):
            unset(held, key)


def test_no_override_gives_the_same_object() -> None:
    config = Whole()
    assert apply(config, {}) is config


def test_nested_mappings_are_dotted_keys() -> None:
    assert apply(Whole(), {"learner": {"lr": 1, "warmup": 2}}) == apply(Whole(), {"learner.lr": 1, "learner.warmup": 2})


def test_a_union_takes_none_first_and_str_last() -> None:
    assert apply(Whole(seed=3), {"seed": "none"}).seed is None
    assert apply(Whole(), {"either": "4"}).either == 4
    assert apply(Whole(), {"either": "four"}).either == "four"


def test_of_keys_with_the_same_last_part_the_shortest_is_suggested() -> None:
    assert did_you_mean("lr", ["coldstart.learner.lr", "learner.lr", "lrx"]) == "; did you mean 'learner.lr'?"
    assert did_you_mean("zzz", ["learner.lr"]) == ""


def test_values_that_are_only_valid_together_are_set_together() -> None:
    assert apply(Whole(), {"reach.low": 20, "reach.high": 30}).reach == Range(low=20, high=30)


def test_contradicting_values_name_both_keys() -> None:
    with pytest.raises(ConfigError, match=r"reach: low 20 and high 10"):
        apply(Whole(), {"reach.low": 20})


def test_a_key_of_another_name_says_which_name_has_it() -> None:
    with pytest.raises(ConfigError, match=r"'rule\.std': rule is \w+, which has no std; set rule=grpo, or leave"):
        apply(Whole(), {"rule": "rloo", "rule.std": True}, names=NAMES)


def test_a_key_that_is_nearly_right_is_not_taken_for_that_of_another_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'rule\.sdt'; did you mean 'rule\.std'\?"):
        apply(Whole(), {"rule": "grpo", "rule.sdt": True}, names=NAMES)


def test_a_value_for_an_absent_section_is_answered_with_its_keys() -> None:
    with pytest.raises(ConfigError, match=r"extra: got 'low' \(str\), expected none, or .* extra\.low, extra\.high"):
        apply(Whole(), {"extra": "low"})
    with pytest.raises(ConfigError, match=r"unknown key 'extra\.hihg'; did you mean 'extra\.high'\?"):
        apply(Whole(), {"extra.hihg": 3})


def test_an_absent_section_starts_from_its_defaults() -> None:
    assert apply(Whole(), {"extra.high": "3"}).extra == Range(high=3)


def test_an_optional_section_can_be_taken_away() -> None:
    assert apply(Whole(extra=Range()), {"extra": "none"}).extra is None


def test_a_mapping_takes_single_entries() -> None:
    assert apply(Whole(), {"mix.hard": "0.5"}).mix == {"easy": 1.0, "hard": 0.5}


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("learner.lrr", "did you mean 'learner.lr'"),
        ("lr", "did you mean 'learner.lr'"),
        ("lerner.lr", "did you mean 'learner.lr'"),
        ("zzz", "keys: colour, either, extra"),
        ("learner.nothing", "keys of learner: betas, lr, schedule, warmup"),
    ],
)
def test_an_unknown_key_gets_a_suggestion_and_the_valid_keys(key: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint) as caught:
        apply(Whole(), {key: "1"})
    assert "\n" not in str(caught.value)
    assert key in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("learner.lr", "fast", "learner.lr: got 'fast' (str), expected float"),
        ("learner.warmup", 1.5, "learner.warmup: got 1.5 (float), expected int"),
        ("learner.warmup", "1.5", "learner.warmup: got '1.5' (str), expected int"),
        ("learner.warmup", True, "learner.warmup: got True (bool), expected int"),
        ("learner.lr", "nan", "expected float"),
        ("learner.schedule", "cosine", "expected one of constant, linear"),
        ("learner.betas", "0.9", "expected tuple[float, float]"),
        ("colour", "green", "expected one of red, blue"),
        ("seed", "x", "expected int or none"),
        ("fast", "maybe", "expected bool"),
        ("name", 3, "expected str"),
        ("learner", "big", "expected a section with keys lr, betas"),
        ("name.x", "1", "name is a str, not a section"),
        ("layers", "1,b", "expected tuple[int, ...]"),
        ("learner.lr", "-1", "learner: lr: got -1.0, expected > 0"),
    ],
)
def test_a_wrong_value_names_the_key_what_it_got_and_what_it_expected(key: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply(Whole(), {key: value})
    assert expected in str(caught.value)


def test_an_object_is_chosen_by_name_and_its_fields_lie_below() -> None:
    assert apply(Whole(), {"rule": "rloo"}, names=NAMES).rule == Rloo()
    assert apply(Whole(), {"rule.std": "false"}, names=NAMES).rule == Grpo(std=False)
    assert apply(Whole(rule=Rloo()), {"rule": "grpo", "rule.std": "false"}, names=NAMES).rule == Grpo(std=False)


def test_an_object_itself_is_taken_as_it_is() -> None:
    rule = Rloo()
    assert apply(Whole(), {"rule": rule}, names=NAMES).rule is rule


def test_an_unknown_name_gets_a_suggestion_and_the_names() -> None:
    with pytest.raises(ConfigError, match=r"rule: unknown name 'gropo'; did you mean 'grpo'\? \(names: grpo, rloo\)"):
        apply(Whole(), {"rule": "gropo"}, names=NAMES)


def test_objects_are_printed_by_name_the_same_in_every_process() -> None:
    @dataclass(frozen=True)
    class Holder:
        rule: object
        kind: object = Grpo
        made: object = None

    class Named:
        name = "sum"

        def __call__(self) -> float:
            return 0.0

    assert flatten(Holder(rule=Named(), made=object()))["rule"] == "sum"
    assert flatten(Holder(rule=Named()))["kind"] == "Grpo"
    assert flatten(Holder(rule=Named(), made=object()))["made"] == "object"
    factories: dict[object, dict[str, Callable[[], object]]] = {object: {"sum": lambda: Named()}}
    assert flatten(Holder(rule=Named()), names=factories)["rule"] == "sum"


def test_flatten_gives_plain_values_under_dotted_keys() -> None:
    flat = flatten(Whole(), names=NAMES)
    assert flat["learner.lr"] == 1e-5
    assert flat["learner.betas"] == [0.9, 0.95]
    assert (flat["colour"], flat["folder"], flat["seed"], flat["mix.easy"]) == ("red", "runs", None, 1.0)
    assert (flat["rule"], flat["rule.std"]) == ("grpo", True)


@given(
    lr=st.floats(min_value=1e-9, max_value=1.0), seed=st.none() | st.integers(0, 2**40), fast=st.booleans(),
    name=st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])),
    rule=st.sampled_from([Grpo(std=False), Rloo()]),
    layers=st.lists(st.integers(-5, 5)).map(tuple), colour=st.sampled_from(list(Colour)),
)  # fmt: skip
def test_for_all_configs_the_printed_toml_gives_the_config_back(
    lr: float, seed: int | None, fast: bool, name: str, rule: Rule, layers: tuple[int, ...], colour: Colour
) -> None:
    import tomllib

    config = Whole(
        extra=None if seed is None else Range(high=20), name=name, seed=seed, learner=Learner(lr=lr), rule=rule,
        colour=colour, layers=layers, fast=fast,
    )  # fmt: skip
    printed = tomllib.loads(to_toml(config, names=NAMES))
    assert apply(Whole(), printed, names=NAMES) == config


def test_toml_files_become_overrides(tmp_path: Path) -> None:
    file = tmp_path / "over.toml"
    file.write_text("seed = 4\n[learner]\nlr = 1\nbetas = [0.5, 0.6]\n")
    assert apply(Whole(), read_toml(file)) == Whole(seed=4, learner=Learner(lr=1.0, betas=(0.5, 0.6)))


def test_a_missing_or_broken_toml_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(ConfigError, match=r"bad\.toml is not TOML"):
        read_toml(tmp_path / "bad.toml")


def test_sets_split_at_the_first_equals_sign() -> None:
    assert read_sets(["a.b=c=d", " x = 1 ", "x=2"]) == {"a.b": "c=d", "x": "2"}


@pytest.mark.parametrize("text", ["lr", "=3", ""])
def test_a_set_without_key_and_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected key=value"):
        read_sets([text])


def test_the_module_pulls_in_nothing_heavy() -> None:
    code = "import sys, treadle.core.config; print(sorted({'torch','numpy','pydantic','asyncio'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"
