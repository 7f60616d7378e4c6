"""Numbers that are on their way from the device: copied without waiting, and read when they have arrived."""

from __future__ import annotations

from collections.abc import Mapping

import torch


class Reading:
    """Values of small tensors, by name. Those on a CUDA device go to pinned memory in one copy; nobody waits for it."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._here = {
            name: [float(v) for v in tensor.reshape(-1).tolist()]
            for name, tensor in tensors.items()
            if not tensor.is_cuda
        }
        self._names = [(name, tensor.numel()) for name, tensor in tensors.items() if tensor.is_cuda]
        self._host: torch.Tensor | None = None
        self._event: torch.cuda.Event | None = None
        if self._names:
            device = tensors[self._names[0][0]].device
            parts = [
                tensors[name].detach().reshape(-1).to(device, torch.float64, non_blocking=True)
                for name, _ in self._names
            ]
            packed = torch.cat([*parts, parts[0].new_ones(1)])  # the last one tells that all are there
            self._host = torch.zeros(packed.shape, dtype=packed.dtype, device="cpu", pin_memory=True)
            self._host.copy_(packed, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
            self._event.record(torch.cuda.current_stream(device))

    def ready(self, *, later: bool) -> bool:
        """Whether the values have arrived; asks, does not wait. later: what to say where nothing was on its way."""
        return later if self._event is None else bool(self._event.query())  # type: ignore[no-untyped-call]  # likewise

    def survived(self) -> bool:
        """Whether the values had arrived when the device failed, which can no longer be asked: they are then here."""
        if self._host is not None and self._host[-1] == 1.0:
            self._event = None
        return self._event is None

    def values(self) -> dict[str, list[float]]:
        """The values by name; waits for them where they have not arrived."""
        if self._host is not None:
            if self._event is not None:
                self._event.synchronize()
            numbers = self._host.tolist()
            for name, count in self._names:
                self._here[name] = numbers[:count]
                numbers = numbers[count:]
            self._host = self._event = None
        return self._here
