"""Adam's arithmetic: the bound that its moments keep, its update, and the fit that tells what was really applied.

Adam (Kingma and Ba, 2015) with gradient g: m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g², and with
u = m_hat / (sqrt(v_hat) + eps), m_hat = m / (1 - beta1^t), v_hat = v / (1 - beta2^t), the weights move by -lr u. AdamW
(Loshchilov and Hutter, 2019) moves them by -lr wd w besides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative error of one rounding, by element type."""


@dataclass(frozen=True, slots=True)
class Hyper:
    """What the update of a state depends on, as far as known; step: updates that this state has seen.

    varied: the betas were others at other steps, as OneCycleLR and CyclicLR set them: these are the last ones.
    """

    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    step: int | None = None
    varied: bool = False


@dataclass(frozen=True, slots=True)
class Adam:
    """The constants of one state's arithmetic.

    bound: C of |m| <= C sqrt(v), None where there is no such bound. limit: what |m| / sqrt(v) may reach after
    rounding. floor: what underflow may have taken from v. eps and scale: u = scale m / (sqrt(v) + eps); eps is None
    where it or the step is not known.
    """

    beta1: float
    beta2: float
    bound: float | None
    limit: float
    floor: float
    eps: float | None = None
    scale: float = 1.0


def adam(hyper: Hyper, m_dtype: str, v_dtype: str) -> Adam | None:
    """The constants for moments stored as these types; None where the betas are not known or no betas.

    Betas that varied give neither a bound nor a scale: both depend on what they were at every step.
    """
    beta1, beta2 = hyper.beta1, hyper.beta2
    if beta1 is None or beta2 is None or not (0.0 <= beta1 < 1.0 and 0.0 < beta2 < 1.0):
        return None
    unit = max(UNIT_ROUNDOFF[m_dtype], UNIT_ROUNDOFF[v_dtype])
    constant, limit = bound(beta1, beta2), rounded_bound(beta1, beta2, unit)
    if constant is None or limit is None or hyper.varied:
        constant, limit = None, math.inf
    known = Adam(beta1, beta2, constant, limit, underflow(beta2, v_dtype))
    if hyper.eps is None or hyper.step is None or hyper.step < 1 or hyper.varied or not 0.0 <= hyper.eps < math.inf:
        return known
    step = min(hyper.step, 1 << 53)
    root = math.sqrt(1.0 - beta2**step)
    return replace(known, eps=hyper.eps * root, scale=root / (1.0 - beta1**step))


def bound(beta1: float, beta2: float) -> float | None:
    """C with |m| <= C sqrt(v) at any step, whatever the gradients were; None unless beta1² < beta2.

    By the inequality of Cauchy and Schwarz for m = (1 - beta1) sum beta1^k g_k and v = (1 - beta2) sum beta2^k g_k²:
    C = (1 - beta1) / sqrt((1 - beta2) (1 - beta1²/beta2)). Gradients with |g_k| ~ (beta1/beta2)^k come close to it.
    """
    return _constant(beta1, beta2, 1.0)


def rounded_bound(beta1: float, beta2: float, unit: float) -> float | None:
    """The same for moments that are rounded to a unit roundoff of `unit` at every step; None where there is none.

    A step stores each moment twice at most (multiplied, then added to) and rounds up to four times in float32 (float64
    for float64), so it makes m larger and v smaller by less than the factor r = (1 + unit)² (1 + 2^-24)^4. Then
    |m| <= r sum (r beta1)^k (1 - beta1) |g_k| and v >= sum (beta2 / r)^k (1 - beta2) g_k² / r. One more r stands for
    the rounding where the ratio is computed.
    """
    factor = (1.0 + unit) ** 2 * (1.0 + min(unit, 2.0**-24)) ** 4
    return _constant(beta1, beta2, factor)


def _constant(beta1: float, beta2: float, factor: float) -> float | None:
    """C where a step changes the moments' size by `factor` at most; None where there is none, or the betas are none."""
    if not (0.0 <= beta1 < 1.0 and 0.0 < beta2 < 1.0):
        return None
    ratio = beta1 * beta1 / beta2 * factor**3
    if ratio >= 1.0:
        return None
    # r of m, sqrt(r) of v, r of the computed ratio
    return (1.0 - beta1) * factor * factor * math.sqrt(factor / ((1.0 - beta2) * (1.0 - ratio)))


def underflow(beta2: float, v_dtype: str) -> float:
    """What v may have lost because its numbers became too small: a v below it says nothing about m.

    Each step loses at most the distance of the smallest subnormal numbers, all steps 1 / (1 - beta2) of that; and at
    least the smallest normal number is taken, below which arithmetic is slow and imprecise. Of float16 only what the
    arithmetic in float32 loses is allowed for: that float16 itself cannot hold v is a fault which the bound shall show.
    """
    if v_dtype == "float64":
        return 2.0**-1022
    distance = 2.0**-133 if v_dtype == "bfloat16" else 2.0**-149
    return max(2.0**-126, distance / (1.0 - beta2))


@dataclass(slots=True)
class Spread:
    """Mean and sum of squared deviations of `count` numbers, added as in Chan, Golub and LeVeque (1983)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, other: Spread) -> None:
        """Take in the numbers of another one."""
        total = self.count + other.count
        if not other.count:
            return
        apart = other.mean - self.mean
        self.mean += apart * (other.count / total)
        self.squares += other.squares + apart * apart * (self.count * (other.count / total))
        self.count = total

    @property
    def std(self) -> float:
        """Population standard deviation."""
        return math.sqrt(max(self.squares, 0.0) / self.count)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the fit says: see `Fit.recover`."""

    lr: float | None = None
    lr_error: float | None = None
    wd: float | None = None
    wd_error: float | None = None
    residual: float | None = None


LR_RESOLUTION = 0.01  # of the learning rate: what is known worse cannot be told from a step of its schedule
LR_SMALLEST = 1e-6  # smaller ones hardly occur but at the ends of a schedule
WD_RESOLUTION = 0.01  # the smallest weight decay in common use: what is known worse cannot be told from none


@dataclass(slots=True)
class Fit:
    """The least-squares fit of the movement d = -a u - b w: a is the learning rate, b that times the weight decay.

    u, w, d: arrays of `count` numbers, of which only sums are kept: uu of u·u and so on; r = d + a u + b w is what
    a provisional a and b leave over. Sums with r instead of d keep the digits that d·d - ... would cancel.
    """

    count: int = 0
    a: float = 0.0
    b: float = 0.0
    uu: float = 0.0
    uw: float = 0.0
    ww: float = 0.0
    dd: float = 0.0
    ur: float = 0.0
    wr: float = 0.0
    rr: float = 0.0

    def add(self, other: Fit) -> None:
        """Take in the numbers of another one, keeping this one's a and b (the other's where this one is empty)."""
        if not self.count:
            self.a, self.b = other.a, other.b
        da, db = self.a - other.a, self.b - other.b
        self.rr += other.rr + 2.0 * (da * other.ur + db * other.wr)
        self.rr += da * da * other.uu + 2.0 * da * db * other.uw + db * db * other.ww
        self.ur += other.ur + da * other.uu + db * other.uw
        self.wr += other.wr + da * other.uw + db * other.ww
        self.uu += other.uu
        self.uw += other.uw
        self.ww += other.ww
        self.dd += other.dd
        self.count += other.count

    def recover(self, scale: float, unit: float) -> Recovered:
        """Learning rate and weight decay with the errors that they may have, and the residual's share of the movement.

        scale: the factor that makes u the update. unit: unit roundoff of the weights. lr_error is the standard error
        of the fit plus what rounded weights can do at worst, unit ‖w‖ / (‖u‖ s) with s = sqrt(1 - cos²(u, w)); that
        of lr wd is its standard error plus 1.5 unit / s, because the decay acts as the factor 1 - lr wd, rounded
        (half a unit), on weights that are rounded too and in a constant tensor all alike.

        The fit is ill-conditioned, and lr and wd are None, where u and w are parallel up to the precision of the sums
        (s² < 1e-5); where lr_error exceeds LR_RESOLUTION of it; wd alone where wd_error exceeds WD_RESOLUTION. So
        a gain near 1.0 tells neither while lr is small. Where nothing moved although there were updates to apply, lr
        is 0 if rounding hides less than LR_SMALLEST, and wd is None.
        """
        if self.count < 3 or self.uu <= 0.0:
            return Recovered()
        if self.dd == 0.0:
            unseen = unit * math.sqrt(self.ww / self.uu) / scale
            return Recovered(0.0, unseen, residual=0.0) if unseen < LR_SMALLEST else Recovered(residual=0.0)
        da, db = solve(self.uu, self.uw, self.ww, -self.ur, -self.wr)
        a, b = self.a + da, self.b + db
        rest = self.rr + da * self.ur + db * self.wr
        if not math.isfinite(rest):
            return Recovered()
        residual = math.sqrt(max(rest, 0.0) / self.dd)
        sine = math.sqrt(max(sine_squared(self.uu, self.uw, self.ww), 0.0))
        sigma = math.sqrt(max(rest, 0.0) / (self.count - 2))
        if a == 0.0 or sine * sine < PARALLEL:
            return Recovered(residual=residual)
        a_error = (sigma + unit * math.sqrt(self.ww)) / (math.sqrt(self.uu) * sine)
        if not a_error <= LR_RESOLUTION * abs(a):
            return Recovered(residual=residual)
        lr, lr_error = a / scale, a_error / scale
        if self.ww <= 0.0:
            return Recovered(lr, lr_error, residual=residual)
        wd = b / lr
        wd_error = (sigma / math.sqrt(self.ww) + 1.5 * unit) / (sine * abs(lr)) + abs(wd) * a_error / abs(a)
        if not wd_error <= WD_RESOLUTION:
            return Recovered(lr, lr_error, residual=residual)
        return Recovered(lr, lr_error, wd, wd_error, residual)


PARALLEL = 1e-5  # the sums are good to about 1e-7 of ‖u‖‖w‖, so this sine squared is good to a few per cent


def sine_squared(uu: float, uw: float, ww: float) -> float:
    """Of the angle between u and w, from their dot products; 1 where w is 0."""
    return 1.0 - (uw / uu) * (uw / ww) if ww > 0.0 else 1.0


def solve(uu: float, uw: float, ww: float, u_y: float, w_y: float) -> tuple[float, float]:
    """The a, b for which a u + b w comes closest to y, from the dot products; b is 0 where u and w are parallel."""
    if uu <= 0.0:
        return 0.0, w_y / ww if ww > 0.0 else 0.0
    sine2 = sine_squared(uu, uw, ww)
    if ww <= 0.0 or not sine2 >= PARALLEL:
        return u_y / uu, 0.0
    return (u_y / uu - (uw / uu) * (w_y / ww)) / sine2, (w_y / ww - (uw / ww) * (u_y / uu)) / sine2
