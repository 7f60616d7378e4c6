"""Runs of two processes that torchrun starts on this machine, over gloo: what its user would find afterwards."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from lab import plain_config, write_json
from train_ddp import PEAK, STEPS

HERE = Path(__file__).resolve().parent
CONFIG = {
    "strategy": "ddp", "backend": "gloo", "world_size": 2, "learning_rate": PEAK, "lr_scheduler_type": "cosine",
    "warmup_steps": 20, "max_steps": STEPS,
}  # fmt: skip


def launch(run: Path, job: str, *, variables: dict[str, str] | None = None) -> None:
    """Train `job` of train_ddp in two processes; train.log holds what they and torchrun print.

    A launch whose processes wrote their stacks is killed with all of them, as by a scheduler that gives no notice.
    """
    write_json(run / "config.json", plain_config(**CONFIG, **({"env": variables} if variables else {})))
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    start(run, [*command, str(HERE / "train_ddp.py"), job, str(run)], variables or {})


def alone(run: Path, job: str) -> None:
    """Train `job` as the second of two processes while nothing listens at the address of the first."""
    write_json(run / "config.json", plain_config(**CONFIG))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    start(run, [str(HERE / "train_ddp.py"), job, str(run)], place)
    log = run / "train.log"
    log.write_text(log.read_text(encoding="utf-8").replace(port, "29500"), encoding="utf-8")


def start(run: Path, arguments: list[str], variables: dict[str, str]) -> None:
    """Run Python with these arguments, its output in train.log, and take this machine's names out of it."""
    log = run / "train.log"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **variables}
    with log.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(  # noqa: S603  # our own interpreter and script
            [sys.executable, *arguments], stdout=stream, stderr=stream, env=environment, start_new_session=True
        )
        while process.poll() is None:
            time.sleep(0.5)
            if len([path for path in run.glob("stacks.*") if path.stat().st_size]) == 2:
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
                for number in (
                    process.pid,
                    *map(int, children),
                ):  # torchrun puts its workers into sessions of their own
                    os.kill(number, signal.SIGKILL)
                process.wait()
    for path in (log, *run.glob("stacks.*")):
        path.write_text(neutral(path.read_text(encoding="utf-8")), encoding="utf-8")


def neutral(text: str) -> str:
    """The text without paths, process numbers, ports and the name of this machine."""
    for own, other in ((str(HERE), "/workspace"), (sys.prefix, "/opt/venv"), (sys.base_prefix, "/usr")):
        text = text.replace(own, other)
    text = text.replace(socket.gethostname(), "node01")
    text = re.sub(r"(?:/[\w.-]+)*/sample_runs/", "/workspace/", text)
    for pattern, other in (
        (r"(?<=pid: )\d+", "4242"),
        (r"(?<=PID )\d+", "4242"),
        (r"(?<=Sending process )\d+", "4242"),
        (r"(?<=\d\d:\d\d:\d\d\.\d{6} )\d+(?= torch/)", "4200"),
        (r"(?<=127\.0\.0\.1\]:)\d+", "29500"),
        (r"(?<=localhost\]:)\d+", "29500"),
    ):
        text = re.sub(pattern, other, text)
    return text
