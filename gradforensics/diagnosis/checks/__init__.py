"""The vocabulary that rule files may use: every module names its checks, and this one the modules."""

from __future__ import annotations

from gradforensics.diagnosis.checks import (
    dynamics,
    batch_size,
    clipping,
    evaluation,
    finiteness,
    index_errors,
    learning_rate,
    loss,
    messages,
    precision,
    objective,
    replay,
    resume,
    scaling,
    weights,
    recipe,
    replay,
    scaling,
    software,
    training_data,
    schedule,
    warmup,
)
from gradforensics.diagnosis.vocabulary import Check

_MODULES = (
    dynamics,
    batch_size,
    clipping,
    evaluation,
    finiteness,
    index_errors,
    learning_rate,
    loss,
    messages,
    precision,
    objective,
    replay,
    resume,
    scaling,
    weights,
    recipe,
    replay,
    scaling,
    software,
    training_data,
    schedule,
    warmup,
)
CHECKS: dict[str, Check] = {check.name: check for module in _MODULES for check in module.CHECKS}
if len(CHECKS) != sum(len(module.CHECKS) for module in _MODULES):
    raise RuntimeError("two checks have the same name")
