"""What the parent and the child of a replay tell each other (no torch).

The parent writes a `Job` to a file. The child writes lines of JSON to a pipe, each an object with "kind":

    awake       torch is imported, nothing of the user's has run
    refused     text, exit_code: the step cannot be replayed
    rolled      done, total: steps on the way to the one in question
    prepared    device, state, environment, notices, costs (steps by experiment)
    started     experiment, cost
    progress    spent: steps of the experiment that runs
    result      result, as in experiments.jsonl
    failed      experiment, cause ("memory", "device", "exit" or ""), text, place: it raised
    ended       experiment
    done        nothing is left to do

After a failure with a cause the child ends: the parent goes on with a new one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

FILE = "job.json"


@dataclass(frozen=True, slots=True)
class ProgramOf:
    """The program: `function` of `file` (absolute), whose hash must still be sha256; or a class of transformers."""

    kind: Literal["function", "huggingface"]
    file: str
    function: str
    sha256: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StateOf:
    """Where the state before the step comes from: a capsule, or a checkpoint (paths; "" for the other).

    first: the first step to run from a checkpoint. capsules: that may hold batches of the steps from there. batch: a
    file with the batch of the step.
    """

    capsule: str = ""
    checkpoint: str = ""
    first: int = 0
    capsules: tuple[str, ...] = ()
    batch: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that a child needs to know.

    parent: its process. run: the run directory, "" for none. budget: steps that may be spent, None for any number.
    found: results of the children before, as JSON. logged: loss and grad_norm in the run's logs. memory: bytes;
    memory_given: whether the user gave that limit, which then holds for the memory of a device too.
    """

    parent: int
    step: int
    run: str
    device: str
    state: StateOf
    program: ProgramOf
    fix: ProgramOf | None
    experiments: tuple[str, ...]
    runs: int
    budget: float | None
    logged: Mapping[str, float]
    memory: int | None
    memory_given: bool
    found: tuple[Mapping[str, Any], ...] = ()


def write(folder: Path, job: Job) -> Path:
    """Write a job into a replay directory; returns its path."""
    path = folder / FILE
    path.write_text(json.dumps(asdict(job)), encoding="utf-8")  # NaN of a log stays as Python writes it
    return path


def read(path: Path) -> Job:
    """The inverse of `write`."""
    data = json.loads(path.read_text(encoding="utf-8"))
    data["state"] = StateOf(**data["state"])
    data["program"] = ProgramOf(**data["program"])
    data["fix"] = None if data["fix"] is None else ProgramOf(**data["fix"])
    data["experiments"] = tuple(data["experiments"])
    data["found"] = tuple(data["found"])
    return Job(**data)


def line(kind: str, **content: Any) -> bytes:
    """A message as the child writes it."""
    return json.dumps({"kind": kind, **content}, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


class Lines:
    """Puts messages together out of the bytes of a pipe."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The messages that are whole by now; what is no message of ours is left out."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        for one in whole:
            try:
                message = json.loads(one)
            except ValueError:  # the program wrote into our pipe
                continue
            if isinstance(message, dict) and isinstance(message.get("kind"), str):
                yield message
