"""What an experiment is: a question, what it costs in steps, and a function that answers it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gradforensics.experiments import Outcome, Quantity, Result
from gradforensics.questions import QUESTIONS
from gradforensics.replay.program import Program
from gradforensics.replay.step import StepRunner


@dataclass(slots=True)
class Context:
    """What an experiment may use.

    logged: loss and grad_norm of the step in the run's logs, where they hold it. runs: how often `reproduce` repeats.
    found: results of the experiments before, oldest first. other: loads the program of --fix anew, None without one.
    """

    runner: StepRunner
    logged: dict[str, float] = field(default_factory=dict)
    runs: int = 3
    found: list[Result] = field(default_factory=list)
    other: Callable[[], Program] | None = None

    def result(
        self,
        experiment: str,
        changed: str,
        result: str,
        conclusion: str,
        outcome: Outcome,
        quantities: Sequence[Quantity] = (),
    ) -> Result:
        """One line of the table, with the question of its experiment."""
        return Result(
            experiment, self.runner.step.step, QUESTIONS[experiment], changed, result, conclusion, outcome,
            tuple(quantities),
        )  # fmt: skip

    def of(self, experiment: str) -> list[Result]:
        """The results of an experiment that ran before."""
        return [one for one in self.found if one.experiment == experiment]


@dataclass(frozen=True, slots=True)
class Experiment:
    """name: as in QUESTIONS. cost: in steps, at most, known beforehand. run: yields results as they are found."""

    name: str
    cost: Callable[[Context], float]
    run: Callable[[Context], Iterator[Result]]
