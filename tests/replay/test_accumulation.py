"""Faults of gradient accumulation, really trained with, and their near misses."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as everywhere
from torch import nn

from gradforensics.replay.experiment import Context
from gradforensics.replay.experiments.accumulation import EXPERIMENT
from gradforensics.replay.weighting import valid_labels, weighting
from gradforensics.torch_state import total_norm


@pytest.fixture
def even(training):
    return [training.tokens(2, 8, seed) for seed in range(8)]


@pytest.fixture
def uneven(training):
    """Micro-batches with 16, 4 and 2 valid labels."""
    batches = [training.tokens(2, 8, seed) for seed in range(3)]
    batches[1]["labels"][:, 2:] = -100
    batches[2]["labels"][:, 1:] = -100
    return batches


def ask(training, micros, *, loss=None, logged=None, change=None, model=None, **loop):
    loss = loss or training.lm_loss
    make = model or (lambda: training.LM(dropout=0.1))
    torch.manual_seed(2)
    recording = training.record(make(), loss, [micros], **loop)
    if change is not None:
        recording.steps = (change(recording.last),)
    context = Context(training.runner(recording, make(), loss), logged or {})
    results = list(EXPERIMENT.run(context))
    assert context.runner.spent <= EXPERIMENT.cost(context)
    return results


def kinds(results):
    return [r.outcome for r in results], results[0].text("kind")


@pytest.mark.parametrize("loop", [{}, {"clip": 0.1}, {"autocast": torch.bfloat16}])
def test_a_healthy_accumulation_agrees(training, even, loop):
    results = ask(training, even, **loop)
    assert kinds(results) == (["clean"], "agrees")
    assert results[0].number("ratio") == pytest.approx(1, abs=1e-3)
    assert results[0].number("cosine") == pytest.approx(1, abs=1e-4)
    assert results[0].number("micro_batches") == 8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_loss_scale_is_no_factor(training, even, dtype):
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    assert kinds(ask(training, even, autocast=dtype, scaler=scaler)) == (["clean"], "agrees")


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_a_loss_that_was_not_divided_is_named(training, even, kind):
    model = training.LM()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-3)
    recording = training.record(model, training.lm_loss, [even], divide=False, optimizer=optimizer)
    results = training.answers(EXPERIMENT, recording, training.LM(), training.lm_loss)
    assert kinds(results) == (["fault", "verified"], "missing-division")
    assert results[0].number("ratio") == pytest.approx(8, rel=1e-4)
    assert results[1].number("relative_difference", "recorded") == pytest.approx(7, rel=1e-3)
    assert ("nearly harmless" in results[0].conclusion) == (kind == "AdamW")


def test_a_missing_division_is_seen_behind_clipping_and_a_loss_scale(training, even):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    whole = ask(training, even)[0].number("grad_norm", "whole batch")
    results = ask(training, even, divide=False, clip=2 * whole, scaler=scaler)
    assert kinds(results) == (["fault", "verified"], "missing-division")


def test_gradients_that_are_divided_after_the_backward_are_no_fault(training, even):
    def divide(model):
        for parameter in model.parameters():
            parameter.grad /= 8

    assert kinds(ask(training, even, divide=False, after_backward=divide)) == (["clean"], "agrees")
    clipped = ask(training, even, divide=False, after_backward=divide, clip=0.1)
    assert kinds(clipped) == (["inconclusive"], "missing-division")  # clipping hides it
    assert "clipping hides" in clipped[0].conclusion
    norm = clipped[0].number("grad_norm", "whole batch")
    logged = ask(training, even, divide=False, clip=0.1, logged={"grad_norm": 8 * norm})
    assert kinds(logged) == (["fault", "verified"], "missing-division")


def test_gradients_that_are_cleared_in_every_micro_batch_are_named(training, even):
    results = ask(training, even, clear_each=True)
    assert kinds(results) == (["fault", "verified"], "cleared-each")
    assert 0.1 < results[0].number("ratio") < 1
    unmarked = ask(
        training,
        even,
        clear_each=True,
        change=lambda s: replace(s, micros=tuple(replace(m, cleared=False) for m in s.micros)),
    )
    assert kinds(unmarked)[1] == "cleared-each"
    assert "last micro-batch alone" in unmarked[0].conclusion


def test_means_of_unequal_micro_batches_are_named(training, uneven):
    results = ask(training, uneven)
    assert kinds(results) == (["fault", "verified"], "mean-of-means")
    assert results[0].number("relative_difference") > 0.1


def test_token_weighted_micro_batches_are_healthy(training, uneven):
    """The near miss: the loss is divided by the labels of the whole batch, as transformers does it."""
    micros = [{**batch, "num_items_in_batch": torch.tensor(22)} for batch in uneven]

    def loss(model, batch):
        logits = model(batch["input_ids"])
        summed = F.cross_entropy(logits.reshape(-1, 31), batch["labels"].reshape(-1), reduction="sum")
        return summed / batch["num_items_in_batch"]

    assert kinds(ask(training, micros, loss=loss, divide=False)) == (["clean"], "agrees")
    divided = ask(training, micros, loss=loss)  # and once more by their number: 1/k
    assert kinds(divided) == (["inconclusive"], "other")
    assert divided[0].number("ratio") == pytest.approx(1 / 3, rel=1e-4)


def test_a_number_of_items_that_counts_one_micro_batch_only_is_still_a_missing_division(training, even):
    micros = [{**batch, "num_items_in_batch": 16} for batch in even]

    def loss(model, batch):
        logits = model(batch["input_ids"])
        summed = F.cross_entropy(logits.reshape(-1, 31), batch["labels"].reshape(-1), reduction="sum")
        return summed / batch["num_items_in_batch"]

    assert kinds(ask(training, micros, loss=loss, divide=False)) == (["fault", "verified"], "missing-division")


def test_a_sum_over_samples_needs_no_division(training, uneven):
    def loss(model, batch):
        logits = model(batch["input_ids"])
        return F.cross_entropy(logits.reshape(-1, 31), batch["labels"].reshape(-1), reduction="sum")

    assert kinds(ask(training, uneven, loss=loss, divide=False)) == (["clean"], "agrees")
    assert kinds(ask(training, uneven, loss=loss)) == (["inconclusive"], "other")


def test_a_mean_over_samples_is_weighted_with_samples(training, uneven):
    """Every sample counts the same, however many labels it has: equal micro-batches agree."""
    uneven[0]["labels"][0, 3:] = -100

    def loss(model, batch):
        logits = model(batch["input_ids"]).transpose(1, 2)
        each = F.cross_entropy(logits, batch["labels"], reduction="none").sum(1)
        return (each / (batch["labels"] != -100).sum(1)).mean()

    assert kinds(ask(training, uneven, loss=loss)) == (["clean"], "agrees")


def test_a_loss_that_compares_samples_with_each_other_is_not_judged(training, even):
    def loss(model, batch):
        rows = F.normalize(model(batch["input_ids"]).mean(1), dim=-1)
        return F.cross_entropy(rows @ rows.T, torch.arange(len(rows)))

    results = ask(training, even, loss=loss, divide=False)
    assert kinds(results) == (["inconclusive"], "")
    assert "neither a mean nor a sum" in results[0].conclusion


def test_classes_of_unequal_micro_batches_are_weighted_with_samples(training):
    def batch(rows, seed):
        generator = torch.Generator().manual_seed(seed)
        return {"x": torch.randn(rows, 6, generator=generator), "y": torch.randint(0, 3, (rows,), generator=generator)}

    def loss(model, batch):
        return F.cross_entropy(model(batch["x"]), batch["y"])

    def model():
        torch.manual_seed(0)
        return nn.Linear(6, 3)

    results = ask(training, [batch(8, 0), batch(8, 1), batch(1, 2)], loss=loss, model=model)
    assert kinds(results) == (["fault", "verified"], "mean-of-means")
    assert kinds(ask(training, [batch(4, 0), batch(4, 1)], loss=loss, model=model)) == (["clean"], "agrees")


def test_a_factor_of_the_number_of_ranks_is_no_fault(training, even):
    model = training.LM()
    recording = training.record(model, lambda m, b: 4 * training.lm_loss(m, b), [even])
    recording.steps = (replace(recording.last, micros=tuple(
        replace(m, loss=m.loss / 4, backward=m.backward * 4) for m in recording.last.micros
    )),)  # fmt: skip
    recording.world_size = 4
    results = training.answers(EXPERIMENT, recording, training.LM(), training.lm_loss)
    assert kinds(results) == (["clean"], "agrees")
    assert "number of ranks (4)" in results[0].conclusion


def test_gradients_of_the_step_before_are_no_missing_division(training, even):
    stale: dict[str, torch.Tensor] = {}

    def add(model):
        for name, parameter in model.named_parameters():
            stale.setdefault(name, torch.randn_like(parameter) * parameter.grad.norm() / parameter.numel() ** 0.5)
            parameter.grad += stale[name]

    results = ask(training, even, after_backward=add)
    assert kinds(results) == (["inconclusive"], "other")
    assert "earlier step" in results[0].conclusion


def test_losses_that_are_not_those_of_the_replay_are_not_judged(training, even):
    """Recorded after the division: the replayed loss is undivided."""

    def divided(step):
        return replace(step, gradients=None, micros=tuple(replace(m, loss=m.loss / 8) for m in step.micros))

    results = ask(training, even, divide=False, change=divided)
    assert kinds(results) == (["inconclusive"], "missing-division")
    assert "not the recorded ones" in results[0].conclusion


def test_without_a_recorded_backward_the_logged_norm_tells_how_it_was_divided(training, even):
    def forgotten(step):
        return replace(
            step, gradients=None, grad_norm=None, micros=tuple(replace(m, backward=None) for m in step.micros)
        )

    told = ask(training, even, change=forgotten)
    assert kinds(told) == (["clean"], "agrees")
    assert "as the program says" in told[0].result
    whole, loss = told[0].number("grad_norm", "whole batch"), None
    recording = training.record(training.LM(), training.lm_loss, [even])
    loss = recording.last.loss
    recording.steps = (forgotten(recording.last),)
    whole = training.runner(recording, training.LM(), training.lm_loss).compute().norm
    for factor, expected in ((8, "missing-division"), (1, "agrees")):
        results = training.answers(
            EXPERIMENT, recording, training.LM(), training.lm_loss, logged={"loss": loss, "grad_norm": factor * whole}
        )
        assert results[0].text("kind") == expected


def test_one_micro_batch_or_no_finite_gradient_is_not_judged(training, even):
    assert [r.outcome for r in ask(training, even[:1])] == ["inconclusive"]

    def loss(model, batch):
        return training.lm_loss(model, batch) * torch.tensor(float("nan"))

    assert [r.outcome for r in ask(training, even[:2], loss=loss)] == ["inconclusive"]


def test_labels_that_repeat_the_ids_have_no_prediction_for_the_first(training):
    ids = torch.randint(1, 31, (2, 6))
    for batch, count in (({"input_ids": ids, "labels": ids.clone()}, 5), (training.tokens(2, 6), 6)):
        counts = valid_labels(batch)
        assert counts is not None
        assert counts.tolist() == [count, count]
    assert valid_labels({"input_ids": ids, "labels": torch.tensor([1, 2])}) is None


def test_the_weights_sum_to_one_for_a_mean(training, uneven):
    recording = training.record(training.LM(), training.lm_loss, [uneven])
    found = weighting(training.runner(recording, training.LM(), training.lm_loss))
    assert found.divisor == "tokens"
    assert found.weights == pytest.approx((16 / 22, 4 / 22, 2 / 22))


def test_samples_that_weigh_differently_have_no_weights_to_judge_by(training):
    def loss(model, batch):
        logits = model(batch["input_ids"]).transpose(1, 2)
        each = F.cross_entropy(logits, batch["labels"], reduction="none").mean(1)
        return (each * batch["weight"]).sum() / batch["weight"].sum()

    draw = torch.Generator().manual_seed(0)
    micros = [training.tokens(6, 8, seed) | {"weight": torch.rand(6, generator=draw)} for seed in range(3)]
    results = ask(training, micros, loss=loss)
    assert kinds(results) == (["inconclusive"], "")
    assert "weigh differently" in results[0].conclusion


def test_one_sample_each_tells_labels_from_samples_too(training):
    micros = [training.tokens(1, 8, seed) for seed in range(3)]
    for keep, batch in zip((8, 2, 1), micros, strict=True):
        batch["labels"] = batch["labels"].masked_fill(torch.arange(8) >= keep, -100)

    def by_samples(model, batch):
        each = F.cross_entropy(model(batch["input_ids"]).transpose(1, 2), batch["labels"], reduction="none").sum(1)
        return (each / (batch["labels"] != -100).sum(1)).mean()

    assert kinds(ask(training, micros)) == (["fault", "verified"], "mean-of-means")
    assert kinds(ask(training, micros, loss=by_samples)) == (["clean"], "agrees")


def test_a_loss_that_knows_no_ignored_label_is_judged_by_halves(training, even):
    def loss(model, batch):
        picked = model(batch["input_ids"]).log_softmax(-1).gather(-1, batch["labels"][..., None])
        return -((1 - picked.exp()) ** 2 * picked).mean()

    assert kinds(ask(training, even, loss=loss)) == (["clean"], "agrees")


def test_a_loss_that_knows_no_ignored_label_never_gets_one(training, even):
    """ctc_loss writes outside of its memory with one, and a gather on CUDA leaves no device."""
    seen = []

    def loss(model, batch):
        seen.append(int(batch["labels"].min()))
        picked = model(batch["input_ids"]).log_softmax(-1).gather(-1, batch["labels"].clamp(min=0)[..., None])
        return -picked.mean()

    assert kinds(ask(training, even, loss=loss)) == (["clean"], "agrees")
    assert min(seen) >= 0


def test_the_weights_give_the_gradient_of_the_micro_batches_put_together(training, uneven):
    torch.manual_seed(2)
    recording = training.record(training.LM(), training.lm_loss, [uneven])
    runner = training.runner(recording, training.LM(), training.lm_loss)
    (result, _) = EXPERIMENT.run(Context(runner))
    runner.restore()
    training.lm_loss(runner.model, {k: torch.cat([one[k] for one in uneven]) for k in uneven[0]}).backward()
    norm = total_norm(p.grad for p in runner.model.parameters() if p.grad is not None)
    assert result.number("grad_norm", "whole batch") == pytest.approx(float(norm), rel=1e-4)
