"""The formulas against sums and fits written out in float64."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradforensics.checkpoints import adam as formulas
from gradforensics.checkpoints.adam import UNIT_ROUNDOFF, Fit, Hyper, Spread, solve, underflow

BETA = st.floats(0.0, 0.999)


def adam(hyper):
    return formulas.adam(hyper, "float32", "float32")


def bound(*betas):
    return formulas.bound(*betas)


def rounded_bound(*arguments):
    return formulas.rounded_bound(*arguments)


def fit_of(u, w, d):
    """The sums of a block as `elementwise` makes them, in float64."""
    fit = Fit(u.size, uu=u @ u, uw=u @ w, ww=w @ w, dd=d @ d)
    fit.a, fit.b = solve(fit.uu, fit.uw, fit.ww, -(u @ d), -(w @ d))
    r = d + fit.a * u + fit.b * w
    fit.ur, fit.wr, fit.rr = u @ r, w @ r, r @ r
    return fit


def recovered(fit, scale, unit):
    return fit.recover(scale, unit)


@pytest.mark.parametrize(("betas", "constant"), [((0.9, 0.95), 1.165), ((0.9, 0.999), 7.270)])
def test_the_bound_of_the_usual_betas(betas, constant):
    assert bound(*betas) == pytest.approx(constant, abs=5e-4)


@given(beta1=BETA, beta2=st.floats(0.5, 0.9999), gradients=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40))
def test_no_gradients_break_the_bound(beta1, beta2, gradients):
    constant = bound(beta1, beta2)
    assert (constant is None) == (beta1 * beta1 / beta2 >= 1.0)
    m = v = 0.0
    for g in gradients:
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        if constant is not None:
            assert abs(m) <= constant * math.sqrt(v) * (1 + 1e-9) + 1e-150


@given(beta1=st.floats(0.1, 0.95), beta2=st.floats(0.95, 0.9999))
def test_gradients_that_grow_as_in_the_equality_case_come_close_to_the_bound(beta1, beta2):
    constant = bound(beta1, beta2)
    m = v = 0.0
    for k in range(400):
        g = (beta2 / beta1) ** (k - 400)
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    assert abs(m) / (constant * math.sqrt(v)) == pytest.approx(1.0, abs=1e-6)


@given(beta1=BETA, beta2=st.floats(0.5, 0.9999), unit=st.sampled_from(sorted(UNIT_ROUNDOFF.values())))
def test_rounding_only_loosens_the_bound(beta1, beta2, unit):
    exact, rounded = bound(beta1, beta2), rounded_bound(beta1, beta2, unit)
    assert rounded is None or (exact is not None and rounded >= exact)


def test_rounding_of_float32_loosens_it_by_millionths_and_that_of_bfloat16_by_less_than_a_tenth():
    for betas in ((0.9, 0.95), (0.9, 0.999)):
        assert rounded_bound(*betas, 2.0**-24) < bound(*betas) * (1 + 1e-5)
        assert bound(*betas) * 1.03 < rounded_bound(*betas, 2.0**-8) < bound(*betas) * 1.1


@pytest.mark.parametrize(
    "betas", [(0.9, 0.8), (0.9, 1.0), (1.0, 0.999), (-0.1, 0.9), (0.9, 0.0), (math.nan, 0.9), (0.9, math.inf)]
)
def test_betas_without_a_bound_have_none(betas):
    assert bound(*betas) is None


@pytest.mark.parametrize(
    "hyper",
    [
        Hyper(),
        Hyper(0.9, None, 1e-8, 3),
        Hyper(0.9, 1.0, 1e-8, 3),
        Hyper(1.0, 0.9, 1e-8, 3),
        Hyper(math.nan, 0.9, 1e-8, 3),
    ],
)
def test_no_constants_without_betas(hyper):
    assert adam(hyper) is None


@pytest.mark.parametrize(
    ("eps", "step"), [(None, 3), (1e-8, None), (1e-8, 0), (1e-8, -4), (math.nan, 3), (-1e-8, 3), (math.inf, 3)]
)
def test_no_update_without_eps_and_step(eps, step):
    known = adam(Hyper(0.9, 0.999, eps, step))
    assert known is not None
    assert known.eps is None
    assert known.bound == bound(0.9, 0.999)


def test_betas_that_varied_give_neither_bound_nor_update():
    known = adam(Hyper(0.9, 0.999, 1e-8, 3, varied=True))
    assert known is not None
    assert (known.bound, known.eps) == (None, None)


@given(beta1=BETA, beta2=st.floats(0.5, 0.9999), step=st.integers(1, 10**400), eps=st.floats(0.0, 1.0))
def test_the_scaled_update_is_the_bias_corrected_one(beta1, beta2, step, eps):
    known = adam(Hyper(beta1, beta2, eps, step))
    m, v, t = 0.3, 0.02, float(min(step, 10**300))
    m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
    assert known.scale * m / (math.sqrt(v) + known.eps) == pytest.approx(m_hat / (math.sqrt(v_hat) + eps), rel=1e-9)


def test_what_underflow_may_take_is_tiny_in_every_type():
    assert underflow(0.999, "float32") == underflow(0.999, "float16") == 2.0**-126
    assert 2.0**-126 < underflow(0.999, "bfloat16") < 2.0**-120
    assert underflow(0.999, "float64") == 2.0**-1022


@given(
    parts=st.lists(st.lists(st.floats(-1e6, 1e6), max_size=8), min_size=1, max_size=6).filter(
        lambda p: any(map(len, p))
    )
)
def test_spreads_add_up_to_that_of_all_numbers(parts):
    whole = Spread()
    for part in parts:
        x = np.array(part)
        whole.add(Spread(x.size, float(x.mean()), float(((x - x.mean()) ** 2).sum())) if part else Spread())
    x = np.concatenate([np.array(part, float) for part in parts])
    assert whole.count == x.size
    assert whole.mean == pytest.approx(x.mean(), abs=1e-9)
    assert whole.std == pytest.approx(x.std(), rel=1e-9, abs=1e-9)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    lr=st.floats(1e-5, 1e-1),
    wd=st.floats(0.0, 0.3),
    scale=st.floats(0.1, 5.0),
    cuts=st.lists(st.integers(1, 199), max_size=5),
)
def test_the_fit_finds_the_learning_rate_and_decay_in_whatever_parts_it_is_summed(seed, lr, wd, scale, cuts):
    rng = np.random.default_rng(seed)
    u, w = rng.standard_normal((2, 200))
    w[:20], u[20:40] = 0.0, 0.0  # parts that tell only one of the two
    d = -lr * scale * u - lr * wd * w + 1e-5 * lr * rng.standard_normal(200)
    whole = Fit()
    edges = [0, *sorted(set(cuts)), 200]
    for first, last in pairwise(edges):
        whole.add(fit_of(u[first:last], w[first:last], d[first:last]))
    found = recovered(whole, scale, 2.0**-53)  # the weights of this test are not rounded
    a, b = np.linalg.lstsq(np.stack([-u, -w], 1), d, rcond=None)[0]
    assert found.lr == pytest.approx(a / scale, rel=1e-9)
    assert found.wd == pytest.approx(b / (a / scale), rel=1e-6, abs=1e-7)
    assert abs(found.lr - lr) < 6 * found.lr_error
    assert abs(found.wd - wd) < 6 * found.wd_error
    rest = d + a * u + b * w
    assert found.residual == pytest.approx(np.linalg.norm(rest) / np.linalg.norm(d), rel=1e-2)


def test_the_residual_of_a_fit_that_does_not_fit_is_large():
    rng = np.random.default_rng(0)
    u, w, d = rng.standard_normal((3, 1000))
    found = fit_of(u, w, d).recover(1.0, 2.0**-53)
    assert 0.9 < found.residual <= 1.0
    assert found.lr is None  # its error is larger than itself


def test_parallel_updates_and_weights_tell_neither():
    w = np.random.default_rng(0).standard_normal(100)
    found = fit_of(3.0 * w, w, -0.01 * w).recover(1.0, 2.0**-24)
    assert (found.lr, found.wd) == (None, None)
    assert found.residual == pytest.approx(0.0, abs=1e-6)


def test_weights_of_zero_tell_the_learning_rate_alone():
    u = np.random.default_rng(0).standard_normal(100)
    found = fit_of(u, np.zeros(100), -0.01 * u).recover(2.0, 2.0**-24)
    assert found.lr == pytest.approx(0.005)
    assert found.wd is None


def test_nothing_that_moved_although_there_were_updates_is_a_learning_rate_of_zero():
    u, w = np.random.default_rng(0).standard_normal((2, 100))
    found = fit_of(u, w, np.zeros(100)).recover(1.0, 2.0**-24)
    assert (found.lr, found.wd, found.residual) == (0.0, None, 0.0)
    assert found.lr_error == pytest.approx(2.0**-24 * np.linalg.norm(w) / np.linalg.norm(u))
    assert fit_of(u, w, np.zeros(100)).recover(1.0, 2.0**-8).lr is None  # it may have been rounded away


def test_without_updates_there_is_nothing_to_recover():
    w = np.ones(100)
    found = fit_of(np.zeros(100), w, -0.01 * w).recover(1.0, 2.0**-24)
    assert found.lr is None
    assert found.residual is None
    assert Fit().recover(1.0, 2.0**-24).lr is None
