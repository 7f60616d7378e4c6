"""Whether the failure is gone with the other program, and there without it.

Both programs run the recorded step from the same state, on the same device. Where the step does not fail by itself,
every experiment that found a fault is run again with the other program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradforensics.errors import ReplayError
from gradforensics.experiments import Outcome as Verdict
from gradforensics.experiments import Quantity, Result
from gradforensics.replay.experiment import Context, Experiment
from gradforensics.replay.program import Program
from gradforensics.replay.recording import Recording
from gradforensics.replay.step import Outcome, StepRunner, told

_NOT_AGAIN = ("reproduce", "fix")  # these find no fault


def _run(context: Context) -> Iterator[Result]:
    if context.other is None:
        yield context.result("fix", "nothing", "no other program was given", "See --fix.", "inconclusive")
        return
    program = context.other()
    try:
        fixed = _other_runner(context, program, _of_last_step(context.runner))
    except ReplayError as error:
        yield context.result(
            "fix", "the other program", str(error), "The other program cannot take the recorded state.", "inconclusive"
        )
        return
    without, with_it = context.runner.compute(), fixed.compute()
    if without.failure or with_it.failure:
        yield _of_failure(context, without, with_it)
        return
    faults = [name for name in _experiments_with_faults(context) if name not in _NOT_AGAIN]
    if not faults:
        yield _of_nothing(context, without, with_it)
    for name in faults:
        yield _of_experiment(context, program, fixed, name)


def _of_last_step(runner: StepRunner) -> Recording:
    """The recording from the state before the step in question, so that both programs start from the same one."""
    recording = runner.recording
    return replace(recording, steps=(recording.last,), model=runner.state(), notices=[])


def _other_runner(context: Context, program: Program, recording: Recording) -> StepRunner:
    return StepRunner(recording, program, context.runner.device)


def _experiments_with_faults(context: Context) -> list[str]:
    return list(dict.fromkeys(one.experiment for one in context.found if one.outcome == "fault"))


# -- a step that fails ------------------------------------------------------------------------------------------------


def _of_failure(context: Context, without: Outcome, with_it: Outcome) -> Result:
    before, after = _told(without), _told(with_it)
    outcome: Verdict = "unverified"
    if without.failure and not with_it.failure:
        outcome, said = "verified", "The failure is there without the other program and gone with it."
    elif not without.failure:
        said = "The step fails only with the other program."
    elif before == after:
        said = "The step fails with the other program in the same way."
    else:
        said = "The step fails with the other program too, in another way."
    return _result(context, f"without: {before}; with: {after}", said, outcome, without, with_it)


def _told(found: Outcome) -> str:
    if found.error is not None:
        return told(found.error)
    return f"loss {found.loss:.6g}, gradient norm {found.norm:.6g}"


def _of_nothing(context: Context, without: Outcome, with_it: Outcome) -> Result:
    return _result(
        context,
        f"without: {_told(without)}; with: {_told(with_it)}",
        "The step does not fail and no experiment found a fault: there is nothing that the other program could cure.",
        "inconclusive",
        without,
        with_it,
    )


def _result(
    context: Context, result: str, conclusion: str, outcome: Verdict, without: Outcome, with_it: Outcome
) -> Result:
    return context.result(
        "fix",
        "the other program instead of the recorded one",
        result,
        conclusion,
        outcome,
        [
            *_measured(without, "recorded"),
            *_measured(with_it, "other program"),
        ],
    )


def _measured(found: Outcome, variation: str) -> Sequence[Quantity]:
    return (
        Quantity("loss", found.loss, "", variation),
        Quantity("grad_norm", found.norm, "", variation),
        Quantity("failure", None, "", variation, found.failure or "none"),
    )


# -- a fault that an experiment found ---------------------------------------------------------------------------------


def _of_experiment(context: Context, program: Program, fixed: StepRunner, name: str) -> Result:
    """Run an experiment that found a fault with the other program; clean there is gone."""
    if name == "accumulation":
        fixed = _other_runner(context, program, _undivided(fixed.recording))
    other = Context(fixed, context.logged if name != "accumulation" else {}, context.runs)
    results = list(_experiment(name).run(other))
    before = next(one for one in context.of(name) if one.outcome == "fault")
    outcomes = {one.outcome for one in results}
    after = next((one for one in results if one.outcome == "fault"), results[0])
    verdict: Verdict
    if "fault" in outcomes:
        verdict, said = "unverified", f"{name} finds a fault with the other program too."
    elif "clean" in outcomes:
        verdict, said = "verified", f"The fault that {name} found is there without the other program and gone with it."
    else:
        verdict, said = "inconclusive", f"{name} cannot tell with the other program: {after.conclusion}"
    return context.result(
        "fix",
        "the other program instead of the recorded one",
        f"{name} without: {before.result}; with: {after.result}",
        said,
        verdict,
        [Quantity("experiment", text=name)],
    )


def _undivided(recording: Recording) -> Recording:
    """Without what the training's loop did to losses and gradients: how the loss is divided is the program's to say."""
    step = recording.last
    micros = tuple(replace(m, backward=None, cleared=False) for m in step.micros)
    return replace(recording, steps=(replace(step, micros=micros, gradients=None, grad_norm=None),))


def _experiment(name: str) -> Experiment:
    return next(one for one in _all() if one.name == name)


def _all() -> Sequence[Experiment]:
    from gradforensics.replay.experiments import EXPERIMENTS  # noqa: PLC0415  it holds this experiment too

    return EXPERIMENTS


def _cost(context: Context) -> float:
    """Both programs once; and every experiment that may find a fault, again."""
    again = sum(one.cost(context) for one in _all() if one.name not in _NOT_AGAIN)
    return 2.0 + (again if context.other is not None else 0.0)


EXPERIMENT = Experiment("fix", _cost, _run)
