"""The kinds of events, and what they mean for how a run ended.

What a program said: oom, timeout, killed, exception, completed, resume, overflow, warning, cuda_error, device_assert,
index_error, autograd_error, gradscaler, loss_scale, nccl_error, library_error (the dynamic linker), disk_full,
child_failed. What its machine said (kernel log, nvidia-smi): xid, sxid, ecc, gpu_fallen, gpu_driver, thermal,
hung_task, lockup, panic, segfault, oom_killer, mce, pcie_error, io_error, file_system, link_down. stack: where a
process stood. collective_timeout, collective_mismatch: of Flight Recorder dumps.
"""

from __future__ import annotations

from gradforensics.tables import EndingKind, Event

_ENDINGS: dict[str, EndingKind] = {
    "exception": "exception",
    "oom": "oom",
    "killed": "killed",
    "timeout": "timeout",
    "completed": "completed",
}
# Exceptions that are known by their message: they end a run where they were raised, not where a line only names them.
_RAISED = (
    "cuda_error", "device_assert", "index_error", "autograd_error", "gradscaler", "loss_scale", "nccl_error",
    "disk_full", "ecc", "library_error",
)  # fmt: skip
TERMINAL = (*_ENDINGS, *_RAISED)


def ending_kind(event: Event) -> EndingKind | None:
    """How a run ends with this event, or None where it does not end with it."""
    if event.kind in _RAISED:
        return "exception" if "type" in event.data else None
    return _ENDINGS.get(event.kind)
