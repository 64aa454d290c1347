"""The heap of a run: old objects are left alone while it lasts, new ones are collected as ever."""

import gc
import weakref

import pytest

from treadle.core.heap import YOUNG, settled


class Knot:
    """Holds itself."""

    def __init__(self):
        self.me = self


@pytest.fixture(autouse=True)
def thawed():
    gc.unfreeze()
    yield
    gc.unfreeze()


def tracked(thing):
    return any(found is thing for found in gc.get_objects())


def test_what_was_there_before_is_not_walked_over():
    old = Knot()
    with settled():
        assert not tracked(old)
    assert tracked(old)


def test_what_is_made_inside_is_collected():
    with settled():
        found = weakref.ref(Knot())
        gc.collect()
        assert found() is None


def test_the_outer_one_ends_it():
    with settled():
        with settled():
            pass
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_it_ends_with_an_error_too():
    with pytest.raises(ValueError, match="no"), settled():
        raise ValueError("no")
    assert gc.get_freeze_count() == 0


def test_collections_are_rarer_inside_and_as_before_afterwards():
    before = gc.get_threshold()
    with settled():
        assert gc.get_threshold() == (YOUNG, *before[1:])
    assert gc.get_threshold() == before


def test_who_switched_the_collector_off_finds_it_off():
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with settled():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
