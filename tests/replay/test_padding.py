"""Masks and positions that do not fit the padding side, and their near misses."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as everywhere
from torch import nn

from gradforensics.replay.experiment import Context
from gradforensics.replay.experiments.padding import EXPERIMENT
from gradforensics.replay.recording import Micro, Recording, Step

LENGTHS = (9, 4, 12, 6)
WIDTH = 12
PAD = 0


@pytest.fixture(scope="module")
def trained(training):
    """A model that has learned to count: its loss depends on where the tokens stand."""
    torch.manual_seed(0)
    model = training.LM()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    ids = (torch.arange(WIDTH + 1) * 7 % 29 + 1).expand(8, -1)
    for _ in range(40):
        optimizer.zero_grad()
        training.lm_loss(model, {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}).backward()
        optimizer.step()
    return model.state_dict()


def padded(side, *, mask=True, positions=None, labels="shifted"):
    """Four sequences of unequal length on one side; labels for the next token, or a copy of the ids."""
    row = torch.arange(WIDTH + 1) * 7 % 29 + 1
    batch: dict[str, list[torch.Tensor]] = {
        key: [] for key in ("input_ids", "labels", "attention_mask", "position_ids")
    }
    for length in LENGTHS:
        ids, next_ids = row[:length], row[1 : length + 1]
        gap = WIDTH - length
        pads = (gap, 0) if side == "left" else (0, gap)
        batch["input_ids"].append(F.pad(ids, pads, value=PAD))
        batch["labels"].append(F.pad(next_ids if labels == "shifted" else ids, pads, value=-100))
        batch["attention_mask"].append(F.pad(torch.ones_like(ids), pads))
        counted = torch.arange(WIDTH) if positions == "all" else F.pad(torch.arange(length), pads)
        batch["position_ids"].append(counted)
    stacked = {key: torch.stack(rows) for key, rows in batch.items()}
    if not mask:
        del stacked["attention_mask"]
    if positions is None:
        del stacked["position_ids"]
    return stacked


def ask(training, state, *batches, loss=None, model=None, settings=None):
    recording = Recording("none", (Step(3, tuple(Micro(b) for b in batches)),), settings=settings or {})
    if model is None:
        model = training.LM()
        model.load_state_dict(state)
    runner = training.runner(recording, model, loss or training.lm_loss)
    results = list(EXPERIMENT.run(Context(runner)))
    assert runner.spent <= EXPERIMENT.cost(Context(runner))
    return results


def outcomes(results):
    return [r.outcome for r in results]


def test_right_padding_with_a_mask_is_healthy(training, trained):
    (result,) = ask(training, trained, padded("right"))
    assert result.outcome == "clean"
    assert result.number("relative_difference", "recorded") < 1e-5
    assert result.number("samples") == 3  # one has no pads
    assert "Padded on the left it would" in result.conclusion
    assert "evaluation mode" in result.changed


def test_right_padding_needs_no_mask_in_a_causal_model(training, trained):
    assert outcomes(ask(training, trained, padded("right", mask=False), settings={"pad_token_id": PAD})) == ["clean"]


@pytest.mark.parametrize("mask", [True, False])
def test_left_padding_without_positions_is_named_and_cured(training, trained, mask):
    batch = padded("left", mask=mask)
    results = ask(training, trained, batch, settings={"pad_token_id": PAD})
    assert results[0].outcome == "fault"
    assert results[0].number("relative_difference", "recorded") > 0.05
    assert results[0].number("loss", "right") == pytest.approx(results[0].number("loss", "unpadded"), rel=1e-5)
    assert results[0].number("sample") in (0, 1, 3)
    assert results[0].text("side") == "left-padded"
    cures = [r.changed for r in results[1:]]
    assert outcomes(results[1:]) == ["verified"] * (2 if mask else 1)
    assert cures[0] == "pads on the right"
    if mask:
        assert "cumsum" in cures[1]
        assert results[2].number("loss", "positions") == pytest.approx(results[0].number("loss", "right"), rel=1e-5)


def test_left_padding_with_mask_and_positions_is_healthy(training, trained):
    (result,) = ask(training, trained, padded("left", positions="tokens"))
    assert result.outcome == "clean"
    assert result.number("loss", "recorded") == pytest.approx(result.number("loss", "right"), rel=1e-5)


def test_given_positions_that_count_the_pads_are_a_fault(training, trained):
    results = ask(training, trained, padded("left", positions="all"))
    assert outcomes(results) == ["fault", "verified", "verified"]
    assert results[0].number("loss", "left") == results[0].number("loss", "recorded")
    assert "cumsum" in results[2].changed


def test_labels_that_are_shifted_in_the_model_do_not_train_on_a_pad(training, trained):
    """As in Hugging Face models; on the left the last pad would have to predict the first token."""

    def loss(model, batch):
        logits = model(**{k: v for k, v in batch.items() if k != "labels"})[:, :-1]
        return F.cross_entropy(logits.reshape(-1, 31), batch["labels"][:, 1:].reshape(-1))

    for side in ("left", "right"):
        (result,) = ask(training, trained, padded(side, positions="tokens", labels="copied"), loss=loss)
        assert result.outcome == "clean"


def test_pads_in_the_labels_are_another_fault(training, trained):
    batch = padded("right")
    batch["labels"] = batch["labels"].masked_fill(batch["labels"] == -100, PAD)
    assert outcomes(ask(training, trained, batch)) == ["clean"]


def test_a_row_that_is_masked_as_a_whole_is_named_by_its_nan(training, trained):
    class Masked(nn.Module):
        """Attention with a mask of -inf: a pad on the left sees nothing, and its NaN reaches all through the values."""

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.head = nn.Embedding(31, 8), nn.Linear(8, 31)

        def forward(self, input_ids, attention_mask):
            x = self.embed(input_ids)
            for _ in range(2):
                allowed = (
                    attention_mask.bool()[:, None, :]
                    & torch.ones(WIDTH, WIDTH).tril().bool()[: x.shape[1], : x.shape[1]]
                )
                x = (x @ x.transpose(1, 2)).masked_fill(~allowed, -torch.inf).softmax(-1) @ x
            return self.head(x)

    results = ask(training, None, padded("left"), model=Masked())
    assert outcomes(results) == ["fault", "verified"]
    assert results[0].number("finite", "recorded") == 0
    assert results[0].number("finite", "unpadded") == 1
    assert "not finite" in results[0].conclusion
    assert outcomes(ask(training, None, padded("right"), model=Masked())) == ["clean"]


def test_a_bidirectional_model_that_ignores_the_mask_is_named_on_either_side(training):
    class Pooling(nn.Module):
        def __init__(self, *, masks):
            super().__init__()
            torch.manual_seed(0)
            self.masks, self.embed, self.head = masks, nn.Embedding(31, 8), nn.Linear(8, 3)

        def forward(self, input_ids, attention_mask):
            x, weight = self.embed(input_ids), attention_mask[..., None].float()
            pooled = (x * weight).sum(1) / weight.sum(1) if self.masks else x.mean(1)
            return self.head(3 * pooled)

    batch = {k: v for k, v in padded("right").items() if k != "labels"} | {"label": torch.tensor([0, 1, 2, 0])}

    def loss(model, batch):
        return F.cross_entropy(model(batch["input_ids"], batch["attention_mask"]), batch["label"])

    assert outcomes(ask(training, None, batch, model=Pooling(masks=False), loss=loss)) == ["fault"]
    assert outcomes(ask(training, None, batch, model=Pooling(masks=True), loss=loss)) == ["clean"]


def test_a_mask_of_pads_is_read_as_such(training, trained):
    """True where a token is a pad, as nn.TransformerEncoder takes it."""

    def loss(model, batch):
        whole = {"input_ids": batch["input_ids"], "attention_mask": ~batch["padding_mask"], "labels": batch["labels"]}
        return training.lm_loss(model, whole)

    for side, outcome in (("left", "fault"), ("right", "clean")):
        batch = padded(side)
        batch["padding_mask"] = ~batch.pop("attention_mask").bool()
        results = ask(training, trained, batch, loss=loss)
        assert results[0].outcome == outcome


def test_dropout_does_not_disturb(training, trained):
    model = training.LM(dropout=0.5)
    model.load_state_dict(trained)
    assert outcomes(ask(training, None, padded("right"), model=model)) == ["clean"]


def test_the_sample_counts_through_the_micro_batches(training, trained):
    healthy = {k: v[2:3] for k, v in padded("left").items()}  # without pads
    results = ask(training, trained, healthy, {k: v[1:3] for k, v in padded("left").items()})
    assert results[0].number("sample") == 1
    assert results[0].number("samples") == 1


def test_what_cannot_be_compared_says_why(training, trained):
    full = {k: v[2:3] for k, v in padded("right").items()}
    square = padded("right") | {"attention_mask": torch.ones(4, 1, WIDTH, WIDTH)}
    holes = padded("right")
    holes["attention_mask"][0, 3] = 0

    def raising(model, batch):
        assert len(batch["input_ids"]) == 4, "batches of four only"
        return training.lm_loss(model, batch)

    def relabelled(model, batch):
        labels = batch["input_ids"].roll(-1, 1).masked_fill(batch["attention_mask"].roll(-1, 1) == 0, -100)
        return training.lm_loss(model, batch | {"labels": labels})

    unlabelled = {k: v for k, v in padded("left", positions="tokens").items() if k != "labels"}
    for batches, reason, options in (
        ([full], "No sample of this step has pads", {}),
        ([square], "row per token", {}),
        ([holes], "leaves out tokens between", {}),
        ([padded("right", mask=False)], "no pad_token_id", {}),
        ([{"x": torch.randn(4, 8), "y": torch.zeros(4)}], "no token ids", {}),
        ([padded("right")], "AssertionError: batches of four only", {"loss": raising}),
        ([unlabelled], "makes its labels itself", {"loss": relabelled}),
    ):
        results = ask(training, trained, *batches, **options)
        assert outcomes(results) == ["inconclusive"], reason
        assert reason in results[0].conclusion


class Translator(nn.Module):
    """The tokens that are no pads, summed, before a decoder that gets the labels shifted by one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.head = nn.Embedding(31, 8, padding_idx=PAD), nn.Linear(8, 31)

    def forward(self, input_ids, decoder_ids):
        return self.head(self.embed(decoder_ids).cumsum(1) + self.embed(input_ids).sum(1, keepdim=True))


def translation(model, batch):
    before = F.pad(batch["labels"].clamp(min=0), (1, -1), value=1)
    return F.cross_entropy(model(batch["input_ids"], before).flatten(0, 1), batch["labels"].flatten())


@pytest.mark.parametrize("side", ["left", "right"])
def test_labels_of_a_decoder_do_not_move_with_the_pads_of_the_encoder(training, side):
    batch = padded(side)
    batch["labels"] = torch.randint(2, 31, (4, 7), generator=torch.Generator().manual_seed(0))
    assert outcomes(ask(training, None, batch, loss=translation, model=Translator())) == ["clean"]
    batch["labels"] = torch.randint(2, 31, (4, WIDTH), generator=torch.Generator().manual_seed(0))
    (result,) = ask(training, None, batch, loss=translation, model=Translator())
    assert result.outcome == "inconclusive"
    assert "of a decoder" in result.conclusion
