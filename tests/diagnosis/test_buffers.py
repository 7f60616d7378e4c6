"""Buffers that a cast of the model brought into 16 bits."""

import pytest
import torch
from torch import nn

from gradforensics.diagnosis.checks.buffers import norm_statistics_overflow, rotary_frequencies_in_16_bits
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.evidence.gather import gather


class Rotary(nn.Module):
    """A layer with the frequencies of rotary embeddings as a saved buffer."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)
        self.register_buffer("inv_freq", 10000.0 ** -(torch.arange(0, 8, 2) / 8))


def saved(folder, model, step=10):
    torch.save({"model": model.state_dict(), "step": step}, folder / f"step_{step}.pt")
    (found,) = gather([folder])
    return found


@pytest.mark.parametrize(("dtype", "positions"), [(torch.bfloat16, 256), (torch.float16, 2048), (torch.float32, None)])
def test_rotary_frequencies_are_judged_by_their_format(tmp_path, dtype, positions):
    hits = rotary_frequencies_in_16_bits(saved(tmp_path, nn.ModuleDict({"rotary_emb": Rotary()}).to(dtype)))
    assert isinstance(hits, list)
    assert [(hit.facts["positions"], hit.tensor) for hit in hits] == (
        [] if positions is None else [(positions, "rotary_emb.inv_freq")]
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_angle_is_off_by_about_a_radian_where_the_check_says_that_it_may_be(dtype):
    exact = 10000.0 ** -(torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    off = ((exact.to(dtype).double() - exact).abs() * {torch.bfloat16: 256, torch.float16: 2048}[dtype]).max()
    assert 0.3 < off <= 1.0


def test_models_without_such_buffers_are_not_judged(tmp_path):
    evidence = saved(tmp_path, nn.Linear(4, 4).half())
    assert isinstance(rotary_frequencies_in_16_bits(evidence), Missing)
    assert isinstance(norm_statistics_overflow(evidence), Missing)


def normalised(dtype, size):
    """A BatchNorm that saw inputs of this standard deviation."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2)).to(dtype)
    for _ in range(20):
        model((size * torch.randn(64, 6)).to(dtype))
    return model


@pytest.mark.parametrize(
    ("dtype", "size", "infinite"),
    [(torch.float16, 400.0, 6), (torch.float16, 1.0, 0), (torch.bfloat16, 400.0, 0), (torch.float32, 400.0, 0)],
)
def test_a_running_variance_leaves_float16_at_inputs_of_some_hundred(tmp_path, dtype, size, infinite):
    hits = norm_statistics_overflow(saved(tmp_path, normalised(dtype, size)))
    assert isinstance(hits, list)
    assert [hit.facts["values"] for hit in hits] == [infinite] * bool(infinite)


def test_the_onset_lies_after_the_last_checkpoint_with_finite_statistics(tmp_path):
    saved(tmp_path, normalised(torch.float16, 1.0), 5)
    evidence = saved(tmp_path, normalised(torch.float16, 400.0), 10)
    hits = norm_statistics_overflow(evidence)
    assert isinstance(hits, list)
    assert [(hit.step, hit.after) for hit in hits] == [(10, 5)]


def test_statistics_beside_broken_weights_are_another_case(tmp_path):
    model = normalised(torch.float16, 400.0)
    with torch.no_grad():
        model[1].weight[0, 0] = float("nan")
    assert norm_statistics_overflow(saved(tmp_path, model)) == []
