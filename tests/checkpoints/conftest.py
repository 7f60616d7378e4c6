"""Small real checkpoints: a model and an optimizer of torch, saved as the frameworks save them."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gradforensics.checkpoints import assigning, load
from gradforensics.checkpoints.discover import find
from gradforensics.checkpoints.refs import read
from gradforensics.untrusted.files import RegularFile

SHARED = Path(__file__).parents[3] / "shared"


def regular(path, root=None):
    return RegularFile(path, str(path.relative_to(root)) if root else path.name, path.stat().st_size)


def files_of(root):
    return [regular(path, root) for path in sorted(root.rglob("*")) if path.is_file()]


def load_all(root):
    """The checkpoints below a folder, named, in the order of their paths."""
    loaded = [load.load(candidate) for candidate in find(files_of(root))]
    assigning.name(loaded)
    return [one.checkpoint for one in loaded]


def load_one(root):
    (checkpoint,) = load_all(root)
    return checkpoint


def raw(ref):
    """The bytes of a tensor in row-major order."""
    data = read(ref)
    if ref.order is not None and ref.stored == ref.count:
        cells = data.reshape(*(ref.shape[axis] for axis in ref.order), ref.itemsize)
        back = np.argsort(ref.order)
        data = np.ascontiguousarray(cells.transpose(*back, len(ref.shape)))
    return data.tobytes()


def values(ref):
    if ref.dtype == "bfloat16":  # the upper half of float32
        return (np.frombuffer(raw(ref), "<u2").astype(np.uint32) << 16).view(np.float32).reshape(ref.shape)
    return np.frombuffer(raw(ref), np.dtype(ref.dtype)).reshape(ref.shape)


def bytes_of(tensor):
    """The bytes of a torch tensor in row-major order."""
    import torch

    tensor = tensor.detach().contiguous()
    return b"" if not tensor.numel() else tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.fixture
def tools():
    """Opening checkpoints and comparing their bytes with torch's."""
    return SimpleNamespace(
        regular=regular, files_of=files_of, load_all=load_all, load_one=load_one, raw=raw, values=values,
        bytes_of=bytes_of, shared=SHARED,
    )  # fmt: skip


@pytest.fixture
def trained():
    """make(): a small model, its optimizer after some steps, its scheduler; advance(): more steps."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(30, 8)
            self.l1 = nn.Linear(8, 12)
            self.norm = nn.LayerNorm(12)
            self.l2 = nn.Linear(12, 30)
            self.register_buffer("buf", torch.arange(4))

        def forward(self, x):
            return self.l2(self.norm(torch.relu(self.l1(self.emb(x)))))

    def make(steps=3, optimizer=torch.optim.AdamW, one_group=False, **options):
        torch.manual_seed(0)
        net = Net()
        decayed = [p for p in net.parameters() if p.ndim >= 2]
        others = [p for p in net.parameters() if p.ndim < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        states = optimizer(net.parameters() if one_group else groups, lr=1e-3, **options)
        schedule = torch.optim.lr_scheduler.LambdaLR(states, lambda step: 1 / (step + 1))
        advance(net, states, schedule, steps)
        return net, states, schedule

    def advance(net, states, schedule, steps):
        for _ in range(steps):
            x = torch.randint(0, 30, (16,))
            states.zero_grad()
            nn.functional.cross_entropy(net(x), x).backward()
            states.step()
            schedule.step()

    return SimpleNamespace(make=make, advance=advance)
