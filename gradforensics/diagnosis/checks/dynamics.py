"""Checks on the flow of gradients over time and depth: spikes, and norms that fade from the last layer to the first."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from gradforensics import spike_signals
from gradforensics.diagnosis.checks.loss import loss_and_norm
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check, hit_at
from gradforensics.patterns import lazy
from gradforensics.spike_signals import Level, Spike
from gradforensics.tables import Evidence, Series

_ENOUGH = 16  # points after the first window and the warm-up below which nothing can be said of spikes
_NEAR = 8  # steps within which something that happened may have made a spike


def warm_up_ends(evidence: Evidence) -> float:
    """Last step of the warm-up: as the settings say, else where the learning rate stops rising from its first point."""
    declared = evidence.number("warmup_steps")
    if declared is not None and declared >= 1:
        return declared
    lr = evidence.series("lr")
    if lr is None or len(lr.good) < 2:
        return 0.0
    falls = np.flatnonzero(np.diff(lr.good.values) <= 0)
    return float(lr.good.steps[falls[0] if len(falls) else -1])


def _levels(evidence: Evidence, loss: Series, norm: Series, window: int) -> tuple[Level, Level]:
    """The recent levels of both, computed once: they cost more than everything that is asked of them."""

    def compute() -> tuple[Level, Level]:
        return spike_signals.recent_level(loss.values, window), spike_signals.recent_level(norm.values, window)

    return evidence.once(("recent levels", window), compute)


def _first(evidence: Evidence, loss: Series, window: int) -> int | Missing:
    """Index before which no spike counts: the first window, and the warm-up."""
    first = max(window, int(np.searchsorted(loss.steps, warm_up_ends(evidence), side="right")))
    if len(loss) - first < _ENOUGH:
        return Missing(f"series:grad_norm:points>={first + _ENOUGH}")
    return first


def joint_spikes(
    evidence: Evidence, window: int, high: float, back: float
) -> tuple[Series, Series, list[Spike]] | Missing:
    """The spikes of a run beside its loss and gradient norm; those that a learning rate or a resume made are kept."""

    def find() -> tuple[Series, Series, list[Spike]] | Missing:
        both = loss_and_norm(evidence, finite=True)
        if isinstance(both, Missing):
            return both
        loss, norm = both
        first = _first(evidence, loss, window)
        if isinstance(first, Missing):
            return first
        levels = _levels(evidence, loss, norm, window)
        return loss, norm, spike_signals.spikes(loss.steps, loss.values, norm.values, first, levels, high, back)

    return evidence.once(("spikes", window, high, back), find)


def _bounds(loss: Series) -> tuple[float, float]:
    """(fast, slow): steps within which a loss must be back to count as such (detector D03)."""
    span = float(loss.steps[-1] - loss.steps[0])
    return max(10.0, 0.001 * span), max(200.0, 0.005 * span)


def _lasts(loss: Series, spike: Spike) -> float:
    """Steps until the loss was back, or to the end of the record."""
    return float(loss.steps[-1 if spike.end is None else spike.end] - loss.steps[spike.start])


def _class(loss: Series, spike: Spike) -> str:
    """fast, slow, level, none or open: how a spike recovered; open where the record ends too soon to tell."""
    fast, slow = _bounds(loss)
    lasted = _lasts(loss, spike)
    if spike.end is not None and lasted <= slow:
        return "fast" if lasted <= fast else "slow"
    if lasted < slow:
        return "open"
    return "level" if spike.steady else "none"


_SPIKE_FACTS = ("before", "peak", "level", "norm_before", "norm_peak", "z_loss", "z_norm", "lead", "lasted", "count")


def _spike_hit(loss: Series, norm: Series, spike: Spike, count: int) -> Hit:
    series, index = (norm, spike.start) if spike.lead >= 0 else (loss, spike.start)
    return hit_at(
        series,
        index,
        before=spike.base,
        peak=spike.peak,
        level=spike.level,
        norm_before=spike.norm_base,
        norm_peak=spike.norm_peak,
        z_loss=spike.z_loss,
        z_norm=spike.z_norm,
        lead=spike.lead,
        lasted=int(_lasts(loss, spike)),
        count=count,
    )


@check(needs=["series:loss:points>=80", "series:grad_norm:points>=80"], facts=_SPIKE_FACTS)
def gradient_spike(
    evidence: Evidence, *, window: int, high: float, back: float, least: float, recovery: str, averaged: str
) -> Answer:
    """Loss and gradient norm rose to `high` robust standard deviations together, and recovered in this way.

    recovery: "fast" (within 10 steps or a thousandth of the run), "slow" (within 200 steps or a two-hundredth), "level"
    (the loss settled at a higher level), "none" (neither), "open" (the record ends too soon to tell); least: robust z
    of the loss that a spike must have. averaged: "yes" judges only logs of every nth step, whose losses may be means
    over several steps, "no" only those of every step, "any" both.
    """
    found = joint_spikes(evidence, window, high, back)
    if isinstance(found, Missing):
        return found
    loss, norm, spikes = found
    if averaged != "any" and (averaged == "yes") != (loss.cadence > 1):
        return []
    mine = [s for s in spikes if _class(loss, s) == recovery and s.z_loss >= least]
    return [_spike_hit(loss, norm, s, len(mine)) for s in mine[:20]]


@check(needs=["series:loss:points>=80", "series:grad_norm:points>=80"], facts=_SPIKE_FACTS)
def spike_ends_higher(
    evidence: Evidence, *, window: int, high: float, back: float, overshoot: float, overshot: str
) -> Answer:
    """After a spike the loss settled at a higher level than before it.

    overshot: "yes" where its peak was `overshoot` times as far above the level before as the new level is, so that the
    loss came partly back; "no" where it stepped up and stayed, as it does when the data change.
    """
    found = joint_spikes(evidence, window, high, back)
    if isinstance(found, Missing):
        return found
    loss, norm, spikes = found
    mine = [
        s
        for s in spikes
        if _class(loss, s) == "level" and (s.peak - s.base >= overshoot * (s.level - s.base)) == (overshot == "yes")
    ]
    return [_spike_hit(loss, norm, s, len(mine)) for s in mine[:1]]


@check(
    needs=["series:loss:points>=240", "series:grad_norm:points>=240"],
    facts=["count", "early", "middle", "late", "chance", "score"],
)
def spikes_more_often(
    evidence: Evidence, *, window: int, high: float, back: float, least: int, chance: float
) -> Answer:
    """Spikes become more frequent over the thirds of the run (a Poisson test), `least` of them at the least."""
    found = joint_spikes(evidence, window, high, back)
    if isinstance(found, Missing):
        return found
    loss, norm, spikes = found
    if len(spikes) < least:
        return []
    first = _first(evidence, loss, window)
    begin = loss.steps[first if isinstance(first, int) else 0]
    places = np.array([loss.steps[s.start] - begin for s in spikes], dtype=float)
    thirds, by_chance = spike_signals.rising(places, float(loss.steps[-1] - begin))
    if by_chance >= chance:
        return []
    facts: dict[str, Fact] = {"count": len(spikes), "early": thirds[0], "middle": thirds[1], "late": thirds[2]}
    facts |= {"chance": by_chance, "score": len(spikes) / len(loss)}
    late = next(s for s in spikes if 3 * (loss.steps[s.start] - begin) >= 2 * (loss.steps[-1] - begin))
    return [hit_at(norm, late.start, facts)]


@check(needs=["series:loss:points>=80", "series:grad_norm:points>=80"], facts=["z_loss", "z_norm", "peak", "before"])
def loss_spikes_alone(evidence: Evidence, *, window: int, high: float, still: float) -> Answer:
    """The loss jumps to `high` robust standard deviations at a step whose gradient norm stays below `still` of its own.

    Only logs of every step are judged: in a mean over several steps the two do not belong together.
    """
    both = loss_and_norm(evidence, finite=True)
    if isinstance(both, Missing):
        return both
    loss, norm = both
    first = _first(evidence, loss, window)
    if isinstance(first, Missing):
        return first
    if loss.cadence > 1:
        return Missing("series:grad_norm of every step")
    level, of_norm = _levels(evidence, loss, norm, window)
    z_loss, z_norm = level.z(loss.values), of_norm.z(norm.values)
    alone = (z_loss >= high) & (np.arange(len(loss)) >= first)
    for step in range(-1, 2):  # the norm of the neighbouring steps stays low as well
        alone &= ~(np.roll(z_norm, step) >= still)
    return [
        hit_at(
            loss,
            i,
            z_loss=float(z_loss[i]),
            z_norm=float(z_norm[i]),
            peak=float(loss.values[i]),
            before=float(level.median[i]),
        )
        for i in np.flatnonzero(alone)[:20].tolist()
    ]


# -- what looks like a spike, and is something else --------------------------------------------------------------------


@check(needs=["series:lr", "series:loss:points>=80", "series:grad_norm:points>=80"], facts=["lr", "lr_before"])
def lr_jumped_at_spike(evidence: Evidence, *, window: int, high: float, back: float, times: float) -> Answer:
    """At the first spike the learning rate was `times` its median over the window before."""
    found, lr = joint_spikes(evidence, window, high, back), evidence.series("lr")
    if isinstance(found, Missing):
        return found
    if lr is None or not len(lr.good):
        return Missing("series:lr")
    lr = lr.good
    loss, _, spikes = found
    for spike in spikes:
        at = loss.steps[spike.start]
        near = (lr.steps >= at - max(_NEAR, loss.cadence)) & (lr.steps <= at + 1)
        before = (lr.steps < at - max(_NEAR, loss.cadence)) & (lr.steps >= loss.steps[max(0, spike.start - window)])
        if not near.any() or not before.any():
            continue
        now, usual = float(lr.values[near].max()), float(np.median(lr.values[before]))
        if now >= times * usual > 0:
            return [hit_at(lr, int(np.flatnonzero(near)[np.argmax(lr.values[near])]), lr=now, lr_before=usual)]
    return []


@check(needs=["series:loss_scale", "series:loss:points>=80", "series:grad_norm:points>=80"], facts=["scale"])
def loss_scale_cut_at_spike(evidence: Evidence, *, window: int, high: float, back: float) -> Answer:
    """The loss scale was cut within a few steps of the first spike: something overflowed there."""
    found, scale = joint_spikes(evidence, window, high, back), evidence.series("loss_scale")
    if isinstance(found, Missing):
        return found
    if scale is None:
        return Missing("series:loss_scale")
    scale = scale.good
    cuts = np.flatnonzero(np.diff(scale.values) < 0) + 1
    for spike in found[2]:
        at = found[0].steps[spike.start]
        near = cuts[np.abs(scale.steps[cuts] - at) <= max(2, scale.cadence)]
        if len(near):
            return [hit_at(scale, int(near[0]), scale=float(scale.values[near[0]]))]
    return []


@check(needs=["series:loss:points>=80", "series:grad_norm:points>=80"])
def resumed_before_spike(evidence: Evidence, *, window: int, high: float, back: float) -> Answer:
    """The first spike that did not come back fast stands right after a resume."""
    found = joint_spikes(evidence, window, high, back)
    if isinstance(found, Missing):
        return found
    loss, norm, spikes = found
    resumes = [e.step for e in evidence.events_of("resume") if e.step is not None]
    for spike in spikes:
        if _class(loss, spike) == "fast":
            continue
        at = int(loss.steps[spike.start])
        reach = max(_NEAR, 2 * loss.cadence)
        earlier = loss.attempts[max(0, int(np.searchsorted(loss.steps, at - reach)) - 1)]
        if earlier != loss.attempts[spike.start] or any(0 <= at - step <= reach for step in resumes):
            return [hit_at(norm, spike.start)]
        return []
    return []


@check(needs=["series:loss:points>=80", "series:grad_norm:points>=80"], facts=["initial", "level"])
def spike_ends_above_start(evidence: Evidence, *, window: int, high: float, back: float) -> Answer:
    """After a spike the loss stays above the level that the run began with, or ends as NaN: it diverged."""
    found = joint_spikes(evidence, window, high, back)
    if isinstance(found, Missing):
        return found
    loss, norm, spikes = found
    whole = evidence.series("loss")
    initial = float(np.median(loss.values[:5]))
    for spike in spikes:
        ends_badly = whole is not None and bool(whole.bad[-1])
        if spike.end is None and (spike.level > initial or ends_badly):
            return [hit_at(norm, spike.start, initial=initial, level=spike.level)]
    return []


# -- gradients over depth ----------------------------------------------------------------------------------------------

# How loggers call the norm of one layer's gradient: Lightning's grad_norm(), tags of TensorBoard and W&B, the recorder
_LAYER_NORM = lazy(
    r"(?:^|.*?[/._])(?:grad(?:ient)?s?(?:_?\d\.0)?_?norms?|gradients?|gnorm)(?:_per_layer)?[/._](?P<front>\S+)$"
    r"|^(?P<back>\S+?)[/._](?:grad(?:ient)?_?norm|gnorm)$",
    re.IGNORECASE,
)
_NUMBERED = lazy(r"(?P<stack>.*?)(?<!\d)(?P<number>\d{1,4})(?![a-zA-Z0-9])(?P<rest>.*)")
_FEWEST_LAYERS = 4


def _stacks(evidence: Evidence) -> dict[str, list[Series]]:
    """Name of a stack -> gradient norms of its layers, first layer first, for stacks of at least four layers.

    Layers belong to one stack where their names differ in one number only: then their tensors mostly have one shape,
    and the ratio of two norms is that of two root mean squares.
    """
    found: dict[str, dict[int, Series]] = {}
    for name in evidence.names("train"):
        tag = _LAYER_NORM.match(name)
        layer = (tag["front"] or tag["back"]) if tag else ""
        place = _NUMBERED.match(layer)
        norm = evidence.series(name) if place and "bias" not in layer else None
        if place and norm is not None:
            found.setdefault(f"{place['stack']}*{place['rest']}", {})[int(place["number"])] = norm.good
    return {
        stack: [layers[number] for number in sorted(layers)]
        for stack, layers in found.items()
        if len(layers) >= _FEWEST_LAYERS
    }


def _decades(layers: list[Series], since: float) -> tuple[np.ndarray, np.ndarray]:
    """(steps, log10 of the norms, float64 (layers, steps)) after a step, without steps at which one is not above 0.

    Exact zeros are no fading: they come from a dead unit (GF10) or from fp16's underflow.
    """
    steps = layers[0].steps
    for layer in layers[1:]:
        steps = np.intersect1d(steps, layer.steps)
    steps = steps[steps > since]
    norms = np.stack([layer.values[np.searchsorted(layer.steps, steps)] for layer in layers])
    above = (norms > 0).all(axis=0)
    return steps[above], np.log10(norms[:, above])


@check(needs=[], facts=["slope", "ratio", "layers", "points"])
def gradient_fades_with_depth(evidence: Evidence, *, slope: float, ratio: float, points: int, share: float) -> Answer:
    """From the last layer of a stack to the first the gradient shrinks by a steady factor, and stays so (detector D36).

    slope: least fall in decades per layer; ratio: largest ratio of first to last; both must hold at `points` steps
    after the warm-up, and in `share` of those in the later half of the record.
    """
    warmup, judged = warm_up_ends(evidence), False
    for stack, layers in _stacks(evidence).items():
        steps, decades = _decades(layers, warmup)
        if len(steps) < points:
            continue
        judged = True
        depth = np.arange(len(layers)) - (len(layers) - 1) / 2
        slopes = depth @ decades / float(depth @ depth)
        fades = (slopes > slope) & (decades[0] - decades[-1] < np.log10(ratio))
        later = slice(len(fades) // 2, None)
        if int(fades.sum()) < points or float(fades[later].mean()) < share:
            continue
        at = int(np.searchsorted(layers[0].steps, steps[np.argmax(fades)]))
        hit = hit_at(
            layers[0],
            at,
            slope=float(np.median(slopes[later])),
            ratio=float(10 ** np.median((decades[0] - decades[-1])[later])),
            layers=len(layers),
            points=int(fades.sum()),
        )
        return [replace(hit, tensor=stack)]
    return [] if judged else Missing("series:grad_norm/LAYER")


CHECKS: tuple[Check, ...] = (
    gradient_spike,
    spike_ends_higher,
    spikes_more_often,
    loss_spikes_alone,
    lr_jumped_at_spike,
    loss_scale_cut_at_spike,
    resumed_before_spike,
    spike_ends_above_start,
    gradient_fades_with_depth,
)
