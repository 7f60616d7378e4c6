"""Which trainable parameters get no gradient, and where the graph is cut.

A parameter without gradient is no fault by itself: an expert that no token was sent to, a head that the loss does not
use. It is severed where its value reaches the loss and the gradient does not come back. Two controlled changes tell:
with the cut opened the parameter gets a gradient, and with its value changed the loss changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from gradforensics.experiments import Quantity, Result
from gradforensics.replay.experiment import Context, Experiment
from gradforensics.replay.step import Outcome, StepRunner, told
from gradforensics.replay.tracing_cuts import Cut, CutTrace, Key, traced

_MOST_CUTS = 4  # are opened one by one; where there are more, those with the most parameters behind them
_SHOWN = 6  # names in a sentence
_NOISE = 0.1  # of a parameter's standard deviation; far above rounding, far below what breaks a forward
_MOVED = 1e-6  # relative change of the loss that is no rounding of float32 in another order


@dataclass(slots=True)
class _Graph:
    """What the runs told. lacking: trainable, used in the forward, gradient None, trained by the optimizer."""

    trainable: list[str]
    unused: list[str]
    zero: list[str]
    dead: list[str]
    omitted: list[str]
    aside: list[str]
    lacking: list[str]
    reached: int  # parameters that got a gradient, be it zero
    idle: list[str] = field(default_factory=list)
    regained: dict[Key, set[str]] = field(default_factory=dict)  # what every named cut gives back when it is opened
    together: bool = False  # only with all of them open
    suspects: list[Cut] = field(default_factory=list)

    @property
    def severed(self) -> list[str]:
        """Parameters whose value reaches the loss, or may, and whose gradient does not come back."""
        return [name for name in self.lacking if name not in self.idle]

    @property
    def all_zero(self) -> bool:
        """Whether every gradient that there is is exactly zero: what is connected moves no parameter."""
        return bool(self.zero) and self.reached == len(self.zero)


def _run(context: Context) -> Iterator[Result]:
    runner = context.runner
    found, trace = _traced(runner)
    if found.error is not None:
        yield context.result("severed", "nothing", f"the step raises {told(found.error)}",
                             "The step does not get through its backward; nothing can be said about its gradients.",
                             "inconclusive")  # fmt: skip
        return
    graph = _sorted(runner, found, trace)
    if graph.lacking:
        _explain(runner, found, trace, graph)
    yield _told(context, graph, trace)
    if graph.severed and graph.regained:
        yield _proof(context, graph, trace)


def _traced(runner: StepRunner, opened: Collection[Key] = ()) -> tuple[Outcome, CutTrace]:
    made: list[CutTrace] = []

    @contextmanager
    def watch(model: nn.Module) -> Iterator[None]:
        with traced(model, opened) as trace:
            made.append(trace)
            yield

    outcome = runner.compute(watch=watch)
    return outcome, made[0]


def _sorted(runner: StepRunner, found: Outcome, trace: CutTrace) -> _Graph:
    """Every trainable parameter in its class, by its gradient, its use and the optimizer's groups."""
    parameters = {n: p for n, p in runner.parameters().items() if p.requires_grad}
    gradients = {n: found.gradients.get(n) for n in parameters}
    grouped = _grouped(runner)
    left_out = set() if grouped is None else {n for n in parameters if n not in grouped}
    without = [n for n, g in gradients.items() if g is None]
    zero = [n for n, g in gradients.items() if g is not None and not bool(g.any())]
    state = runner.state()
    return _Graph(
        trainable=list(parameters),
        unused=[n for n in without if n not in trace.used],
        zero=zero,
        dead=[n for n in zero if parameters[n].dim() >= 2 and not bool(state[n].any())],
        omitted=[n for n, g in gradients.items() if g is not None and n in left_out],
        aside=[n for n in without if n in trace.used and n in left_out],
        lacking=[n for n in without if n in trace.used and n not in left_out],
        reached=len(gradients) - len(without),
    )


def _grouped(runner: StepRunner) -> set[str] | None:
    """The parameters that the optimizer trains, by every name that they have; None where the groups are not known."""
    listed = {name for names in runner.recording.groups for name in names}
    if not listed:
        return None
    ids = {id(p) for n, p in runner.model.named_parameters(remove_duplicate=False) if n in listed}
    return {n for n, p in runner.parameters().items() if id(p) in ids or n in listed}


# -- which cut ---------------------------------------------------------------------------------------------------------


def _explain(runner: StepRunner, found: Outcome, trace: CutTrace, graph: _Graph) -> None:
    """Open the cuts behind which parameters without gradient lie; what stays without is tried by changing it."""
    lacking = set(graph.lacking)
    behind = [cut for cut in trace.cuts.values() if cut.upstream & lacking]
    openable = sorted((c for c in behind if c.openable), key=lambda c: -len(c.upstream & lacking))[:_MOST_CUTS]
    openable = [cut for cut in trace.cuts.values() if cut in openable]  # in the order of the forward
    _open(runner, lacking, openable, graph)
    rest = [n for n in graph.lacking if not any(n in names for names in graph.regained.values())]
    if not rest:
        return
    if _reaches_loss(runner, rest, found) is False:
        graph.idle = rest
        return
    graph.suspects = [c for c in behind if set(rest) <= c.upstream and c.key not in graph.regained]


def _open(runner: StepRunner, lacking: set[str], cuts: Sequence[Cut], graph: _Graph) -> None:
    """Which of these cuts keep gradients away: each that gives some back alone, else those that it takes together."""
    if not cuts:
        return
    alone = {c.key: _regained(runner, lacking, [c]) for c in cuts}
    graph.regained = {key: names for key, names in alone.items() if names}
    if len(cuts) == 1 or set().union(*alone.values()) == lacking:
        return
    every = _regained(runner, lacking, cuts)
    if every <= set().union(*alone.values()):
        return
    graph.together = True
    for cut in cuts:
        if cut.key in graph.regained:
            continue
        kept_back = every - _regained(runner, lacking, [c for c in cuts if c is not cut])
        if kept_back:
            graph.regained[cut.key] = kept_back
    for cut in cuts:
        if cut.key in graph.regained:
            graph.regained[cut.key] |= every & cut.upstream


def _regained(runner: StepRunner, lacking: set[str], cuts: Sequence[Cut]) -> set[str]:
    found, _ = _traced(runner, [c.key for c in cuts])
    if found.error is not None:  # numpy() of a tensor with a history, a parameter changed in place
        return set()
    return {name for name in lacking if found.gradients.get(name) is not None}


def _reaches_loss(runner: StepRunner, names: Sequence[str], found: Outcome) -> bool | None:
    """Whether the loss changes when these parameters do; None where a loss is not finite."""
    changed = runner.compute(watch=_perturbed(names))
    if changed.error is not None or not math.isfinite(changed.loss) or not math.isfinite(found.loss):
        return None
    return abs(changed.loss - found.loss) > _MOVED * abs(found.loss)


def _perturbed(names: Sequence[str]) -> Callable[[nn.Module], AbstractContextManager[None]]:
    @contextmanager
    def watch(model: nn.Module) -> Iterator[None]:
        held = dict(model.named_parameters())
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name in names:
                parameter = held[name]
                size = float(parameter.float().std(correction=0)) or 1.0
                noise = torch.randn(parameter.shape, generator=draw) * (_NOISE * size)
                parameter.add_(noise.to(parameter.device, parameter.dtype))
        yield  # the next run begins from the saved state again

    return watch


# -- the sentences -----------------------------------------------------------------------------------------------------


def _told(context: Context, graph: _Graph, trace: CutTrace) -> Result:
    severed = graph.severed
    first = _first_cut(graph, trace)
    counts = [f"{len(graph.trainable)} trainable parameters: {len(severed)} severed"]
    unused = [*graph.unused, *graph.idle]
    for what, names in (
        ("not used by the loss", unused), ("with a gradient of exactly zero", graph.zero),
        ("not in the optimizer", graph.omitted), ("neither with gradient nor in the optimizer", graph.aside),
    ):  # fmt: skip
        if names:
            counts.append(f"{len(names)} {what}")
    between = _between(graph, trace) if severed and first is None else ""
    quantities = [
        Quantity("trainable", float(len(graph.trainable))),
        Quantity("severed", float(len(severed))),
        Quantity("unused", float(len(unused))),
        Quantity("zero", float(len(graph.zero))),
        Quantity("dead", float(len(graph.dead))),
        Quantity("names", text=_names(severed or graph.omitted or unused or graph.zero)),
    ]
    if _grouped(context.runner) is not None:
        quantities.append(Quantity("omitted", float(len(graph.omitted))))
    if first is not None:
        quantities += [Quantity("module", text=first.module), Quantity("source_line", text=first.line),
                       Quantity("cut", text=first.kind)]  # fmt: skip
    elif between:
        quantities.append(Quantity("module", text=between))
    fault = bool(severed or graph.omitted or not graph.trainable)
    return context.result(
        "severed", "nothing", ", ".join(counts), " ".join(_conclusions(graph, trace, between)),
        "fault" if fault else ("inconclusive" if graph.all_zero else "clean"), quantities,
    )  # fmt: skip


def _conclusions(graph: _Graph, trace: CutTrace, between: str) -> Iterator[str]:
    severed = graph.severed
    if not graph.trainable:
        yield "No parameter of the model requires a gradient: nothing is trained."
    if severed:
        every = len(severed) + len(graph.unused) + len(graph.idle) == len(graph.trainable)
        yield ("The loss requires no gradient: no parameter is trained." if every else
               f"{_names(severed)}: used in the forward, without gradient after the backward.")  # fmt: skip
        if graph.regained:
            places = [_place(trace.cuts[key]) for key in graph.regained]
            yield f"The graph is cut at {' and at '.join(places)}."
        elif graph.suspects:
            yield f"Probably cut at {_place(graph.suspects[-1])}; no run could keep the history there."
        elif between:
            yield f"No call that cuts it was seen; the cut lies {between}."
        else:
            yield "No call that cuts it was seen."
    if graph.omitted:
        yield (f"{_names(graph.omitted)}: gets a gradient, but is in none of the optimizer's groups; it is not updated "
               "unless another optimizer does.")  # fmt: skip
    if graph.aside:
        yield f"{_names(graph.aside)}: no gradient, and left out of the optimizer, as one that is frozen on purpose."
    if graph.unused:
        yield (f"{_names(graph.unused)}: not used in this forward, which is no fault by itself (an expert that no "
               "token was sent to, a branch that was not taken).")  # fmt: skip
    if graph.idle:
        yield f"{_names(graph.idle)}: used in the forward, but the loss does not depend on it (an output left aside)."
    if graph.zero:
        yield _about_zeros(graph)
    if not (severed or graph.omitted or graph.all_zero) and graph.trainable and not graph.unused and not graph.idle:
        yield "Every trainable parameter that the optimizer has gets a gradient."


def _about_zeros(graph: _Graph) -> str:
    said = f"{_names(graph.zero)}: connected, its gradient is exactly zero."
    if graph.all_zero:
        return (
            f"{said} Every gradient of this step is: a loss that does not change, or a factor of zero in front of it."
        )
    if len(graph.dead) >= 2:
        return f"{said} {_names(graph.dead)} are themselves zero: two zero factors in a row never leave zero."
    return f"{said} Healthy behind a factor that starts at zero (LoRA, a zero-initialised head) in the first step only."


def _proof(context: Context, graph: _Graph, trace: CutTrace) -> Result:
    """The change that gives the gradients back."""
    cuts = [trace.cuts[key] for key in graph.regained]
    back = set().union(*graph.regained.values())
    severed = graph.severed
    complete = back >= set(severed)
    rest = [n for n in severed if n not in back]
    how = "all of them together" if graph.together else ("each for its part" if len(cuts) > 1 else "this cut")
    return context.result(
        "severed",
        f"history kept at {' and at '.join(_place(c) for c in cuts)}",
        f"{len(back)} of {len(severed)} severed parameters get a gradient",
        f"With {how} undone the gradient comes back."
        + (f" Not for {_names(rest)}: there is another cut that was not found." if rest else ""),
        "verified" if complete else "unverified",
        [Quantity("regained", float(len(back))), Quantity("remaining", float(len(severed) - len(back)))],
    )


def _first_cut(graph: _Graph, trace: CutTrace) -> Cut | None:
    if graph.regained:
        return next(cut for key, cut in trace.cuts.items() if key in graph.regained)
    return graph.suspects[-1] if graph.suspects else None


def _between(graph: _Graph, trace: CutTrace) -> str:
    """Between the last module whose parameters are severed and the next one whose parameters are not."""
    severed, order = set(graph.severed), list(trace.used)
    last = max((i for i, n in enumerate(order) if n in severed), default=None)
    if last is None:
        return ""
    after = order[last + 1] if last + 1 < len(order) else None
    before = order[last].rpartition(".")[0] or order[last]
    return f"between {before} and {after.rpartition('.')[0] or after}" if after else f"between {before} and the loss"


def _place(cut: Cut) -> str:
    return f"{cut.line} ({cut.kind}, in {cut.module})"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def _cost(_: Context) -> float:
    """The step, every cut opened alone, all but it, all together, and one run with other values."""
    return 1 + 2 * _MOST_CUTS + 2


EXPERIMENT = Experiment("severed", _cost, _run)
