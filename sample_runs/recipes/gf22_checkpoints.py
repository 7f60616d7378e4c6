"""GF22 in checkpoints: files of two ranks that should hold the same weights, from two gloo processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from checkpoint_lab import VOCAB
from gloo_lab import HERE, start
from lab import Sample, main, plain_config, write_json
from train_saved import LR, STEPS, WIDTH

COMMON = {"backend": "gloo", "world_size": 2, "learning_rate": LR, "lr_scheduler_type": "constant", "max_steps": STEPS}


def launch(run: Path, job: str) -> None:
    """Train `job` of train_saved in two processes."""
    parallel = {"tensor_model_parallel_size": 2} if job.startswith("tensor-") else {"strategy": "ddp"}
    write_json(run / "config.json", plain_config(**COMMON, **parallel, vocab_size=VOCAB, hidden_size=WIDTH))
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    start(run, [*command, str(HERE / "train_saved.py"), job, str(run)], {})
    (run / "train.log").unlink()  # torchrun's own lines


SAMPLES = (
    Sample(
        "gf22-saved-apart",
        "gf22_checkpoints",
        partial(launch, job="no-sync"),
        "DDP is left in no_sync() from step 31 on; both ranks save, and only rank 0 logs",
        case="GF22",
        variant="saved-apart",
        checkpoints=True,
    ),
    Sample(
        "gf22-step-counters",
        "gf22_checkpoints",
        partial(launch, job="skips"),
        "rank 1 skips every sixth step by itself from step 31 on",
        case="GF22",
        variant="step-counters",
        checkpoints=True,
    ),
    Sample(
        "gf22-tensor-parallel",
        "gf22_checkpoints",
        partial(launch, job="tensor-drift"),
        "tensor and sequence parallelism; the gradients of the layer norms are not reduced over the two ranks",
        case="GF22",
        variant="tensor-parallel",
        checkpoints=True,
    ),
    Sample(
        "gf22-saved-rounding",
        "gf22_checkpoints",
        partial(launch, job="rounding"),
        "DDP whose rank 1 runs the fused AdamW and rank 0 the plain one: the replicas differ in their last bits",
        case="GF22",
        variant="rounding",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf22-twin-saved",
        "gf22_checkpoints",
        partial(launch, job="healthy"),
        "DDP as it should be, saved by both ranks: equal in every bit",
        case="GF22",
        twin=True,
        checkpoints=True,
    ),
    Sample(
        "gf22-twin-tensor-parallel",
        "gf22_checkpoints",
        partial(launch, job="tensor-healthy"),
        "tensor and sequence parallelism as they should be: shards differ, norms do not",
        case="GF22",
        twin=True,
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
