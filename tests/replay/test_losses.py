"""What cross-entropy and embedding calls are seen to get, against the obvious computation."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as everywhere
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradforensics.replay.losses import Seen, grid

CLASSES = 6


def logits_and_labels(seed=0):
    torch.manual_seed(seed)
    labels = torch.randint(0, CLASSES, (10,))
    labels[3] = labels[7] = -100
    return torch.randn(10, CLASSES, requires_grad=True), labels


WEIGHT = torch.linspace(0.5, 2, CLASSES)


@pytest.mark.parametrize(
    ("loss", "weight"),
    [
        (F.cross_entropy, lambda y: (y >= 0) / 8),
        (lambda x, y: 3 * nn.CrossEntropyLoss(reduction="sum")(x, y), lambda y: (y >= 0) * 3.0),
        (lambda x, y: F.nll_loss(x.log_softmax(-1), y), lambda y: (y >= 0) / 8),
        (
            lambda x, y: F.cross_entropy(x, y, weight=WEIGHT),
            lambda y: (y >= 0) / WEIGHT[y[y >= 0]].sum(),
        ),
        (
            lambda x, y: (F.cross_entropy(x, y, reduction="none") * torch.arange(10)).mean(),
            lambda y: (y >= 0) * torch.arange(10) / 10,
        ),
    ],
)
def test_the_weight_of_every_label_is_the_derivative_of_the_loss_with_respect_to_its_own(loss, weight):
    x, y = logits_and_labels()
    with Seen(nn.Identity()) as seen:
        value = loss(x, y)
        value.backward()
    (call,) = seen.losses
    assert call.weights is not None
    assert torch.allclose(call.weights, weight(y).double())
    assert torch.allclose((call.weights * call.each).sum(), value.detach().double(), rtol=1e-5)
    assert call.counted.tolist() == (weight(y) != 0).tolist()
    assert call.classes == CLASSES


def test_watching_changes_neither_loss_nor_gradient():
    x, y = logits_and_labels()
    plain = F.cross_entropy(x, y)
    (expected,) = torch.autograd.grad(plain, x)
    with Seen(nn.Identity()):
        watched = F.cross_entropy(x, y)
        (gradient,) = torch.autograd.grad(watched, x)
    assert torch.equal(plain, watched)
    assert torch.equal(expected, gradient)


def test_a_recomputation_in_the_backward_is_no_second_call():
    table = nn.Embedding(5, 4)
    with Seen(table) as seen:
        x = checkpoint(table, torch.tensor([[1, 2]]), use_reentrant=False)
        x.sum().backward()
    assert len(seen.lookups) == 1
    assert seen.lookups[0].norms is not None
    assert seen.lookups[0].norms.tolist() == [2, 2]


def test_an_index_outside_of_its_table_raises_or_is_replaced():
    table = nn.Embedding(5, 4)
    ids = torch.tensor([[1, 5], [-1, 2]])
    with Seen(table), pytest.raises(IndexError, match="id 5 is not in a table of 5 rows"):
        table(ids)
    with Seen(table, repair=True) as seen:
        table(ids)
    assert seen.lookups[0].bad == [1, 2]
    x, y = logits_and_labels()
    y[0] = CLASSES
    with Seen(table), pytest.raises(IndexError, match="Target 6 is out of bounds"):
        F.cross_entropy(x, y)
    with Seen(table, repair=True) as seen:
        assert torch.isfinite(F.cross_entropy(x, y))
    assert seen.losses[0].bad == [0]


def test_class_probabilities_are_no_labels():
    x, _ = logits_and_labels()
    with Seen(nn.Identity()) as seen:
        F.cross_entropy(x, torch.rand(10, CLASSES))
    assert not seen.losses


def test_dropout_is_noticed_only_where_it_draws_a_mask():
    x = torch.randn(3, 4)
    for p, training, drawn in ((0.1, True, True), (0.0, True, False), (0.1, False, False)):
        with Seen(nn.Identity()) as seen:
            F.dropout(x, p, training)
        assert seen.dropout is drawn
    with Seen(nn.Identity()) as seen:
        F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.1)
    assert seen.dropout


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_labels_are_laid_over_the_batch_by_what_they_are(offset):
    reference = torch.randint(0, 50, (4, 9), generator=torch.Generator().manual_seed(0))
    target = reference[:, offset:].flatten()
    found = grid(target, 4, target.shape, [reference])
    assert found is not None
    assert (found.columns, found.offset, found.matched) == (9 - offset, offset, 1)
    assert found.place(9 - offset) == (1, offset)


def test_labels_in_another_order_are_not_laid_over_the_batch():
    reference = torch.randint(0, 50, (4, 9), generator=torch.Generator().manual_seed(0))
    time_first = reference.T.flatten()
    assert grid(time_first, 4, time_first.shape, [reference]) is None
    assert grid(torch.arange(7), 4, (7,), []) is None
