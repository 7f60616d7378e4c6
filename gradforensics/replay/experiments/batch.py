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

import torch

from gradforensics.experiments import Quantity, Result
from gradforensics.replay.batches import cut, graft, length, size, take, with_batch
from gradforensics.replay.carriers import MOST, PARTS, carriers, drops, failure_of, listed, note_of, taken
from gradforensics.replay.experiment import Context, Experiment
from gradforensics.replay.losses import Watched, run
from gradforensics.replay.recording import Micro
from gradforensics.replay.step import Outcome, StepRunner
from gradforensics.torch_state import RandomState


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
        yield from carriers(context, micros, whole)


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
    searches = [_Search(index, micros[index], whole[index]) for index in failing[:MOST]]
    every = len(failing) == len(micros) > 1 and all(size(m.batch) == 1 for m in micros)
    for search in searches:
        if every:
            search.reason = "as in every other one, its sample fails: the cause is no single sample"
        else:
            _search(runner, search, evaluating=evaluating)
    named = [one for one in searches if one.bad]
    if named:
        named[0].token = _token(runner, named[0], evaluating=evaluating)
    note = note_of(random=random, evaluating=evaluating, searched="Searched")
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
    random = whole.seen.dropout or drops(runner.model)
    if not random:
        return False, False
    return _same(run(runner, [micro], evaluating=True), whole), True


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
        part = run(runner, [taken(search.micro, samples)], evaluating=evaluating)
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
        search.reason = f"the others fail as well without those that fail alone ({listed(search.alone)})"
    elif odd:
        search.reason = f"with fewer samples it raises {odd[0]}"
    else:
        search.bad = [s for s in search.alone[:MOST] if fails(sorted([*rest, s]))]
        if not search.bad:
            search.reason = f"{listed(search.alone)} fail alone, but not among the others"


def _smallest(samples: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """The samples that fail alone: parts are run, and at most MOST of those that fail are split again."""
    step = math.ceil(len(samples) / PARTS)
    parts = [samples[i : i + step] for i in range(0, len(samples), step)]
    failing = [part for part in parts if fails(part)]
    if step == 1:
        return [s for part in failing for s in part]
    return [s for part in failing[:MOST] for s in _smallest(part, fails)]


def _token(runner: StepRunner, search: _Search, *, evaluating: bool) -> int | None:
    """The last token of the shortest beginning of the first bad sample that fails; None where it cannot be told."""
    bad = search.bad[0]
    sample = taken(search.micro, [bad])
    tokens = length(sample.batch)

    def told(batch: object) -> str:
        """Whether it fails as the whole does, is healthy, raises, or fails otherwise.

        It raises where it cannot be cut (features, a fixed length), and fails otherwise where a beginning has no label:
        neither says anything of a token.
        """
        part = run(runner, [with_batch(sample, batch)], evaluating=evaluating)
        if _same(part, search.whole):
            return "fails"
        if part.outcome.error is not None:
            return "raises"
        return "otherwise" if part.outcome.failure else "healthy"

    if tokens < 2 or told(sample.batch) != "fails":
        return None
    below, failing, last = 0, tokens, ""
    while failing - below > 1:
        middle = (below + failing) // 2
        found = told(cut(sample.batch, middle))
        if found == "raises":
            return None
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
    if other is None or told(graft(take(search.micro.batch, [bad, other]), 0)) in ("fails", "raises"):
        return None
    return 0


def _found(context: Context, searches: Sequence[_Search], failing: Sequence[int], note: str) -> Result:
    """Which samples make the step fail."""
    named = [one for one in searches if one.bad]
    total = sum(size(m.batch) for m in context.runner.step.micros)
    failure = failure_of(searches[0].whole.outcome)
    if not named:
        reasons = "; ".join(f"micro-batch {one.index}: {one.reason}" for one in searches)
        quantities = [Quantity("micro_batch", float(failing[0])), Quantity("samples", float(total))]
        return context.result("batch", "parts of the samples", f"{failure} in {_micros(failing)}",
                              f"No sample is named. {reasons[:1].upper()}{reasons[1:]}.{note}", "inconclusive",
                              quantities)  # fmt: skip
    first = named[0]
    bad = sum(max(len(one.bad), len(one.alone) if len(one.alone) > MOST else 0) for one in named)
    quantities = [Quantity("micro_batch", float(first.index)), Quantity("sample", float(first.bad[0])),
                  Quantity("bad_samples", float(bad)), Quantity("samples", float(total))]  # fmt: skip
    places = " and ".join(f"{listed(one.bad)} of micro-batch {one.index}" for one in named)
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
    out = {s.index: set(s.bad if len(s.alone) <= MOST else s.alone) for s in searches if s.bad}
    left = [
        taken(micro, [s for s in range(size(micro.batch)) if s not in out.get(index, ())])
        for index, micro in enumerate(micros)
        if len(out.get(index, ())) < size(micro.batch)
    ]
    if not left:
        return None
    found = run(context.runner, left).outcome
    changed = "; ".join(f"{listed(sorted(samples))} of micro-batch {index}" for index, samples in out.items())
    if not found.failure:
        return context.result("batch", f"{changed} left out", f"loss {found.loss:.6g}, gradient norm {found.norm:.6g}",
                              f"Without it the step is healthy.{note}", "verified")  # fmt: skip
    why = "not all failing micro-batches could be searched" if failing > len(out) else "there is more to it"
    return context.result("batch", f"{changed} left out", failure_of(found),
                          f"The step fails without it, too: {why}.{note}", "unverified")  # fmt: skip


def _micros(indices: Sequence[int]) -> str:
    return f"micro-batch{'es' if len(indices) > 1 else ''} {', '.join(map(str, indices[:8]))}"


def _cost(context: Context) -> float:
    """Every sample once per level of parts, what is left, the bad ones put back, and the step without them."""
    micros = context.runner.step.micros
    sizes = [size(m.batch) for m in micros]
    largest, total = max(sizes, default=0), max(sum(sizes), 1)
    levels = max(math.ceil(math.log(largest, PARTS)), 1) if largest > 1 else 1
    tokens = max((length(m.batch) for m in micros), default=0)
    beginnings = (math.ceil(math.log2(tokens)) + 2) / total if tokens > 1 else 0.0
    return 1 + 1 + levels + 1 + MOST + beginnings + 1


EXPERIMENT = Experiment("batch", _cost, _run)
