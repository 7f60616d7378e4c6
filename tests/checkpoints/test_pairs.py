"""Every measure against the slow obvious computation in float64, on states of real optimizers."""

import math
from dataclasses import astuple, replace
from itertools import count, pairwise

import numpy as np
import pytest

from gradforensics.checkpoints import adam, pairs
from gradforensics.checkpoints.adam import Hyper
from gradforensics.checkpoints.pairs import Applied, Parameter, Travel
from gradforensics.checkpoints.refs import Run, TensorRef
from gradforensics.untrusted.files import RegularFile

STATES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
BASICS = ("first_step", "step", "name", "count", "nonfinite", "changed", "rel_travel", "ratio_mean", "ratio_std")


def moments(*arguments, **options):
    return pairs.moments(*arguments, **options)


def travels(*arguments, **options):
    return pairs.travels(*arguments, **options)


def bound(*betas):
    return adam.bound(*betas)


class Disk:
    """Tensors as raw files in a folder."""

    def __init__(self, folder):
        self.folder, self.numbers = folder, count()

    def file(self, data):
        path = self.folder / f"{next(self.numbers)}.bin"
        path.write_bytes(data)
        return RegularFile(path, path.name, len(data))

    def ref(self, tensor):
        import torch

        tensor = tensor.detach().contiguous()
        file = self.file(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        return TensorRef(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), (Run(file, 0, tensor.numel()),))

    def save(self, model, optimizer):
        """What the checkpoint of a model and its optimizer would hold."""
        found = []
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        for group in optimizer.param_groups:
            beta1, beta2 = group.get("betas", (None, None))
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                step = int(state["step"]) if "step" in state else None
                refs = {key: self.ref(state[key]) for key in STATES if key in state}
                hyper = Hyper(beta1, beta2, group.get("eps"), step)
                found.append(Parameter(names[id(parameter)], self.ref(parameter), **refs, hyper=hyper))
        return found


@pytest.fixture
def disk(tmp_path):
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # models this small only wait for each other's threads
    yield Disk(tmp_path)
    torch.set_num_threads(threads)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that the tensors of these tests have many, in several tasks."""
    monkeypatch.setattr(pairs, "BLOCK", 1536)
    monkeypatch.setattr(pairs, "PIECE", 3 * 1536)


def language_model(seed=0, width=64):
    """An embedding of which a quarter is never used, a hidden layer and a head."""
    import torch

    torch.manual_seed(seed)
    embedding = torch.nn.Embedding(200, width)
    torch.nn.init.normal_(embedding.weight, std=0.02)
    return torch.nn.Sequential(
        embedding,
        torch.nn.Linear(width, 4 * width),
        torch.nn.LayerNorm(4 * width),
        torch.nn.ReLU(),
        torch.nn.Linear(4 * width, 200),
    )


def train(model, optimizer, steps):
    import torch

    for _ in range(steps):
        tokens = torch.randint(0, 150, (64,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(tokens).float(), tokens * 7 % 200).backward()
        optimizer.step()


def optimizers():
    """name -> (optimizer of parameters, its learning rate, the weight decay that shows)."""
    import torch

    adamw, adam = torch.optim.AdamW, torch.optim.Adam
    return {
        "adamw": (lambda p: adamw(p, lr=1e-3, weight_decay=0.1), 1e-3, 0.1),
        "one by one": (lambda p: adamw(p, lr=1e-3, weight_decay=0.1, foreach=False), 1e-3, 0.1),
        "foreach": (lambda p: adamw(p, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1, foreach=True), 3e-3, 0.1),
        "fused": (lambda p: adamw(p, lr=1e-3, betas=(0.95, 0.98), weight_decay=0.05, fused=True), 1e-3, 0.05),
        "amsgrad": (lambda p: adamw(p, lr=2e-3, weight_decay=0.1, amsgrad=True), 2e-3, 0.1),
        "coupled": (lambda p: adam(p, lr=1e-3, weight_decay=0.1), 1e-3, 0.0),
        "coupled amsgrad": (lambda p: adam(p, lr=1e-3, weight_decay=0.1, amsgrad=True), 1e-3, 0.0),
        "no decay": (lambda p: adam(p, lr=1e-3, eps=1e-6), 1e-3, 0.0),
    }


def by_name(rows):
    return {row.name: row for row in rows}


def numbers(ref):
    """The tensor's elements in float64."""
    raw = b""
    for run in ref.runs:
        with run.file.open() as file:
            raw += file.read(run.offset, run.count * ref.itemsize)
    if ref.dtype == "bfloat16":
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.frombuffer(raw, ref.dtype).astype(np.float64)


def slow_moments(parameter):
    m, v = numbers(parameter.exp_avg), numbers(parameter.exp_avg_sq)
    top = v if parameter.max_exp_avg_sq is None else numbers(parameter.max_exp_avg_sq)
    h = parameter.hyper
    ratio = np.abs(m) / (bound(h.beta1, h.beta2) * np.sqrt(np.maximum(v, 2.0**-126)))
    root = np.sqrt(top / (1 - h.beta2**h.step))
    update = m / (1 - h.beta1**h.step) / (root + h.eps)
    return {
        "count": m.size,
        "bound_ratio_max": ratio.max(),
        "bound_violations": np.count_nonzero(ratio > 1 + 1e-5),
        "update_rms": np.sqrt(np.mean(update**2)),
        "below_eps": np.mean(root < 10 * h.eps),
        "v_zero_m_nonzero": np.count_nonzero((v == 0) & (np.abs(m) > 1e-18)),
        "nonfinite": 0,
        "v_negative": 0,
    }


def slow_travel(before, after):
    a, b = numbers(before.weight), numbers(after.weight)
    some = a != 0
    return {
        "count": a.size,
        "nonfinite": 0,
        "changed": np.mean(a != b),
        "rel_travel": np.linalg.norm(b - a) / np.linalg.norm(a),
        "ratio_mean": (b[some] / a[some]).mean(),
        "ratio_std": (b[some] / a[some]).std(),
    }


def slow_step(before, after):
    h = after.hyper
    w, d = numbers(before.weight), numbers(after.weight) - numbers(before.weight)
    m_a, v_a, m, v = (numbers(ref) for p in (before, after) for ref in (p.exp_avg, p.exp_avg_sq))
    top = v if after.max_exp_avg_sq is None else numbers(after.max_exp_avg_sq)
    u = m / (1 - h.beta1**h.step) / (np.sqrt(top / (1 - h.beta2**h.step)) + h.eps)
    x = np.stack([-u, -w], 1)
    lr, product = np.linalg.lstsq(x, d, rcond=None)[0]
    g = (m - h.beta1 * m_a) / (1 - h.beta1)
    return {
        "recovered_lr": lr,
        "recovered_wd": product / lr,
        "residual": np.linalg.norm(d - x @ [lr, product]) / np.linalg.norm(d),
        "grad_l2": np.linalg.norm(g),
        "v_error": np.abs(v - h.beta2 * v_a - (1 - h.beta2) * g**2).sum() / v.sum(),
        "rms_t": np.sqrt(np.mean(g**2 / np.maximum(v / (1 - h.beta2**h.step), h.eps**2))),
    }


# -- real optimizers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(range(8)))
def test_one_step_apart_learning_rate_and_decay_are_those_configured(disk, small_blocks, name):
    make, lr, wd = list(optimizers().values())[name]
    model = language_model()
    optimizer = make(model.parameters())
    train(model, optimizer, 20)
    before = disk.save(model, optimizer)
    train(model, optimizer, 1)
    after = disk.save(model, optimizer)
    found = travels(before, after, first_step=20, step=21)
    assert found.skipped == []
    assert [row.name for row in found.travels] == [parameter.name for parameter in after]
    for row in found.travels:
        if row.name == "2.weight":
            continue  # gains near 1.0: of their own test
        assert row.recovered_lr == pytest.approx(lr, rel=1e-4)
        assert row.recovered_wd == pytest.approx(wd, abs=1e-3)
        assert abs(row.recovered_lr - lr) < 3 * row.lr_error < 0.03 * lr
        assert abs(row.recovered_wd - wd) < 3 * row.wd_error < 0.01
        assert row.residual < 1e-4
        assert row.v_error < 1e-6


@pytest.mark.parametrize("name", list(range(8)))
@pytest.mark.parametrize("apart", [1, 5])
def test_all_measures_are_those_of_the_slow_computation(disk, small_blocks, name, apart):
    make, _, _ = list(optimizers().values())[name]
    model = language_model()
    optimizer = make(model.parameters())
    train(model, optimizer, 7)
    before = disk.save(model, optimizer)
    train(model, optimizer, apart)
    after = disk.save(model, optimizer)
    found = travels(before, after, first_step=7, step=7 + apart)
    assert found.moments == moments(after).moments
    for a, b, state, row in zip(before, after, found.moments, found.travels, strict=True):
        for key, value in slow_moments(b).items():
            assert getattr(state, key) == pytest.approx(value, rel=1e-5, abs=1e-12), (b.name, key)
        for key, value in slow_travel(a, b).items():
            assert getattr(row, key) == pytest.approx(value, rel=1e-5, abs=1e-12), (b.name, key)
        expected = slow_step(a, b)
        if apart == 1:
            assert row.grad_l2 == pytest.approx(expected["grad_l2"], rel=1e-5)
            assert row.v_error == pytest.approx(expected["v_error"], abs=1e-7)
            assert row.rms_t == pytest.approx(expected["rms_t"], rel=0.05)  # of an eighth of the blocks
            assert row.residual == pytest.approx(expected["residual"], rel=1e-2, abs=1e-6)
            if row.recovered_lr is not None:
                assert row.recovered_lr == pytest.approx(expected["recovered_lr"], rel=1e-6)
            if row.recovered_wd is not None:
                assert row.recovered_wd == pytest.approx(expected["recovered_wd"], abs=1e-5)
        else:
            assert [getattr(row, key) for key in expected] == [None] * len(expected)


def test_each_group_shows_its_own_rate_and_decay(disk):
    import torch

    model = language_model()
    body, head = [*model[0].parameters(), *model[1].parameters()], list(model[4].parameters())
    optimizer = torch.optim.AdamW(
        [{"params": body, "weight_decay": 0.2, "lr": 3e-4}, {"params": head, "weight_decay": 0.0, "lr": 2e-3}]
    )
    train(model, optimizer, 10)
    before = disk.save(model, optimizer)
    train(model, optimizer, 1)
    rows = by_name(travels(before, disk.save(model, optimizer), first_step=10, step=11).travels)
    for name, lr, wd in [("0.weight", 3e-4, 0.2), ("1.weight", 3e-4, 0.2), ("4.weight", 2e-3, 0.0)]:
        assert rows[name].recovered_lr == pytest.approx(lr, rel=1e-4)
        assert rows[name].recovered_wd == pytest.approx(wd, abs=1e-3)


def test_weights_that_were_not_written_back_show_a_rate_of_zero(disk):
    import torch

    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 3)
    before = disk.save(model, optimizer)
    train(model, optimizer, 1)
    after = [replace(b, weight=a.weight) for a, b in zip(before, disk.save(model, optimizer), strict=True)]
    for row in travels(before, after, first_step=3, step=4).travels:
        assert (row.changed, row.rel_travel, row.recovered_lr, row.residual) == (0.0, 0.0, 0.0, 0.0)
        assert row.grad_l2 > 0


def test_gains_of_one_tell_nothing_where_a_step_is_a_few_units_in_their_last_place(disk):
    import torch

    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.1)
    train(model, optimizer, 1)
    before = disk.save(model, optimizer)
    train(model, optimizer, 1)
    rows = by_name(travels(before, disk.save(model, optimizer), first_step=1, step=2).travels)
    assert (rows["2.weight"].recovered_lr, rows["2.weight"].recovered_wd) == (None, None)
    assert rows["2.weight"].residual is not None
    assert rows["0.weight"].recovered_lr == pytest.approx(1e-6, rel=1e-2)
    assert rows["0.weight"].recovered_wd is None  # 1 - lr wd differs from 1 by less than two units


def test_bfloat16_weights_without_a_master_do_not_pretend_to_know_the_rate(disk):
    import torch

    model = language_model().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    train(model, optimizer, 10)
    before = disk.save(model, optimizer)
    train(model, optimizer, 1)
    found = travels(before, disk.save(model, optimizer), first_step=10, step=11)
    assert all(row.recovered_lr is None and row.recovered_wd is None for row in found.travels)
    assert all(row.bound_violations == 0 for row in found.moments)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_of_other_optimizers_only_the_movement_is_measured(disk, momentum):
    import torch

    model = language_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    train(model, optimizer, 3)
    before = disk.save(model, optimizer)
    train(model, optimizer, 1)
    after = disk.save(model, optimizer)
    found = travels(before, after, first_step=3, step=4, applied={p.name: Applied(0.1) for p in after})
    assert (found.moments, found.skipped) == ([], [])
    for a, b, row in zip(before, after, found.travels, strict=True):
        assert {key: getattr(row, key) for key in slow_travel(a, b)} == pytest.approx(slow_travel(a, b), rel=1e-5)
        assert row == Travel(**{key: getattr(row, key) for key in BASICS})


# -- the bound of the moments --------------------------------------------------------------------------------------


@pytest.mark.parametrize("betas", [(0.9, 0.95), (0.9, 0.999)])
def test_healthy_states_never_break_the_bound(disk, betas):
    import torch

    model = language_model(width=96)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=betas)
    elements = 0
    for steps in (1, 2, 5, 20, 40, 60):  # six checkpoints
        train(model, optimizer, steps)
        rows = moments(disk.save(model, optimizer)).moments
        elements = sum(row.count for row in rows)
        assert [row.bound_violations for row in rows] == [0] * len(rows)
        assert max(row.bound_ratio_max for row in rows) < 1
    assert elements >= 100_000


def test_a_zeroed_v_and_a_scaled_m_are_found_exactly(disk, small_blocks):
    import torch

    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, optimizer, 30)
    state = optimizer.state[model[1].weight]
    state["exp_avg_sq"].view(-1)[5] = 0.0
    state["exp_avg"].view(-1)[9999] *= 1e6
    for row in moments(disk.save(model, optimizer)).moments:
        hurt = row.name == "1.weight"
        assert (row.bound_violations, row.v_zero_m_nonzero) == ((2, 1) if hurt else (0, 0))
        assert (row.bound_ratio_max > 1) == hurt


def test_a_state_that_was_cast_to_float16_is_found_and_one_that_was_cast_to_bfloat16_is_not(disk):
    import torch

    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, optimizer, 30)
    for dtype in (torch.float16, torch.bfloat16):
        for back in (dtype, torch.float32):  # also where it was loaded into float32 afterwards
            cast = [
                replace(parameter, **{key: disk.ref(optimizer.state[p][key].to(dtype).to(back)) for key in STATES[:2]})
                for parameter, p in zip(disk.save(model, optimizer), model.parameters(), strict=True)
            ]
            rows = moments(cast).moments
            if dtype == torch.bfloat16:
                assert [row.bound_violations for row in rows] == [0] * len(rows)
                continue
            unit = adam.UNIT_ROUNDOFF[cast[0].exp_avg.dtype]
            for parameter, row in zip(cast, rows, strict=True):
                m, v = numbers(parameter.exp_avg), numbers(parameter.exp_avg_sq)
                zero = (v == 0) & (m != 0)
                assert row.v_zero_m_nonzero == np.count_nonzero(zero)
                with np.errstate(divide="ignore", invalid="ignore"):
                    over = np.abs(m) > adam.rounded_bound(0.9, 0.999, unit) * np.sqrt(v)
                assert row.bound_violations == np.count_nonzero(over)
            assert sum(row.v_zero_m_nonzero for row in rows) > 1000


# -- weights -------------------------------------------------------------------------------------------------------


def test_frozen_tensors_have_not_changed_and_their_neighbours_have(disk):
    import torch

    model = language_model()
    model[1].requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, optimizer, 2)
    before = disk.save(model, optimizer)
    train(model, optimizer, 30)
    rows = by_name(travels(before, disk.save(model, optimizer), first_step=2, step=32).travels)
    assert (rows["1.weight"].changed, rows["1.weight"].rel_travel) == (0.0, 0.0)
    assert (rows["1.weight"].ratio_mean, rows["1.weight"].ratio_std) == (1.0, 0.0)
    assert rows["4.weight"].changed > 0.99


@pytest.mark.parametrize("steps", [1, 40])
def test_a_tensor_that_only_decays_shows_the_product_of_its_decays(disk, steps):
    import torch

    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 50)
    before, product = disk.save(model, optimizer), 1.0
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        product *= 1 - optimizer.param_groups[0]["lr"] * 0.1
        optimizer.step()
        schedule.step()
    for row in travels(before, disk.save(model, optimizer), first_step=0, step=steps).travels:
        assert row.ratio_mean == pytest.approx(product, abs=1e-6)
        assert row.ratio_std < 1e-6
        assert row.changed > 0.99


def test_weights_that_stagnate_in_bfloat16_show_the_share_that_moved(disk):
    import torch

    shares = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = language_model().to(dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0)
        before = disk.save(model, optimizer)
        start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        train(model, optimizer, 20)
        rows = by_name(travels(before, disk.save(model, optimizer), first_step=0, step=20).travels)
        for name, parameter in model.named_parameters():
            assert rows[name].changed == pytest.approx((parameter != start[name]).float().mean().item(), abs=1e-6)
        shares[dtype] = rows["4.weight"].changed
    assert shares[torch.bfloat16] < 0.2 * shares[torch.float32]


def test_two_types_are_compared_by_value(disk):
    import torch

    torch.manual_seed(0)
    a = torch.randn(1000).bfloat16()
    b = a.float()
    b[:100] *= 1.5
    row = travels([Parameter("w", disk.ref(a))], [Parameter("w", disk.ref(b))], first_step=0, step=1).travels[0]
    assert row.changed == pytest.approx(0.1)
    assert row.ratio_mean == pytest.approx(1.05)


# -- the bound of the movement -------------------------------------------------------------------------------------


def test_adam_stays_within_its_bound_and_a_new_initialisation_does_not(disk):
    import torch

    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 20)
    before, applied = disk.save(model, optimizer), Applied(0.0)
    for _ in range(20):
        lr = optimizer.param_groups[0]["lr"]
        applied = Applied(applied.lr_sum + lr, applied.decay * (1 - lr * 0.1))
        train(model, optimizer, 1)
        schedule.step()
    known = {parameter.name: applied for parameter in before}
    constant = bound(0.9, 0.999)
    after = disk.save(model, optimizer)
    for a, b, row in zip(
        before, after, travels(before, after, first_step=0, step=20, applied=known).travels, strict=True
    ):
        slow = np.abs(numbers(b.weight) - applied.decay * numbers(a.weight)).max() / (constant * applied.lr_sum)
        assert row.bound_ratio == pytest.approx(slow, rel=1e-2)
        assert 0.05 < row.bound_ratio < 0.7
    model[1].reset_parameters()
    rows = by_name(travels(before, disk.save(model, optimizer), first_step=0, step=20, applied=known).travels)
    assert rows["1.weight"].bound_ratio > 5
    assert rows["4.weight"].bound_ratio < 0.7


def test_the_rounding_of_large_weights_is_not_taken_for_a_movement(disk):
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(50, 50)
    with torch.no_grad():
        model.weight.add_(100.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-8, weight_decay=0.1)
    before = disk.save(model, optimizer)
    for _ in range(30):
        model(torch.randn(8, 50)).pow(2).mean().backward()
        optimizer.step()
    after = disk.save(model, optimizer)
    row = travels(before, after, first_step=0, step=30, applied={"weight": Applied(3e-7, (1 - 1e-9) ** 30)}).travels[0]
    assert row.bound_ratio <= 1


# -- where tensors lie, and what cannot be read --------------------------------------------------------------------


@pytest.fixture
def step_pair(disk):
    """Two checkpoints one step apart, with a NaN and a zero among the weights and moments."""
    import torch

    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    train(model, optimizer, 10)
    with torch.no_grad():
        model[4].weight.view(-1)[[3, 20000]] = torch.tensor([0.0, math.nan])
        optimizer.state[model[4].weight]["exp_avg"].view(-1)[77] = math.inf
    before = disk.save(model, optimizer)
    train(model, optimizer, 1)
    return before, disk.save(model, optimizer)


def scattered(disk, ref, cuts):
    """The same elements in runs of several files, one of them with a gap behind each element."""
    raw = numbers(ref).astype(np.float32)
    runs, edges = [], [0, *cuts, raw.size]
    for index, (first, last) in enumerate(pairwise(edges)):
        gap = 2 if index == 1 else 1
        spaced = np.full((last - first, gap), 99.0, np.float32)
        spaced[:, 0] = raw[first:last]
        runs.append(Run(disk.file(b"head" + spaced.tobytes()), 4, last - first, gap))
    return replace(ref, runs=tuple(runs))


def test_neither_threads_nor_the_layout_change_a_bit(disk, small_blocks, step_pair):
    before, after = step_pair
    whole = travels(before, after, first_step=10, step=11, threads=1)
    assert any(row.nonfinite for row in whole.travels)
    assert any(row.recovered_wd for row in whole.travels)
    assert repr(travels(before, after, first_step=10, step=11, threads=3)) == repr(whole)
    cut = [
        replace(p, **{key: scattered(disk, getattr(p, key), cuts) for key in ("weight", *STATES[:2])})
        for p, cuts in zip(after, [(7, 5000), (1, 2, 3), (100,), (), (50,), (1537, 1538, 9000), (3,)], strict=True)
    ]
    assert repr(travels(before, cut, first_step=10, step=11, threads=2)) == repr(whole)


def test_block_and_task_sizes_change_nothing_but_the_last_digits(monkeypatch, step_pair):
    whole = travels(*step_pair, first_step=10, step=11)
    monkeypatch.setattr(pairs, "BLOCK", 2048)
    monkeypatch.setattr(pairs, "PIECE", 4096)
    small = travels(*step_pair, first_step=10, step=11)
    for a, b in zip([*whole.moments, *whole.travels], [*small.moments, *small.travels], strict=True):
        for x, y in zip(astuple(a), astuple(b), strict=True):
            assert x == y if isinstance(x, str) or x is None else x == pytest.approx(y, rel=2e-5, abs=1e-7)


def test_an_unreadable_tensor_costs_its_own_row_only(disk, step_pair):
    before, after = step_pair
    path = disk.folder / after[0].weight.runs[0].file.name
    path.write_bytes(path.read_bytes()[:-8])
    (disk.folder / before[1].exp_avg.runs[0].file.name).unlink()
    found = travels(before, after, first_step=10, step=11)
    assert [s.name for s in found.skipped] == [after[0].name, after[1].name]
    assert "the file ends at byte" in found.skipped[0].reason
    assert "No such file" in found.skipped[1].reason
    assert [row.name for row in found.travels] == [row.name for row in found.moments] == [p.name for p in after[2:]]


def test_what_cannot_be_compared_is_named_with_its_reason(disk, step_pair):
    before, after = step_pair
    before, after = list(before), list(after)
    one, two, three, four, five, six, seven = range(7)
    after[one] = replace(after[one], weight=replace(after[one].weight, shape=(64, 200)))
    after[two] = replace(after[two], weight=replace(after[two].weight, order=(1, 0)))
    after[three] = replace(after[three], exp_avg=replace(after[three].exp_avg, dtype="uint8", shape=(1024,)))
    after[four] = replace(after[four], hyper=Hyper())
    gone = before.pop(five)
    after[six] = replace(after[six], name="new")
    after[seven] = replace(after[seven], weight=TensorRef("float32", (0,), ()))
    before[-1] = replace(before[-1], weight=TensorRef("float32", (0,), ()))
    found = travels(before, after, first_step=10, step=11)
    reasons = {(s.name, s.reason) for s in found.skipped}
    assert reasons == {
        (after[one].name, "its weights differ in shape: [200, 64] and [64, 200]"),
        (after[two].name, "its weights differ in the order in which their elements lie"),
        (after[three].name, "its moments are stored as uint8, which holds no plain numbers"),
        (after[four].name, "the betas of its moments are not known"),
        (gone.name, "it is not in the earlier checkpoint"),
        ("new", "it is not in the earlier checkpoint"),
        (before[-2].name, "it is not in the later checkpoint"),
        (after[seven].name, "its weights have no elements"),
    }
    assert [row.name for row in found.travels] == [after[three].name, after[four].name]
    assert all(row.recovered_lr is None for row in found.travels)
    assert [row.name for row in found.moments] == [after[i].name for i in (one, two, five, six, seven)]


def test_moments_of_another_size_than_the_weights_are_measured_beside_them(disk):
    import torch

    torch.manual_seed(0)
    m = disk.ref(torch.full((300,), 1e-4))
    v = disk.ref(torch.full((300,), 1e-6))
    before = Parameter("p", disk.ref(torch.ones(10, 10)), m, v, hyper=Hyper(0.9, 0.999, 1e-8, 1))
    after = replace(before, weight=disk.ref(torch.full((10, 10), 1.5)), hyper=Hyper(0.9, 0.999, 1e-8, 2))
    found = travels([before], [after], first_step=1, step=2)
    assert [row.count for row in found.moments] == [300]
    assert [(row.count, row.ratio_mean, row.grad_l2) for row in found.travels] == [(100, 1.5, None)]


def test_progress_counts_the_bytes_of_every_tensor_that_is_read(small_blocks, step_pair):
    calls = []
    before, after = step_pair
    travels(before, after, first_step=10, step=11, progress=lambda done, total: calls.append((done, total)))
    total = sum(4 * 6 * p.weight.count for p in after)
    assert calls[-1] == (total, total)
    assert calls == sorted(calls)
    assert len(calls) > len(after)


def test_the_fit_on_some_blocks_of_a_large_tensor_finds_the_same_rate(disk, monkeypatch):
    import torch

    model = torch.nn.Linear(700, 600, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    train_on_noise(model, optimizer, 3)
    before = disk.save(model, optimizer)
    train_on_noise(model, optimizer, 1)
    after = disk.save(model, optimizer)
    (whole,) = travels(before, after, first_step=3, step=4).travels
    monkeypatch.setattr(pairs, "BLOCK", 4096)
    monkeypatch.setattr(pairs, "PIECE", 3 * 4096)
    (some,) = travels(before, after, first_step=3, step=4).travels
    assert 420_000 // (4096 * pairs.FITTED) > 1  # blocks are left out
    assert some.recovered_lr == pytest.approx(whole.recovered_lr, rel=1e-4)
    assert some.recovered_wd == pytest.approx(0.1, rel=1e-2)
    assert some.grad_l2 == pytest.approx(whole.grad_l2, rel=1e-6)
    assert some.residual < 1e-4
    assert some.v_error < 1e-6
    assert some.rms_t == pytest.approx(whole.rms_t, rel=1e-2)


def train_on_noise(model, optimizer, steps):
    import torch

    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()


def test_the_moments_of_the_earlier_checkpoint_in_the_same_pass(disk, step_pair):
    before, after = step_pair
    alone = moments(before).moments
    apart = [replace(p, hyper=replace(p.hyper, step=99)) for p in after]  # not one update apart: read for this alone
    lost = [p for p in after if p.name != after[0].name]
    for later, steps in ((after, 11), (apart, 99), (lost, 11)):
        found = travels(before, later, first_step=10, step=steps, both=True)
        assert repr(sorted(found.earlier, key=lambda row: row.name)) == repr(sorted(alone, key=lambda row: row.name))
        plain = travels(before, later, first_step=10, step=steps)
        assert plain.earlier == []
        assert repr((found.moments, found.travels)) == repr((plain.moments, plain.travels))
