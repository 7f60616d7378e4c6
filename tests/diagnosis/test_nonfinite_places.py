"""Where a NaN came up, told from the moments that real training saved."""

import pytest
import torch
from torch import nn

from gradforensics.diagnosis.checks import nonfinite_places as checks
from gradforensics.evidence.gather import gather

STEPS = 4


class Blocks(nn.Module):
    """Residual blocks between an embedding and a head; `fault`: the block with a square root of an exact 0."""

    def __init__(self, count=3, width=6):
        super().__init__()
        self.embedding = nn.Embedding(9, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"up": nn.Linear(width, 2 * width), "down": nn.Linear(2 * width, width)})
            for _ in range(count)
        )
        self.head = nn.Linear(width, 9, bias=False)

    def forward(self, tokens, fault):
        x = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            inner = torch.tanh(block.get_submodule("up")(x))
            if number == fault:
                inner = inner + (inner * 0.0).square().sum(-1, keepdim=True).sqrt()
            x = x + block.get_submodule("down")(inner)
        return self.head(x)


def killed(folder, fault=None, *, clip=None, poisoned=False, penalty=False, steps=STEPS):
    """Train until the fault in the last step; saved before and after it."""
    torch.manual_seed(0)
    model = Blocks()
    model.embedding.weight.data[0] = 0.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for step in range(1, steps + 1):
        last = step >= STEPS
        tokens = torch.randint(1, 9, (4, 6))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens, fault if last else None).flatten(0, 1), tokens.flatten())
        if last and poisoned:
            loss = loss * float("nan")
        if last and penalty:
            loss = loss + model.embedding.weight.square().sum(-1).sqrt().sum()
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if step >= STEPS - 1:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, folder / f"checkpoint-{step}.pt")
    (evidence,) = gather([folder])
    return evidence


def found(evidence):
    """The places that both checks name."""
    both = (checks.gradient_nonfinite_before_a_layer(evidence), checks.gradient_nonfinite_in_one_place(evidence))
    answers = [answer for answer in both if isinstance(answer, list)]
    assert len(answers) == 2
    return [[(hit.facts["place"], hit.step, hit.after) for hit in answer] for answer in answers]


@pytest.mark.parametrize("fault", [0, 1, 2])
def test_a_gradient_that_breaks_in_a_block_is_nan_before_it_and_finite_behind_it(tmp_path, fault):
    assert found(killed(tmp_path, fault)) == [[(f"blocks.{fault}", STEPS, STEPS - 1)], []]


@pytest.mark.parametrize("changes", [{"fault": 1, "clip": 1.0}, {"poisoned": True}, {"fault": 1, "steps": STEPS + 1}])
def test_what_spreads_over_all_tensors_has_no_place(tmp_path, changes):
    evidence = killed(tmp_path, **changes)
    if changes.get("steps"):
        (tmp_path / f"checkpoint-{STEPS}.pt").unlink()  # only the one after the next step is left
        (evidence,) = gather([tmp_path])
    assert found(evidence) == [[], []]


def test_a_penalty_on_the_rows_of_an_embedding_breaks_that_alone(tmp_path):
    assert found(killed(tmp_path, penalty=True)) == [[], [("embedding.weight", STEPS, STEPS - 1)]]


def test_finite_moments_have_no_such_place(tmp_path):
    assert found(killed(tmp_path)) == [[], []]
