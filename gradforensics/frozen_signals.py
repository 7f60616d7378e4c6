"""Weights that stand still while others move: over which checkpoints, where in the model, and as which fresh values.

Nothing is judged here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gradforensics.checkpoint_signals import Saved, Weight, groups_of, pairs, weights_by_checkpoint
from gradforensics.logged_rates import at_every_step
from gradforensics.parameter_names import is_untrained, module_of
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence
from gradforensics.training_mask import distinct

_POSITION = lazy(r"pos|wpe", re.IGNORECASE)
_FIRST = lazy(r"embed|wte|wpe|(?:^|[._])pos|token|stem|patch|input", re.IGNORECASE)  # what comes before the layers
# Stacks whose members follow each other; those of other names may be experts, heads or an ensemble side by side.
_SEQUENCE = lazy(
    r"^(?:\w*layers?|\w*blocks?|h|stages?|net|network|nn|model|mlp|seq\w*|main|body|trunk|backbone|features?|encoder|"
    r"decoder|convs?|fcs?|linears?|levels?)?$",
    re.IGNORECASE,
)
_BUFFER = lazy(r"(?:^|[._])(?:inv_freq|freqs?_cis|rotary\w*|pe|bias_mask|anchors?|window)$", re.IGNORECASE)
_ENOUGH = 64  # elements, below which the spread of a tensor tells nothing
_MANY = 1024  # elements, from which on it tells as much as two tensors


class Standing(NamedTuple):
    """What stands still over a stretch of checkpoints, and what moves.

    frozen: has the same bytes in all of them. moving: changed from the last but one to the last. stopped: changed
    earlier and has the same bytes in the last checkpoints, with the step from which on it has. Weights of `last`.
    """

    first: Saved
    last: Saved
    frozen: tuple[Weight, ...]
    moving: tuple[Weight, ...]
    stopped: Mapping[str, int]

    @property
    def steps(self) -> int:
        """Steps from the first to the last checkpoint."""
        return (self.last.step or 0) - (self.first.step or 0)


class Cut(NamedTuple):
    """Where the part that stands still ends.

    module: the first one that moves. before: the last that does not. order: how that is known, "layers" or "file".
    """

    module: str
    before: str


def chain(evidence: Evidence) -> list[Saved]:
    """The last row of checkpoints of which each was compared with the one before; empty where there is none."""
    found = pairs(evidence)
    if not found:
        return []
    row = [found[-1].first, found[-1].last]
    for pair in reversed(found[:-1]):
        if pair.last.path == row[0].path:
            row.insert(0, pair.first)
    return row


def weights_of(evidence: Evidence, checkpoint: str) -> list[Weight]:
    """The weights of one checkpoint, in the order of its table."""
    return weights_by_checkpoint(evidence).get(checkpoint, [])


def standing(evidence: Evidence) -> Standing | None:
    """What stands still over the checkpoints of a run; None where fewer than two of them differ."""
    return evidence.once("frozen_signals.standing", lambda: _standing(evidence))


def _standing(evidence: Evidence) -> Standing | None:
    row = chain(evidence)
    prints = {saved.path: _prints(weights_of(evidence, saved.path)) for saved in row}
    while len(row) > 1 and not _changed(prints[row[-2].path], prints[row[-1].path]):
        row.pop()  # the same weights again: the last step saved twice, or a rate that has reached 0
    if len(row) < 2:
        return None
    first, last = row[0], row[-1]
    moved = _changed(prints[row[-2].path], prints[last.path])
    at_last = {
        w.name: w
        for w in distinct(weights_of(evidence, last.path))
        if not is_untrained(w.name) and not _BUFFER.search(w.name)
    }
    since = {name: _since(name, row, prints) for name in at_last if name in prints[first.path]}
    frozen = [at_last[name] for name, step in since.items() if step == (first.step or 0)]
    stopped = {n: step for n, step in since.items() if (first.step or 0) < step < (last.step or 0)}
    return Standing(first, last, tuple(frozen), tuple(w for n, w in at_last.items() if n in moved), stopped)


def _prints(found: Sequence[Weight]) -> dict[str, tuple[tuple[int, str, str], ...]]:
    """Fingerprints by name, of all ranks."""
    gathered: dict[str, list[tuple[int, str, str]]] = {}
    for weight in found:
        if weight.count and weight.fingerprint:
            rank = -1 if weight.rank is None else weight.rank
            gathered.setdefault(weight.name, []).append((rank, weight.measured, weight.fingerprint))
    return {name: tuple(sorted(parts)) for name, parts in gathered.items()}


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    return {name for name, value in after.items() if name in before and before[name] != value}


def _since(name: str, row: Sequence[Saved], prints: Mapping[str, Mapping[str, object]]) -> int:
    """The step of the earliest checkpoint from which on a weight has the bytes of the last one."""
    value, since = prints[row[-1].path].get(name), row[-1].step or 0
    for saved in reversed(row):
        if prints[saved.path].get(name) != value:
            break
        since = saved.step or 0
    return since


# -- where ------------------------------------------------------------------------------------------------------------


def cut(still: Collection[str], moving: Sequence[Weight], every: Sequence[Weight], *, ordered: bool) -> Cut | None:
    """Where a cut graph would leave exactly `still` without a gradient; None where no single cut does.

    That is so where the first layers of a stack stand still and all later ones move, and so does what follows (members
    of a list that may lie side by side are no stack, unless what comes before it stands still too), or where all
    embeddings do, of tokens and of positions, or where, in a model without stacks, the first modules do. A module
    of which a part stands still is no cut. ordered: the file keeps the order of the modules.
    """
    going = {w.name for w in moving}
    named = [w for w in every if w.name in going or w.name in still]
    if not named or any(w.kind == "head" for w in named if w.name in still) or _split_modules(still, going):
        return None
    stacks: dict[str, dict[int, set[bool]]] = {}
    for weight in named:
        if weight.layer is not None:
            layers = stacks.setdefault(weight.layer[0], {})
            layers.setdefault(weight.layer[1], set()).add(weight.name in still)
    stacks = {stack: layers for stack, layers in stacks.items() if len(layers) > 1}
    outside = [w for w in named if w.layer is None or w.layer[0] not in stacks]
    if not stacks:
        return _in_file_order(still, named) if ordered else None
    return _in_stacks(still, stacks, outside)


def _in_stacks(
    still: Collection[str], stacks: Mapping[str, Mapping[int, set[bool]]], outside: Sequence[Weight]
) -> Cut | None:
    parted = [stack for stack, layers in stacks.items() if len(set().union(*layers.values())) > 1]
    embeddings = [w for w in outside if w.kind == "embedding"]
    early = [w for w in outside if w.name in still]
    tied = not any(w.kind == "head" for w in outside)
    closed = all(w.kind == "embedding" or _FIRST.search(w.name) for w in early)
    complete = tied or all(w.name in still for w in embeddings)
    if len(parted) == 1 and closed and complete:
        stack, layers = parted[0], stacks[parted[0]]
        held = [number for number, said in layers.items() if True in said]
        free = [number for number, said in layers.items() if False in said]
        in_order = bool(early) or _SEQUENCE.search(stack.rpartition(".")[2]) is not None
        if in_order and max(held) < min(free):  # which also says that no layer is mixed
            return Cut(f"{stack}.{min(free)}".lstrip("."), f"{stack}.{max(held)}".lstrip("."))
        return None
    whole = not any(True in said for layers in stacks.values() for said in layers.values())
    both = len(embeddings) > 1 and any(_POSITION.search(w.name) for w in embeddings)
    if whole and early and closed and both and all(w.name in still for w in embeddings):
        stack = min(stacks, key=len)
        return Cut(f"{stack}.{min(stacks[stack])}".lstrip("."), early[-1].name)
    return None


def _in_file_order(still: Collection[str], named: Sequence[Weight]) -> Cut | None:
    """A cut of a chain of modules in the order of the file."""
    flags = [w.name in still for w in named]
    count = sum(flags)
    if not all(flags[:count]) or count in (0, len(flags)):
        return None
    both = [any(len(w.shape) > 1 for w in part) for part in (named[:count], named[count:])]
    return Cut(module_of(named[count].name), module_of(named[count - 1].name)) if all(both) else None


def _split_modules(still: Collection[str], going: Collection[str]) -> bool:
    return not {module_of(name) for name in still}.isdisjoint(module_of(name) for name in going)


def listed(names: Sequence[str]) -> str:
    """The first names for a text, with the number of the others."""
    return ", ".join(names[:4]) + (f" (+{len(names) - 4})" if len(names) > 4 else "")


# -- fresh values -----------------------------------------------------------------------------------------------------


def never_trained(frozen: Sequence[Weight]) -> bool:
    """Whether weights have the values of a fresh initialisation in every tensor that can tell.

    At least two must tell, or one large matrix. Norm gains are exactly 1, biases exactly 0; weights and biases of
    torch's Linear and Conv have the uniform distribution of their default, |w| <= 1/sqrt(fan in)
    (torch.nn.init.kaiming_uniform_ with a = sqrt 5). Matrices of other distributions tell nothing.
    """
    fan_in = {module_of(w.name): _fan_in(w) for w in frozen if len(w.shape) > 1}
    said = [answer for w in frozen if (answer := _fresh(w, fan_in.get(module_of(w.name)))) is not None]
    fresh = [w for w in frozen if w.kind != "bias" and _fresh(w, fan_in.get(module_of(w.name)))]
    telling = sum(2 if len(w.shape) > 1 and w.count >= _MANY else 1 for w in fresh)
    return bool(said) and all(said) and telling >= 2


def _fan_in(weight: Weight) -> int:
    return int(np.prod(weight.shape[1:]))


def _fresh(weight: Weight, fan_in: int | None) -> bool | None:
    """Whether one tensor has fresh values; None where its values cannot tell."""
    if weight.kind == "norm" or (len(weight.shape) == 1 and weight.count > 1 and weight.name.endswith("weight")):
        return weight.one == weight.count
    if weight.kind == "bias":
        return weight.zero == weight.count or (fan_in is not None and _uniform(weight, fan_in, edge=False))
    if weight.kind in ("matrix", "head") and weight.count >= _ENOUGH and fan_in and _uniform(weight, fan_in, edge=True):
        return True
    return None


def _uniform(weight: Weight, fan_in: int, *, edge: bool) -> bool:
    """Whether values are spread evenly over |w| <= 1/sqrt(fan in). edge: and reach it, as many values must."""
    if weight.min is None or weight.max is None or weight.std is None:
        return False
    bound, count = fan_in**-0.5, weight.count
    largest = max(-weight.min, weight.max)
    # the largest of n even values lies some bound/n below it; their spread errs by 0.447/sqrt(n)
    near = largest >= bound * (1 - 12 / count) or not edge
    return largest <= bound * (1 + 1e-6) and near and abs(weight.std * 3**0.5 / bound - 1) < 2.3 / count**0.5


# -- decay ------------------------------------------------------------------------------------------------------------


def pure_decay(evidence: Evidence, first: Saved, last: Saved, decays: Collection[float]) -> list[float]:
    """What weights of a gradient of exactly zero are multiplied with between two checkpoints: the product of 1 - lr wd.

    One for every weight decay > 0 and every way to read the logged rate (of its own step or of the next one, as the
    Trainer logs it); without a logged rate over the steps, of the rate that both optimizers hold. Empty where unknown.
    """
    a, b = first.step or 0, last.step or 0
    readings = [at_every_step(evidence, a - shift, b - shift) for shift in (0, 1)]
    rates = [reading for reading in readings if reading is not None]
    if not rates:
        held = {group.lr for one in (first, last) for group in groups_of(evidence, one.path)}
        rate = held.pop() if len(held) == 1 else None
        rates = [] if not rate else [np.full(b - a, rate)]
    return [float(np.prod(1.0 - rate * decay)) for decay in decays if decay > 0 for rate in rates]
