"""Several named objects in one field: `filters=a,b`, with the fields of each below its name."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import ClassVar, Protocol

import pytest

from treadle.core.config import apply, flatten, to_toml
from treadle.core.errors import ConfigError


class Sieve(Protocol):
    name: ClassVar[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coarse:
    name: ClassVar[str] = "coarse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fine:
    name: ClassVar[str] = "fine"
    holes: int = 3

    def __post_init__(self) -> None:
        if self.holes < 1:
            raise ConfigError(f"fine.holes: got {self.holes}, expected >= 1")


class Own:
    name = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    sieves: tuple[Sieve, ...] = (Coarse(),)
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    inner: Inner = Inner()


NAMES = {Sieve: {"coarse": Coarse, "fine": Fine}}


def changed(*, before: Outer | None = None, **overrides: object) -> tuple[Sieve, ...]:
    keys = {f"inner.{key.replace('__', '.')}": value for key, value in overrides.items()}
    return apply(before or Outer(), keys, names=NAMES).inner.sieves


def test_names_are_read_in_their_order() -> None:
    assert changed(sieves="fine,coarse") == (Fine(), Coarse())
    assert changed(sieves=["fine"]) == (Fine(),)
    assert changed(sieves="") == changed(sieves=[]) == ()


def test_a_field_of_one_stands_below_its_name() -> None:
    assert changed(sieves="coarse,fine", sieves__fine__holes="5") == (Coarse(), Fine(holes=5))


def test_objects_are_taken_as_they_are_and_keep_their_place_when_their_names_come_back() -> None:
    own = Own()
    held = apply(Outer(), {"inner.sieves": (Fine(holes=9), own)}, names=NAMES)
    assert held.inner.sieves == (Fine(holes=9), own)
    assert changed(before=held, sieves="own,fine,coarse") == (own, Fine(holes=9), Coarse())


def test_other_keys_leave_them_alone() -> None:
    held = Outer(inner=Inner(sieves=(Fine(holes=2),)))
    assert apply(held, {"inner.sizes": "1,2"}, names=NAMES).inner == Inner(sieves=(Fine(holes=2),), sizes=(1, 2))


def test_what_is_printed_is_read_back() -> None:
    held = Outer(inner=Inner(sieves=(Fine(holes=7), Coarse())))
    assert flatten(held, names=NAMES) == {"inner.sieves": ["fine", "coarse"], "inner.sieves.fine.holes": 7,
                                          "inner.sizes": []}  # fmt: skip
    assert apply(Outer(), tomllib.loads(to_toml(held, names=NAMES)), names=NAMES) == held


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"sieves": "fin"}, r"inner\.sieves: unknown name 'fin'; did you mean 'fine'\? \(names: coarse, fine\)"),
        ({"sieves": "fine,fine"}, r"inner\.sieves: got 'fine,fine', expected each name once"),
        ({"sieves": 3}, r"inner\.sieves: got 3 \(int\), expected a list of names \(coarse, fine\)"),
        ({"sieves__fine__holes": 5}, r"unknown key 'inner\.sieves\.fine\.holes' \(inner\.sieves: coarse\)"),
        ({"sieves": "fine", "sieves__fine__hole": 5}, r"unknown key 'inner\.sieves\.fine\.hole'"),
        ({"sieves": "fine", "sieves__fine__holes": 0}, r"inner\.sieves\.fine\.holes: got 0, expected >= 1"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_key(overrides: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        changed(**overrides)
