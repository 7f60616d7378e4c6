"""What `pairs` takes and gives: parameters, and the rows of moments and travels."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradforensics.checkpoints.adam import Hyper
from gradforensics.checkpoints.refs import TensorRef


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a checkpoint with its Adam state.

    weight: the float32 master where there is one, else the parameter; None where it is not known which one belongs to
    the state. exp_avg, exp_avg_sq, max_exp_avg_sq: m, v and amsgrad's maximum of v, None where the optimizer keeps
    none.
    """

    name: str
    weight: TensorRef | None = None
    exp_avg: TensorRef | None = None
    exp_avg_sq: TensorRef | None = None
    max_exp_avg_sq: TensorRef | None = None
    hyper: Hyper = field(default_factory=Hyper)


@dataclass(frozen=True, slots=True)
class Applied:
    """What the optimizer did to a parameter between two checkpoints, as its schedule says.

    lr_sum: the sum of the learning rates of the steps. decay: the product of 1 - lr wd over them.
    """

    lr_sum: float
    decay: float = 1.0


@dataclass(frozen=True, slots=True)
class Moments:
    """One parameter's moments m and v.

    count: elements. nonfinite: those with a NaN or infinity in m or v; v_negative: those with v < 0 (more than the
    smallest normal number); all else is of the others, and None where there are none.

    bound_ratio_max: largest |m| / (C sqrt(v)), which no gradients bring above 1 (see `adam.bound`); bound_violations:
    elements above what rounding explains (see `adam.rounded_bound`). Both None where the betas have no such bound.
    v_zero_m_nonzero: elements with v = 0 and an m that is too large for v to have underflowed in float32 (in its own
    type where that has the exponents of float32 or more). A v below `adam.underflow` is taken for that number, so that
    the ratio is finite.

    update_rms: root mean square of m_hat / (sqrt(v_hat) + eps). below_eps: share of elements with sqrt(v_hat) < 10 eps.
    Both None where eps or the step is not known; with amsgrad, v_hat is that of the maximum.
    """

    name: str
    count: int
    nonfinite: int
    v_negative: int
    bound_ratio_max: float | None
    bound_violations: int | None
    update_rms: float | None
    below_eps: float | None
    v_zero_m_nonzero: int


@dataclass(frozen=True, slots=True)
class Travel:
    """How one parameter moved from w_a to w_b.

    count: elements. changed: share of those whose bits differ (of two types: the bits in the wider one). nonfinite:
    elements with a NaN or infinity in w_a or w_b; what follows is of the others.

    rel_travel: ‖w_b - w_a‖ / ‖w_a‖, None where w_a is 0. ratio_mean, ratio_std: of w_b / w_a where w_a is not 0.

    Only where the states are one update apart: recovered_lr, recovered_wd with the errors that they may have, and
    residual, see `adam.Fit.recover`; grad_l2: norm of g = (m_b - beta1 m_a) / (1 - beta1), the gradient as Adam got it
    (unscaled, clipped, with the coupled weight decay where there is one); v_error: mean of
    |v_b - beta2 v_a - (1 - beta2) g²| as a share of the mean of v_b; where the states are what they seem it is some
    1e-8 in float32 and 1e-3 in bfloat16; rms_t: root mean square of g / max(sqrt(v_hat_b), eps), which says how far the
    second moment, this step in it, lags behind the gradient (Wortsman et al., arXiv 2304.13013): about 1 as a rule, and
    1 / sqrt(1 - beta2) at most; None where eps or the step is not known. All but grad_l2 are of blocks that are spread
    evenly over a tensor, about `pairs.FITTED` of them, and of all elements of a smaller one.

    bound_ratio: largest |w_b - decay w_a| as a share of what Adam can do, C lr_sum, and rounding: (3 steps + 2) units
    of the weights' type at the largest |w|. Above 1 something else wrote the weights.
    """

    first_step: int
    step: int
    name: str
    count: int
    nonfinite: int
    changed: float
    rel_travel: float | None = None
    ratio_mean: float | None = None
    ratio_std: float | None = None
    recovered_lr: float | None = None
    lr_error: float | None = None
    recovered_wd: float | None = None
    wd_error: float | None = None
    residual: float | None = None
    grad_l2: float | None = None
    v_error: float | None = None
    rms_t: float | None = None
    bound_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A parameter without a row, or without a part of it, and why."""

    name: str
    reason: str


@dataclass(slots=True)
class Measured:
    """Rows in the order of the parameters; `earlier`: moments of the earlier checkpoint, where they were asked for."""

    moments: list[Moments] = field(default_factory=list)
    travels: list[Travel] = field(default_factory=list)
    earlier: list[Moments] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
