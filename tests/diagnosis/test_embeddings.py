"""Rows of token embeddings under real optimizers."""

import pytest
import torch

from gradforensics.diagnosis.checks.embeddings import (
    few_rows_trained,
    one_row_dominates,
    rows_exactly_zero,
    unseen_rows_decay,
)
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.evidence.gather import gather

DECAYED = {"lost": 0.1, "share": 0.01, "error": 0.05}


def run(folder, *, ids=range(40), decay=0.0, lr=1e-2, steps=200, rows=50, name="embed_tokens", start=None, scale=1.0):
    """Train an embedding on tokens out of `ids`; scale: by which the row of the last one grows in the second half.

    Saved in the middle and at the end.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    embedding, out = torch.nn.Embedding(rows, 8), torch.nn.Linear(8, 4)
    model = torch.nn.ModuleDict({name: embedding, "out": out})
    table = embedding.weight
    if start is not None:
        with torch.no_grad():
            start(table)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=decay)
    choice = torch.tensor(list(ids))
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        tokens = choice[torch.randint(len(choice), (64,))]
        (out(embedding(tokens)) - 1).square().mean().backward()
        optimizer.step()
        if step > steps // 2:
            with torch.no_grad():
                table[ids[-1]] *= scale
        if step in (steps // 2, steps):
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, folder / f"checkpoint-{step}.pt")
    (evidence,) = gather([folder])
    return evidence


def found(answer):
    assert isinstance(answer, list), answer
    return answer


def test_unseen_rows_shrink_by_the_product_of_one_minus_lr_decay(tmp_path):
    evidence = run(tmp_path, decay=0.2, start=lambda table: table[40:].mul_(0.1))
    (hit,) = found(unseen_rows_decay(evidence, **DECAYED))
    assert float(hit.facts["lost"]) == pytest.approx(1 - (1 - 1e-2 * 0.2) ** 100, rel=1e-3)
    assert (hit.step, hit.after, hit.facts["unseen"]) == (200, 100, 10)


@pytest.mark.parametrize(("ids", "decay"), [(range(40), 0.01), (range(50), 0.2)])
def test_a_weak_decay_and_tables_whose_rows_all_occur_are_no_matter(tmp_path, ids, decay):
    assert found(unseen_rows_decay(run(tmp_path, ids=ids, decay=decay), **DECAYED)) == []


def test_without_decay_nothing_decays(tmp_path):
    assert isinstance(unseen_rows_decay(run(tmp_path), **DECAYED), Missing)


@pytest.mark.parametrize(("ids", "hit"), [((3, 4), True), ((3,), True), ((3, 4, 5), False), (range(40), False)])
def test_few_rows(tmp_path, ids, hit):
    evidence = run(tmp_path, ids=ids)
    assert [h.facts["trained"] for h in found(few_rows_trained(evidence, most=2, steps=150))] == [len(ids)] * hit
    assert isinstance(few_rows_trained(evidence, most=2, steps=500), Missing)


@pytest.mark.parametrize("name", ["pos_embed", "token_type_embeddings", "label_embedding", "time_embed"])
def test_tables_of_something_else_than_tokens_are_not_judged(tmp_path, name):
    assert few_rows_trained(run(tmp_path, ids=(3,), name=name), most=2, steps=50) == Missing(
        "a token embedding in a checkpoint"
    )


@pytest.mark.parametrize(
    ("rows", "zeros", "hit"), [(50, 5, True), (50, 1, False), (50, 0, False), (64, 10, False), (50, 50, False)]
)
def test_rows_that_are_exactly_zero(tmp_path, rows, zeros, hit):
    evidence = run(tmp_path, ids=range(rows - zeros or 1), rows=rows, start=lambda t: t[rows - zeros :].zero_(), lr=0.0)
    assert bool(found(rows_exactly_zero(evidence, most=1))) == hit


@pytest.mark.parametrize(("scale", "hit"), [(1.05, True), (1.0, False)])
def test_a_row_that_outgrows_the_others(tmp_path, scale, hit):
    answer = found(one_row_dominates(run(tmp_path, scale=scale), times=10, growth=2))
    assert [(h.step, h.after, h.facts["row"]) for h in answer] == ([(200, 100, 39)] if hit else [])


def test_a_row_that_was_long_from_the_start_did_not_grow(tmp_path):
    evidence = run(tmp_path, start=lambda table: table[7].mul_(100), lr=1e-4)
    assert found(one_row_dominates(evidence, times=10, growth=2)) == []
