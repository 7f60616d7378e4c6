"""Lightning with the recorder: an encoder that brings pairs of the same kind together and keeps others apart.

python train.py RUN                      trains; RUN gets metrics.csv, hparams.yaml, checkpoints and capsules
python train.py RUN --fault distance     with a fault: sqrt at 0 behind torch.where, met by a pair of equal items
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gradforensics.recorder.lightning import RecorderCallback, training_loss
from gradforensics.replay.program import Program, Request

WIDTH, KINDS, SAMPLES = 12, 4, 100
EQUAL = 76  # the pair whose two items are the same; with seed 0 it comes first in step 6
BATCH, ACCUMULATION, EPOCHS, CLIP = 8, 2, 3, 1.0
torch.set_num_threads(1)  # the number of threads decides the last bits of a step


class Distance(nn.Module):
    """Euclidean distance of vectors (samples, width), shape (samples,)."""

    def __init__(self, *, faulty: bool) -> None:
        super().__init__()
        self.faulty = faulty

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """The fault: torch.where hides sqrt(0), but its backward is 0 * infinity."""
        squared = (a - b).square().sum(-1)
        if self.faulty:
            return torch.where(squared == 0, torch.zeros_like(squared), squared.sqrt())
        return (squared + 1e-12).sqrt()


class Encoder(lightning.LightningModule):
    """A batch is items (samples, WIDTH), their partners (samples, WIDTH) and whether they are of a kind (samples,)."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, 6))
        self.distance = Distance(faulty=fault == "distance")

    def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
        """Contrastive loss with margin 1; train_loss in the log is that of this micro-batch."""
        items, partners, alike = batch
        d = self.distance(self.body(items), self.body(partners))
        loss: Tensor = (alike * d + (1.0 - alike) * (1.0 - d).relu().square()).mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW at a constant rate."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def pairs(seed: int) -> TensorDataset:
    """Pairs of noisy points around the centres of KINDS kinds."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(KINDS, WIDTH, generator=generator)
    kinds = torch.randint(0, KINDS, (2, SAMPLES), generator=generator)
    items, partners = centres[kinds] + 0.3 * torch.randn(2, SAMPLES, WIDTH, generator=generator)
    alike = kinds[0] == kinds[1]
    partners[EQUAL], alike[EQUAL] = items[EQUAL], True
    return TensorDataset(items, partners, alike.float())


def make(fault: str, seed: int) -> tuple[Encoder, DataLoader[Any]]:
    """Module and data, for training and replay: both have to draw the same numbers before the first epoch."""
    lightning.seed_everything(seed, verbose=False)
    return Encoder(fault), DataLoader(pairs(seed), BATCH, shuffle=True)


class DataOrder:
    """Which samples each optimizer step gets from a shuffling DataLoader, rebuilt; create it where training begins.

    At the start of an epoch the loader draws a seed for its workers, then its sampler draws one for the order, both
    from torch's global generator. So the order depends on everything that draws from it on the way: on the CPU dropout,
    noise, augmentation outside of workers, a pass over another DataLoader (validation: one draw each). Where a training
    does that, give its DataLoader a `generator` of its own: then it depends on the generator's seed alone, and this
    class follows that too. num_workers does not matter; with several ranks Lightning puts a DistributedSampler in,
    which is seeded with seed + epoch instead. Lightning does not save random states: a resumed run starts the
    order anew, with the first order of its seed for the rest of the epoch in which it was stopped.
    """

    def __init__(self, loader: DataLoader[Any], accumulation: int = ACCUMULATION) -> None:
        self._loader, self._accumulation = loader, accumulation
        self._state = torch.get_rng_state()
        self._epochs: list[list[list[int]]] = []

    def ids(self, step: int) -> list[list[int]]:
        """Ids of the samples in every micro-batch of an optimizer step, from 1. An epoch's last step takes the rest."""
        per_epoch = math.ceil(len(self._loader) / self._accumulation)
        epoch, place = divmod(step - 1, per_epoch)
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._state)
            while len(self._epochs) <= epoch:
                torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)
                self._epochs.append([list(ids) for ids in self._loader.batch_sampler or ()])
            self._state = torch.get_rng_state()
        return self._epochs[epoch][place * self._accumulation : (place + 1) * self._accumulation]


def build(request: Request) -> Program:
    """What `gradforensics replay` calls, from a capsule as from a checkpoint."""
    file = (request.run or Path()) / "settings.json"
    settings = request.settings or json.loads(file.read_text(encoding="utf-8"))
    module, loader = make(str(settings["fault"]), int(settings["seed"]))
    order, data = DataOrder(loader), loader.dataset

    def batches(step: int) -> list[Any]:
        return [loader.collate_fn([data[i] for i in ids]) for ids in order.ids(step)]

    return Program(
        module,
        training_loss,
        batches=batches,
        optimizer=module.configure_optimizers(),
        divide=ACCUMULATION,
        max_grad_norm=CLIP,
    )


def repaired(request: Request) -> Program:
    """The same program without the fault, for `gradforensics replay --fix`."""
    program = build(request)
    program.model.distance = Distance(faulty=False)
    return program


def train(run: Path, settings: dict[str, Any]) -> None:
    """Train, log every step, save a checkpoint every 3 steps."""
    run.mkdir(parents=True, exist_ok=True)
    (run / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    module, loader = make(settings["fault"], settings["seed"])
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        accumulate_grad_batches=ACCUMULATION,
        gradient_clip_val=CLIP,
        log_every_n_steps=1,
        logger=CSVLogger(run, name="logs", version=""),
        callbacks=[
            ModelCheckpoint(run / "checkpoints", "{step}", every_n_train_steps=3, save_top_k=-1),
            RecorderCallback(run, program=build, settings=settings),
        ],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder for the run")
    parser.add_argument("--fault", choices=("none", "distance"), default="none")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    train(options.run, {"fault": options.fault, "seed": options.seed})


if __name__ == "__main__":
    main()
