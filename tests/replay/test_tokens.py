"""Which tokens are pads, and which repeat."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradforensics.replay.batches import fields_of
from gradforensics.replay.tokens import at_least, longest_repeat, pads_of, single_token_share


def fields(ids, **parts):
    return fields_of({"input_ids": torch.tensor(ids), **{k: torch.tensor(v) for k, v in parts.items()}})


def pads(ids, settings, **parts):
    found, _ = pads_of(fields(ids, **parts), settings)
    return None if found is None else found.int().tolist()


def test_pads_are_known_by_the_mask_or_by_an_id():
    ids = [[5, 6, 0, 0], [0, 5, 0, 6]]
    mask = [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert pads(ids, {"pad_token_id": 0}, attention_mask=mask) == [[0, 0, 1, 1], [0, 0, 0, 0]]
    assert pads(ids, {"pad_token_id": 0}) == [[0, 0, 1, 1], [1, 0, 1, 0]]
    assert pads(ids, {}) is None
    assert pads(ids, {}, padding_mask=mask) is None  # may mean the opposite


def test_of_a_pad_that_ends_texts_too_the_one_next_to_the_text_is_none():
    known = {"pad_token_id": 0, "eos_token_id": [0, 9]}
    assert pads([[5, 0, 6, 0, 0, 0], [0, 0, 5, 0, 6, 7]], known) == [[0, 0, 0, 0, 1, 1], [1, 0, 0, 0, 0, 0]]


@given(st.integers(1, 13), st.integers(2, 40), st.integers(0, 9), st.integers(0, 9))
def test_the_longest_repeat_is_as_long_as_the_one_that_was_put_in(width, times, before, after):
    repeated = list(range(100, 100 + width)) * times
    found = longest_repeat([*range(before), *repeated, *range(200, 200 + after)])
    assert (found.length, found.times, found.start) == (width, times, before)


@given(st.lists(st.integers(0, 2), max_size=30))
def test_the_longest_repeat_is_that_of_the_obvious_search(ids):
    def times(start, width):
        count = 1
        while ids[start + count * width : start + (count + 1) * width] == ids[start : start + width]:
            count += 1
        return count

    slow = max((times(s, w) for w in range(1, 14) for s in range(len(ids) - w + 1)), default=0)
    assert longest_repeat(np.array(ids, dtype=np.int64)).times == slow


def test_shares_and_chances():
    assert single_token_share([1, 1, 1, 2]) == 0.75
    assert single_token_share([]) == 0
    assert at_least(0, 8, 0.01) == pytest.approx(1)
    assert at_least(2, 8, 0.01) == pytest.approx(1 - 0.99**8 - 8 * 0.01 * 0.99**7)
