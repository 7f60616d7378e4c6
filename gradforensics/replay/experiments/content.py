"""Whether the ids, labels and masks of the batch fit the model and each other.

Judged by what the embeddings and cross-entropy calls of the step really got, so that a label which a mask takes out
later is no fault. Ids and labels outside of their table are replaced in this run: it goes on where the step stops, and
on CUDA nothing asserts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from gradforensics.experiments import Outcome, Quantity, Result
from gradforensics.replay.experiment import Context, Experiment
from gradforensics.replay.gradients import CLIPPED
from gradforensics.replay.losses import LossCall, agreement, of_another_sequence
from gradforensics.replay.parts import Part, part_of
from gradforensics.replay.recording import Micro
from gradforensics.replay.step import told
from gradforensics.replay.tokens import at_least, pads_of
from gradforensics.token_ids import MOST_REPEATS, ids_of, longest_repeat, single_token_share
from gradforensics.torch_state import total_norm

_EOS_IN_IDS, _EOS_IN_LABELS = 0.9, 0.1  # CATALOGUE GF15: end tokens in 90 % of the samples, in 10 % of the labels
_EMPTY_SHARE, _CHANCE = 0.01, 1e-3  # GF15: 1 % of the samples without labels; so many by chance: one step in 1000
_ONE_TOKEN = 0.5  # D42: share of the most frequent token
_SUM = 0.01  # how near to the number of labels the factor of a sum comes
_MEAN = (0.5, 2.0)  # between these a loss is a mean, with class weights or another term beside it
_SAME, _NEXT = 0.99, 0.9  # labels that are their own input; labels that are the token after it (healthy)
_FEW = 16  # labels below which agreement with the ids may be chance


@dataclass(slots=True)
class _Bad:
    """An index outside of its table."""

    part: Part
    sample: int | None
    token: int | None
    index: int
    rows: int
    table: str


@dataclass(slots=True)
class _Told:
    """What one question gave, before it becomes a line of the table."""

    result: str
    conclusion: str
    outcome: Outcome
    quantities: list[Quantity] = field(default_factory=list)


def _run(context: Context) -> Iterator[Result]:
    parts = [part_of(context.runner, index, micro) for index, micro in enumerate(context.runner.step.micros)]
    questions = (
        _ids(parts), _labels(parts), _pads(context, parts), _ends(context, parts), _empty(context, parts),
        _repeats(context, parts), _scale(context, parts), _shift(parts),
    )  # fmt: skip
    for one in questions:
        yield context.result("content", "nothing", one.result, one.conclusion, one.outcome, one.quantities)


def _open(what: str, reason: str) -> _Told:
    return _Told(what, reason, "inconclusive")


# -- indices and their tables ------------------------------------------------------------------------------------------


def _ids(parts: Sequence[Part]) -> _Told:
    calls = [(part, one) for part in parts for one in part.watched.seen.lookups]
    if not calls:
        return _open("no embedding was looked up", "Whether ids fit their tables cannot be told from this step.")
    bad = []
    for part, one in calls:
        columns = one.ids.shape[-1] if one.ids.dim() == 2 else one.ids.numel() // max(part.samples, 1)
        flat = one.ids.reshape(-1)
        laid = (one.ids.dim() == 2 and one.ids.shape[0] == part.samples) or _flattened(part, flat)
        for place in one.bad:
            sample = place // columns if laid else None
            token = place % columns if columns else None
            bad.append(_Bad(part, sample, token, int(flat[place]), one.rows, one.module or "an embedding"))
    tables = sorted({(one.module or "an embedding", one.rows) for _, one in calls})
    shown = ", ".join(f"{name} ({rows} rows)" for name, rows in tables[:4])
    return _indexed(bad, "ids", sum(one.ids.numel() for _, one in calls), f"looked up in {shown}")


def _flattened(part: Part, flat: torch.Tensor) -> bool:
    return part.ids is not None and part.ids.numel() == flat.numel() and bool((part.ids.reshape(-1) == flat).all())


def _labels(parts: Sequence[Part]) -> _Told:
    calls = [(part, one) for part in parts for one in part.watched.seen.losses]
    if not calls:
        return _open("no cross-entropy call with labels was seen", _unseen(parts))
    bad = []
    for part, one in calls:
        laid = part.grid if one is part.call else None
        for place in one.bad:
            sample, token = laid.place(place) if laid is not None else (None, None)
            if laid is not None and laid.columns == 1:
                token = None  # one label per sample
            bad.append(_Bad(part, sample, token, int(one.target[place]), one.classes, "the classes"))
    classes = "/".join(str(n) for n in sorted({one.classes for _, one in calls}))
    valid = sum(int(one.labelled.sum()) for _, one in calls)
    return _indexed(bad, "labels", valid, f"against {classes} classes")


def _unseen(parts: Sequence[Part]) -> str:
    error = next((part.watched.outcome.error for part in parts if part.watched.outcome.error is not None), None)
    if error is not None:
        return f"The step stops before its loss: {told(error)}"
    return "The loss is computed in another way (a fused or own kernel, a regression): its labels were not seen."


def _indexed(bad: Sequence[_Bad], what: str, count: int, against: str) -> _Told:
    """What was found among so many ids or labels that were looked up in, or compared against, their tables."""
    looked_at = f"{count} {what} {against}"
    name = f"{what}_out_of_range"
    if not bad and not count:
        return _open(f"{looked_at}: none to check", f"Whether {what} fit cannot be told from this step.")
    if not bad:
        return _Told(f"{looked_at}: none out of range", f"All {what} fit.", "clean", [Quantity(name, 0.0)])
    first = bad[0]
    place = [f"micro-batch {first.part.index}"]
    quantities = [Quantity(name, float(len(bad))), Quantity("micro_batch", float(first.part.index))]
    for word, number in (("sample", first.sample), ("token", first.token)):
        if number is not None:
            place.append(f"{word} {number}")
            quantities.append(Quantity(word, float(number)))
    quantities += [Quantity("id", float(first.index)), Quantity("rows", float(first.rows)),
                   Quantity("module", text=first.table)]  # fmt: skip
    table = f"{first.table} has {first.rows} rows" if what == "ids" else f"there are {first.rows} classes"
    where = f"The first is {first.index} at {', '.join(place)}: {table}, 0 to {first.rows - 1}."
    return _Told(f"{looked_at}: {len(bad)} out of range", where, "fault", quantities)


# -- labels ------------------------------------------------------------------------------------------------------------


def _pads(context: Context, parts: Sequence[Part]) -> _Told:
    what = "pads in the labels"
    count = total = 0
    weight = whole = 0.0
    ways: list[str] = []
    reasons: list[str] = []
    where = None
    for part in parts:
        padded, how = _padded(part, context)
        counted = part.counted
        if padded is None or counted is None or part.call is None or part.grid is None:
            reasons.append(how)
            continue
        ways.append(how)
        both = padded & counted
        shares = part.call.shares.reshape(both.shape).abs()
        weight, whole = weight + float(shares[both].sum()), whole + float(shares[counted].sum())
        count, total = count + int(both.sum()), total + int(counted.sum())
        if where is None and bool(both.any()):
            sample, column = both.nonzero()[0].tolist()
            where = part.index, sample, column + part.grid.offset
    if not total:
        why = reasons[0] if reasons else "no label counts in the loss"
        return _open(f"{what}: not known", f"Which labels stand on padding cannot be told: {why}.")
    share = count / total
    quantities = [Quantity("pad_in_labels", float(count)), Quantity("pad_share", share),
                  Quantity("labels", float(total))]  # fmt: skip
    if where is None:
        return _Told(f"{what}: none of {total} (pads by {ways[0]})", "No label on padding counts in the loss.",
                     "clean", quantities)  # fmt: skip
    quantities += [Quantity("micro_batch", float(where[0])), Quantity("sample", float(where[1])),
                   Quantity("token", float(where[2]))]  # fmt: skip
    of_loss = f", {weight / whole:.0%} of the loss" if whole > 0 and math.isfinite(weight / whole) else ""
    return _Told(
        f"{what}: {count} of {total} ({share:.0%}{of_loss}; pads by {ways[0]})",
        f"The model is trained to write padding; the first is at micro-batch {where[0]}, sample {where[1]}, token "
        f"{where[2]}. Labels of padding should be the ignored index.",
        "fault", quantities,
    )  # fmt: skip


def _padded(part: Part, context: Context) -> tuple[torch.Tensor | None, str]:
    """Which labels stand on padding, bool (samples, columns), and how that is known; None and the reason."""
    settings = context.runner.settings
    target = part.target
    if target is None or part.grid is None:
        return None, "the labels of the loss could not be laid over the samples"
    offset = _offset_to_ids(part)
    if offset is None and of_another_sequence(_counted(part, target), part.fields.ids, part.watched.seen.lookups):
        # a decoder's: the mask is the encoder's
        pads = ids_of(settings.get("pad_token_id")) - ids_of(settings.get("eos_token_id"))
        if not pads:
            return None, "the labels are of another sequence than the mask, and no pad_token_id of its own is known"
        return torch.isin(target, torch.tensor(sorted(pads))), f"id {min(pads)}"
    if part.fields.ids is None or part.grid.columns == 1:
        return None, "the labels belong to no tokens of the batch"
    pads_there, how = pads_of(part.fields, settings)
    if pads_there is None:
        return None, how
    padded = _moved(pads_there, part.grid.offset if offset is None else offset, part.grid.columns)
    if offset:  # labels shifted in the data; the last pad before a text may have the first token as its label
        here = _moved(pads_there, 0, part.grid.columns)
        ids = torch.full_like(target, -1)
        width = min(target.shape[1], part.fields.ids.shape[1])
        ids[:, :width] = part.fields.ids[:, :width].cpu()
        padded |= here & (target == ids)
    return padded, how


def _moved(pads: torch.Tensor, offset: int, columns: int) -> torch.Tensor:
    """The part of a mask that begins at a token, with so many columns; False behind its end."""
    out = torch.zeros(pads.shape[0], columns, dtype=torch.bool)
    width = min(columns, pads.shape[1] - offset)
    out[:, :width] = pads[:, offset : offset + width]
    return out


def _ends(context: Context, parts: Sequence[Part]) -> _Told:
    """In how many samples an EOS follows a token that is trained, and in how many it is trained itself.

    Only such an EOS should be: one at the start of a text or between the turns of a prompt has no label in any case.
    """
    ends = ids_of(context.runner.settings.get("eos_token_id"))
    if not ends:
        return _open("EOS in the labels: not known", "eos_token_id is not among the settings.")
    wanted = torch.tensor(sorted(ends))
    samples = in_ids = in_labels = known = 0
    for part in parts:
        counted, target = part.counted, part.target
        if counted is None or target is None or part.ids is None or part.grid is None or part.grid.columns == 1:
            continue
        offset = _offset_to_ids(part)
        if offset is None:
            continue
        known, samples = known + 1, samples + part.samples
        trained = counted & torch.isin(target, wanted)
        width = min(counted.shape[1], part.ids.shape[1] - offset)
        given = torch.isin(part.ids, wanted)[:, offset : offset + width]
        before = torch.zeros_like(given)  # whether the token before is trained
        before[:, 1:] = counted[:, : width - 1]
        behind = given & before & ~counted[:, :width]
        in_labels += int(trained.any(1).sum())
        in_ids += int((trained.any(1) | behind.any(1)).sum())
    if not known or not samples:
        return _open("EOS in the labels: not known", "The loss's labels could not be laid over ids of the batch.")
    quantities = [
        Quantity("eos_in_ids", float(in_ids), "samples"),
        Quantity("eos_in_labels", float(in_labels), "samples"),
        Quantity("samples", float(samples)),
    ]
    said = f"EOS behind a trained text in {in_ids} of {samples} samples, trained itself in {in_labels}"
    if in_ids >= _EOS_IN_IDS * samples and in_labels < _EOS_IN_LABELS * samples:
        return _Told(said, "The texts end with the EOS and its label is ignored: the model never learns to stop. Usual "
                     "with pad_token = eos_token and labels masked by the pad id.", "fault", quantities)  # fmt: skip
    return _Told(said, "The end token is trained where a text has one." if in_ids else "No trained text ends with it "
                 "(truncated, packed, or another end token).", "clean", quantities)  # fmt: skip


def _counted(part: Part, target: torch.Tensor) -> torch.Tensor:
    """The labels, -1 where they do not count."""
    return target if part.counted is None else torch.where(part.counted, target, -1)


def _offset_to_ids(part: Part) -> int | None:
    """How many tokens after its position in the loss a label stands in the ids; None where labels are no ids."""
    target = part.target
    if target is None or part.ids is None:
        return None
    scores = {o: agreement(_counted(part, target), part.ids, o) for o in (1, 0, 2)}
    known = {o: s for o, s in scores.items() if s is not None}
    best = max(known, key=lambda o: known[o], default=None)
    return best if best is not None and known[best] >= _NEXT else None


def _empty(context: Context, parts: Sequence[Part]) -> _Told:
    ignored = int(context.runner.settings.get("ignore_index", -100))
    empty = samples = 0
    whole: list[int] = []
    for part in parts:
        counted = part.counted
        if counted is None and part.fields.labels is not None:  # not seen by a call that is known
            counted = part.fields.labels.cpu() != ignored
        if counted is None:
            continue
        without = ~counted.any(1)
        empty, samples = empty + int(without.sum()), samples + part.samples
        if bool(without.all()):
            whole.append(part.index)
    if not samples:
        return _open("samples without labels: not known", "No labels were found that belong to samples.")
    quantities = [
        Quantity("empty_samples", float(empty)),
        Quantity("samples", float(samples)),
        Quantity("empty_micro_batches", float(len(whole))),
    ]
    said = f"{empty} of {samples} samples have no label that counts"
    if whole:
        return _Told(
            said, f"Micro-batch {whole[0]} has none at all: a mean over its labels is 0/0.", "fault", quantities
        )
    if not empty:
        return _Told(said, "Every sample has labels.", "clean", quantities)
    if at_least(empty, samples, _EMPTY_SHARE) < _CHANCE:
        return _Told(said, "Nothing is learnt from them: all of their labels are ignored.", "fault", quantities)
    return _Told(said, "A few are usual where long prompts are cut off.", "inconclusive", quantities)


# -- repetition --------------------------------------------------------------------------------------------------------


def _repeats(context: Context, parts: Sequence[Part]) -> _Told:
    worst = (0, "", 0, 0)  # repeats, sentence, micro-batch, sample
    densest = (0.0, 0, 0)
    unknown = False
    for part in parts:
        if part.ids is None:
            continue
        pads, _ = pads_of(part.fields, context.runner.settings)
        unknown = unknown or pads is None
        for sample, row in enumerate(part.ids):
            kept = row[~pads[sample]] if pads is not None and pads.shape == part.ids.shape else row
            if kept.numel() < 2:
                continue
            found = longest_repeat(kept.numpy())
            if found.times > worst[0]:
                first = kept[found.start : found.start + found.length].tolist()
                worst = (found.times, f"{found.times} times {first} from token {found.start} on", part.index, sample)
            densest = max(densest, (single_token_share(kept.numpy()), part.index, sample))
    if not worst[0]:
        return _open("repetition: not known", "The batch has no ids.")
    quantities = [
        Quantity("longest_repeat", float(worst[0])), Quantity("single_token_share", densest[0]),
        Quantity("micro_batch", float(worst[2])), Quantity("sample", float(worst[3])),
    ]  # fmt: skip
    said = f"longest repeat: {worst[1]} (micro-batch {worst[2]}, sample {worst[3]}); most frequent token of a sample: "
    said += f"{densest[0]:.0%} of it"
    if worst[0] < MOST_REPEATS and densest[0] <= _ONE_TOKEN:
        return _Told(said, "No sample repeats itself unusually.", "clean", quantities)
    carrier = _carrier(context)
    suspects = {(worst[2], worst[3])} if worst[0] >= MOST_REPEATS else set()
    suspects |= {densest[1:]} if densest[0] > _ONE_TOKEN else set()
    if carrier in suspects:
        return _Told(said, "This is the sample that carries the step (experiment `batch`): a text that repeats itself.",
                     "fault", quantities)  # fmt: skip
    why = " It may be padding: neither mask nor pad id is known." if unknown else ""
    return _Told(said, f"Texts with {MOST_REPEATS} repeats are left out of OLMo 2's data because they go with spikes; "
                 f"no fault by itself.{why}", "inconclusive", quantities)  # fmt: skip


def _carrier(context: Context) -> tuple[int, int] | None:
    """Micro-batch and sample that the experiment `batch` found."""
    for result in context.of("batch"):
        micro, sample = result.number("micro_batch"), result.number("sample")
        if result.outcome == "fault" and micro is not None and sample is not None:
            return int(micro), int(sample)
    return None


# -- what the loss is --------------------------------------------------------------------------------------------------


def _scale(context: Context, parts: Sequence[Part]) -> _Told:
    what = "loss by mean over its labels"
    known = [(part, value) for part in parts if (value := _factor(part)) is not None]
    if not known:
        return _open(f"{what}: not known", "No cross-entropy call with labels led to a finite loss.")
    part, factor = max(known, key=lambda pair: pair[1])
    tokens = int(part.call.counted.sum()) if part.call is not None else 0
    quantities = [Quantity("loss_over_mean", factor), Quantity("valid_tokens", float(tokens)),
                  Quantity("micro_batch", float(part.index))]  # fmt: skip
    said = f"{what}: {factor:.4g} with {tokens} labels"
    if tokens > 1 and abs(factor / tokens - 1) <= _SUM:
        seed, later = _applied(context, part.micro), _later(context)
        if seed * factor <= _MEAN[1]:
            return _Told(said, f"The loss is the sum over its labels; training multiplies it by {seed:.3g} before the "
                         "backward.", "clean", quantities)  # fmt: skip
        if later is None:
            return _Told(said, "The loss is the sum over its labels; clipping hides whether the gradients were divided "
                         "after the backward.", "inconclusive", quantities)  # fmt: skip
        if seed * later * factor <= _MEAN[1]:
            return _Told(said, "The loss is the sum over its labels; training multiplies its gradient by "
                         f"{seed * later:.3g}.", "clean", quantities)  # fmt: skip
        return _Told(said, "The loss is the sum over its labels, not the mean: it grows with the batch, and so does "
                     'the gradient (reduction="sum", or a division is missing).', "fault", quantities)  # fmt: skip
    if factor > _MEAN[1]:
        return _Told(said, "Neither a mean nor the sum over all labels: a sum over tokens with a mean over samples, "
                     "weights, or several losses.", "inconclusive", quantities)  # fmt: skip
    if factor < _MEAN[0]:
        return _Told(said, "Smaller than the mean, as where it is divided by the labels of the whole step.",
                     "inconclusive" if len(parts) == 1 else "clean", quantities)  # fmt: skip
    if abs(factor - 1) > _SUM:
        return _Told(said, "Near to a mean over its labels, as with another term beside it or where it is divided by "
                     "other labels, too.", "clean", quantities)  # fmt: skip
    return _Told(said, "The loss is a mean over its labels.", "clean", quantities)


def _factor(part: Part) -> float | None:
    """Sum of d(loss)/d(loss of a label), 1 for a mean and N for a sum; class weights as the mean counts them."""
    call = part.call
    if call is None or call.weights is None or not bool(torch.isfinite(call.weights).all()):
        return None
    labels = int(call.labelled.sum())
    return float(call.weights.sum()) * call.denominator / labels if labels and bool(call.weights.any()) else None


def _applied(context: Context, micro: Micro) -> float:
    """What training multiplied the loss with before the backward, without the loss scale; 1 where not recorded."""
    count = len(context.runner.step.micros)
    return 1.0 if micro.backward is None else float(micro.backward) / (context.runner.step.scale or 1.0) * count


def _later(context: Context) -> float | None:
    """What training multiplied the gradients with after the backward; 1 where not recorded, None where clipped."""
    runner, step = context.runner, context.runner.step
    if step.gradients is None or runner.recording.world_size > 1:
        return 1.0
    found = runner.compute()
    if found.failure or not found.norm:
        return 1.0
    norm = float(total_norm(step.gradients.values()))
    if step.max_grad_norm and norm >= CLIPPED * step.max_grad_norm:
        logged = context.logged.get("grad_norm")
        return None if logged is None else logged / found.norm
    return norm / found.norm


def _shift(parts: Sequence[Part]) -> _Told:
    """Which token of its input every position is compared with: itself (a leak), the next one (healthy), or another."""
    what = "labels against the input of their position"
    found: dict[int, list[tuple[float, int]]] = {0: [], 1: [], 2: []}
    for part in parts:
        for call in part.watched.seen.losses:
            for offset, score, labels in _offsets(part, call):
                found[offset].append((score, labels))
    mean = {o: sum(s * n for s, n in those) / sum(n for _, n in those) for o, those in found.items() if those}
    labels = sum(n for _, n in found[0])
    if not mean or labels < _FEW:
        return _open(f"{what}: not known", "The loss is not over the tokens of an embedded text, or over very few.")
    best = {o: max(s for s, _ in those) for o, those in found.items() if those}  # of any call
    same, following, second = (best.get(o, 0.0) for o in range(3))
    quantities = [Quantity("unshifted", mean.get(0, 0.0)), Quantity("next", mean.get(1, 0.0)),
                  Quantity("second_next", mean.get(2, 0.0)), Quantity("labels", float(labels))]  # fmt: skip
    said = f"{what}: {mean.get(0, 0.0):.0%} equal it, {mean.get(1, 0.0):.0%} the next token, "
    said += f"{mean.get(2, 0.0):.0%} the one after"
    if following >= _NEXT or max(same, second) < _SAME:
        fits = (
            "The labels are shifted by one." if following >= _NEXT else "The labels are no shifted copy of the input."
        )
        return _Told(said, fits, "clean", quantities)
    if same >= _SAME:
        return _Told(said, "Every position is compared with its own input: the answer is in the question, and the loss "
                     "falls to nothing. Shift the labels by one.", "fault", quantities)  # fmt: skip
    return _Told(said, "Every position is compared with the token after the next: the labels are shifted twice, in the "
                 "data and in the loss.", "fault", quantities)  # fmt: skip


def _offsets(part: Part, call: LossCall) -> Iterator[tuple[int, float, int]]:
    """For every shift: the best agreement of the labels that count with the ids of any embedding call."""
    counted = call.counted
    if not part.samples or call.target.numel() % part.samples or not bool(counted.any()):
        return
    laid = torch.where(counted, call.target, -1).reshape(part.samples, -1)
    for offset in range(3):
        scores = [
            score
            for one in part.watched.seen.lookups
            if one.ids.dim() == 2 and laid.shape[1] > 1 and (score := agreement(laid, one.ids, offset)) is not None
        ]
        if scores:
            yield offset, max(scores), int(counted.sum())


# every micro-batch alone, and the step as it is where the loss is a sum
EXPERIMENT = Experiment("content", lambda _: 2.0, _run)
