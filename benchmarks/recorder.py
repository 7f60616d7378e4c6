"""What the recorder costs a training, as the share of a step: a transformer of 10 million parameters, 8 x 128 tokens.

    python benchmarks/recorder.py [--device cpu|cuda] [--pairs 40] [--threads N] [--check auto|now|late]

Two trainings of the same model run in turn, one with the recorder and one without; which goes first alternates. Each
turn is one step on the CPU, by the processor time of this process, and 20 steps on CUDA (where a step is only handed
over), by the clock; with AdamW and clipping. The figure is the median over the pairs of turns of their ratio, so that a
machine that changes its speed does not change it. Limit: 2 % of the step; exit code 1 where it is exceeded. The losses
of both trainings must be the same.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch
from torch import nn

from gradforensics import Recorder

LIMIT = 0.02
VOCABULARY, WIDTH, LAYERS, HEADS = 8192, 256, 10, 4
SAMPLES, TOKENS = 8, 128
CLIP = 1.0
WARMUP = 3


class Transformer(nn.Module):
    """A causal language model, 10.0 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(TOKENS))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids (samples, tokens) to logits (samples, tokens, VOCABULARY)."""
        hidden = self.norm(self.layers(self.embedding(ids), mask=self.mask, is_causal=True))
        return nn.functional.linear(hidden, self.embedding.weight)


class Training:
    """One training, with or without a recorder in `folder`."""

    def __init__(self, device: str, folder: str | None, check: str) -> None:
        torch.manual_seed(0)
        self.model = Transformer().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.device = device
        self.losses: list[torch.Tensor] = []
        self.recorder: Recorder | None = None
        if folder is not None:
            self.recorder = Recorder(
                self.model,
                self.optimizer,
                folder,
                max_grad_norm=CLIP,
                check=check,  # type: ignore[arg-type]  # one of three
            )

    def step(self, number: int) -> None:
        """One optimizer step; the same number gives the same batch and dropout in every training."""
        torch.manual_seed(number)
        ids = torch.randint(VOCABULARY, (SAMPLES, TOKENS + 1)).to(self.device, non_blocking=True)
        self.optimizer.zero_grad()
        if self.recorder is not None:
            ids = self.recorder.batch(ids)
        logits = self.model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        if self.recorder is not None:
            loss = self.recorder.loss(loss)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.losses.append(loss.detach())


def seconds(device: str, work: Callable[[], None]) -> float:
    """Time until the device is done: of the processor on the CPU, which other processes slow down least."""
    if device == "cpu":
        start = time.process_time()
        work()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(device: str, pairs: int, check: str) -> tuple[list[float], list[float]]:
    """Seconds per step without and with the recorder, of every pair of turns."""
    turn = 20 if device == "cuda" else 1
    with tempfile.TemporaryDirectory() as folder:
        bare, recorded = Training(device, None, check), Training(device, folder, check)
        taken: dict[bool, list[float]] = {False: [], True: []}
        for pair in range(WARMUP + pairs):

            def steps(training: Training, first: int = pair * turn) -> None:
                for number in range(first, first + turn):
                    training.step(number)

            for with_recorder in (False, True) if pair % 2 else (True, False):
                training = recorded if with_recorder else bare
                spent = seconds(device, lambda training=training: steps(training)) / turn  # type: ignore[misc]  # bound now
                if pair >= WARMUP:
                    taken[with_recorder].append(spent)
        assert recorded.recorder is not None
        recorded.recorder.close()
        if not torch.equal(torch.stack(bare.losses), torch.stack(recorded.losses)):
            raise SystemExit("the losses of the two trainings differ")
    return taken[False], taken[True]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--check", choices=("auto", "now", "late"), default="auto")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    count = sum(parameter.numel() for parameter in Transformer().parameters())
    bare, recorded = measure(given.device, given.pairs, given.check)
    ratios = sorted(b / a for a, b in zip(bare, recorded, strict=True))
    share = statistics.median(ratios) - 1.0
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    print(f"{count / 1e6:.1f} million parameters, {SAMPLES} x {TOKENS} tokens, {given.device}, check={given.check}")
    print(f"a step without the recorder {statistics.median(bare) * 1000:.1f} ms, with it", end=" ")
    print(f"{statistics.median(recorded) * 1000:.1f} ms")
    print(f"the recorder costs {share:.2%} of a step (quartiles {low - 1:.2%} to {high - 1:.2%}; limit {LIMIT:.0%})")
    return int(share > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
