"""Which tokens are pads, and which repeat."""

import pytest
import torch

from gradforensics.replay.batches import fields_of
from gradforensics.replay.tokens import at_least, pads_of


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


def test_the_chance_of_so_many():
    assert at_least(0, 8, 0.01) == pytest.approx(1)
    assert at_least(2, 8, 0.01) == pytest.approx(1 - 0.99**8 - 8 * 0.01 * 0.99**7)
