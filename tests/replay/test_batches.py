"""The parts of a batch: samples, beginnings, and which tensor is what."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gradforensics.replay.batches import cut, fields_of, graft, length, size, take


def batch(samples=3, tokens=4):
    ids = torch.arange(samples * tokens).reshape(samples, tokens)
    return {
        "input_ids": ids,
        "mask4": torch.ones(samples, 1, tokens, tokens),
        "pixels": torch.zeros(samples, 2, 5),
        "names": ["a", "b", "c"][:samples],
        "scale": torch.tensor(2.0),
        "step": 7,
    }


def test_samples_are_taken_from_every_part_that_has_them():
    taken = take(batch(), [2, 0])
    assert taken["input_ids"].tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]]
    assert taken["mask4"].shape == (2, 1, 4, 4)
    assert taken["names"] == ["c", "a"]
    assert (taken["scale"].item(), taken["step"]) == (2.0, 7)


def test_beginnings_cut_ids_and_square_masks_only():
    short = cut(batch(), 2)
    assert short["input_ids"].tolist() == [[0, 1], [4, 5], [8, 9]]
    assert short["mask4"].shape == (3, 1, 2, 2)
    assert short["pixels"].shape == (3, 2, 5)


def test_a_graft_changes_one_token_of_the_first_sample():
    grafted = graft(take(batch(), [0, 2]), 1)
    assert grafted["input_ids"].tolist() == [[0, 9, 2, 3]]
    assert grafted["names"] == ["a"]
    assert size(grafted) == 1


def test_sizes_are_those_that_most_tensors_share():
    assert (size(batch()), length(batch())) == (3, 4)
    assert (size({"step": 3}), length({"step": 3})) == (0, 0)
    assert (size((torch.zeros(5, 2), torch.zeros(5))), length((torch.zeros(5, 2), torch.zeros(5)))) == (5, 2)


@given(st.integers(1, 5), st.integers(1, 6), st.data())
def test_taking_every_sample_and_cutting_nothing_change_nothing(samples, tokens, data):
    pair = (torch.arange(samples * tokens).reshape(samples, tokens), torch.arange(samples))
    whole = take(pair, range(samples))
    assert all(torch.equal(a, b) for a, b in zip(whole, pair, strict=True))
    chosen = data.draw(st.lists(st.integers(0, samples - 1), min_size=1))
    assert take(pair, chosen)[1].tolist() == chosen
    kept = data.draw(st.integers(1, tokens))
    assert torch.equal(cut(pair, kept)[0], pair[0][:, :kept])


def test_parts_are_found_by_name_and_by_place():
    ids = torch.zeros(2, 3, dtype=torch.long)
    named = fields_of({"input_ids": ids, "labels": ids + 1, "attention_mask": ids + 2})
    assert dict(named.keys) == {"ids": "input_ids", "labels": "labels", "mask": "attention_mask"}
    placed = fields_of((ids, ids + 1))
    assert placed.labels is not None
    assert placed.labels.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert placed.mask is None
    assert fields_of({"x": torch.zeros(2, 3), "y": torch.zeros(2, dtype=torch.long)}).ids is None  # no ids: floats
