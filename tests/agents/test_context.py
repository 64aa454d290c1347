"""The context of a rollout: what was appended, in order, and what was handed out stays as it was."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treadle.agents.context import SPARE, Context

Parts = st.lists(st.lists(st.integers(0, 50_000), max_size=SPARE), max_size=6)


@given(Parts)
def test_it_is_its_parts_one_behind_the_other(parts):
    context = Context(np.asarray(parts[0] if parts else [], np.int32))
    for part in parts[1:]:
        context.append(np.asarray(part, np.int32))
    assert context.ids.tolist() == [i for part in parts for i in part]
    assert (len(context), context.ids.dtype) == (sum(map(len, parts)), np.int32)


@given(Parts)
def test_what_was_handed_out_stays_as_it_was(parts):
    context = Context(np.asarray([1, 2, 3], np.int32))
    seen = []
    for part in parts:
        seen.append((context.ids, context.ids.tolist()))
        context.append(np.asarray(part, np.int32))
    assert all(ids.tolist() == before for ids, before in seen)


def test_the_first_ids_are_copied():
    prompt = np.asarray([1, 2], np.int32)
    context = Context(prompt)
    context.append(np.asarray([3], np.int32))
    prompt[0] = 9
    assert context.ids.tolist() == [1, 2, 3]
