"""Runs that W&B wrote offline: the .wandb log and the files beside it, without anything about the machine."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import wandb
from lab import Log

LEFT_OUT = ("logs", "tmp")
"""What W&B keeps for itself beside a run: its own logs, which name the machine, and links to them."""


@contextlib.contextmanager
def offline(run: Path, config: Mapping[str, object], name: str) -> Iterator[Log]:
    """Log rows to an offline run named `name` below `run`; "step" becomes W&B's own step."""
    settings = wandb.Settings(
        mode="offline",
        console="off",
        disable_code=True,
        disable_git=True,
        silent=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        host="node01",
        program="train.py",
        root_dir=str(run),
        run_id=name,
        run_name=name,
        save_code=False,
        x_save_requirements=False,
    )
    with _without_names():
        started = wandb.init(project="sample", dir=str(run), config=dict(config), settings=settings)
        try:
            yield lambda row: started.log({k: v for k, v in row.items() if k != "step"}, step=int(str(row["step"])))
        finally:
            started.finish()
    folder = next((run / "wandb").glob("offline-run-*"))
    (run / "wandb" / "latest-run").unlink(missing_ok=True)
    for link in (run / "wandb").glob("debug*.log"):
        link.unlink()
    for part in LEFT_OUT:
        shutil.rmtree(folder / part, ignore_errors=True)
    folder.rename(run / "wandb" / f"offline-run-20260101_000000-{name}")


@contextlib.contextmanager
def _without_names() -> Iterator[None]:
    """Hide the user from W&B while it runs."""
    before = {key: os.environ.get(key) for key in ("USER", "USERNAME", "WANDB_USERNAME", "WANDB_HOST")}
    os.environ |= dict.fromkeys(before, "user")
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.__setitem__(key, value)
