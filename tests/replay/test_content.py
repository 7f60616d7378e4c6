"""The experiment "content": ids and labels that really do not fit, and batches that look like it and are sound."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as everywhere
from torch import nn

from gradforensics.experiments import Quantity, Result
from gradforensics.replay.experiment import Context
from gradforensics.replay.experiments.content import EXPERIMENT
from gradforensics.replay.program import Program
from gradforensics.replay.recording import Micro, Recording, Step
from gradforensics.replay.step import StepRunner
from gradforensics.torch_state import total_norm

VOCABULARY, WIDTH, TOKENS, SAMPLES = 40, 8, 16, 8
PAD, EOS = 0, 1

# the first quantity of every question, by which its result is found
QUESTIONS = {
    "ids": "ids_out_of_range", "labels": "labels_out_of_range", "pads": "pad_in_labels", "ends": "eos_in_ids",
    "empty": "empty_samples", "repeats": "longest_repeat", "scale": "loss_over_mean", "shift": "unshifted",
}  # fmt: skip


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids):
        return self.head(self.embed(ids) + self.position(torch.arange(ids.shape[1]).expand_as(ids)))


def inside(model, batch):
    """As Hugging Face models have it: labels that repeat the ids, shifted in the loss."""
    return F.cross_entropy(model(batch["input_ids"])[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def pair(model, batch):
    """As plain loops have it: inputs, and targets that the data set has shifted."""
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), ignore_index=-100)


def texts(seed=0, samples=SAMPLES, tokens=TOKENS):
    return torch.randint(2, VOCABULARY, (samples, tokens), generator=torch.Generator().manual_seed(seed))


def padded(seed=0, side="right"):
    """Texts of different lengths that end with EOS, their pads masked and not in the labels."""
    ids = texts(seed)
    mask = torch.ones_like(ids)
    for sample in range(SAMPLES):
        pads = sample % 5
        place = slice(TOKENS - pads, TOKENS) if side == "right" else slice(0, pads)
        ids[sample, TOKENS - 1 - (pads if side == "right" else 0)] = EOS
        ids[sample, place], mask[sample, place] = PAD, 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def results(batches, loss=inside, model=None, found=(), settings=None, logged=None, **step):
    torch.manual_seed(0)
    micros = tuple(one if isinstance(one, Micro) else Micro(one) for one in batches)
    recording = Recording("a test", (Step(7, micros, **step),), settings=settings or {})
    context = Context(StepRunner(recording, Program(model or Model(), loss), "cpu"), logged or {}, found=list(found))
    told = list(EXPERIMENT.run(context))
    assert len(told) == len(QUESTIONS)
    assert context.runner.spent <= EXPERIMENT.cost(context) + 1e-6
    by_name = {q.name: one for one in reversed(told) for q in one.quantities[:1]}
    return {question: by_name.get(name) for question, name in QUESTIONS.items()} | {"all": told}


KNOWN = {"pad_token_id": PAD, "eos_token_id": EOS}


def faults(found):
    return [one.result for one in found["all"] if one.outcome in ("fault", "verified")]


def test_a_healthy_batch_is_clean_in_every_question():
    found = results([padded(), padded(1)], settings=KNOWN)
    assert [one.outcome for one in found["all"]] == ["clean"] * len(QUESTIONS)


def test_a_healthy_pair_with_the_largest_id_and_without_a_mask_is_clean():
    ids = texts(tokens=TOKENS + 1)
    ids[0, 0], ids[1, 5] = VOCABULARY - 1, VOCABULARY - 1
    found = results([(ids[:, :-1], ids[:, 1:])], pair)
    assert not faults(found)
    assert found["ids"].outcome == found["labels"].outcome == found["shift"].outcome == "clean"
    assert found["pads"] is None  # nothing says which tokens are pads


# -- indices -----------------------------------------------------------------------------------------------------------


def test_an_id_beyond_its_table_is_named_though_the_step_raises():
    batch = padded()
    batch["input_ids"][3, 4] = VOCABULARY + 2
    batch["labels"][3, 4] = 5
    found = results([padded(1), batch])
    told = found["ids"]
    assert told.outcome == "fault"
    assert [told.number(n) for n in ("ids_out_of_range", "micro_batch", "sample", "token", "id", "rows")] == [
        1, 1, 3, 4, VOCABULARY + 2, VOCABULARY,
    ]  # fmt: skip
    assert told.text("module") == "embed"
    assert found["labels"].outcome == "clean"  # the run goes on behind it


def test_a_text_longer_than_the_table_of_positions_names_that_table():
    found = results([{"input_ids": texts(tokens=TOKENS + 1), "labels": texts(tokens=TOKENS + 1)}])
    told = found["ids"]
    assert (told.outcome, told.text("module")) == ("fault", "position")
    assert (told.number("ids_out_of_range"), told.number("token")) == (SAMPLES, TOKENS)


@pytest.mark.parametrize("label", [VOCABULARY, -1])
def test_a_label_that_is_no_class_is_named_where_it_stands_in_the_batch(label):
    batch = padded()
    batch["labels"][2, 6] = label
    told = results([batch])["labels"]
    assert told.outcome == "fault"
    assert [told.number(n) for n in ("labels_out_of_range", "sample", "token", "id")] == [1, 2, 6, label]


def test_a_label_in_a_pair_and_a_label_per_sample_are_named_too():
    ids = texts(tokens=TOKENS + 1)
    x, y = ids[:, :-1], ids[:, 1:].clone()
    y[4, 9] = VOCABULARY
    told = results([(x, y)], pair)["labels"]
    assert (told.number("sample"), told.number("token")) == (4, 9)

    def classes(model, batch):
        return F.nll_loss(model(batch["x"]).mean(1).log_softmax(-1), batch["y"])

    y = torch.arange(SAMPLES)
    y[5] = 99
    told = results([{"x": texts(), "y": y}], classes)["labels"]
    assert (told.outcome, told.number("sample"), told.number("token")) == ("fault", 5, None)


def test_an_ignored_index_of_the_call_is_no_class_out_of_range():
    def loss(model, batch):
        return F.cross_entropy(model(batch["x"]).transpose(1, 2), batch["y"], ignore_index=-1)

    y = texts()
    y[:, :3] = -1
    found = results([{"x": texts(), "y": y}], loss)
    assert found["labels"].outcome == "clean"


# -- pads, EOS, empty samples ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["right", "left"])
def test_pads_in_the_labels_are_counted_with_their_share(side):
    batch = padded(side=side)
    batch["labels"] = batch["input_ids"].clone()
    told = results([batch])["pads"]
    counted = (batch["attention_mask"][:, 1:] == 0).sum()
    assert told.outcome == "fault"
    assert told.number("pad_in_labels") == counted
    assert told.number("pad_share") == pytest.approx(counted / (SAMPLES * (TOKENS - 1)))


def test_pads_are_known_by_their_id_where_there_is_no_mask():
    batch = padded()
    del batch["attention_mask"]
    batch["labels"] = batch["input_ids"].clone()
    assert results([batch])["pads"] is None
    assert results([batch], settings=KNOWN)["pads"].outcome == "fault"


def test_pads_in_the_labels_that_a_mask_takes_out_of_the_loss_are_silent():
    def masked(model, batch):
        logits, mask = model(batch["input_ids"])[:, :-1], batch["attention_mask"][:, 1:]
        each = F.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="none")
        return (each * mask.flatten()).sum() / mask.sum()

    batch = padded()
    batch["labels"] = batch["input_ids"].clone()
    found = results([batch], masked, settings=KNOWN)
    assert found["pads"].outcome == "clean"
    assert found["scale"].number("loss_over_mean") == pytest.approx(1)
    assert not faults(found)


@pytest.mark.parametrize("side", ["right", "left"])
def test_shifted_targets_beside_pads_are_silent(side):
    ids, mask = (padded(side=side)[k] for k in ("input_ids", "attention_mask"))
    labels = torch.full_like(ids, -100)
    labels[:, :-1] = ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100)  # the last pad before a text predicts its start
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    found = results([batch], lambda model, b: pair(model, (b["input_ids"], b["labels"])))
    assert found["pads"].outcome == "clean"


def test_an_end_token_that_was_masked_as_padding_is_named():
    batch = padded()
    ids = batch["input_ids"]
    ids[batch["attention_mask"] == 0] = EOS
    batch["labels"] = ids.masked_fill(ids == EOS, -100)
    told = results([batch], settings={"pad_token_id": EOS, "eos_token_id": EOS})["ends"]
    assert told.outcome == "fault"
    assert (told.number("eos_in_ids"), told.number("eos_in_labels"), told.number("samples")) == (8, 0, 8)


@pytest.mark.parametrize("with_mask", [True, False])
def test_an_end_token_that_is_the_pad_as_well_and_is_trained_once_is_silent(with_mask):
    batch = padded()
    batch["input_ids"][batch["attention_mask"] == 0] = EOS
    if not with_mask:
        del batch["attention_mask"]
    found = results([batch], settings={"pad_token_id": EOS, "eos_token_id": EOS})
    assert not faults(found)
    assert found["ends"].number("eos_in_labels") == 8


def test_truncated_texts_another_end_token_and_a_start_token_of_the_same_id_are_silent():
    ids = texts()
    assert not faults(results([{"input_ids": ids, "labels": ids}], settings={"eos_token_id": EOS}))
    ids[:, 0] = EOS  # the start of a text: no position predicts it
    found = results([{"input_ids": ids, "labels": ids}], settings={"eos_token_id": EOS})
    assert found["ends"].outcome == "clean"
    assert found["ends"].number("eos_in_ids") == 0


def test_end_tokens_between_the_turns_of_a_prompt_are_silent():
    ids = texts()
    ids[:, 4] = EOS
    labels = ids.clone()
    labels[:, :8] = -100
    found = results([{"input_ids": ids, "labels": labels}], settings={"eos_token_id": EOS})
    assert found["ends"].outcome == "clean"


def test_packed_texts_without_pads_are_silent():
    ids = texts()
    ids[:, 5] = ids[:, 11] = EOS
    batch = {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}
    found = results([batch], settings=KNOWN)
    assert [one.outcome for one in found["all"]] == ["clean"] * len(QUESTIONS)


def test_a_batch_without_any_label_and_one_with_many_empty_samples_are_faults():
    batch = padded()
    batch["labels"][:] = -100
    told = results([padded(1), batch])["empty"]
    assert (told.outcome, told.number("empty_samples"), told.number("samples")) == ("fault", 8, 16)
    batch = padded()
    batch["labels"][:4] = -100
    told = results([batch])["empty"]
    assert (told.outcome, told.number("empty_samples")) == ("fault", 4)


def test_one_empty_sample_of_eight_may_be_a_prompt_that_was_cut_off():
    batch = padded()
    batch["labels"][3] = -100
    told = results([batch])["empty"]
    assert (told.outcome, told.number("empty_samples")) == ("inconclusive", 1)


# -- repetition --------------------------------------------------------------------------------------------------------


def repeating(length, times):
    ids = texts(tokens=160)
    ids[2, 10 : 10 + length * times] = torch.arange(2, 2 + length).repeat(times)
    return {"input_ids": ids, "labels": ids}


class Long(Model):
    def __init__(self):
        super().__init__()
        self.position = nn.Embedding(200, WIDTH)


@pytest.mark.parametrize(("length", "times"), [(1, 40), (3, 35)])
def test_a_text_that_repeats_itself_is_a_fault_only_as_the_sample_that_carries_the_step(length, times):
    told = results([repeating(length, times)], model=Long())["repeats"]
    assert told.outcome == "inconclusive"
    assert (told.number("longest_repeat"), told.number("sample")) == (times, 2)
    for sample, outcome in ((2, "fault"), (3, "inconclusive")):
        place = Quantity("micro_batch", 0.0), Quantity("sample", float(sample))
        before = Result("batch", 7, "", "", "", "", "fault", place)
        told = results([repeating(length, times)], model=Long(), found=[before])["repeats"]
        assert told.outcome == outcome


def test_a_text_with_fewer_repeats_is_clean_and_pads_do_not_repeat():
    assert results([repeating(3, 20)], model=Long())["repeats"].outcome == "clean"
    batch = repeating(1, 2)
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batch["input_ids"] = batch["input_ids"].clone()
    batch["input_ids"][:, 60:], batch["attention_mask"][:, 60:] = PAD, 0
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    assert results([batch], model=Long())["repeats"].outcome == "clean"


def test_a_run_that_may_be_padding_is_said_to_be_that():
    batch = repeating(1, 2)
    batch["input_ids"][:, 60:] = PAD
    told = results([batch], model=Long())["repeats"]
    assert told.outcome == "inconclusive"
    assert "may be padding" in told.conclusion


# -- the loss ----------------------------------------------------------------------------------------------------------


def summed(model, batch):
    logits = model(batch["input_ids"])[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum")


def test_a_sum_instead_of_a_mean_shows_the_number_of_its_labels():
    batch = padded()
    valid = int((batch["labels"][:, 1:] != -100).sum())
    told = results([batch], summed)["scale"]
    assert told.outcome == "fault"
    assert told.number("loss_over_mean") == pytest.approx(valid)


def test_a_mask_without_its_division_shows_as_a_sum_too():
    def loss(model, batch):
        logits, mask = model(batch["input_ids"])[:, :-1], batch["attention_mask"][:, 1:]
        each = F.cross_entropy(logits.flatten(0, 1), batch["input_ids"][:, 1:].flatten(), reduction="none")
        return (each * mask.flatten()).sum() + model.head.weight.square().sum()

    told = results([padded()], loss)["scale"]
    assert told.outcome == "fault"


@pytest.mark.parametrize("part", [0.6, 1.0])
def test_only_the_mean_itself_is_called_one(part):
    """A loss divided by the labels of two micro-batches is near to it."""
    told = results([padded()], lambda model, batch: inside(model, batch) * part)["scale"]
    assert (told.outcome, told.number("loss_over_mean")) == ("clean", pytest.approx(part))
    assert ("is a mean over its labels" in told.conclusion) == (part == 1.0)


def test_a_sum_that_training_divides_before_its_backward_is_clean():
    batch = padded()
    valid = int((batch["labels"][:, 1:] != -100).sum())
    told = results([Micro(batch, backward=torch.tensor(1 / valid))], summed)["scale"]
    assert told.outcome == "clean"


@pytest.mark.parametrize(
    "change",
    [
        {"label_smoothing": 0.1},
        {"weight": torch.linspace(0.5, 3, VOCABULARY)},
        {"reduction": "mean", "ignore_index": -100},
    ],
)
def test_a_mean_stays_one_with_smoothing_class_weights_and_another_term(change):
    def loss(model, batch):
        logits = model(batch["input_ids"])[:, :-1].flatten(0, 1)
        return F.cross_entropy(logits, batch["labels"][:, 1:].flatten(), **change) + logits.logsumexp(-1).mean()

    told = results([padded()], loss)["scale"]
    assert told.outcome == "clean"
    assert told.number("loss_over_mean") == pytest.approx(1)


@pytest.mark.parametrize(
    ("clip", "logged", "outcome"),
    [(None, None, "clean"), (0.1, None, "inconclusive"), (0.1, "sum", "fault"), (0.1, "mean", "clean")],
)
def test_a_sum_whose_gradient_is_divided_after_the_backward_is_clean_unless_clipping_hides_it(clip, logged, outcome):
    """logged: whose gradient's norm the log holds."""
    batch = padded()
    valid = int((batch["labels"][:, 1:] != -100).sum())
    torch.manual_seed(0)
    model = Model()
    summed(model, batch).backward()
    divided = {n: p.grad / valid for n, p in model.named_parameters() if p.grad is not None}
    norm = float(total_norm(divided.values()))
    if clip is not None:
        divided = {n: g * clip / norm for n, g in divided.items()}
    log = {} if logged is None else {"grad_norm": norm * (valid if logged == "sum" else 1)}
    micro = Micro(batch, backward=torch.tensor(1.0))
    told = results([micro], summed, gradients=divided, max_grad_norm=clip, logged=log)["scale"]
    assert told.outcome == outcome


def test_no_label_that_counts_means_that_nothing_was_checked():
    ignored = padded()
    ignored["labels"] = torch.full_like(ignored["labels"], -100)
    found = results([ignored])
    assert next(one for one in found["all"] if "labels against" in one.result).outcome == "inconclusive"


def test_labels_that_are_their_own_input_are_a_leak():
    def unshifted(model, batch):
        return F.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())

    told = results([padded()], unshifted)["shift"]
    assert told.outcome == "fault"
    assert told.number("unshifted") == 1
    assert "own input" in told.conclusion


def test_labels_that_are_shifted_twice_are_named():
    batch = padded()
    labels = torch.full_like(batch["labels"], -100)
    labels[:, :-1] = batch["labels"][:, 1:]  # in the data, and once more in the loss
    told = results([{**batch, "labels": labels}])["shift"]
    assert told.outcome == "fault"
    assert told.number("second_next") == 1


def test_masked_tokens_and_two_heads_for_the_next_two_tokens_are_no_leak():
    ids = texts()
    hidden = torch.rand(ids.shape, generator=torch.Generator().manual_seed(1)) < 0.3
    batch = {"input_ids": ids.masked_fill(hidden, 3), "labels": ids.masked_fill(~hidden, -100)}
    masked = results([batch], lambda m, b: F.cross_entropy(m(b["input_ids"]).transpose(1, 2), b["labels"]))
    assert masked["shift"].outcome == "clean"

    def two_heads(model, b):
        logits, further = model(b["input_ids"]), b["labels"][:, 2:]
        return inside(model, b) + F.cross_entropy(logits[:, :-2].flatten(0, 1), further.flatten())

    assert results([padded()], two_heads)["shift"].outcome == "clean"


class Translator(nn.Module):
    """An encoder and a decoder; the mask is the encoder's."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, batch):
        labels = batch["labels"]
        start = torch.full((len(labels), 1), PAD)
        given = torch.cat([start, labels[:, :-1].clamp(min=0)], dim=1)
        return self.head(self.embed(given) + self.embed(batch["input_ids"]).mean(1, keepdim=True))


def translation(model, batch):
    return F.cross_entropy(model(batch).flatten(0, 1), batch["labels"].flatten())


def test_the_mask_of_an_encoder_says_nothing_of_the_decoders_labels():
    batch = padded()
    batch["labels"] = texts(seed=5)  # full length, though the encoder's texts are short
    found = results([batch], translation, Translator())
    assert found["pads"] is None
    assert not faults(found)
    batch["labels"][:, 12:] = PAD  # the pad id left in the labels of a decoder
    found = results([batch], translation, Translator(), settings=KNOWN)
    assert found["pads"].outcome == "fault"
    assert found["pads"].number("pad_in_labels") == SAMPLES * 4


def test_a_regression_leaves_the_questions_open():
    model = nn.Linear(4, 1)
    batch = {"x": torch.randn(8, 4), "y": torch.randn(8, 1)}
    found = results([batch], lambda m, b: F.mse_loss(m(b["x"]), b["y"]), model)
    assert {one.outcome for one in found["all"]} == {"inconclusive"}


def test_a_step_that_raises_before_its_loss_says_so():
    def loss(model, batch):
        model(batch["input_ids"])
        raise ValueError("no such column")

    found = results([padded()], loss, settings=KNOWN)
    assert found["ids"].outcome == "clean"
    assert found["labels"] is None
    assert any("no such column" in one.conclusion for one in found["all"])
