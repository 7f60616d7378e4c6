"""The experiment "batch": samples and tokens that really carry the failure or the gradient, and batches without one."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as everywhere
from torch import nn

from gradforensics.replay.experiment import Context
from gradforensics.replay.experiments.batch import EXPERIMENT
from gradforensics.replay.program import Program
from gradforensics.replay.recording import Micro, Recording, Step
from gradforensics.replay.step import StepRunner

VOCABULARY, WIDTH, TOKENS = 20, 8, 12


class Causal(nn.Module):
    """Embedding, causal mean, a gain per token that a test may break, head."""

    def __init__(self, dropout=0.0, norm=None):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(dropout)
        self.norm = norm or nn.Identity()

    def forward(self, batch):
        x = self.embed(batch["input_ids"])
        x = self.drop(x + self.mix(x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]))
        if "gain" in batch:
            x = x * batch["gain"][..., None]
        return self.head(self.norm(x))


def next_token(model, batch):
    logits, labels = model(batch)[:, :-1], batch["labels"][:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def texts(samples=8, seed=0, **changes):
    ids = torch.randint(0, VOCABULARY, (samples, TOKENS), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids.clone(), "gain": torch.ones(samples, TOKENS), **changes}


def judged(batches, model=None, loss=next_token, **step):
    torch.manual_seed(0)
    recording = Recording("a test", (Step(7, tuple(Micro(b) for b in batches), **step),))
    context = Context(StepRunner(recording, Program(model or Causal(), loss), "cpu"))
    results = list(EXPERIMENT.run(context))
    assert context.runner.spent <= EXPERIMENT.cost(context)
    return results


def place(result):
    return tuple(result.number(name) for name in ("micro_batch", "sample", "token"))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("token", [0, 7, TOKENS - 2])
def test_the_sample_and_the_token_of_a_bad_value_are_found_and_verified(value, token):
    bad = texts(seed=1)
    bad["gain"][5, token] = value
    fault, proof = judged([texts(), bad])
    assert (fault.outcome, proof.outcome) == ("fault", "verified")
    # the last token has no loss of its own: the value at token t shows with the label of t + 1
    assert place(fault)[:2] == (1, 5)
    assert place(fault)[2] in ((token, token + 1) if token else (token, 1))
    assert fault.number("bad_samples") == 1


def test_features_that_cannot_be_cut_are_no_tokens():
    x = torch.randn(8, TOKENS, generator=torch.Generator().manual_seed(0))
    x[5, 3] = math.nan
    model = nn.Linear(TOKENS, 4)  # takes so many features and no fewer
    batch = (x, torch.arange(8) % 4)
    first = judged([batch], model, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))[0]
    assert (first.outcome, first.number("sample"), first.number("token")) == ("fault", 5, None)
    assert "token" not in first.conclusion


@pytest.mark.parametrize(("features", "taken", "place"), [(2, 2, 0), (TOKENS, 4, 3), (TOKENS, 7, 8)])
def test_a_cut_that_raises_leaves_the_token_unknown(features, taken, place):
    """Also where the failure needs no more than the first feature, and where some of the cuts do not raise."""
    x = torch.randn(8, features, generator=torch.Generator().manual_seed(0))
    x[5, place] = math.nan

    def loss(model, batch):
        if batch[0].shape[1] < taken:
            raise RuntimeError("too few features")
        return F.cross_entropy(model(batch[0].cumsum(1)[:, -1:]), batch[1])

    first = judged([(x, torch.arange(8) % 4)], nn.Linear(1, 4), loss)[0]
    assert (first.outcome, first.number("sample"), first.number("token")) == ("fault", 5, None)
    assert "token" not in first.conclusion


def test_an_index_error_is_found_with_its_token():
    bad = texts()
    bad["labels"][3, 9] = VOCABULARY
    fault, proof = judged([bad])
    assert place(fault) == (0, 3, 9)
    assert "Target" in fault.result
    assert proof.outcome == "verified"


def test_an_id_outside_of_the_embedding_is_found_with_its_token():
    bad = texts()
    bad["input_ids"][3, 9] = VOCABULARY
    fault, proof = judged([bad])
    assert place(fault) == (0, 3, 9)
    assert proof.outcome == "verified"


def test_several_bad_samples_are_all_found():
    bad = texts(seed=1)
    bad["gain"][2, 4] = bad["gain"][6, 1] = math.nan
    other = texts(seed=2)
    other["gain"][1, 1] = math.nan
    fault, proof = judged([bad, other])
    assert fault.number("bad_samples") == 3
    assert "samples 2, 6" in fault.conclusion
    assert proof.outcome == "verified"


def test_a_large_micro_batch_is_searched_in_parts():
    bad = texts(samples=100)
    bad["gain"][71, 3] = math.nan
    fault, proof = judged([bad])
    assert (fault.number("sample"), proof.outcome) == (71, "verified")


def test_a_sample_without_labels_beside_the_bad_one_is_not_accused():
    bad = texts()
    bad["labels"][1] = -100
    bad["gain"][5, 6] = math.nan
    fault, proof = judged([bad])
    assert (fault.number("sample"), fault.number("bad_samples")) == (5, 1)
    assert proof.outcome == "verified"


def test_the_beginning_of_a_sample_without_labels_is_not_taken_for_the_failure():
    bad = texts()
    bad["labels"][:, :5] = -100
    bad["gain"][5, 8] = math.nan
    fault, _ = judged([bad])
    assert place(fault)[:2] == (0, 5)
    assert place(fault)[2] in (8, 9)


def test_a_beginning_that_is_bad_before_its_first_label_is_not_called_healthy():
    bad = texts()
    bad["labels"][5, :7] = -100
    bad["gain"][5, 2] = math.nan  # what is cut before the labels has a loss of 0/0, and nobody can say why
    fault, verified = judged([bad])
    assert (place(fault)[:2], fault.number("token"), verified.outcome) == ((0, 5), None, "verified")
    assert "healthy" not in fault.conclusion


def test_a_batch_without_any_label_accuses_no_sample():
    bad = texts()
    bad["labels"][:] = -100
    (result,) = judged([bad])
    assert result.outcome == "inconclusive"
    assert "no label that counts" in result.conclusion


def test_bad_weights_accuse_no_sample():
    model = Causal()
    with torch.no_grad():
        model.mix.weight[0, 0] = math.nan
    (result,) = judged([texts()], model)
    assert result.outcome == "inconclusive"
    assert "no single sample" in result.conclusion


def test_bad_weights_accuse_no_micro_batch_of_one_sample_either():
    model = Causal()
    with torch.no_grad():
        model.mix.weight[0, 0] = math.nan
    (result,) = judged([texts(1, seed) for seed in range(3)], model)
    assert result.outcome == "inconclusive"
    assert "no single sample" in result.conclusion


def test_a_bad_micro_batch_of_one_sample_is_verified_by_leaving_it_out():
    batches = [texts(1, seed) for seed in range(3)]
    batches[1]["gain"][0, 2] = math.nan
    fault, proof = judged(batches)
    assert place(fault)[:2] == (1, 0)
    assert proof.outcome == "verified"


def test_a_loss_that_breaks_with_fewer_samples_is_said():
    def paired(model, batch):
        if len(batch["input_ids"]) % 8:
            raise RuntimeError("pairs of 8 are needed")
        return next_token(model, batch)

    bad = texts()
    bad["gain"][5, 6] = math.nan
    (result,) = judged([bad], loss=paired)
    assert result.outcome == "inconclusive"
    assert "pairs of # are needed" in result.conclusion
    (healthy,) = judged([texts()], loss=paired)
    assert healthy.outcome == "inconclusive"
    assert "fewer samples" in healthy.conclusion


def test_a_failure_of_all_samples_together_is_said():
    def summed(model, batch):
        loss = next_token(model, batch)
        return loss * (math.inf if len(batch["input_ids"]) == 8 else 1.0)

    (result,) = judged([texts()], loss=summed)
    assert result.outcome == "inconclusive"
    assert "all of its samples together" in result.conclusion


def test_dropout_is_mentioned_and_switched_off_where_the_failure_stays():
    bad = texts()
    bad["gain"][5, 6] = math.nan
    fault, proof = judged([bad], Causal(dropout=0.1))
    assert fault.number("sample") == 5
    assert "evaluation mode" in fault.conclusion
    assert proof.outcome == "verified"


def test_dropout_is_mentioned_where_the_failure_needs_it():
    class Model(Causal):
        def forward(self, batch):
            return super().forward(batch) * (math.nan if self.training and (batch["gain"] == 2).any() else 1.0)

    bad = texts()
    bad["gain"][5, 6] = 2
    fault, proof = judged([bad], Model(dropout=0.1))
    assert fault.number("sample") == 5
    assert "others with fewer samples" in fault.conclusion
    assert proof.outcome == "verified"


def test_the_same_step_twice_gives_the_same_with_dropout_and_no_recorded_random_state():
    first, second = (judged([texts(), texts(seed=1)], Causal(dropout=0.3)) for _ in range(2))
    assert [r.result for r in first] == [r.result for r in second]


# -- finite steps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("samples", [4, 8, 24])
def test_no_sample_of_a_healthy_step_stands_out(seed, samples):
    torch.manual_seed(seed)
    lengths = torch.randint(3, TOKENS + 1, (samples, 1))
    batch = texts(samples, seed)
    batch["labels"].masked_fill_(torch.arange(TOKENS) >= lengths, -100)
    (result,) = judged([batch])
    assert result.outcome == "clean", result


def weighted(model, batch):
    logits, labels = model(batch)[:, :-1], batch["labels"][:, 1:]
    each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return (each * batch["weights"][:, 1:].flatten()).mean()


def test_the_sample_and_the_token_with_an_unbounded_weight_are_found_and_verified():
    weights = torch.ones(8, TOKENS)
    weights[5, 9] = 1e4
    healthy = texts(weights=torch.ones(8, TOKENS))
    fault, proof = judged([healthy, texts(seed=1, weights=weights)], loss=weighted)
    assert (fault.outcome, proof.outcome) == ("fault", "verified")
    assert place(fault) == (1, 5, 9)
    assert fault.number("share") > 0.9


def test_a_weight_that_is_a_little_larger_stays_silent():
    weights = torch.ones(8, TOKENS)
    weights[5] = 1.5
    (result,) = judged([texts(weights=weights)], loss=weighted)
    assert result.outcome == "clean"


def test_two_samples_that_stand_out_are_both_counted():
    weights = torch.ones(8, TOKENS)
    weights[5], weights[2] = 300, 250
    fault, proof = judged([texts(weights=weights)], loss=weighted)
    assert (fault.number("sample"), fault.number("bad_samples")) == (5, 2)
    assert proof.outcome == "verified"


def test_a_sample_that_stands_out_in_a_large_micro_batch_is_found_in_parts():
    weights = torch.ones(80, TOKENS)
    weights[71, 4] = 1e4
    fault, proof = judged([texts(80, weights=weights)], loss=weighted)
    assert place(fault) == (0, 71, 4)
    assert proof.outcome == "verified"


def test_a_gradient_without_its_loss_names_the_token_by_its_embedding():
    class Steep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, gain):
            ctx.save_for_backward(gain)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0], None

    class Model(Causal):
        def forward(self, batch):
            steep = batch["gain"][..., None]
            x = Steep.apply(self.embed(batch["input_ids"]), steep)
            return self.head(x)

    batch = texts()
    batch["gain"][5, 6] = 1e4
    fault, proof = judged([batch], Model())
    assert place(fault) == (0, 5, 6)
    assert "gradient" in fault.conclusion
    assert proof.outcome == "verified"


def test_a_hard_sample_of_a_trained_classifier_is_no_fault_and_a_value_out_of_all_proportion_is():
    def classes(model, batch):  # the gain of 1 lets the gradient reach a parameter
        return F.cross_entropy(batch["logits"] * model.head.bias.mean().clamp(1, 1), batch["y"])

    logits = torch.eye(8) * 4
    y = torch.arange(8)
    y[3] = 0  # wrongly labelled: 4.06 against 0.12
    batch = {"logits": torch.cat([logits, logits]), "y": torch.cat([y, torch.arange(8)])}
    (result,) = judged([batch], loss=classes)
    assert result.outcome == "clean"
    assert result.number("share") > 0.5
    batch["logits"][5, 0] = 4e3  # no hard sample: a value out of all proportion
    fault, _ = judged([batch], loss=classes)
    assert (fault.outcome, fault.number("sample")) == ("fault", 5)


def test_samples_that_a_loss_compares_with_each_other_are_not_judged_alone():
    def contrasting(model, batch):
        rows = F.normalize(model.embed(batch["input_ids"]).mean(1), dim=1)
        return F.cross_entropy(rows @ rows.T * 10, torch.arange(len(rows)))

    (result,) = judged([texts(), texts(seed=1)], loss=contrasting)  # of one row alone the loss is 0
    assert result.outcome == "inconclusive"
    assert "compares samples with each other" in result.conclusion


def test_a_sample_is_not_accused_where_the_others_are_no_better_without_it():
    class Model(Causal):
        def forward(self, batch):  # as batch statistics of one sample may do
            alone = len(batch["gain"]) == 1 and bool((batch["gain"] == 2).any())
            return super().forward(batch) * (6.0 if alone else 1.0)

    bad = texts()
    bad["gain"][5, 6] = 2
    found, proof = judged([bad], Model())
    assert (found.outcome, proof.outcome) == ("inconclusive", "unverified")
    assert found.number("sample") == 5
    assert "not at the level of the others without it" in found.conclusion


def test_masks_of_dropout_accuse_no_sample():
    class Model(Causal):
        def forward(self, batch):
            unlucky = self.training and len(batch["gain"]) == 1 and bool((batch["gain"] == 2).any())
            return super().forward(batch) * (6.0 if unlucky else 1.0)

    (result,) = judged([texts(gain=torch.ones(8, TOKENS).index_fill(0, torch.tensor([5]), 2))], Model(dropout=0.1))
    assert result.outcome == "clean"
    assert "Compared in evaluation mode" in result.conclusion


def test_a_sample_stands_out_of_a_sum_as_well():
    def summed(model, batch):
        return weighted(model, batch) * batch["weights"][:, 1:].numel()

    weights = torch.ones(8, TOKENS)
    weights[5, 9] = 1e4
    fault, proof = judged([texts(seed=1, weights=weights)], loss=summed)
    assert (fault.outcome, proof.outcome, fault.number("sample")) == ("fault", "verified", 5)
    assert "(sum)" in proof.result


def test_very_few_samples_are_not_compared():
    (result,) = judged([texts(2)])
    assert result.outcome == "inconclusive"


def test_a_batch_without_samples_is_said():
    (result,) = judged([{"seed": 3}], loss=lambda model, batch: model.head.weight.sum() * batch["seed"])
    assert result.outcome == "inconclusive"
