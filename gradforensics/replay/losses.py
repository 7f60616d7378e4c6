"""What the embeddings and the cross-entropy calls of a step saw: the ids and labels that they really got.

A batch says what was meant, a call what was done: a label that the loss never weighs is no fault. Every index is
checked before the call, so that one outside of its table never reaches a CUDA kernel: a device-side assert would leave
no device for the experiments after this one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  as everywhere
from torch import nn
from torch.overrides import TorchFunctionMode

from gradforensics.replay.recording import Micro
from gradforensics.replay.step import Outcome, StepRunner

_LOSSES: dict[Any, inspect.Signature] = {f: inspect.signature(f) for f in (F.cross_entropy, F.nll_loss)}
_EMBEDDING = inspect.signature(F.embedding)
_DROPOUTS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout}
_MATCH = 0.9  # share of equal labels from which two columns of labels are taken for the same ones


@dataclass(slots=True)
class Lookup:
    """One call of F.embedding. ids: int64, as given. rows: of its table. bad: flat positions outside of 0..rows-1.

    norms: L2 norm of the loss's gradient at every id's output, flat float64, None where backward did not get there.
    """

    module: str
    ids: torch.Tensor
    rows: int
    bad: list[int]
    norms: torch.Tensor | None = None


@dataclass(slots=True)
class LossCall:
    """One call of F.cross_entropy or F.nll_loss with labels (not with class probabilities).

    target: int64 (n), flat, as given; shape: as it was. ignored: the call's ignore_index. bad: flat positions of labels
    outside of 0..classes-1. each: the loss of every label, float64 (n), 0 where ignored. denominator: what
    reduction="mean" divides by. weights: d(loss of the program) / d(each), float64 (n), which is 1/N for a mean over N
    labels, 1 for a sum and 0 where a mask takes a label out later; None where backward did not get there.
    """

    target: torch.Tensor
    shape: tuple[int, ...]
    classes: int
    ignored: int
    bad: list[int]
    each: torch.Tensor
    denominator: float
    weights: torch.Tensor | None = None

    @property
    def labelled(self) -> torch.Tensor:
        """Which labels are none of the ignored ones, bool (n)."""
        return self.target != self.ignored

    @property
    def counted(self) -> torch.Tensor:
        """Which labels count in the program's loss, bool (n): by their weight where it is known."""
        known = self.weights is not None and bool(torch.isfinite(self.weights).all())
        return self.labelled & (self.weights != 0) if known and self.weights is not None else self.labelled

    @property
    def shares(self) -> torch.Tensor:
        """The part of every label in the loss, weight times loss, float64 (n); all labels weigh alike if unknown."""
        known = self.weights is not None and bool(torch.isfinite(self.weights).all())
        return self.each * self.weights.abs() if known and self.weights is not None else self.each


class Seen(TorchFunctionMode):
    """Watches the calls of one forward and backward; ids and labels are copied to the CPU.

    repair: whether ids and labels outside of their table are replaced (by 0, by ignore_index) so that the step goes on;
    otherwise they raise an IndexError as on the CPU, whatever the device. dropout: whether a random mask was drawn.
    """

    def __init__(self, model: nn.Module, *, repair: bool = False) -> None:
        super().__init__()
        self.lookups: list[Lookup] = []
        self.losses: list[LossCall] = []
        self.dropout = False
        self._repair = repair
        self._names = {id(p): n.rpartition(".")[0] for n, p in model.named_parameters()}

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """See `TorchFunctionMode`."""
        given = dict(kwargs or {})
        if torch._C._current_graph_task_id() != -1:  # noqa: SLF001  a recomputation in backward was seen in the forward
            return func(*args, **given)
        if func is F.embedding:
            return self._embedding(_EMBEDDING.bind(*args, **given))
        if func in _LOSSES:
            return self._loss(func, _LOSSES[func].bind(*args, **given))
        if func in _DROPOUTS or func is F.scaled_dot_product_attention:
            self.dropout = self.dropout or _drops(func, args, given)
        return func(*args, **given)

    def _embedding(self, bound: inspect.BoundArguments) -> Any:
        ids, table = bound.arguments["input"], bound.arguments["weight"]
        rows, wrong = table.shape[0], (ids < 0) | (ids >= table.shape[0])
        flat = ids.detach().to("cpu", torch.int64)
        seen = Lookup(self._names.get(id(table), ""), flat, rows, _places(wrong))
        self.lookups.append(seen)
        if seen.bad:
            if not self._repair:
                raise IndexError(f"id {int(flat.reshape(-1)[seen.bad[0]])} is not in a table of {rows} rows")
            bound.arguments["input"] = ids.masked_fill(wrong, 0)
        out: torch.Tensor = F.embedding(*bound.args, **bound.kwargs)

        def measure(gradient: torch.Tensor) -> None:
            norms = gradient.detach().double().norm(dim=-1).reshape(-1).cpu()
            seen.norms = norms if seen.norms is None else seen.norms + norms

        if out.requires_grad:
            out.register_hook(measure)  # type: ignore[no-untyped-call]  # torch's own
        return out

    def _loss(self, func: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
        bound.apply_defaults()
        logits, target = bound.arguments["input"], bound.arguments["target"]
        if target.dtype.is_floating_point:  # class probabilities: no labels
            return func(*bound.args, **bound.kwargs)
        ignored, classes = bound.arguments["ignore_index"], logits.shape[1 if logits.dim() > 1 else 0]
        wrong = ((target < 0) | (target >= classes)) & (target != ignored)
        flat = target.detach().to("cpu", torch.int64).reshape(-1)
        bad = _places(wrong)
        if bad:
            repaired = target.masked_fill(wrong, ignored)
            bound.arguments["target"] = repaired if self._repair else target.clamp(0, classes - 1)
        reduction = _reduction(bound.arguments)
        each = _each(func, bound)
        call = LossCall(flat, tuple(target.shape), classes, ignored, bad, each, _denominator(bound))
        self.losses.append(call)
        if bad and not self._repair:
            raise IndexError(f"Target {int(flat[bad[0]])} is out of bounds: there are {classes} classes.")
        out = func(*bound.args, **bound.kwargs)
        factor = 1 / call.denominator if reduction == "mean" and call.denominator else 1.0

        def weigh(gradient: torch.Tensor) -> None:
            part = gradient.detach().double().cpu().reshape(-1) * factor
            weights = torch.where(call.labelled, part.expand(call.target.shape), 0.0)
            call.weights = weights if call.weights is None else call.weights + weights

        if out.requires_grad:
            out.register_hook(weigh)
        return out


def _places(wrong: torch.Tensor) -> list[int]:
    found: list[int] = wrong.reshape(-1).nonzero().reshape(-1).tolist()
    return found


def _drops(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if func is F.scaled_dot_product_attention:
        return bool(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))
    bound = inspect.signature(func).bind(*args, **kwargs)
    bound.apply_defaults()
    return bool(bound.arguments["training"] and bound.arguments["p"])


def _reduction(given: Mapping[str, Any]) -> str:
    """How a call reduces: none, mean or sum, with what the deprecated arguments say."""
    if given["size_average"] is None and given["reduce"] is None:
        return str(given["reduction"])
    if given["reduce"] is False:
        return "none"
    return "sum" if given["size_average"] is False else "mean"


def _each(func: Callable[..., Any], bound: inspect.BoundArguments) -> torch.Tensor:
    changed = {**bound.arguments, "reduction": "none", "size_average": None, "reduce": None}
    with torch.no_grad():
        each: torch.Tensor = func(**changed).double().reshape(-1).cpu()
    return each


def _denominator(bound: inspect.BoundArguments) -> float:
    """The number of labels that are not ignored, each with its class's weight where there are weights."""
    target, ignored, weight = (bound.arguments[k] for k in ("target", "ignore_index", "weight"))
    kept = target[target != ignored]
    return float(kept.numel() if weight is None else weight.double()[kept].sum())


@dataclass(slots=True)
class Watched:
    """A run of a micro-batch and what its calls saw."""

    outcome: Outcome
    seen: Seen

    @property
    def unlabelled(self) -> bool:
        """Whether there was a loss, and not one label in it that counts: its mean is then 0/0."""
        return bool(self.seen.losses) and not any(bool(call.labelled.any()) for call in self.seen.losses)


def run(runner: StepRunner, micros: Sequence[Micro], *, repair: bool = False, **changes: Any) -> Watched:
    """`StepRunner.compute` of these micro-batches, watched. Only the norm of the gradients is kept.

    Many parts of a step are held at a time; their gradients would take as many times the memory of the model.
    """
    made: list[Seen] = []

    def watch(model: nn.Module) -> Seen:
        made.append(Seen(model, repair=repair))
        return made[-1]

    outcome = runner.compute(micros, watch=watch, **changes)
    outcome.gradients = {}
    return Watched(outcome, made[0])


@dataclass(frozen=True, slots=True)
class Grid:
    """How a flat list of labels lies in the batch: `columns` per sample; column 0 is token `offset`.

    matched: the share of labels that equal those of the batch there; None where there was nothing to compare with.
    """

    columns: int
    offset: int = 0
    matched: float | None = None

    def place(self, flat: int) -> tuple[int, int]:
        """Sample and token."""
        return flat // self.columns, flat % self.columns + self.offset


def grid(target: torch.Tensor, samples: int, shape: Sequence[int], references: Sequence[torch.Tensor]) -> Grid | None:
    """Lay flat labels over the samples by comparing them with the labels or ids of the batch.

    target: int64 (n); shape: as the call got it; references: int64 (samples, tokens), the first that fits is taken,
    with the labels shifted by 0, 1 or 2 tokens. None where they cannot be told apart from another order.
    """
    if not samples or not target.numel() or target.numel() % samples:
        return None
    columns = target.numel() // samples
    laid = target.reshape(samples, columns)
    for reference in references:
        scores = {o: agreement(laid, reference, o) for o in range(3)}
        known = {o: share for o, share in scores.items() if share is not None}
        if known and max(known.values()) >= _MATCH:
            best = max(known, key=lambda o: known[o])
            return Grid(columns, best, known[best])
    plain = columns == 1 or (len(shape) > 1 and shape[0] == samples)
    return Grid(columns) if plain else None


def agreement(laid: torch.Tensor, reference: torch.Tensor, offset: int) -> float | None:
    """The share of labels (samples, columns) that equal the reference (samples, tokens) `offset` tokens further on.

    Negative values, which no id has, are left out; None where fewer than 4 labels can be compared.
    """
    width = min(laid.shape[1], reference.shape[1] - offset)
    if reference.shape[0] != laid.shape[0] or width < 1:
        return None
    ours, theirs = laid[:, :width], reference[:, offset : offset + width].to("cpu", torch.int64)
    both = (ours >= 0) & (theirs >= 0)
    return float((ours == theirs)[both].double().mean()) if int(both.sum()) >= 4 else None


def of_another_sequence(labels: torch.Tensor, ids: torch.Tensor | None, lookups: Sequence[Lookup]) -> bool:
    """Whether labels (samples, tokens) are ids of a sequence that was embedded beside `ids`, as a decoder's are.

    labels: negative where they do not count.
    """
    return any(
        (agreement(labels, one.ids, offset) or 0) >= _MATCH
        for one in lookups
        if one.ids.dim() == 2 and (ids is None or not torch.equal(one.ids, ids.cpu()))
        for offset in (0, 1)
    )
