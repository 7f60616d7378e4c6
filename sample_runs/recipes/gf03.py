"""GF03: the accumulated gradient is not that of the effective batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hf_lab
import numpy as np
from accumulation_lab import LR, WARMUP, Accumulation
from accumulation_lab import train as accumulate
from lab import Chain, Sample, beginning, json_lines, main, plain_config, write_json
from torch import Tensor, nn
from transformers import Trainer

STEPS = 200
MICRO_BATCHES = 8


class Summing(Trainer):
    """A compute_loss that ignores num_items_in_batch, of a model that accepts it: nobody divides."""

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor | Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,  # noqa: ARG002  # ignoring it is the fault
    ) -> Tensor | tuple[Tensor, Any]:
        """Mean loss of this micro-batch."""
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class DividingTwice(Trainer):
    """A training loss that is already divided, of a Trainer that divides by the accumulation steps as well."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = False

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The training loss divided by the accumulation steps, the evaluation loss as it is."""
        found = super().compute_loss(model, inputs, *args, **kwargs)
        return found / self.args.gradient_accumulation_steps if model.training else found


def with_trainer(run: Path, trainer_class: type[Trainer], micro_batches: int, micro_size: int) -> None:
    """Hugging Face Trainer with evaluations, 16 sequences per step."""
    chain = Chain.make()
    held_out = hf_lab.Tokens(chain.sample(np.random.default_rng(2), count=256))
    hf_lab.fit(
        run,
        hf_lab.tiny_gpt2(),
        hf_lab.fresh(chain, STEPS),
        steps=STEPS,
        evaluate=held_out,
        trainer_class=trainer_class,
        eval_strategy="steps",
        eval_steps=20,
        gradient_accumulation_steps=micro_batches,
        per_device_train_batch_size=micro_size,
    )


def not_divided(run: Path) -> None:
    """A loop of its own without the division, clipped at 1.0, which logs the mean loss: only the norm shows it."""
    chain, model, generator = beginning()
    facts = {"gradient_accumulation_steps": MICRO_BATCHES, "per_device_train_batch_size": 2, "max_steps": STEPS}
    schedule = {"learning_rate": LR, "lr_scheduler_type": "cosine", "warmup_steps": WARMUP}
    write_json(run / "config.json", plain_config(**schedule, **facts))
    with json_lines(run / "metrics.jsonl") as log:
        accumulate(model, generator, log, Accumulation(chain, STEPS, MICRO_BATCHES, 2))


SAMPLES = (
    Sample(
        "gf03-summed",
        "gf03",
        lambda run: with_trainer(run, Summing, MICRO_BATCHES, 2),
        "HF Trainer whose compute_loss ignores num_items_in_batch: eight losses added up, 8 times the evaluation loss",
        case="GF03",
        variant="summed",
    ),
    Sample(
        "gf03-divided-twice",
        "gf03",
        lambda run: with_trainer(run, DividingTwice, MICRO_BATCHES, 2),
        "HF Trainer whose loss is divided by the accumulation steps twice: an eighth of the evaluation loss",
        case="GF03",
        variant="divided-twice",
        primary="",
    ),
    Sample(
        "gf03-clipped",
        "gf03",
        not_divided,
        "no division and no evaluation: every step from the first on is clipped, which is a suspect only",
        case="GF03",
        variant="clipped",
        primary="",
    ),
    Sample(
        "gf03-twin",
        "gf03",
        lambda run: with_trainer(run, Trainer, MICRO_BATCHES, 2),
        "the same with the Trainer's own loss: eight micro-batches rightly divided",
        case="GF03",
        twin=True,
    ),
    Sample(
        "gf03-twin-big-batch",
        "gf03",
        lambda run: with_trainer(run, Trainer, 1, 16),
        "one big batch instead of eight small ones",
        case="GF03",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
