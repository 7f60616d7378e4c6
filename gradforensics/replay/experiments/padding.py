"""Whether left-padded, right-padded and unpadded samples give the same loss.

Every padded sample of the step runs alone, in evaluation mode (dropout would differ): as recorded, with its pads on the
right, on the left, and without them. Whatever goes with the tokens (labels, positions, mask) moves with them. Labels on
pads are left out everywhere, so that pads in the labels, another fault, do not show here.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gradforensics.experiments import Quantity, Result
from gradforensics.replay.batches import fields_of, length, replaced, size, take, with_batch
from gradforensics.replay.experiment import Context, Experiment
from gradforensics.replay.losses import of_another_sequence, run
from gradforensics.replay.recording import Micro
from gradforensics.replay.step import StepRunner, told
from gradforensics.replay.weighting import repeats_ids, valid_labels
from gradforensics.torch_state import tensors_of

_APART = 0.01  # relative difference of the mean loss that rounding does not explain (catalogue of faults, GF16)


@dataclass(frozen=True, slots=True)
class _Sample:
    """One padded sample. batch: it alone, labels on pads ignored. real, pads: its columns. counted: valid labels."""

    micro: Micro
    batch: Any
    index: int  # within the step
    real: list[int]
    pads: list[int]
    counted: int

    @property
    def left(self) -> int:
        """Pads before the first token."""
        return sum(1 for column in self.pads if column < self.real[0])


class _UnsuitableError(Exception):
    """Why the batch cannot be padded otherwise."""


def _run(context: Context) -> Iterator[Result]:
    try:
        samples = _padded_samples(context.runner)
        losses = {name: _losses(context.runner, samples, name) for name in ("recorded", "unpadded", "right", "left")}
    except _UnsuitableError as reason:
        yield context.result("padding", "nothing", "nothing to compare", f"{reason}.", "inconclusive")
        return
    yield (finding := _judged(context, samples, losses))
    if finding.outcome == "fault":
        yield from _cures(context, samples, losses)


# -- samples ----------------------------------------------------------------------------------------------------------


def _padded_samples(runner: StepRunner) -> list[_Sample]:
    """The samples that have pads. Raises _UnsuitableError where there are none or their tensors cannot be moved."""
    ignore = int(runner.settings.get("ignore_index", -100))
    pad = runner.settings.get("pad_token_id")
    found: list[_Sample] = []
    first = 0
    for micro in runner.step.micros:
        real = _real_tokens(micro.batch, pad if isinstance(pad, int) else None)
        for index in range(size(micro.batch)):
            columns = real[index].nonzero().reshape(-1).tolist()
            if columns and len(columns) < real.shape[1]:
                found.append(_sample(micro, index, first, columns, real.shape[1], ignore))
        first += size(micro.batch)
    if found and _of_decoder(runner, found[0]):
        raise _UnsuitableError("The labels are those of a decoder and as many as the encoder's tokens: they cannot be "
                               "told from labels of the tokens")  # fmt: skip
    if not found:
        raise _UnsuitableError("No sample of this step has pads: there is nothing to compare")
    if not any(one.counted for one in found):
        raise _UnsuitableError("No padded sample has a valid label")
    return [one for one in found if one.counted]


def _of_decoder(runner: StepRunner, sample: _Sample) -> bool:
    """Whether labels of the shape of the ids are the ids of another sequence, that does not move with the pads."""
    fields = fields_of(sample.batch)
    if fields.labels is None or fields.ids is None or fields.labels.shape != fields.ids.shape:
        return False
    seen = run(runner, [with_batch(sample.micro, sample.batch)], backward=False, evaluating=True).seen
    return of_another_sequence(fields.labels.cpu(), fields.ids, seen.lookups)


def _real_tokens(batch: Any, pad: int | None) -> torch.Tensor:
    """Which tokens are no pads, bool (samples, tokens): by the mask, else by the pad id at the ends of the rows."""
    fields = fields_of(batch)
    if fields.ids is None:
        raise _UnsuitableError("The batch holds no token ids of shape (samples, tokens)")
    tokens = fields.ids.shape[1]
    if any(t.dim() >= 3 and t.shape[-1] == t.shape[-2] == tokens for t in tensors_of(batch)):
        raise _UnsuitableError("The attention mask has a row per token (3 or 4 dimensions): pads are not all it says")
    if fields.mask is not None and fields.mask.shape == fields.ids.shape:
        return _by_mask(fields.ids, fields.mask)
    if pad is None:
        raise _UnsuitableError("The batch has no attention mask, and no pad_token_id is known")
    is_pad = fields.ids == pad
    ends = is_pad.cummin(1).values | is_pad.flip(1).cummin(1).values.flip(1)
    return ~ends


def _by_mask(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Pads are where the mask is 0, or where it is 1 if only there all ids are one: masks of pads exist as well."""
    real = mask.to(torch.bool)
    marked, others = torch.unique(ids[~real]), torch.unique(ids[real])
    if len(others) == 1 and len(marked) > 1:
        real = ~real
    inside = real.to(torch.uint8).cummax(1).values & real.flip(1).to(torch.uint8).cummax(1).values.flip(1)
    if bool((inside.bool() & ~real).any()):
        raise _UnsuitableError("The mask leaves out tokens between others: it does not only mark pads")
    return real


def _sample(micro: Micro, index: int, first: int, columns: list[int], tokens: int, ignore: int) -> _Sample:
    batch = take(micro.batch, [index])
    real = set(columns)
    pads = [column for column in range(tokens) if column not in real]
    fields = fields_of(batch)
    if fields.labels is not None and fields.ids is not None and fields.labels.shape == fields.ids.shape:
        labels = fields.labels.clone()
        labels[:, pads] = ignore
        batch = replaced(batch, fields.keys["labels"], labels)
        if repeats_ids(batch, ignore):  # shifted in the model: only a pad could predict the first token
            labels[:, columns[0]] = ignore
    counts = valid_labels(batch, ignore)
    return _Sample(micro, batch, first + index, columns, pads, 1 if counts is None else int(counts.sum()))


# -- variations -------------------------------------------------------------------------------------------------------


def _losses(runner: StepRunner, samples: list[_Sample], variation: str) -> list[float]:
    """The loss of every sample under a variation; NaN where the program raised.

    Raises _UnsuitableError where it raised as recorded or without pads, which leaves nothing to compare.
    """
    micros = [with_batch(one.micro, _varied(one, variation)) for one in samples]
    found = runner.compute(micros, evaluating=True, backward=False)
    if found.error is not None and variation in ("recorded", "unpadded"):
        raise _UnsuitableError(f"The program raises, with one sample at a time ({variation}): {told(found.error)}")
    return found.losses + [math.nan] * (len(samples) - len(found.losses))


def _varied(sample: _Sample, variation: str) -> Any:
    if variation == "recorded":
        return sample.batch
    if variation == "positions":
        return _with_positions(sample)
    order = {"right": sample.real + sample.pads, "left": sample.pads + sample.real, "unpadded": sample.real}[variation]
    batch, tokens = sample.batch, length(sample.batch)
    moved = _moved(batch, order, tokens)
    fields = fields_of(moved)
    if fields.positions is not None and variation != "left" and _counts_pads(sample):
        return replaced(moved, fields.keys["positions"], (fields.positions - sample.left).clamp(min=0))
    return moved


def _moved(value: Any, order: list[int], tokens: int) -> Any:
    """The same containers, with the columns of every tensor of shape (1, tokens, ...) in this order."""
    if isinstance(value, torch.Tensor):
        whole = value.dim() >= 2 and value.shape[0] == 1 and value.shape[1] == tokens
        return value[:, order] if whole else value
    if isinstance(value, Mapping):
        return {key: _moved(item, order, tokens) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(item, order, tokens) for item in value)
    return value


def _counts_pads(sample: _Sample) -> bool:
    """Whether the given positions count the pads before the first token."""
    positions = fields_of(sample.batch).positions
    return positions is not None and sample.left > 0 and int(positions[0, sample.real[0]]) == sample.left


def _with_positions(sample: _Sample) -> Any:
    """Position ids that count the tokens: cumsum(mask) - 1, and 0 on pads."""
    ids = fields_of(sample.batch).ids
    assert ids is not None  # or there would be no sample
    real = torch.zeros_like(ids)
    real[:, sample.real] = 1
    key = fields_of(sample.batch).keys.get("positions", "position_ids")
    return replaced(sample.batch, key, (real.cumsum(1) - 1).clamp(min=0))


# -- judging ----------------------------------------------------------------------------------------------------------


def _mean(samples: list[_Sample], losses: list[float]) -> float:
    """Over the valid labels."""
    return sum(one.counted * loss for one, loss in zip(samples, losses, strict=True)) / sum(s.counted for s in samples)


def _difference(loss: float, reference: float) -> float:
    """Relative; NaN where either is not finite or the reference is 0."""
    return abs(loss - reference) / abs(reference) if reference and math.isfinite(loss) else math.nan


def _judged(context: Context, samples: list[_Sample], losses: Mapping[str, list[float]]) -> Result:
    means = {name: _mean(samples, those) for name, those in losses.items()}
    apart = {name: _difference(mean, means["unpadded"]) for name, mean in means.items()}
    worst = max(
        range(len(samples)), key=lambda i: _distance(losses["recorded"][i], losses["unpadded"][i])
    )  # fmt: skip
    usable = math.isfinite(means["unpadded"]) and means["unpadded"] != 0
    fault = usable and not apart["recorded"] <= _APART
    hidden = fault and not _labels_known(samples[0].batch) and any(s.left for s in samples)
    side = _side(samples)
    return context.result(
        "padding",
        "pads moved to the right, to the left and left out; one sample at a time, evaluation mode",
        f"mean loss of {len(samples)} padded samples: recorded ({side}) {means['recorded']:.5g}, right "
        f"{means['right']:.5g}, left {means['left']:.5g}, unpadded {means['unpadded']:.5g}",
        _conclusion(side, apart, usable=usable, fault=fault, hidden=hidden),
        "inconclusive" if not usable or hidden else ("fault" if fault else "clean"),
        [
            *(Quantity("loss", mean, "", name) for name, mean in means.items()),
            *(Quantity("relative_difference", value, "", name) for name, value in apart.items()),
            *(Quantity("finite", float(math.isfinite(mean)), "", name) for name, mean in means.items()),
            Quantity("sample", float(samples[worst].index)),
            Quantity("samples", float(len(samples))),
            Quantity("side", text=side),
        ],
    )


def _distance(a: float, b: float) -> float:
    return abs(a - b) if math.isfinite(a - b) else math.inf


def _side(samples: list[_Sample]) -> str:
    sides = {"left" if s.left == len(s.pads) else "right" if not s.left else "both" for s in samples}
    return f"{sides.pop()}-padded" if len(sides) == 1 else "padded on either side"


def _labels_known(batch: Any) -> bool:
    """Whether labels are in the batch, per token or per sample, and not made by the loss itself."""
    if fields_of(batch).labels is not None:
        return True
    return any(t.dim() == 1 and t.shape[0] == 1 for t in tensors_of(batch))


def _conclusion(side: str, apart: Mapping[str, float], *, usable: bool, fault: bool, hidden: bool) -> str:
    if not usable:
        return "The unpadded samples have no usable loss, so that there is nothing to compare with."
    if not fault:
        other = [name for name in ("right", "left") if not apart[name] <= _APART]
        said = f"The pads do not change the loss (difference {apart['recorded']:.2g} of it, limit {_APART:g})."
        return said + "".join(f" Padded on the {name} it would: do not change the side." for name in other)
    how = "is not finite" if math.isnan(apart["recorded"]) else f"differs by {apart['recorded']:.2%}"
    said = f"The loss of the {side} samples {how} from that without pads."
    if hidden:
        return f"{said} The loss makes its labels itself, perhaps on pads as well: that alone could explain it."
    return f"{said} Either pads are attended to, or the positions count them, or a row is masked as a whole."


def _cures(context: Context, samples: list[_Sample], losses: Mapping[str, list[float]]) -> Iterator[Result]:
    """Right padding, and positions that count tokens only, as far as they bring the loss back."""
    runner = context.runner
    tried = {"right": "pads on the right"}
    if _takes_positions(runner, samples[0].batch):
        tried["positions"] = "position_ids = cumsum(attention_mask) - 1 given to the model"
    reference = _mean(samples, losses["unpadded"])
    before = _mean(samples, losses["recorded"])
    for name, words in tried.items():
        after = _mean(samples, losses[name] if name in losses else _losses(runner, samples, name))
        apart = _difference(after, reference)
        if apart <= _APART:
            yield context.result(
                "padding", words, f"mean loss {before:.5g} without, {after:.5g} with it, {reference:.5g} without pads",
                "With it the padded samples have the loss that they have without pads.", "verified",
                [Quantity("loss", after, "", name), Quantity("relative_difference", apart, "", name)],
            )  # fmt: skip


def _takes_positions(runner: StepRunner, batch: Any) -> bool:
    if fields_of(batch).positions is not None:
        return True
    return isinstance(batch, Mapping) and "position_ids" in inspect.signature(runner.model.forward).parameters


# four variations of the padded samples, one cure and one sample to look at, forward only
EXPERIMENT = Experiment("padding", lambda _: 6.0, _run)
