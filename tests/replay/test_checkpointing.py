"""Activation checkpointing that changes the gradient, with and without an error, and what only looks like it."""

import functools
import warnings

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from gradforensics.replay import activation_checkpoints
from gradforensics.replay.experiment import Context
from gradforensics.replay.experiments.checkpointing import EXPERIMENT
from gradforensics.replay.recording import Micro, Recording, Step


@pytest.fixture(autouse=True)
def switchable(monkeypatch):
    """Installed as in the child process; taken back after the test."""
    monkeypatch.setattr(torch.utils.checkpoint, "checkpoint", torch.utils.checkpoint.checkpoint)
    activation_checkpoints.install()


def checkpointed(**options):
    """A wrapper for blocks, with the name copied as programs do it."""
    from torch.utils.checkpoint import checkpoint

    return functools.partial(checkpoint, **{"use_reentrant": False} | options)


def ask(training, model, *, micros=2, loss=None, batch=None):
    micros = tuple(Micro(batch if batch is not None else training.tokens(3, 8, seed)) for seed in range(micros))
    runner = training.runner(Recording("none", (Step(5, micros),)), model, loss or training.lm_loss)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "None of the inputs have requires_grad")
        results = list(EXPERIMENT.run(Context(runner)))
    assert runner.spent <= EXPERIMENT.cost(Context(runner))
    return results


def outcomes(results):
    return [r.outcome for r in results]


@pytest.mark.parametrize("reentrant", [True, False])
def test_dropout_under_a_lost_random_state_is_found_without_any_error(training, reentrant):
    wrap = checkpointed(preserve_rng_state=False, use_reentrant=reentrant)
    results = ask(training, training.LM(dropout=0.3, wrap=wrap))
    assert results[0].outcome == "fault"
    assert results[0].number("relative_difference", "recorded") > 0.05
    assert results[0].number("relative_difference", "without") == 0
    assert results[0].number("relative_difference", "rng-preserved") == 0
    assert results[0].number("calls") == 4  # two blocks, two micro-batches
    assert results[0].text("names") == "blocks.0, blocks.1"
    assert results[0].text("module").startswith("blocks.1")
    assert results[1].outcome == "verified"
    assert "preserve_rng_state=True" in results[1].changed


@pytest.mark.parametrize("wrap", [{}, {"use_reentrant": True}])
def test_dropout_with_the_random_state_preserved_is_healthy(training, wrap):
    (result,) = ask(training, training.LM(dropout=0.3, wrap=checkpointed(**wrap)))
    assert result.outcome == "clean"
    assert result.number("relative_difference", "recorded") == 0


def test_a_lost_random_state_without_dropout_is_healthy(training):
    assert outcomes(ask(training, training.LM(wrap=checkpointed(preserve_rng_state=False)))) == ["clean"]


def test_a_model_without_checkpointing_is_not_judged(training):
    (result,) = ask(training, training.LM(dropout=0.3))
    assert result.outcome == "inconclusive"
    assert result.number("calls") == 0


def test_reading_a_number_inside_a_checkpointed_function_is_fine(training):
    def wrap(block, x, allowed):
        def run(x):
            y = block(x, allowed)
            return y / max(y.detach().abs().max().item(), 1.0)

        return checkpointed()(run, x)

    (result,) = ask(training, training.LM(dropout=0.3, wrap=wrap))
    assert result.outcome == "clean"
    assert "run" in result.text("names")


def test_a_recomputation_of_another_shape_is_named_with_its_message(training):
    """Tokens are dropped at random, under a lost random state."""

    def wrap(block, x, allowed):
        def run(x):
            kept = torch.rand(x.shape[1]) < 0.5
            return x + torch.zeros_like(x).index_add(1, kept.nonzero().reshape(-1), block(x[:, kept], None))

        return checkpointed(preserve_rng_state=False)(run, x)

    results = ask(training, training.LM(wrap=wrap))
    assert results[0].outcome == "fault"
    assert "different metadata" in results[0].result
    assert results[1].outcome == "verified"
    assert "preserve_rng_state=True" in results[1].changed


def test_a_recomputation_with_another_number_of_tensors_needs_checkpointing_left_out(training):
    calls = []

    def wrap(block, x, allowed):
        def run(x):
            calls.append(1)
            return block(x, allowed) if len(calls) % 2 else block(block(x, allowed).sigmoid(), allowed).exp()

        return checkpointed(early_stop=False)(run, x)

    results = ask(training, training.LM(wrap=wrap, layers=1), micros=1)
    assert results[0].outcome == "fault"
    assert "number of tensors" in results[0].result
    assert [(r.outcome, r.changed) for r in results[1:]] == [("verified", "without activation checkpointing")]


def test_a_reentrant_segment_without_an_input_that_needs_a_gradient_is_cut(training):
    def wrap(block, x, allowed):
        return checkpointed(use_reentrant=True)(block, x, allowed) if not x.requires_grad else block(x, allowed)

    model = training.LM(wrap=wrap)
    model.embed.requires_grad_(False)
    model.places.requires_grad_(False)
    results = ask(training, model)
    assert results[0].outcome == "fault"
    assert results[0].number("missing") == 2 * len(
        list(training.Block().parameters())
    )  # the cut reaches the next block
    assert "blocks.0.norm1.weight first" in results[0].conclusion
    assert [r.outcome for r in results[1:]] == ["verified"]
    assert "use_reentrant=False" in results[1].changed
    assert outcomes(ask(training, training.LM(wrap=checkpointed(use_reentrant=True)))) == ["clean"]


class Normalised(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        torch.manual_seed(0)
        self.wrap, self.first, self.norm, self.head = wrap, nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)

    def forward(self, x):
        return self.head(self.wrap(self.norm, self.first(x)))


def test_statistics_that_are_updated_twice_are_told(training):
    def loss(model, batch):
        return model(batch).square().mean()

    batch = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    (result,) = ask(training, Normalised(checkpointed(early_stop=False)), loss=loss, batch=batch)
    assert result.outcome == "clean"
    assert "norm.running_mean first, a second time" in result.conclusion
    assert result.number("buffers") == 3
    (plain,) = ask(training, training.LM(wrap=checkpointed()))
    assert "second time" not in plain.conclusion


def test_a_failure_without_checkpointing_too_is_another_one(training):
    def loss(model, batch):
        return training.lm_loss(model, batch) * torch.tensor(float("inf"))

    (result,) = ask(training, training.LM(wrap=checkpointed()), loss=loss)
    assert result.outcome == "inconclusive"
    assert "not its cause" in result.conclusion


def test_a_difference_below_the_precision_is_not_judged(training):
    """In bfloat16 a recomputation that differs by less than a rounding is no proof; the same in float32 is."""

    def build(dtype):
        calls = []

        def wrap(block, x, allowed):
            def run(x):
                calls.append(1)
                again = 0.01 if len(calls) == 2 else 0.0
                return block(x + again * torch.linspace(-1, 1, 16), allowed)

            return checkpointed()(run, x)

        model = training.LM(wrap=wrap, layers=1)
        micro = Micro(training.tokens(3, 8))
        recording = Recording("none", (Step(5, (micro,)),))
        return training.runner(recording, model, training.lm_loss, autocast=dtype), calls

    for dtype, outcome in (("bfloat16", "inconclusive"), (None, "fault")):
        runner, calls = build(dtype)
        context = Context(runner)
        inner = runner.compute

        def compute(*args, calls=calls, inner=inner, **kwargs):
            calls.clear()
            return inner(*args, **kwargs)

        runner.compute = compute
        assert next(EXPERIMENT.run(context)).outcome == outcome


def test_checkpoint_sequential_and_copies_of_the_function_are_switched(training):
    from torch.utils.checkpoint import checkpoint_sequential

    layers = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4), nn.Dropout(0.5))
    x = torch.randn(3, 4, requires_grad=True)
    with activation_checkpoints.switched("without") as calls:
        checkpoint_sequential(layers, 2, x, use_reentrant=False).sum().backward()
    assert len(calls.made) == 1
    with activation_checkpoints.switched("recorded") as calls:
        checkpointed()(layers, x).sum().backward()
        functools.partial(checkpointed(), layers[0].forward)(x)
        checkpointed()(functools.partial(type(layers[2]).forward, layers[2]), x)
    assert calls.named(layers) == ["", "0", "2"]


@pytest.mark.parametrize("preserve", [True, False])
def test_a_transformers_model_is_switched_too(training, monkeypatch, preserve):
    transformers = pytest.importorskip("transformers")
    # as if it had been imported after the function was replaced
    monkeypatch.setattr(transformers.modeling_utils, "checkpoint", torch.utils.checkpoint.checkpoint)
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=31, n_positions=8, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.3)
    model = transformers.GPT2LMHeadModel(config).train()
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False, "preserve_rng_state": preserve})
    batch = training.tokens(2, 8)
    batch["labels"] = batch["input_ids"].clone()
    results = ask(training, model, loss=lambda model, batch: model(**batch, use_cache=False).loss, batch=batch)
    assert outcomes(results) == (["clean"] if preserve else ["fault", "verified"])
    assert results[0].text("names") == "transformer.h.0, transformer.h.1"
