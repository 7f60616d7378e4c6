"""Measures of a checkpoint's Adam moments, and of the weights and moments of two checkpoints.

Everything is read once, in blocks, by several threads, in constant memory; the numbers depend neither on the number of
threads nor on how the tensors lie in files. Formulas are in `adam`, sums over a block in `elementwise`. Nothing is
judged here: what a measure means is the rules' business.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gradforensics.checkpoints import processes
from gradforensics.checkpoints.adam import UNIT_ROUNDOFF, Adam, Hyper, Recovered, adam, bound
from gradforensics.checkpoints.elementwise import (
    Block,
    MomentSums,
    StepSums,
    TravelSums,
    Workspace,
    measure_moments,
    measure_step,
    measure_travel,
)
from gradforensics.checkpoints.numbers import FORMATS, decode
from gradforensics.checkpoints.pair_rows import Applied, Measured, Moments, Parameter, Skipped, Travel
from gradforensics.checkpoints.refs import Piece, Run, TensorRef, blocks, pieces
from gradforensics.untrusted.files import RefusedError

__all__ = ["Applied", "Measured", "Moments", "Parameter", "Skipped", "Travel", "moments", "travels"]

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes read and the bytes in all."""

BLOCK = 1 << 16  # elements; what a block needs of up to seven tensors stays in the caches
FITTED = 8  # blocks, half a million elements: more make the recovered rate no more exact
PIECE = BLOCK << 5  # elements of one task


def moments(
    parameters: Sequence[Parameter], *, threads: int | None = None, progress: Progress | None = None
) -> Measured:
    """Measure the moments of one checkpoint. Parameters without m and v are passed over.

    A parameter that cannot be measured or read is named in `skipped`. threads: None means one per processor, up to 4.
    """
    if threads is None:
        shares = processes.shares([_nbytes(parameter) for parameter in parameters])
        if len(shares) > 1:
            parts = [[parameters[index] for index in share] for share in shares]
            return _merged([p.name for p in parameters], processes.run(_moments_part, parts, progress))
    measured, jobs = Measured(), []
    for parameter in parameters:
        job = _Job(parameter)
        if _plan_moments(job, measured.skipped):
            jobs.append(job)
    return _run(jobs, measured, threads, progress)


def travels(
    before: Sequence[Parameter],
    after: Sequence[Parameter],
    *,
    first_step: int,
    step: int,
    applied: Mapping[str, Applied] | None = None,
    both: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Measured:
    """Measure how parameters of the same name moved and, in the same pass, the moments of the later checkpoint.

    both: the moments of the earlier one too.

    first_step, step: of the two checkpoints, for the rows and for the rounding in bound_ratio. applied: by name, for
    bound_ratio. Whether two states are one update apart is told by their own step counters, not by these.
    A parameter that cannot be compared, measured or read is named in `skipped`.
    """
    if threads is None:
        couples = _couples(before, after)
        shares = processes.shares([sum(_nbytes(p) for p in couple if p) for couple in couples])
        if len(shares) > 1:
            work = partial(_travels_part, first_step=first_step, step=step, applied=applied, both=both)
            parts = [[couples[index] for index in share] for share in shares]
            return _merged([p.name for p in (*after, *before)], processes.run(work, parts, progress))
    measured, jobs = Measured(), []
    earlier = {parameter.name: parameter for parameter in before}
    for parameter in after:
        job = _Job(parameter, (first_step, step), (applied or {}).get(parameter.name))
        measurable = _plan_moments(job, measured.skipped)
        other = earlier.pop(parameter.name, None)
        if parameter.weight is None or (other is not None and other.weight is None):
            pass  # states whose weight is not known have moments alone
        elif other is None:
            measured.skipped.append(Skipped(parameter.name, "it is not in the earlier checkpoint"))
        elif measurable and job.refs["m_b"].stored != parameter.weight.stored:
            jobs.append(job)
            job = _Job(parameter, job.span, job.applied)
            measurable = _plan_travel(job, other, measured.skipped)
        else:
            measurable |= _plan_travel(job, other, measured.skipped)
        if measurable:
            jobs.append(job)
        if both and other is not None:
            jobs += _plan_earlier(job, other, measured.skipped)
    if both:
        jobs += [old for p in earlier.values() for old in _plan_earlier(None, p, measured.skipped)]
    gone = [name for name, parameter in earlier.items() if parameter.weight is not None]
    measured.skipped += [Skipped(name, "it is not in the later checkpoint") for name in gone]
    return _run(jobs, measured, threads, progress)


# -- several processes ------------------------------------------------------------------------------------------------

_Couple: TypeAlias = tuple[Parameter | None, Parameter | None]


def _nbytes(parameter: Parameter) -> int:
    weight = 0 if parameter.weight is None else parameter.weight.nbytes
    return weight + sum(ref.nbytes for ref in _states(parameter))


def _couples(before: Sequence[Parameter], after: Sequence[Parameter]) -> list[_Couple]:
    """Every parameter of either checkpoint with that of the other."""
    earlier = {parameter.name: parameter for parameter in before}
    found: list[_Couple] = [(earlier.pop(parameter.name, None), parameter) for parameter in after]
    return [*found, *((parameter, None) for parameter in earlier.values())]


def _plan_earlier(job: _Job | None, before: Parameter, skipped: list[Skipped]) -> list[_Job]:
    """Measure an earlier parameter's moments in the job that reads them anyway, else in one of their own."""
    own = _Job(before, old=True)
    if not _plan_moments(own, skipped):
        return []
    if job is not None and job.steps and len(own.refs) == 2:  # amsgrad's maximum is not read there
        job.earlier = own.adam
        return []
    return [own]


def _moments_part(parameters: Sequence[Parameter], report: Progress) -> Measured:
    return moments(parameters, threads=1, progress=report)


def _travels_part(
    couples: Sequence[_Couple],
    report: Progress,
    *,
    first_step: int,
    step: int,
    applied: Mapping[str, Applied] | None,
    both: bool,
) -> Measured:
    before, after = ([p for p in side if p is not None] for side in zip(*couples, strict=True))
    return travels(
        before, after, first_step=first_step, step=step, applied=applied, both=both, threads=1, progress=report
    )


def _merged(names: Sequence[str], parts: Sequence[Measured]) -> Measured:
    """The rows of all parts in the order of the parameters."""
    place: dict[str, int] = {}
    for name in names:
        place.setdefault(name, len(place))
    return Measured(
        sorted((row for part in parts for row in part.moments), key=lambda row: place[row.name]),
        sorted((row for part in parts for row in part.travels), key=lambda row: place[row.name]),
        sorted((row for part in parts for row in part.earlier), key=lambda row: place[row.name]),
        sorted((row for part in parts for row in part.skipped), key=lambda row: place.get(row.name, len(place))),
    )


@dataclass(slots=True)
class _Sums:
    moments: MomentSums = field(default_factory=MomentSums)
    travel: TravelSums = field(default_factory=TravelSums)
    step: StepSums = field(default_factory=StepSums)
    earlier: MomentSums = field(default_factory=MomentSums)

    def add(self, other: _Sums) -> None:
        self.moments.add(other.moments)
        self.earlier.add(other.earlier)
        self.travel.add(other.travel)
        self.step.add(other.step)


@dataclass(slots=True)
class _Job:
    """What is measured of one parameter.

    refs: the tensors that are read for it, by their field in Block, with equally many elements. adam: the constants,
    where moments are measured; earlier: those of the moments before, where they are measured too. moves, steps: whether
    weights, and states one update apart, are compared. old: `after` is of the earlier checkpoint.
    """

    after: Parameter
    span: tuple[int, int] = (0, 0)
    applied: Applied | None = None
    refs: dict[str, TensorRef] = field(default_factory=dict)
    adam: Adam | None = None
    earlier: Adam | None = None
    old: bool = False
    moves: bool = False
    steps: bool = False
    sums: _Sums = field(default_factory=_Sums)
    failure: str = ""

    @property
    def elements(self) -> int:
        """Elements of each tensor that is read."""
        return next(iter(self.refs.values())).stored

    @property
    def every(self) -> int:
        """The fit is made on one block in so many: all of a tensor of up to FITTED blocks, else FITTED or more."""
        return max(1, self.elements // (BLOCK * FITTED))

    @property
    def nbytes(self) -> int:
        """Bytes that are read."""
        return sum(ref.nbytes for ref in self.refs.values())


def _plan_moments(job: _Job, skipped: list[Skipped]) -> bool:
    """Add the moments to what is measured; whether there are any."""
    states = _states(job.after)
    if not states:
        return False
    problem = _problem("its moments", states)
    if not problem:
        job.adam = adam(job.after.hyper, states[0].dtype, states[1].dtype)
        problem = "" if job.adam else "the betas of its moments are not known"
    if problem:
        skipped.append(Skipped(job.after.name, problem))
        return False
    job.refs |= dict(zip(("m_b", "v_b", "v_max"), states, strict=False))
    return True


def _plan_travel(job: _Job, before: Parameter, skipped: list[Skipped]) -> bool:
    """Add the movement to what is measured; whether it can be."""
    after = job.after
    assert before.weight is not None
    assert after.weight is not None
    problem = _problem("its weights", [before.weight, after.weight])
    if problem:
        skipped.append(Skipped(after.name, problem))
        return False
    job.moves = True
    if job.adam is not None and _one_update(before.hyper, after.hyper):
        states = _states(before)[:2]
        if states and not _problem("", [after.weight, job.refs["m_b"], *states]):
            job.refs |= {"m_a": states[0], "v_a": states[1]}
            job.steps = True
    job.refs |= {"w_a": before.weight, "w_b": after.weight}
    return True


def _states(parameter: Parameter) -> list[TensorRef]:
    """m, v and amsgrad's maximum where there is one; empty where m or v is missing."""
    if parameter.exp_avg is None or parameter.exp_avg_sq is None:
        return []
    most = [] if parameter.max_exp_avg_sq is None else [parameter.max_exp_avg_sq]
    return [parameter.exp_avg, parameter.exp_avg_sq, *most]


def _one_update(before: Hyper, after: Hyper) -> bool:
    constant = not (before.varied or after.varied)
    return constant and before.step is not None and after.step is not None and after.step == before.step + 1


def _problem(what: str, refs: Sequence[TensorRef]) -> str:
    """Why these tensors cannot be compared element by element; empty where they can."""
    first = refs[0]
    for ref in refs:
        if ref.dtype not in UNIT_ROUNDOFF:
            return f"{what} are stored as {ref.dtype}, which holds no plain numbers"
        if ref.shape != first.shape:
            return f"{what} differ in shape: {list(first.shape)} and {list(ref.shape)}"
        if (ref.order, ref.repeat, ref.stored) != (first.order, first.repeat, first.stored):
            return f"{what} differ in the order in which their elements lie"
    return "" if first.stored else f"{what} have no elements"


# -- reading -------------------------------------------------------------------------------------------------------


def _run(jobs: Sequence[_Job], measured: Measured, threads: int | None, progress: Progress | None) -> Measured:
    """Do the jobs and append their rows. Sums are added in the order of the elements, whichever thread made them."""
    threads = threads or min(os.cpu_count() or 1, 4)
    done, whole = 0, sum(job.nbytes for job in jobs)
    waiting: deque[tuple[_Job, int, Future[_Sums]]] = deque()
    tasks = _tasks(jobs)
    with ThreadPoolExecutor(threads) as pool:
        while True:
            for job, parts in islice(tasks, 2 * threads - len(waiting)):
                size = sum(run.count * job.refs[name].itemsize for name, part in parts.items() for run in part.runs)
                waiting.append((job, size, pool.submit(_measure, job, parts)))
            if not waiting:
                break
            job, size, future = waiting.popleft()
            try:
                job.sums.add(future.result())
            except RefusedError as error:
                job.failure = job.failure or str(error)
            except OSError as error:
                job.failure = job.failure or error.strerror or str(error)
            done += size
            if progress is not None:
                progress(done, whole)
    for job in jobs:
        _append(measured, job)
    return measured


def _tasks(jobs: Sequence[_Job]) -> Iterator[tuple[_Job, dict[str, Piece]]]:
    """Parts of jobs at the same elements of each tensor. A job that failed has no further ones."""
    for job in jobs:
        cut = [pieces(ref, PIECE) for ref in job.refs.values()]
        for parts in zip(*cut, strict=True):
            if job.failure:
                break
            yield job, dict(zip(job.refs, parts, strict=True))


def _measure(job: _Job, parts: Mapping[str, Piece]) -> _Sums:
    """Read one part of a job and measure it. Raises RefusedError and OSError as reading does."""
    double = any(ref.dtype == "float64" for ref in job.refs.values())
    dtype = np.dtype(np.float64 if double else np.float32)
    size = min(BLOCK, job.elements)
    work, sums = Workspace(size, dtype), _Sums()
    streams = [_numbers(job.refs[name], part.runs, size, dtype) for name, part in parts.items()]
    with np.errstate(all="ignore"):
        first = next(iter(parts.values())).first // size
        for index, arrays in enumerate(zip(*streams, strict=True), first):
            fitted = index % job.every == 0
            _measure_block(job, dict(zip(parts, arrays, strict=True)), work, sums, fitted=fitted)
    return sums


class _Numbers(NamedTuple):
    """A block of one tensor: its bytes as stored, and its numbers (n,), float32 or float64."""

    raw: np.ndarray
    values: np.ndarray


def _numbers(ref: TensorRef, runs: tuple[Run, ...], size: int, dtype: np.dtype[Any]) -> Iterator[_Numbers]:
    """The tensor in blocks of `size` numbers, valid until the next one."""
    form = FORMATS[ref.dtype]
    raw, decoded = np.empty(size * ref.itemsize, np.uint8), np.empty(size * form.work.itemsize, np.uint8)
    for block in blocks(runs, ref.itemsize, raw):
        values = decode(block, form, decoded)
        yield _Numbers(block, values if values.dtype == dtype else values.astype(dtype))


def _measure_block(job: _Job, numbers: Mapping[str, _Numbers], work: Workspace, sums: _Sums, *, fitted: bool) -> None:
    arrays = {name: number.values for name, number in numbers.items()}
    moments, travel = MomentSums(), TravelSums()
    update = moved = None
    if job.earlier is not None:
        sums.earlier.add(measure_moments(arrays["m_a"], arrays["v_a"], None, job.earlier, work)[0])
    if job.adam is not None:
        moments, update = measure_moments(arrays["m_b"], arrays["v_b"], arrays.get("v_max"), job.adam, work)
        sums.moments.add(moments)
    if job.moves:
        decay = None if job.applied is None else job.applied.decay
        travel, moved = measure_travel(arrays["w_a"], arrays["w_b"], _changed(job, numbers, work), decay, work)
        sums.travel.add(travel)
    if job.steps and job.adam is not None:
        block = Block(**arrays)
        sums.step.add(measure_step(block, moments, update, travel, moved, job.adam, work, fitted=fitted))


def _changed(job: _Job, numbers: Mapping[str, _Numbers], work: Workspace) -> int:
    """How many weights differ in a bit: as stored, or in the wider type where the types differ."""
    alike = job.refs["w_a"].dtype == job.refs["w_b"].dtype
    a, b = (numbers[name].raw if alike else numbers[name].values for name in ("w_a", "w_b"))
    bits = f"u{job.refs['w_a'].itemsize if alike else a.itemsize}"
    a, b = a.view(bits), b.view(bits)
    return int(np.count_nonzero(np.not_equal(a, b, out=work.flags[: a.size])))


# -- rows ----------------------------------------------------------------------------------------------------------


def _append(measured: Measured, job: _Job) -> None:
    if job.failure:
        measured.skipped.append(Skipped(job.after.name, job.failure))
        return
    if job.earlier is not None:
        measured.earlier.append(_moments_row(job.after.name, job.sums.earlier, job.earlier))
    if job.adam is not None:
        rows = measured.earlier if job.old else measured.moments
        rows.append(_moments_row(job.after.name, job.sums.moments, job.adam))
    if job.moves:
        measured.travels.append(_travel_row(job))


def _moments_row(name: str, sums: MomentSums, constants: Adam) -> Moments:
    used = sums.count - sums.nonfinite - sums.negative
    bounded = constants.bound is not None and used > 0
    updated = constants.eps is not None and used > 0
    return Moments(
        name=name,
        count=sums.count,
        nonfinite=sums.nonfinite,
        v_negative=sums.negative,
        bound_ratio_max=_finite(sums.top / (constants.bound or 1.0)) if bounded else None,
        bound_violations=sums.over if bounded else None,
        update_rms=_finite(constants.scale * math.sqrt(sums.squares / used)) if updated else None,
        below_eps=sums.small / used if updated else None,
        v_zero_m_nonzero=sums.v_zero,
    )


def _travel_row(job: _Job) -> Travel:
    sums, (first_step, step) = job.sums.travel, job.span
    some = sums.spread.count > 0
    row = Travel(
        first_step=first_step,
        step=step,
        name=job.after.name,
        count=sums.count,
        nonfinite=sums.count - sums.finite,
        changed=sums.changed / sums.count,
        rel_travel=_finite(math.sqrt(sums.moved / sums.weight)) if sums.weight > 0.0 else None,
        ratio_mean=_finite(1.0 + sums.spread.mean) if some else None,
        ratio_std=_finite(sums.spread.std) if some else None,
        bound_ratio=_bound_ratio(job),
    )
    return _with_step(row, job, job.adam) if job.adam is not None and job.sums.step.count else row


def _unit(job: _Job) -> float:
    """The unit roundoff of the weights."""
    return max(UNIT_ROUNDOFF[job.refs[name].dtype] for name in ("w_a", "w_b"))


def _bound_ratio(job: _Job) -> float | None:
    beta1, beta2, applied = job.after.hyper.beta1, job.after.hyper.beta2, job.applied
    constant = None if beta1 is None or beta2 is None or job.after.hyper.varied else bound(beta1, beta2)
    if applied is None or constant is None or not job.sums.travel.finite:
        return None
    reach = constant * applied.lr_sum
    rounding = (3 * max(job.span[1] - job.span[0], 1) + 2) * _unit(job)
    most = reach + rounding * (job.sums.travel.largest + reach)
    return _finite(job.sums.travel.reach / most) if most > 0.0 else None


def _with_step(row: Travel, job: _Job, constants: Adam) -> Travel:
    sums = job.sums.step
    found = Recovered() if constants.eps is None else sums.fit.recover(constants.scale, _unit(job))
    return replace(
        row,
        recovered_lr=found.lr,
        lr_error=found.lr_error,
        recovered_wd=found.wd,
        wd_error=found.wd_error,
        residual=found.residual,
        grad_l2=_finite(math.sqrt(sums.gradient) / (1.0 - constants.beta1)),
        v_error=_finite(sums.v_error / sums.v) if sums.v > 0.0 else None,
        rms_t=_rms_t(sums, job.after.hyper, constants),
    )


def _rms_t(sums: StepSums, hyper: Hyper, constants: Adam) -> float | None:
    """From sums over m and v as they are stored: v_hat = v / (1 - beta2^step), m holds (1 - beta1) g."""
    if constants.eps is None or hyper.step is None or not sums.fit.count:
        return None
    unbiased = 1.0 - constants.beta2 ** min(hyper.step, 1 << 53)
    return _finite(math.sqrt(unbiased * sums.surprise / sums.fit.count) / (1.0 - constants.beta1))


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None
