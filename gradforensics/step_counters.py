"""What the parts of every checkpoint counted: the run, its optimizer, its scheduler, its loss scaler (detector D27).

Nothing is judged here. Who counts what:

- Hugging Face Trainer: global_step counts attempts; where a loss scaler skips, optimizer and scheduler stay behind.
- Lightning: global_step counts the steps of all optimizers together; a scheduler may count epochs.
- DeepSpeed: global_steps counts attempts and skipped_steps those that were skipped; its scheduler begins at -1.
- Megatron-LM: iteration counts attempts; its scheduler counts samples (num_steps).
- Accelerate: a prepared scheduler counts every process (last_epoch = processes x steps) unless batches are split.
- A plain loop's "step" may count anything: micro-batches too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from gradforensics import checkpoint_signals as cs
from gradforensics.tables import Evidence

_STEPS = (
    "global_step", "global_steps", "iteration", "num_updates", "iter_num", "train_step", "current_iter", "step",
    "steps", "num_steps", "iter", "it", "niter", "update",
)  # fmt: skip
_LENGTHS = ("T_max", "total_steps", "total_iters", "max_iters")
_SHAPES = {"T_max": "cosine", "total_steps": "one-cycle", "power": "polynomial", "start_factor": "linear"}
_PLATEAU = ("num_bad_epochs", "mode_worse")


class Scheduler(NamedTuple):
    """A scheduler's own state.

    counted: how often it was stepped. length: after how many steps it ends, None where its state does not tell.
    shape: "" where its state does not tell. plateau: it moves when a metric stands still, not with the steps.
    """

    counted: int
    length: float | None
    shape: str
    plateau: bool


class Scaler(NamedTuple):
    """A dynamic loss scaler. interval: good steps after which it doubles, None where that is not known.

    growth, backoff: the factors of torch's GradScaler, None of another scaler: that may skip a step and keep its scale.
    """

    scale: float
    interval: float | None
    growth: float | None
    backoff: float | None


class Counters(NamedTuple):
    """What one checkpoint says.

    step: of the run, None where no file or name states it. made: steps of the optimizer (the largest of its parameters'
    counters), None where it does not count or several optimizers are saved. kind, names: of the optimizer and of its
    parameters. lr: of the first parameter group.
    """

    saved: cs.Saved
    step: int | None
    made: int | None
    optimizers: int
    kind: str
    names: frozenset[str]
    lr: float | None
    scheduler: Scheduler | None
    schedulers: int
    scaler: Scaler | None
    skipped: int | None
    epoch: float | None

    @property
    def behind(self) -> int | None:
        """Steps of the run that the optimizer has not made."""
        return None if self.step is None or self.made is None else self.step - self.made

    @property
    def trainer(self) -> str:
        """Whose step is known to count optimizer steps, whether skipped or not; "" where nobody's is."""
        formats = self.saved.format.split("+")
        if "hf-trainer" in formats:
            return "transformers"
        if "deepspeed" in formats:
            return "deepspeed"
        return "lightning" if self.saved.path.endswith(".ckpt") and self.epoch is not None else ""


def counters(evidence: Evidence) -> list[Counters] | None:
    """The counters of every checkpoint that has a step, in the order of the steps."""
    return evidence.once("step_counters", lambda: _counters(evidence))


def _counters(evidence: Evidence) -> list[Counters] | None:
    saved = cs.checkpoints(evidence)
    if saved is None:
        return None
    return [
        _of(one, cs.facts(evidence, one.path), cs.groups_of(evidence, one.path))
        for one in saved
        if one.step is not None
    ]


def _of(saved: cs.Saved, facts: Mapping[str, Any], groups: list[cs.Group]) -> Counters:
    optimizers = int(facts.get("optimizers", 1 if groups else 0))
    made = [group.step_max for group in groups if group.step_max is not None]
    skipped, epoch = _number(facts.get("skipped_steps")), _number(facts.get("epoch"))
    return Counters(
        saved,
        saved.step if _stated(saved, facts) else None,
        max(made) if made and optimizers == 1 else None,
        optimizers,
        "+".join(sorted({group.optimizer for group in groups})),
        frozenset(name for group in groups for name in group.names),
        groups[0].lr if groups else None,
        _scheduler(facts),
        int(facts.get("schedulers", 1)),
        _scaler(facts),
        None if skipped is None else int(skipped),
        epoch,
    )


def _stated(saved: cs.Saved, facts: Mapping[str, Any]) -> bool:
    """Whether the step of a checkpoint is stated beside the optimizer: by a file, or by the name of file or folder."""
    if "hf-trainer" in saved.format.split("+") or any(facts.get(key) == saved.step for key in _STEPS):
        return True
    return str(saved.step) in {
        number.lstrip("0") for number in re.findall(r"\d+", "/".join(saved.path.split("/")[-2:]))
    }


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _scheduler(facts: Mapping[str, Any]) -> Scheduler | None:
    own = {key.partition(".")[2]: value for key, value in facts.items() if key.startswith("scheduler.")}
    counted, begun = _number(own.get("last_epoch")), 0
    if counted is None:
        counted, begun = _number(own.get("last_batch_iteration")), 1  # DeepSpeed's stands at -1 before the first step
    if counted is None or counted + begun < 0 or counted != int(counted):
        return None
    shape = next((name for key, name in _SHAPES.items() if key in own), "")
    if "_milestones" in own:
        shape = next((name for key, name in _SHAPES.items() if any(k.endswith(f".{key}") for k in own)), "")
    return Scheduler(int(counted) + begun, _length(own), shape, any(key in own for key in _PLATEAU))


def _length(own: Mapping[str, Any]) -> float | None:
    """Where the schedule ends; of a sequence: where its last part ends."""
    turns = own.get("_milestones")
    if isinstance(turns, list) and turns:
        last = f"parts.{len(turns)}."
        part = next((n for key in _LENGTHS if (n := _number(own.get(last + key))) is not None), None)
        return None if part is None else float(turns[-1]) + part
    return next((n for key in _LENGTHS if (n := _number(own.get(key))) is not None), None)


def _scaler(facts: Mapping[str, Any]) -> Scaler | None:
    own = {key.partition(".")[2]: value for key, value in facts.items() if key.startswith("scaler.")}
    scale = _number(own.get("scale", own.get("cur_scale")))
    if scale is None or scale < 0:
        return None
    interval = _number(own.get("growth_interval", own.get("scale_window")))
    growth, backoff = _number(own.get("growth_factor")), _number(own.get("backoff_factor"))
    told = growth is not None and backoff is not None and growth > 1 and 0 < backoff < 1
    return Scaler(scale, interval, growth if told else None, backoff if told else None)


def most_skipped(one: Counters, highest: float) -> float:
    """How many steps torch's GradScaler can have skipped at the most, for the scale at which it stands.

    Every skip multiplies the scale by `backoff`, every `interval` good steps in a row by `growth`; the scale was at
    most `highest` at the start. Infinite where the scaler is another or its scale has become 0.
    """
    scaler = one.scaler
    if scaler is None:
        return 0.0
    if scaler.growth is None or scaler.backoff is None or not scaler.interval or not scaler.scale or one.made is None:
        return math.inf
    grown = (one.made // scaler.interval) * math.log(scaler.growth)
    return max(0.0, (math.log(max(highest, scaler.scale) / scaler.scale) + grown) / -math.log(scaler.backoff))


def counts_updates(evidence: Evidence, found: list[Counters]) -> bool | None:
    """Whether the step of the run counts steps of the optimizer, made or skipped, and not micro-batches.

    True where a framework's does, where both counters agree in one checkpoint, where the settings say that nothing is
    accumulated, or where the ratio is too small for it; False where the ratio is the number of accumulation steps; None
    where nothing tells.
    """
    return evidence.once("step_counters.unit", lambda: _counts_updates(evidence, found))


def _counts_updates(evidence: Evidence, found: list[Counters]) -> bool | None:
    accumulated = evidence.number("gradient_accumulation_steps")
    if any(one.trainer for one in found) or any(one.behind == 0 and (one.made or 0) > 1 for one in found):
        return True
    if accumulated == 1:
        return True
    ratios = [one.step / one.made for one in found if one.step and one.made]
    if accumulated and accumulated > 1 and ratios and all(abs(r / accumulated - 1) < 0.05 for r in ratios):
        return False
    # a step has two micro-batches at least, but for the last one of an epoch
    return True if ratios and max(ratios) < 1.6 else None


def neighbours(found: list[Counters]) -> Iterator[tuple[Counters, Counters]]:
    """Pairs of checkpoints, one after the other, of one model and one kind of optimizer."""
    for before, after in pairwise(found):
        alike = before.kind == after.kind and before.names == after.names and before.optimizers == after.optimizers == 1
        if alike and (before.saved.step or 0) < (after.saved.step or 0):
            yield before, after
