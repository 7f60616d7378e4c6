"""Capsules made by hand, of the program faulty.py."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file

from gradforensics import capsule
from gradforensics.torch_state import RandomState, encode

FAULTY = Path(__file__).with_name("faulty.py")


def program(name="faulty"):
    """The module, imported here."""
    sys.path.insert(0, str(FAULTY.parent))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(FAULTY.parent))


def build(settings=None):
    """What the program's function returns."""
    return program().build(SimpleNamespace(settings=settings or {}))


def write(run, step=7, *, rank=0, world_size=1, settings=None, text="on request", own=True, spoil=None, **fields):
    """A capsule of one step below a run directory; returns its folder.

    own: whether it brings faulty.py along. spoil: changes the batches before they are written.
    """
    module = program()
    made = build()
    folder = run / "capsules" / capsule.folder_name(step, rank, world_size)
    folder.mkdir(parents=True)
    tensors: dict[str, torch.Tensor] = {}
    batches = module.batches(step)
    if spoil is not None:
        spoil(batches)
    micros = tuple(
        capsule.MicroBatch(encode(batch, tensors, f"{i}"), RandomState.seeded(i).encode(tensors, f"{i}.rng"))
        for i, batch in enumerate(batches)
    )
    save_file({key: value.contiguous().clone() for key, value in tensors.items()}, folder / capsule.BATCHES)
    save_file({n: p.detach().clone() for n, p in made["model"].named_parameters()}, folder / capsule.MODEL)
    stated = None
    if own:
        (folder / capsule.CODE).mkdir()
        (folder / capsule.CODE / "faulty.py").write_bytes(FAULTY.read_bytes())
        stated = capsule.Program("function", "faulty.py", "build", "", settings or {})
    header: dict[str, Any] = {
        "tool": "test", "step": step, "reason": "request", "text": text,
        "steps": (capsule.Step(step, micros, ({"lr": 0.1},)),), "rank": rank, "world_size": world_size,
        "program": stated, "settings": settings or {}, "optimizer": "torch.optim.SGD",
        "groups": (tuple(n for n, _ in made["model"].named_parameters()),), **fields,
    }  # fmt: skip
    capsule.write_header(folder, capsule.Header(**header))
    return folder


def torch_checkpoint(path, step, model, optimizer=None, **more):
    """What a plain loop saves after a step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    states = {} if optimizer is None else {"optimizer": optimizer.state_dict()}
    torch.save({"model": model.state_dict(), **states, "step": step, **more}, path)
    return path
