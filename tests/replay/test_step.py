"""A recorded step is run again from the same state, bit for bit; nothing that one run changes reaches the next."""

import copy
import warnings
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as everywhere
from torch import nn
from torch.utils.data import DataLoader, Dataset

from gradforensics.errors import ReplayError
from gradforensics.replay.gradients import identical
from gradforensics.replay.recording import Micro, Recording, Step


class Noisy(Dataset[dict[str, torch.Tensor]]):
    """Tokens that a worker changes at random."""

    def __init__(self, training):
        self.tokens = training.tokens(24, 8)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        item = {key: value[index] for key, value in self.tokens.items()}
        item["input_ids"] = torch.where(torch.rand(8) < 0.3, 1, item["input_ids"])
        return item


@pytest.fixture
def batches(training):
    """Three steps of two micro-batches each, from a DataLoader with a worker."""
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn about fork beside threads
        loaded = list(DataLoader(Noisy(training), batch_size=4, shuffle=True, num_workers=1))
    return [loaded[0:2], loaded[2:4], loaded[4:6]]


def same_gradients(runner, recorded):
    held = {n: p.grad for n, p in runner.parameters().items()}
    return held.keys() == recorded.keys() and all(identical(held[n], g) for n, g in recorded.items())


@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scaled", [True, False])
def test_a_healthy_step_comes_out_bit_for_bit(training, batches, autocast, scaled):
    """Dropout, accumulation, autocast, GradScaler, clipping, a DataLoader with a worker."""
    torch.manual_seed(5)
    scaler = torch.amp.GradScaler("cpu", init_scale=3000.0) if scaled else None
    model = training.LM(dropout=0.2)
    recording = training.record(model, training.lm_loss, batches, clip=0.5, autocast=autocast, scaler=scaler)
    step = recording.last
    assert step.grad_norm == pytest.approx(0.5, rel=1e-3)  # clipping did something
    runner = training.runner(recording, training.LM(dropout=0.2), training.lm_loss)
    for _ in range(2):
        found = runner.compute()
        assert found.losses == [m.loss for m in step.micros]
        assert (found.loss, found.clipped_norm) == (step.loss, step.grad_norm)
        assert same_gradients(runner, step.gradients)
        assert found.norm > found.clipped_norm
        torch.rand(5)  # the random state outside does not matter
    assert runner.spent == 2


def test_another_random_state_gives_another_loss(training, batches):
    recording = training.record(training.LM(dropout=0.2), training.lm_loss, batches)
    forgotten = tuple(replace(m, random=None) for m in recording.last.micros)
    recording.steps = (replace(recording.last, micros=forgotten),)
    found = training.runner(recording, training.LM(dropout=0.2), training.lm_loss, seed=11).compute()
    assert found.losses != [m.loss for m in recording.last.micros]


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Adam"])
def test_rolling_forward_reaches_the_same_bits(training, batches, kind):
    model = training.LM(dropout=0.1)
    own = {"SGD": {"momentum": 0.9, "lr": 0.1}}.get(kind, {"lr": 1e-2, "betas": (0.9, 0.97)})
    few, rest = [p for p in model.parameters() if p.dim() < 2], [p for p in model.parameters() if p.dim() > 1]
    optimizer = getattr(torch.optim, kind)([{"params": few, "weight_decay": 0.0}, {"params": rest}], **own)
    rates = [1e-2, 5e-3, 2e-3]
    recording = training.record(
        model, training.lm_loss, batches, keep=2, clip=1.0, optimizer=optimizer, learning_rates=rates
    )
    assert recording.optimizer  # the state before had moments
    runner = training.runner(recording, training.LM(dropout=0.1), training.lm_loss)
    assert runner.spent == 1
    assert runner.compute().losses == [m.loss for m in recording.last.micros]
    assert same_gradients(runner, recording.last.gradients)


def test_rolling_forward_leaves_out_what_the_scaler_left_out(training):
    def loss(model, batch):
        return training.lm_loss(model, batch["tokens"]) * batch["factor"]

    def micro(seed, factor=1.0):
        return [{"tokens": training.tokens(2, 6, seed), "factor": torch.tensor(factor)}]

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    steps = [micro(0), micro(1), micro(2, float("inf")), micro(3)]
    recording = training.record(training.LM(), loss, steps, keep=3, scaler=scaler)
    assert [s.skipped for s in recording.steps] == [False, True, False]
    runner = training.runner(recording, training.LM(), loss)
    assert runner.compute().losses == [m.loss for m in recording.last.micros]
    recording.steps = tuple(replace(s, skipped=False) for s in recording.steps)  # not recorded: the scaler's own rule
    runner = training.runner(recording, training.LM(), loss)
    assert runner.compute().losses == [m.loss for m in recording.last.micros]


def test_a_step_whose_loss_is_nan_but_whose_gradient_is_finite_was_not_left_out(training):
    """A logged NaN beside a gradient of zeros: the optimizer steps, and weight decay moves the weights."""

    steps = [[training.tokens(2, 6, seed)] for seed in range(3)]
    marked = steps[1][0]["input_ids"]

    def loss(model, batch):
        value = training.lm_loss(model, batch)
        return value * 0 + torch.nan if torch.equal(batch["input_ids"], marked) else value

    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    recording = training.record(training.LM(), loss, steps, keep=2, scaler=scaler)
    assert recording.steps[0].loss != recording.steps[0].loss
    assert not recording.steps[0].skipped
    runner = training.runner(recording, training.LM(), loss)
    assert runner.compute().losses == [m.loss for m in recording.last.micros]


class Remembering(nn.Module):
    """Keeps running statistics, and does with its buffers whatever a forward may do."""

    memory: torch.Tensor
    replaced: torch.Tensor

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("memory", torch.zeros(4))
        self.register_buffer("replaced", torch.zeros(1))
        self.register_buffer("wide", torch.zeros(1).expand(3))
        self.register_buffer("empty", None)
        self.same = self.memory

    def forward(self, x):
        y = self.norm(self.layer(x)) + self.memory + self.replaced
        self.memory.mul_(0).add_(y.sum(0))  # with its graph
        self.replaced = self.replaced + 1
        self.empty = y.detach()
        self.register_buffer("late", y.detach())
        return y


def squared(model, batch):
    return model(batch).square().mean()


def test_what_a_forward_does_to_buffers_does_not_reach_the_next_run(training):
    step = Step(1, (Micro(torch.randn(6, 4)),))
    model = Remembering()
    runner = training.runner(Recording("none", (step,)), model, squared)
    first, second = runner.compute(), runner.compute()
    assert first.error is None
    assert (first.losses, first.norm) == (second.losses, second.norm)
    runner.restore()
    assert model.replaced.item() == 0
    assert model.empty is None
    assert "late" not in dict(model.named_buffers())
    assert model.memory is model.same
    assert dict(model.named_buffers())["norm.num_batches_tracked"] == 0


class Tied(nn.Module):
    def __init__(self, *, tied=True):
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.head = nn.Embedding(9, 5), nn.Linear(5, 9, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


def next_token(model, ids):
    return F.cross_entropy(model(ids[:, :-1]).reshape(-1, 9), ids[:, 1:].reshape(-1))


def test_tied_weights_stay_one_weight(training):
    ids = torch.randint(0, 9, (3, 6), generator=torch.Generator().manual_seed(1))
    recording = training.record(Tied(), next_token, [[ids], [ids]], keep=2)
    runner = training.runner(recording, Tied(), next_token)
    assert list(runner.parameters()) == ["embed.weight"]
    assert runner.model.head.weight is runner.model.embed.weight
    assert runner.compute().losses == [m.loss for m in recording.last.micros]
    assert same_gradients(runner, recording.last.gradients)


def test_a_program_that_does_not_tie_gets_the_weight_twice(training):
    ids = torch.randint(0, 9, (3, 6), generator=torch.Generator().manual_seed(1))
    recording = training.record(Tied(), next_token, [[ids], [ids]])
    recording.tied = {"head.weight": "embed.weight"}
    runner = training.runner(recording, Tied(tied=False), next_token)
    assert runner.compute().losses == [m.loss for m in recording.last.micros]
    assert not same_gradients(runner, recording.last.gradients)


def test_sparse_gradients_are_read_as_dense_ones(training):
    class Sparse(Tied):
        def __init__(self):
            super().__init__(tied=False)
            self.embed = nn.Embedding.from_pretrained(self.embed.weight.detach(), freeze=False, sparse=True)

    ids = torch.randint(0, 9, (3, 6), generator=torch.Generator().manual_seed(1))
    recording = Recording("none", (Step(1, (Micro(ids), Micro(ids)), scale=64.0),))
    runner = training.runner(copy.copy(recording), Sparse(), next_token)
    sparse = runner.compute()
    dense = training.runner(recording, Tied(tied=False), next_token).compute()
    assert sparse.error is None
    assert sparse.norm == pytest.approx(dense.norm, rel=1e-6)
    torch.testing.assert_close(sparse.gradients["embed.weight"], dense.gradients["embed.weight"])
    torch.testing.assert_close(runner.clipped()["embed.weight"], dense.gradients["embed.weight"])


def test_an_exception_is_an_outcome_with_what_ran_before_it(training):
    def loss(model, batch):
        if batch["input_ids"][0, 0] == -1:
            raise IndexError("index out of range in self")
        return training.lm_loss(model, batch)

    bad = training.tokens(2, 6, 1)
    bad["input_ids"][0, 0] = -1
    recording = Recording("none", (Step(1, (Micro(training.tokens(2, 6)), Micro(bad))),))
    runner = training.runner(recording, training.LM(), loss)
    found = runner.compute()
    assert (found.failure, len(found.losses)) == ("exception", 1)
    assert found.norm > 0
    assert runner.running[0] == 1
    healthy = runner.compute(recording.last.micros[:1])
    assert healthy.failure == ""
    assert runner.spent == pytest.approx(1.5)


def test_a_program_without_a_scalar_loss_cannot_be_replayed(training):
    recording = Recording("none", (Step(1, (Micro(training.tokens(2, 6)),)),))
    runner = training.runner(recording, training.LM(), lambda model, batch: model(batch["input_ids"]))
    with pytest.raises(ReplayError, match="scalar"):
        runner.compute()


def test_a_state_of_another_model_is_refused_by_name(training):
    recording = training.record(training.LM(), training.lm_loss, [[training.tokens(2, 6)]])
    with pytest.raises(ReplayError, match=r"blocks\.2"):
        training.runner(recording, training.LM(layers=3), training.lm_loss)
    recording.model["head.weight"] = torch.zeros(3, 3)
    with pytest.raises(ReplayError, match=r"head\.weight is \[3, 3\]"):
        training.runner(recording, training.LM(), training.lm_loss)


def test_frozen_parameters_and_modules_in_evaluation_are_as_recorded(training):
    model = training.LM(dropout=0.5)
    model.embed.weight.requires_grad_(False)
    model.blocks[0].eval()
    recording = training.record(model, training.lm_loss, [[training.tokens(2, 6)]])
    runner = training.runner(recording, training.LM(dropout=0.5), training.lm_loss)
    found = runner.compute()
    assert found.losses == [m.loss for m in recording.last.micros]
    assert found.gradients["embed.weight"] is None
    assert runner.compute(evaluating=True).loss != found.loss
    assert runner.compute().losses == found.losses


def test_other_weights_of_a_run_do_not_stay(training):
    recording = training.record(training.LM(), training.lm_loss, [[training.tokens(2, 6)]])
    runner = training.runner(recording, training.LM(), training.lm_loss)
    found = runner.compute()
    halved = runner.compute(dtype=torch.bfloat16)
    assert halved.error is None
    assert halved.losses != found.losses
    assert runner.compute().losses == found.losses
    assert {p.dtype for p in runner.parameters().values()} == {torch.float32}


def test_asked_weights_replace_the_recorded_ones(training):
    batches = [[training.tokens(2, 6, 0), training.tokens(2, 6, 1)]]
    recording = training.record(training.LM(), training.lm_loss, batches, divide=False, clear_each=True)
    runner = training.runner(recording, training.LM(), training.lm_loss)
    both = runner.compute(weights=[0.5, 0.5])
    parts = [runner.compute([m], weights=[0.5]).gradients for m in recording.last.micros]
    for name, gradient in both.gradients.items():
        torch.testing.assert_close(gradient, sum(p[name] for p in parts))
