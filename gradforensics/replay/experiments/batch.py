"""Which sample, and which of its tokens, carry the failure, the loss or the gradient.

A step that fails is searched in parts of a micro-batch until single samples are left; a sample is named only if the
samples that are healthy without it fail with it, so that a loss which breaks with fewer samples accuses none. A token
is the last one of the shortest beginning of the sample that fails. In a finite step the samples are compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import torch
from torch import nn

from gradforensics.experiments import Quantity, Result
from gradforensics.replay.batches import cut, fields_of, graft, length, size, take, with_batch
from gradforensics.replay.experiment import Context, Experiment
from gradforensics.replay.losses import Watched, grid, run
from gradforensics.replay.recording import Micro
from gradforensics.replay.step import Outcome, StepRunner
from gradforensics.torch_state import RandomState

_PARTS = 32  # into so many parts a micro-batch is split at a time: up to 32 samples run one by one
_MOST = 4  # samples that are looked for in a micro-batch, and micro-batches
_Z = 7.0  # CATALOGUE D01: robust z from which a value is an outlier
_SHARE = 0.5
_GAP = 3.0  # times the largest of the others: 1.9 at most in 72 healthy steps of tiny models, 8 texts of 1 to 15 labels
_GAP_OF_CLASSES = 100.0  # with one label per sample a hard one has 30 times the loss of the others in a trained model
_LEVEL = 1.5  # of the median single sample; the norm of a mean is at most the mean of the norms
_FEWEST = 4  # samples below which no one of them can stand out


@dataclass(slots=True)
class _Search:
    """A failing micro-batch: the samples that fail alone, those that make the others fail, and what did not fit."""

    index: int
    micro: Micro
    whole: Watched
    bad: list[int] = field(default_factory=list)
    alone: list[int] = field(default_factory=list)
    token: int | None = None
    reason: str = ""


def _run(context: Context) -> Iterator[Result]:
    runner = context.runner
    micros = [_pinned(runner, i, m) for i, m in enumerate(runner.step.micros)]
    if not any(size(m.batch) for m in micros):
        yield context.result("batch", "nothing", "no samples found in the batch", "The batch has no tensor with "
                             "samples along its first dimension.", "inconclusive")  # fmt: skip
        return
    whole = [run(runner, [micro]) for micro in micros]
    failing = [i for i, one in enumerate(whole) if one.outcome.failure]
    if failing:
        yield from _failure(context, micros, whole, failing)
    else:
        yield from _carriers(context, micros, whole)


def _pinned(runner: StepRunner, index: int, micro: Micro) -> Micro:
    """The micro-batch with the random state and the weight that it has in the step, so that it can run alone."""
    random = micro.random or RandomState.seeded(runner.program.seed + index)
    backward = micro.backward
    if backward is None:
        count = len(runner.step.micros) if runner.program.divide is True else runner.program.divide or 1
        backward = torch.tensor((runner.step.scale or 1.0) / count)
    return replace(micro, random=random, backward=backward)


# -- a step that fails -------------------------------------------------------------------------------------------------


def _failure(
    context: Context, micros: Sequence[Micro], whole: Sequence[Watched], failing: Sequence[int]
) -> Iterator[Result]:
    runner = context.runner
    evaluating, random = _without_dropout(runner, micros[failing[0]], whole[failing[0]])
    searches = [_Search(index, micros[index], whole[index]) for index in failing[:_MOST]]
    every = len(failing) == len(micros) > 1 and all(size(m.batch) == 1 for m in micros)
    for search in searches:
        if every:
            search.reason = "as in every other one, its sample fails: the cause is no single sample"
        else:
            _search(runner, search, evaluating=evaluating)
    named = [one for one in searches if one.bad]
    if named:
        named[0].token = _token(runner, named[0], evaluating=evaluating)
    note = _note(random, evaluating=evaluating)
    yield _found(context, searches, failing, note)
    if named:
        proof = _left_out(context, micros, searches, len(failing), note)
        if proof is not None:
            yield proof


def _without_dropout(runner: StepRunner, micro: Micro, whole: Watched) -> tuple[bool, bool]:
    """Whether to search in evaluation mode, and whether the model draws dropout masks.

    A mask depends on the shape of the batch: with fewer samples it is another. Without masks there is no such doubt,
    if the failure is there without them.
    """
    random = whole.seen.dropout or _drops(runner.model)
    if not random:
        return False, False
    return _same(run(runner, [micro], evaluating=True), whole), True


def _drops(model: nn.Module) -> bool:
    """Whether a module in training mode has a dropout that PyTorch applies inside of a larger call."""
    kinds = (nn.MultiheadAttention, nn.RNNBase)
    return any(isinstance(m, kinds) and m.training and m.dropout > 0 for m in model.modules())


def _same(part: Watched, whole: Watched) -> bool:
    """Whether a part fails as the whole does. A mean over no label at all is 0/0 in the part only."""
    a, b = part.outcome, whole.outcome
    if a.error is not None or b.error is not None:
        return _kind(a) == _kind(b)
    return bool(a.failure) and (whole.unlabelled or not part.unlabelled)


def _kind(outcome: Outcome) -> str:
    """An exception by its class and the beginning of its text, without numbers."""
    error = outcome.error
    return "" if error is None else f"{type(error).__name__}: {re.sub(r'[0-9]+', '#', str(error))[:60]}"


def _search(runner: StepRunner, search: _Search, *, evaluating: bool) -> None:
    """Find the samples of a micro-batch that make it fail."""
    count = size(search.micro.batch)
    if count == 1:
        search.alone = search.bad = [0]
        return
    if search.whole.unlabelled:
        search.reason = "it has no label that counts: every sample of it fails alike"
        return
    odd: list[str] = []

    def fails(samples: Sequence[int]) -> bool:
        part = run(runner, [_taken(search.micro, samples)], evaluating=evaluating)
        same = _same(part, search.whole)
        if not same and part.outcome.error is not None:
            odd.append(_kind(part.outcome))
        return same

    search.alone = _smallest(list(range(count)), fails)
    rest = [s for s in range(count) if s not in search.alone]
    if not search.alone:
        search.reason = (
            f"with fewer samples it raises {odd[0]}"
            if odd
            else "only all of its samples together fail, no part of them"
        )
    elif not rest:
        search.reason = "every one of its samples fails alone: the cause is no single sample"
    elif fails(rest):
        search.reason = f"the others fail as well without those that fail alone ({_listed(search.alone)})"
    elif odd:
        search.reason = f"with fewer samples it raises {odd[0]}"
    else:
        search.bad = [s for s in search.alone[:_MOST] if fails(sorted([*rest, s]))]
        if not search.bad:
            search.reason = f"{_listed(search.alone)} fail alone, but not among the others"


def _smallest(samples: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """The samples that fail alone: parts are run, and at most _MOST of those that fail are split again."""
    step = math.ceil(len(samples) / _PARTS)
    parts = [samples[i : i + step] for i in range(0, len(samples), step)]
    failing = [part for part in parts if fails(part)]
    if step == 1:
        return [s for part in failing for s in part]
    return [s for part in failing[:_MOST] for s in _smallest(part, fails)]


def _token(runner: StepRunner, search: _Search, *, evaluating: bool) -> int | None:
    """The last token of the shortest beginning of the first bad sample that fails; None where it cannot be told."""
    bad = search.bad[0]
    sample = _taken(search.micro, [bad])
    tokens = length(sample.batch)

    def told(batch: object) -> str:
        """Whether it fails, is healthy, or fails in another way, which says nothing of a token.

        That is so of what cannot be cut (features, a fixed length) and of a beginning without a label.
        """
        part = run(runner, [with_batch(sample, batch)], evaluating=evaluating)
        if _same(part, search.whole):
            return "fails"
        return "otherwise" if part.outcome.failure else "healthy"

    if tokens < 2 or told(sample.batch) != "fails":
        return None
    below, failing, last = 0, tokens, ""
    while failing - below > 1:
        middle = (below + failing) // 2
        found = told(cut(sample.batch, middle))
        if found == "fails":
            failing = middle
        else:
            below, last = middle, found
    if last == "healthy":
        return failing - 1
    if below > 1:
        return None
    # The first token alone tells nothing, or fails as it would if no token had to do with it: tried with that of a
    # healthy sample.
    other = next((s for s in range(size(search.micro.batch)) if s not in search.alone), None)
    if other is None or told(graft(take(search.micro.batch, [bad, other]), 0)) == "fails":
        return None
    return 0


def _found(context: Context, searches: Sequence[_Search], failing: Sequence[int], note: str) -> Result:
    """Which samples make the step fail."""
    named = [one for one in searches if one.bad]
    total = sum(size(m.batch) for m in context.runner.step.micros)
    failure = _failure_of(searches[0].whole.outcome)
    if not named:
        reasons = "; ".join(f"micro-batch {one.index}: {one.reason}" for one in searches)
        quantities = [Quantity("micro_batch", float(failing[0])), Quantity("samples", float(total))]
        return context.result("batch", "parts of the samples", f"{failure} in {_micros(failing)}",
                              f"No sample is named. {reasons[:1].upper()}{reasons[1:]}.{note}", "inconclusive",
                              quantities)  # fmt: skip
    first = named[0]
    bad = sum(max(len(one.bad), len(one.alone) if len(one.alone) > _MOST else 0) for one in named)
    quantities = [Quantity("micro_batch", float(first.index)), Quantity("sample", float(first.bad[0])),
                  Quantity("bad_samples", float(bad)), Quantity("samples", float(total))]  # fmt: skip
    places = " and ".join(f"{_listed(one.bad)} of micro-batch {one.index}" for one in named)
    where = ""
    if first.token is not None:
        quantities.append(Quantity("token", float(first.token)))
        where = f" Sample {first.bad[0]} fails from token {first.token} on: its first {first.token} tokens are healthy."
        if not first.token:
            where = f" Sample {first.bad[0]} is healthy with another first token."
    unsearched = len(failing) - len(searches)
    more = f" {unsearched} more failing micro-batches were not searched." if unsearched else ""
    only = " It is the only sample." if total == 1 else ""
    open_ = "".join(f" Micro-batch {one.index}: {one.reason}." for one in searches if one.reason)
    return context.result(
        "batch", "parts of the samples, beginnings of the sample", f"{failure} in {_micros(failing)}; {bad} of {total} "
        f"samples fail: {places}", f"The failure goes with {places}.{where}{only}{more}{open_}{note}",
        "fault" if total > 1 else "inconclusive", quantities,
    )  # fmt: skip


def _left_out(
    context: Context, micros: Sequence[Micro], searches: Sequence[_Search], failing: int, note: str
) -> Result | None:
    """The whole step without the samples that were found; None where nothing is left of it."""
    out = {s.index: set(s.bad if len(s.alone) <= _MOST else s.alone) for s in searches if s.bad}
    left = [
        _taken(micro, [s for s in range(size(micro.batch)) if s not in out.get(index, ())])
        for index, micro in enumerate(micros)
        if len(out.get(index, ())) < size(micro.batch)
    ]
    if not left:
        return None
    found = run(context.runner, left).outcome
    changed = "; ".join(f"{_listed(sorted(samples))} of micro-batch {index}" for index, samples in out.items())
    if not found.failure:
        return context.result("batch", f"{changed} left out", f"loss {found.loss:.6g}, gradient norm {found.norm:.6g}",
                              f"Without it the step is healthy.{note}", "verified")  # fmt: skip
    why = "not all failing micro-batches could be searched" if failing > len(out) else "there is more to it"
    return context.result("batch", f"{changed} left out", _failure_of(found),
                          f"The step fails without it, too: {why}.{note}", "unverified")  # fmt: skip


# -- a step that is finite ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Measured:
    """A part of a micro-batch that was run alone. loss, gradient: what it has in its micro-batch's mean."""

    index: int
    samples: list[int]
    watched: Watched
    labels: int

    def value(self, what: str, mean: float) -> float:
        """Its loss or gradient norm, weighted with its labels; mean: labels of a part on average."""
        outcome = self.watched.outcome
        return (abs(outcome.loss) if what == "loss" else outcome.norm) * (self.labels / mean if mean else 1.0)


def _carriers(context: Context, micros: Sequence[Micro], whole: Sequence[Watched]) -> Iterator[Result]:
    runner = context.runner
    total = sum(size(m.batch) for m in micros)
    if total < _FEWEST:
        yield context.result("batch", "nothing", f"the step is finite; {total} samples",
                             "Among so few samples none can stand out.", "inconclusive",
                             [Quantity("samples", float(total))])  # fmt: skip
        return
    parts = [_measured(runner, i, m, s) for i, m in enumerate(micros) for s in _split(list(range(size(m.batch))))]
    broken = next((p.watched.outcome for p in parts if p.watched.outcome.failure), None)
    if broken is not None and not all(p.watched.unlabelled for p in parts if p.watched.outcome.failure):
        yield context.result("batch", "one sample at a time", f"the step is finite; alone a sample gives "
                             f"{_failure_of(broken)}", "The loss does not work with fewer samples; they cannot be "
                             "compared.", "inconclusive", [Quantity("samples", float(total))])  # fmt: skip
        return
    tokens = any(p.labels > len(p.samples) for p in parts)
    note = _note(any(p.watched.seen.dropout for p in parts) or _drops(runner.model), evaluating=False)
    for what in ("gradient", "loss"):
        found, shares = _outlying(runner, micros, parts, what, _GAP if tokens else _GAP_OF_CLASSES)
        if found:
            yield _carrier(context, found, shares, what, total, note)
            yield _without(context, micros, whole, parts, found, what, note)
            return
    beyond = "" if tokens else " beyond what a hard or wrongly labelled one does"
    yield context.result(
        "batch", "one sample at a time", f"the step is finite; of {total} samples the largest has {shares[0]:.0%} of "
        "the loss", f"No sample stands out{beyond}.{note}", "clean",
        [Quantity("share", shares[0]), Quantity("samples", float(total))],
    )  # fmt: skip


def _split(samples: Sequence[int]) -> list[list[int]]:
    step = math.ceil(len(samples) / _PARTS) or 1
    return [list(samples[i : i + step]) for i in range(0, len(samples), step)]


def _measured(runner: StepRunner, index: int, micro: Micro, samples: Sequence[int]) -> _Measured:
    watched = run(runner, [_taken(micro, samples)], weights=[1.0])
    calls = watched.seen.losses
    labels = max((int(c.counted.sum()) for c in calls), default=len(samples))
    return _Measured(index, list(samples), watched, labels)


def _outlying(
    runner: StepRunner, micros: Sequence[Micro], parts: Sequence[_Measured], what: str, gap: float
) -> tuple[list[_Measured], list[float]]:
    """The samples whose loss or gradient stands out, and their shares (of the largest where none does)."""
    measured = list(parts)
    while True:
        usable = [p for p in measured if not p.watched.outcome.failure]
        mean = sum(p.labels for p in usable) / max(len(usable), 1)
        values = [p.value(what, mean) for p in usable]
        order = sorted(range(len(usable)), key=lambda i: -values[i])
        count = _standing_out([values[i] for i in order], gap)
        found = [usable[i] for i in order[:count]]
        groups = [p for p in found if len(p.samples) > 1]
        if not groups:
            total = sum(values) or 1.0
            return found, [values[i] / total for i in order[: max(count, 1)]]
        measured = [p for p in measured if p not in groups]
        measured += [_measured(runner, p.index, micros[p.index], s) for p in groups for s in _split(p.samples)]


def _standing_out(values: Sequence[float], gap: float) -> int:
    """How many of these values, largest first, stand apart from the others; 0 for none.

    Apart: `gap` times the largest of the others, and a robust z of at least 7 (D01) or more than half of the sum.
    """
    if len(values) < _FEWEST:
        return 0
    middle = median(values)
    spread = max(1.4826 * median([abs(v - middle) for v in values]), 1e-3 * abs(middle), 1e-300)
    for count in range(1, min(_MOST, len(values) // 4) + 1):
        least, others = values[count - 1], values[count]
        if least >= gap * others and ((least - middle) / spread >= _Z or sum(values[:count]) > _SHARE * sum(values)):
            return count
    return 0


def _carrier(
    context: Context, found: Sequence[_Measured], shares: Sequence[float], what: str, total: int, note: str
) -> Result:
    first = found[0]
    sample = first.samples[0]
    quantities = [
        Quantity("micro_batch", float(first.index)), Quantity("sample", float(sample)),
        Quantity("share", shares[0]), Quantity("bad_samples", float(len(found))), Quantity("samples", float(total)),
    ]  # fmt: skip
    token, why = _heaviest(context, first)
    where = ""
    if token is not None:
        quantities.append(Quantity("token", float(token)))
        where = f" In it token {token} {why}."
    many = f" {len(found)} samples stand out." if len(found) > 1 else ""
    return context.result(
        "batch", "one sample at a time", f"the step is finite; micro-batch {first.index}, sample {sample} has "
        f"{shares[0]:.0%} of the {what} of {total} samples", f"One sample carries the {what}.{many}{where} A hard or "
        f"wrongly labelled sample does that as well as a broken one: look at it.{note}", "fault", quantities,
    )  # fmt: skip


def _heaviest(context: Context, part: _Measured) -> tuple[int | None, str]:
    """The token that stands out by its loss, else by the gradient of its embedding."""
    seen = part.watched.seen
    batch = take(context.runner.step.micros[part.index].batch, part.samples)
    fields = fields_of(batch)
    references = [one for one in (fields.labels, fields.ids) if one is not None]
    call = max(seen.losses, key=lambda c: c.target.numel(), default=None)
    laid = None if call is None else grid(call.target, 1, call.shape, references)
    if call is not None and laid is not None and laid.columns > 1:
        place, share = _top(call.shares.abs())
        if place is not None:
            return laid.place(place)[1], f"has {share:.0%} of the loss"
    for one in seen.lookups:
        if one.norms is not None and one.ids.dim() == 2 and one.ids.shape[0] == 1:
            place, share = _top(one.norms)
            if place is not None:
                return place, f"has {share:.0%} of the gradient that reaches {one.module or 'the embedding'}"
    return None, ""


def _top(values: torch.Tensor) -> tuple[int | None, float]:
    """The place and share of the largest value, None where it does not stand out."""
    if values.numel() < _FEWEST or not bool(torch.isfinite(values).all()):
        return None, 0.0
    place = int(values.argmax())
    if _standing_out(values.sort(descending=True).values.tolist(), _GAP) != 1:
        return None, 0.0
    return place, float(values[place] / values.sum())


def _without(
    context: Context, micros: Sequence[Micro], whole: Sequence[Watched], parts: Sequence[_Measured],
    found: Sequence[_Measured], what: str, note: str,
) -> Result:  # fmt: skip
    """The micro-batch without the samples that stand out, against the level of the others."""
    index = found[0].index
    out = {s for p in found if p.index == index for s in p.samples}
    left = [s for s in range(size(micros[index].batch)) if s not in out]
    changed = f"{_listed(sorted(out))} of micro-batch {index} left out"
    others = [p.watched.outcome for p in parts if not (p.index == index and out & set(p.samples))]
    levels = [abs(o.loss) if what == "loss" else o.norm for o in others if not o.failure]
    if not left or not levels:
        return context.result("batch", changed, "nothing is left of the micro-batch", "It cannot be tried without it.",
                              "inconclusive")  # fmt: skip
    part = run(context.runner, [_taken(micros[index], left)], weights=[1.0]).outcome
    before, after = whole[index].outcome, part
    factor = float(micros[index].backward or 1.0) / (context.runner.step.scale or 1.0)  # of the run before
    old, new = (before.norm / factor, after.norm) if what == "gradient" else (abs(before.loss), abs(after.loss))
    level = median(levels)
    gone = not after.failure and new <= _LEVEL * level < old
    name = "gradient norm" if what == "gradient" else "loss"
    return context.result(
        "batch", changed,
        f"{name} of the micro-batch {old:.4g} -> {new:.4g}; of single other samples {level:.4g} (median)",
        f"Without it the {name} is at the level of the others.{note}" if gone else
        f"Without it the {name} is not at the level of the others, or was not above it.{note}",
        "verified" if gone else "unverified",
        [Quantity("grad_norm" if what == "gradient" else "loss", old, "", "recorded"),
         Quantity("grad_norm" if what == "gradient" else "loss", new, "", "left out")],
    )  # fmt: skip


# -- shared ------------------------------------------------------------------------------------------------------------


def _taken(micro: Micro, samples: Sequence[int]) -> Micro:
    return with_batch(micro, take(micro.batch, samples))


def _note(random: bool, *, evaluating: bool) -> str:
    """What must be said of dropout."""
    if not random:
        return ""
    if evaluating:
        return " Searched in evaluation mode, where the failure is, too: dropout draws other masks for fewer samples."
    return " The model draws dropout masks, which are others with fewer samples."


def _failure_of(outcome: Outcome) -> str:
    if outcome.error is not None:
        return f"{type(outcome.error).__name__}: {outcome.error}"
    return {"nonfinite_loss": "the loss is not finite", "nonfinite_gradient": "the gradient is not finite"}.get(
        outcome.failure, "the step is finite"
    )


def _listed(samples: Sequence[int]) -> str:
    shown = ", ".join(map(str, samples[:8])) + (" ..." if len(samples) > 8 else "")
    return f"sample{'s' if len(samples) > 1 else ''} {shown}"


def _micros(indices: Sequence[int]) -> str:
    return f"micro-batch{'es' if len(indices) > 1 else ''} {', '.join(map(str, indices[:8]))}"


def _cost(context: Context) -> float:
    """Every sample once per level of parts, what is left, the bad ones put back, and the step without them."""
    micros = context.runner.step.micros
    sizes = [size(m.batch) for m in micros]
    largest, total = max(sizes, default=0), max(sum(sizes), 1)
    levels = max(math.ceil(math.log(largest, _PARTS)), 1) if largest > 1 else 1
    tokens = max((length(m.batch) for m in micros), default=0)
    beginnings = (math.ceil(math.log2(tokens)) + 2) / total if tokens > 1 else 0.0
    return 1 + 1 + levels + 1 + _MOST + beginnings + 1


EXPERIMENT = Experiment("batch", _cost, _run)
