"""Repeated n-grams: what was put in is found, in one text and in many at once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradforensics.token_ids import longest_repeat, longest_repeats, single_token_share


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


@given(st.lists(st.lists(st.integers(0, 2), max_size=20), max_size=6))
def test_many_texts_at_once_give_what_each_gives_alone(texts):
    keys = np.array([token for text in texts for token in text], dtype=np.uint64)
    owners = np.array([i for i, text in enumerate(texts) for _ in text], dtype=np.int64)
    found = longest_repeats(keys, owners, len(texts))
    alone = [longest_repeat(np.array(text, dtype=np.int64)) for text in texts]
    assert found.times.tolist() == [one.times for one in alone]
    assert [n for n, text in zip(found.lengths, texts, strict=True) if text] == [
        one.length for one, text in zip(alone, texts, strict=True) if text
    ]


def test_the_share_of_the_most_frequent_token():
    assert single_token_share([1, 1, 1, 2]) == 0.75
    assert single_token_share([]) == 0
