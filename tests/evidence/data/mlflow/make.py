"""Makes `store.db.gz` and `mlruns.tgz` beside it with mlflow 3.17 (`pip install mlflow-skinny sqlalchemy alembic`).

    python make.py

The database is compressed because the schema alone has half a megabyte of empty pages.
"""

import gzip
import importlib
import math
import os
import sqlite3
import tarfile
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
START = 1_750_000_000_000


def losses(client: Any, run: str, steps: range, scale: float = 1.0, late: int = 0) -> None:
    for step in steps:
        now = START + 1000 * (late + step)
        client.log_metric(run, "train/loss", scale * (2.5 * math.exp(-step / 20) + 0.1), timestamp=now, step=step)
        client.log_metric(run, "lr", 1e-3, timestamp=now, step=step)


def record(client: Any) -> None:
    """The same runs in either kind of store."""
    experiment = client.create_experiment("spirals", artifact_location="s3://bucket/spirals")

    def started(name: str) -> str:
        tags = {
            "mlflow.user": "somebody",
            "mlflow.source.name": "train.py",
            "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": "0123456789abcdef0123456789abcdef01234567",
        }
        found: str = client.create_run(experiment, start_time=START, tags=tags, run_name=name).info.run_id
        return found

    run = started("adam 1e-3/seed=0")
    losses(client, run, range(40))
    for step, value in ((10, 0.5), (20, math.nan), (30, math.inf), (31, -math.inf)):
        client.log_metric(run, "val/loss", value, timestamp=START + 1000 * step + 1, step=step)
    for sample in range(5):
        now = START + 10_000 * sample
        client.log_metric(run, "system/gpu_0_utilization_percentage", 90.0, timestamp=now, step=sample)
    for key, text in {
        "learning_rate": "0.001", "betas": "(0.9, 0.95)", "fp16": "True", "num_train_epochs": "3", "max_steps": "-1",
        "optimizer/name": "AdamW", "run_name": "a run",
    }.items():  # fmt: skip
        client.log_param(run, key, text)
    client.set_terminated(run, "FINISHED", end_time=START + 60_000)

    run = started("failed")
    losses(client, run, range(12), scale=2.0)
    client.log_param(run, "learning_rate", "0.1")
    client.set_terminated(run, "FAILED", end_time=START + 13_000)

    run = started("killed")
    losses(client, run, range(20), scale=3.0)
    losses(client, run, range(10, 15), scale=3.0, late=60)  # resumed from a checkpoint a minute later, and killed
    client.set_terminated(run, "KILLED", end_time=START + 16_000)

    run = started("stepless")
    for index in range(6):
        client.log_metric(run, "loss", 6.0 - index, timestamp=START + 500 * index)

    run = started("died before the first step")
    client.log_param(run, "learning_rate", "1.0")
    client.set_terminated(run, "FAILED", end_time=START + 1000)

    run = started("parameters only")
    client.log_param(run, "learning_rate", "7.0")
    client.set_terminated(run, "FINISHED", end_time=START + 1000)

    run = started("thrown away")
    losses(client, run, range(5), scale=9.0)
    client.set_terminated(run, "FINISHED", end_time=START + 1000)
    client.delete_run(run)


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main() -> None:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    mlflow = importlib.import_module("mlflow")
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        os.chdir(base)
        for uri in (f"sqlite:///{base}/mlflow.db", f"file://{base}/mlruns"):
            record(mlflow.MlflowClient(tracking_uri=uri))
        database = sqlite3.connect(base / "mlflow.db")
        database.execute("UPDATE experiments SET artifact_location = 's3://bucket' WHERE name = 'Default'")
        database.commit()
        database.execute("VACUUM")
        database.close()
        packed = gzip.compress((base / "mlflow.db").read_bytes(), 9, mtime=0)
        (HERE / "store.db.gz").write_bytes(packed)
        with tarfile.open(HERE / "mlruns.tgz", "w:gz") as archive:
            archive.add(base / "mlruns", "mlruns", filter=anonymous)


if __name__ == "__main__":
    main()
