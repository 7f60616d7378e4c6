"""Sums over blocks: numbers that are none, that vanish or overflow, and states at the edge of the bound."""

import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradforensics.checkpoints import adam, pairs
from gradforensics.checkpoints.adam import Hyper
from gradforensics.checkpoints.pairs import Applied, Parameter
from gradforensics.checkpoints.refs import Run, TensorRef
from gradforensics.untrusted.files import Memory

STATES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")


def moments(*arguments, **options):
    return pairs.moments(*arguments, **options)


def travels(*arguments, **options):
    return pairs.travels(*arguments, **options)


def bound(*betas):
    return adam.bound(*betas)


def adam_of(gradients, dtype, betas, **options):
    """The state after these gradients (steps, n), of torch's own Adam."""
    import torch

    parameter = torch.nn.Parameter(torch.zeros(gradients.shape[1], dtype=dtype))
    optimizer = torch.optim.Adam([parameter], betas=betas, **options)
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient).to(dtype)
        optimizer.step()
    state = optimizer.state[parameter]
    return state["exp_avg"], state["exp_avg_sq"], len(gradients)


def in_memory(tensor):
    import torch

    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorRef(dtype, tuple(tensor.shape), (Run(Memory("m", data), 0, tensor.numel()),))


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 60),
    betas=st.sampled_from([(0.9, 0.95), (0.9, 0.999), (0.95, 0.98), (0.0, 0.9), (0.8, 0.9)]),
    growth=st.floats(0.8, 1.3),
    low=st.floats(-24.0, 3.0),
    spread=st.floats(0.0, 6.0),
    bfloat16=st.booleans(),
    foreach=st.booleans(),
)
def test_no_gradients_break_the_bound_of_a_rounded_state(seed, steps, betas, growth, low, spread, bfloat16, foreach):
    import torch

    rng = np.random.default_rng(seed)
    signs = np.where(rng.random((steps, 64)) < 0.2, -1.0, 1.0)
    sizes = 10.0 ** (low + spread * rng.random((steps, 64))) * growth ** np.arange(steps)[:, None]
    gradients = (signs * sizes * (rng.random((steps, 64)) < 0.9)).astype(np.float32)
    m, v, step = adam_of(gradients, torch.bfloat16 if bfloat16 else torch.float32, betas, foreach=foreach)
    parameter = Parameter("p", in_memory(m), in_memory(m), in_memory(v), hyper=Hyper(betas[0], betas[1], 1e-8, step))
    (row,) = moments([parameter], threads=1).moments
    assert (row.bound_violations, row.v_zero_m_nonzero, row.nonfinite) == (0, 0, 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("betas", [(0.9, 0.95), (0.9, 0.999)])
def test_gradients_at_the_equality_of_the_bound_come_close_and_do_not_count_as_a_violation(betas, dtype):
    import torch

    growth = betas[1] / betas[0]
    gradients = (1e-6 * growth ** np.arange(300.0)).astype(np.float32)[:, None] * np.ones((1, 8), np.float32)
    m, v, step = adam_of(gradients, getattr(torch, dtype), betas)
    parameter = Parameter("p", in_memory(m), in_memory(m), in_memory(v), hyper=Hyper(betas[0], betas[1], 1e-8, step))
    (row,) = moments([parameter]).moments
    assert row.bound_ratio_max == pytest.approx(1.0, abs=2e-6 if dtype == "float32" else 0.05)
    assert row.bound_violations == 0


# -- numbers that are none -----------------------------------------------------------------------------------------


def state(m, v, *, top=None, step=10, betas=(0.9, 0.999), weight=None, dtype=np.float32, eps=1e-8):
    import torch

    refs = [in_memory(torch.from_numpy(np.array(x, dtype))) for x in (m, v) + ((top,) if top is not None else ())]
    held = refs[0] if weight is None else in_memory(torch.from_numpy(np.array(weight, dtype)))
    names = dict(zip(STATES, refs, strict=False))
    return Parameter("p", held, **names, hyper=Hyper(betas[0], betas[1], eps, step))


def test_moments_that_are_no_numbers_or_negative_are_counted_and_left_out():
    m, v = np.full(3000, 1e-4, np.float32), np.full(3000, 1e-6, np.float32)
    sound = moments([state(m[:2994], v[:2994])]).moments[0]
    m[[3, 2000]] = math.nan, math.inf
    v[[7, 8, 9, 2500]] = math.nan, math.inf, -math.inf, -1e-6
    row = moments([state(m, v)]).moments[0]
    assert (row.count, row.nonfinite, row.v_negative) == (3000, 5, 1)
    assert (row.bound_violations, row.v_zero_m_nonzero) == (0, 0)
    assert row.bound_ratio_max == pytest.approx(sound.bound_ratio_max, rel=1e-6)
    assert row.update_rms == pytest.approx(sound.update_rms, rel=1e-6)
    assert row.below_eps == 0.0


def test_an_infinite_maximum_of_amsgrad_is_counted():
    m, v = np.full(10, 1e-4), np.full(10, 1e-6)
    row = moments([state(m, v, top=[1e-6] * 9 + [math.inf])]).moments[0]
    assert (row.nonfinite, row.v_negative) == (1, 0)
    assert row.update_rms == pytest.approx(moments([state(m, v)]).moments[0].update_rms, rel=1e-6)


def test_moments_without_one_number_have_counts_alone():
    row = moments([state([math.nan] * 4, [1.0] * 4)]).moments[0]
    assert (row.count, row.nonfinite, row.v_zero_m_nonzero) == (4, 4, 0)
    assert (row.bound_ratio_max, row.bound_violations, row.update_rms, row.below_eps) == (None,) * 4


def test_moments_whose_quotient_overflows_float32_are_still_measured():
    row = moments([state([1e30, 1.0], [0.0, 1.0])]).moments[0]
    assert (row.bound_violations, row.v_zero_m_nonzero, row.nonfinite) == (1, 1, 0)
    assert row.bound_ratio_max == pytest.approx(1e30 / 2.0**-63 / bound(0.9, 0.999), rel=1e-5)


def test_a_v_that_underflowed_in_float32_is_no_violation():
    row = moments([state([1e-22, 0.0, 1e-3], [0.0, 0.0, 1e-4])]).moments[0]
    assert (row.bound_violations, row.v_zero_m_nonzero) == (0, 0)
    assert row.below_eps == pytest.approx(2 / 3)


def test_betas_without_a_bound_still_have_updates_and_zero_v():
    row = moments([state([1e-3, 1e-3], [0.0, 1e-6], betas=(0.99, 0.9))]).moments[0]
    assert (row.bound_ratio_max, row.bound_violations, row.v_zero_m_nonzero) == (None, None, 1)
    assert row.update_rms > 0


def test_without_eps_or_step_only_the_bound_is_measured():
    for parameter in (state([1e-3], [1e-6], eps=None), state([1e-3], [1e-6], step=None)):
        row = moments([parameter]).moments[0]
        assert (row.update_rms, row.below_eps, row.bound_violations) == (None, None, 0)


def test_double_precision_is_measured_in_double_precision():
    rng = np.random.default_rng(0)
    w, m_a, g = rng.standard_normal((3, 5000))
    v_a = 0.5 * m_a**2 + 1e-40
    m, v = 0.9 * m_a + 0.1 * g, 0.999 * v_a + 0.001 * g**2
    u = m / (1 - 0.9**10) / (np.sqrt(v / (1 - 0.999**10)) + 1e-8)
    before = state(m_a, v_a, weight=w, step=9, dtype=np.float64)
    after = state(m, v, weight=w - 1e-9 * (u + 0.1 * w), dtype=np.float64)
    row = travels([before], [after], first_step=9, step=10).travels[0]
    assert row.recovered_lr == pytest.approx(1e-9, rel=1e-6)
    assert row.recovered_wd == pytest.approx(0.1, rel=1e-4)
    assert row.v_error < 1e-15


def weights(array, **more):
    import torch

    return Parameter("w", in_memory(torch.from_numpy(np.array(array))), **more)


def moved(a, b, **options):
    return travels([weights(a)], [weights(b)], first_step=0, step=1, **options).travels[0]


def test_bits_decide_what_changed():
    quiet, other = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    row = moved(
        np.array([0.0, 1.0, quiet, quiet, 2.0], np.float32), np.array([-0.0, 1.0, quiet, other, 2.0], np.float32)
    )
    assert row.changed == pytest.approx(2 / 5)
    assert row.nonfinite == 2
    assert (row.rel_travel, row.ratio_mean, row.ratio_std) == (0.0, 1.0, 0.0)


def test_weights_that_are_no_numbers_are_counted_and_left_out():
    a = np.array([1.0, 2.0, math.inf, 3.0, 4.0], np.float32)
    b = np.array([1.1, 2.2, 1.0, math.nan, 4.4], np.float32)
    row = moved(a, b)
    assert (row.count, row.nonfinite, row.changed) == (5, 2, 1.0)
    assert row.rel_travel == pytest.approx(0.1, rel=1e-6)
    assert row.ratio_mean == pytest.approx(1.1, rel=1e-6)
    gone = moved(a, np.full(5, math.nan, np.float32))
    assert (gone.nonfinite, gone.rel_travel, gone.ratio_mean, gone.ratio_std) == (5, None, None, None)


def test_weights_that_were_zero_have_no_ratio():
    row = moved(np.zeros(10, np.float32), np.ones(10, np.float32))
    assert (row.changed, row.rel_travel, row.ratio_mean, row.ratio_std) == (1.0, None, None, None)
    row = moved(np.array([0.0, 2.0, 0.0], np.float32), np.array([1.0, 1.0, 0.0], np.float32))
    assert (row.ratio_mean, row.ratio_std) == (0.5, 0.0)


def test_ratios_that_overflow_float32_are_still_measured():
    row = moved(np.array([1e-38, 1.0], np.float32), np.array([1e30, 1.0], np.float32))
    assert row.ratio_mean == pytest.approx(0.5e68, rel=1e-6)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 9000),
    factor=st.floats(0.5, 1.5),
    noise=st.sampled_from([0.0, 1e-6, 1e-3, 1.0]),
)
def test_ratios_are_those_of_double_precision_even_where_all_are_nearly_the_same(seed, size, factor, noise):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal(size).astype(np.float32)
    b = (a * (factor + noise * rng.standard_normal(size))).astype(np.float32)
    ratio = b.astype(np.float64) / a
    row = moved(a, b)
    assert row.ratio_mean == pytest.approx(ratio.mean(), rel=1e-6, abs=1e-7)
    assert row.ratio_std == pytest.approx(ratio.std(), rel=1e-3, abs=5e-8)
    assert row.rel_travel == pytest.approx(
        np.linalg.norm(b.astype(float) - a) / np.linalg.norm(a.astype(float)), rel=1e-5
    )


def test_without_what_was_applied_there_is_no_bound_of_the_movement():
    assert moved(np.ones(3, np.float32), np.zeros(3, np.float32)).bound_ratio is None
    known = {"w": Applied(1e-3)}
    assert moved(np.ones(3, np.float32), np.zeros(3, np.float32), applied=known).bound_ratio is None  # betas unknown


def test_parameters_without_moments_are_passed_over():
    found = moments([weights(np.ones(4, np.float32))])
    assert (found.moments, found.travels, found.skipped) == ([], [], [])


# -- one update ----------------------------------------------------------------------------------------------------


def one_update(n=3000, lr=1e-3, wd=0.1):
    """Arrays before and after an update of AdamW, in float32: w, m, v, w, m, v."""
    rng = np.random.default_rng(0)
    w, m_a, g = rng.standard_normal((3, n))
    v_a = m_a**2 + 0.1
    m, v = 0.9 * m_a + 0.1 * g, 0.999 * v_a + 0.001 * g**2
    u = m / (1 - 0.9**10) / (np.sqrt(v / (1 - 0.999**10)) + 1e-8)
    return [np.asarray(x, np.float32) for x in (w, m_a, v_a, w - lr * u - lr * wd * w, m, v)]


def step_row(w_a, m_a, v_a, w_b, m_b, v_b, *, top=None):
    before = state(m_a, v_a, weight=w_a, step=9)
    return travels([before], [state(m_b, v_b, weight=w_b, top=top)], first_step=9, step=10).travels[0]


@pytest.mark.parametrize("damaged", range(6))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_element_that_is_no_number_is_left_out_of_the_update(damaged, value):
    arrays = one_update()
    arrays[damaged][[5, 2900]] = value
    kept = np.delete(np.arange(3000), [5, 2900])
    row, sound = step_row(*arrays), step_row(*(x[kept] for x in arrays))
    assert row.nonfinite == (2 if damaged in (0, 3) else 0)
    assert row.recovered_lr == pytest.approx(sound.recovered_lr, rel=1e-6)
    assert row.recovered_lr == pytest.approx(1e-3, rel=1e-4)
    assert row.recovered_wd == pytest.approx(sound.recovered_wd, rel=1e-4)
    assert row.residual == pytest.approx(sound.residual, rel=1e-2)
    assert row.grad_l2 == pytest.approx(sound.grad_l2, rel=1e-5)
    assert row.v_error == pytest.approx(sound.v_error, abs=1e-7)
    assert row.rms_t == pytest.approx(sound.rms_t, rel=1e-5)


def test_an_update_of_amsgrad_with_an_infinite_maximum_leaves_that_element_out():
    arrays = one_update()
    top = arrays[5].copy()
    top[7] = math.inf
    assert step_row(*arrays, top=top).recovered_lr == pytest.approx(1e-3, rel=1e-4)


def test_an_update_without_one_number_tells_nothing():
    w, _, v_a, w_b, m_b, v_b = one_update(10)
    row = step_row(w, np.full(10, math.nan), v_a, w_b, m_b, v_b)
    assert (row.recovered_lr, row.residual, row.grad_l2, row.v_error, row.rms_t) == (None,) * 5
    assert row.changed == 1.0


@pytest.mark.parametrize("power", [-30.0, -20.0, 15.0])
def test_gradients_whose_squares_leave_float32_have_their_norm(power):
    g = np.float32(10.0**power) * np.random.default_rng(0).standard_normal(2000).astype(np.float32)
    row = step_row(g, np.zeros(2000), np.zeros(2000), g, 0.1 * g, (0.001 * g.astype(float) ** 2).astype(np.float32))
    assert row.grad_l2 == pytest.approx(np.linalg.norm(g.astype(float)), rel=1e-5)


def test_without_eps_the_gradient_is_measured_and_the_rate_is_not():
    w, m_a, v_a, w_b, m_b, v_b = one_update()
    before, after = state(m_a, v_a, weight=w, step=9, eps=None), state(m_b, v_b, weight=w_b, eps=None)
    row = travels([before], [after], first_step=9, step=10).travels[0]
    assert row.grad_l2 == pytest.approx(step_row(w, m_a, v_a, w_b, m_b, v_b).grad_l2)
    assert (row.recovered_lr, row.residual, row.rms_t) == (None, None, None)


def test_a_second_moment_of_zero_leaves_eps_to_measure_the_gradient_with():
    zero = np.zeros(100, np.float32)
    row = step_row(zero, zero, zero, zero, np.full(100, 1e-11, np.float32), zero)  # g = 1e-10, a hundredth of eps
    assert row.rms_t == pytest.approx(1e-2, rel=1e-4)


# -- any bytes -----------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    data=st.binary(min_size=8, max_size=400),
    dtypes=st.lists(st.sampled_from(sorted(adam.UNIT_ROUNDOFF)), min_size=7, max_size=7),
    eps=st.sampled_from([0.0, 1e-8, 1e300]),
    step=st.sampled_from([1, 10, 10**30]),
    betas=st.sampled_from([(0.9, 0.999), (0.0, 1e-300), (1 - 2.0**-53, 1 - 2.0**-53)]),
    lr_sum=st.sampled_from([0.0, 1e-3, math.nan, math.inf, -1.0]),
)
def test_any_bytes_give_finite_numbers_or_none(data, dtypes, eps, step, betas, lr_sum):
    elements = len(data) // 8
    refs = [TensorRef(dtype, (elements,), (Run(Memory("m", data), 0, elements),)) for dtype in dtypes]
    before = Parameter("p", refs[0], refs[1], refs[2], hyper=Hyper(betas[0], betas[1], eps, step - 1))
    after = Parameter("p", refs[3], refs[4], refs[5], refs[6], Hyper(betas[0], betas[1], eps, step))
    found = travels([before], [after], first_step=step - 1, step=step, applied={"p": Applied(lr_sum)})
    assert found.skipped == []
    for row in (*found.moments, *found.travels):
        for value in astuple(row):
            assert value is None or isinstance(value, (str, int)) or math.isfinite(value)
