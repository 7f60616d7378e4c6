"""Small trainings, each with one thing that a recorder may get wrong; all of them run the same with and without one."""

import contextlib
import math
from dataclasses import dataclass

import torch
from torch import nn

STEPS = 6


class LanguageModel(nn.Module):
    """Token ids (samples, tokens) to logits; the head is the embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 12)
        self.layer = nn.TransformerEncoderLayer(12, 2, 24, dropout=0.1, batch_first=True)
        self.head = nn.Linear(12, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.layer(self.embedding(ids)))


def classifier():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))


def loss_of(model, batch):
    logits = model(batch["x"])
    loss = nn.functional.cross_entropy(logits.flatten(0, -2).float(), batch["y"].flatten())
    return loss * batch.get("weight", 1.0)


class Points(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Points with noise of the worker's own."""

    def __len__(self):
        return 8 * STEPS

    def __getitem__(self, index):
        return {"x": torch.randn(8) + index % 3, "y": torch.tensor(index % 4)}


@dataclass
class Training:
    accumulation: int = 1
    autocast: torch.dtype | None = None
    scaled: bool = False
    clip: float | None = None
    tied: bool = False
    workers: int = 0
    optimizer: type = torch.optim.AdamW
    set_to_none: bool = True
    bad: tuple[int, int, float] | None = (
        None  # step, micro-batch, value: put into the batch, or times a tied model's loss
    )

    def model(self):
        torch.manual_seed(0)
        return LanguageModel() if self.tied else classifier()

    def batches(self):
        if self.workers:
            yield from torch.utils.data.DataLoader(Points(), 8, shuffle=True, num_workers=self.workers)
            return
        while True:
            if self.tied:
                ids = torch.randint(20, (3, 7))
                yield {"x": ids[:, :-1], "y": ids[:, 1:]}
            else:
                yield {"x": torch.randn(6, 8), "y": torch.randint(4, (6,))}

    def run(self, record=None, before=None, steps=STEPS):
        """Returns the losses and the trained model. record: makes a recorder. before(step, model) is called first."""
        model = self.model()
        optimizer = self.optimizer(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2) if self.scaled else None
        losses = []
        torch.manual_seed(1)
        with contextlib.ExitStack() as stack:
            recorder = None
            if record is not None:
                recorder = stack.enter_context(record(model, optimizer, scaler, self))
            batches = self.batches()
            for step in range(1, steps + 1):
                if before is not None:
                    before(step, model)
                optimizer.zero_grad(set_to_none=self.set_to_none)
                losses += [self.micro(model, batches, scaler, recorder, (step, i)) for i in range(self.accumulation)]
                if scaler is not None:
                    scaler.unscale_(optimizer)
                if self.clip:
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                if scaler is not None:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
        return losses, model

    def micro(self, model, batches, scaler, recorder, at):
        batch = next(batches)
        if self.bad and at == self.bad[:2]:
            if self.tied:
                batch["weight"] = torch.tensor(self.bad[2])
            else:
                batch["x"][1, 2] = self.bad[2]
        if recorder is not None:
            batch = recorder.batch(batch)
        with torch.autocast("cpu", self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            loss = loss_of(model, batch)
        if recorder is not None:
            loss = recorder.loss(loss)
        value = loss.item()
        scaled = loss / self.accumulation
        (scaled if scaler is None else scaler.scale(scaled)).backward()
        return value


TRAININGS = {
    "plain": Training(),
    "dropout, accumulation, clipping": Training(accumulation=4, clip=0.3),
    "bfloat16": Training(autocast=torch.bfloat16, clip=0.3),
    "float16 with a scaler": Training(autocast=torch.float16, scaled=True, clip=0.3, accumulation=2),
    "a scaler without clipping": Training(autocast=torch.float16, scaled=True),
    "tied weights": Training(tied=True, accumulation=2),
    "workers": Training(workers=2),
    "gradients zeroed in place": Training(accumulation=2, set_to_none=False, optimizer=torch.optim.SGD),
}


def same(a, b):
    """Bitwise, NaN equal to NaN."""
    return a == b or (math.isnan(a) and math.isnan(b))
