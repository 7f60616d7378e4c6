"""The vocabulary that rule files may use: every module names its checks, and this one the modules."""

from __future__ import annotations

from gradforensics.diagnosis.checks import (
    batch_size,
    clipping,
    communication,
    dynamics,
    eval_mode,
    evaluation,
    finiteness,
    hardware,
    index_errors,
    learning_rate,
    loss,
    memory,
    messages,
    objective,
    order,
    plateau,
    precision,
    recipe,
    replay,
    replicas,
    resume,
    scaling,
    schedule,
    software,
    throughput,
    training_data,
    warmup,
    weights,
)
from gradforensics.diagnosis.vocabulary import Check

_MODULES = (
    batch_size,
    clipping,
    communication,
    dynamics,
    eval_mode,
    evaluation,
    finiteness,
    hardware,
    index_errors,
    learning_rate,
    loss,
    memory,
    messages,
    objective,
    order,
    plateau,
    precision,
    recipe,
    replay,
    replicas,
    resume,
    scaling,
    schedule,
    software,
    throughput,
    training_data,
    warmup,
    weights,
)
CHECKS: dict[str, Check] = {check.name: check for module in _MODULES for check in module.CHECKS}
if len(CHECKS) != sum(len(module.CHECKS) for module in _MODULES):
    raise RuntimeError("two checks have the same name")
