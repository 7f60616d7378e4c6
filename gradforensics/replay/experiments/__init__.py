"""The experiments, in the order in which they run: that of `gradforensics.questions.QUESTIONS`."""

from gradforensics.replay.experiment import Experiment
from gradforensics.replay.experiments import (
    accumulation,
    anomaly,
    batch,
    checkpointing,
    content,
    fix,
    padding,
    precision,
    reproduce,
    severed,
)

EXPERIMENTS: tuple[Experiment, ...] = (
    reproduce.EXPERIMENT,
    anomaly.EXPERIMENT,
    precision.EXPERIMENT,
    batch.EXPERIMENT,
    severed.EXPERIMENT,
    content.EXPERIMENT,
    accumulation.EXPERIMENT,
    padding.EXPERIMENT,
    checkpointing.EXPERIMENT,
    fix.EXPERIMENT,
)
