"""The gradients between backward and optimizer: their norms, and whether somebody cleared them in between."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradforensics.recorder.names import Names
from gradforensics.torch_state import each_norm

_PROBES = 3


def present(names: Names) -> dict[str, torch.Tensor]:
    """The gradients by parameter, in the order of the model; of a sparse one its values, added up."""
    found: dict[str, torch.Tensor] = {}
    for name, parameter in names.parameters.items():
        gradient = parameter.grad
        if gradient is not None:
            gradient = gradient.detach()
            found[name] = gradient.coalesce().values() if gradient.is_sparse else gradient
    return found


def dense(names: Names) -> dict[str, torch.Tensor]:
    """The gradients by parameter, sparse ones made dense."""
    held = ((name, parameter.grad) for name, parameter in names.parameters.items())
    return {name: g.detach().to_dense() if g.is_sparse else g.detach() for name, g in held if g is not None}


def norms(names: Names) -> tuple[list[str], torch.Tensor, torch.Tensor]:
    """Names of parameters, float32 (n,) norms of their gradients, and the L2 norm over all as `total_norm` adds it."""
    gradients = present(names)
    if not gradients:
        return [], torch.zeros(0, device="cpu"), torch.zeros((), device="cpu")
    listed = list(gradients)
    measured = each_norm(list(gradients.values()))
    single = torch.stack(together([norm for _, norm in measured]))
    return [listed[place] for place, _ in measured], single, torch.linalg.vector_norm(single)


def together(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors on one device, a CUDA device where there is one: nobody may read on the host what is on its way there."""
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), tensors[0].device)
    return [tensor.to(device, non_blocking=True) for tensor in tensors]


def not_finite(names: Names) -> str:
    """In how many parameters the gradient is not finite, and one of them; "" for none. Waits for the device."""
    held = present(names)
    bad = [name for name, gradient in held.items() if not bool(gradient.isfinite().all())]
    return f"not finite in {len(bad)} of {len(held)} parameters, such as {bad[0]}" if bad else ""


class Clearing:
    """Tells whether the gradients were cleared between the backwards of two micro-batches.

    Set to None shows at once. Zeroed in place shows in the counters of changes that autograd keeps; only where one has
    moved are the values of a few small gradients looked at, on their device.
    """

    def __init__(self) -> None:
        self._probes: list[torch.nn.Parameter] = []
        self._marks: list[tuple[torch.nn.Parameter, int, int]] = []

    def start(self) -> None:
        """A step begins: what was cleared before it does not count."""
        self._marks = []

    def after_backward(self, names: Names) -> None:
        """Remember how a backward left the gradients of the smallest parameters."""
        if not self._probes or any(probe.grad is None for probe in self._probes):
            held = (p for p in names.parameters.values() if p.grad is not None and not p.grad.is_sparse)
            self._probes = sorted(held, key=lambda p: p.numel())[:_PROBES]
        self._marks = [(p, id(p.grad), p.grad._version) for p in self._probes if p.grad is not None]  # noqa: SLF001  the counter

    def since(self) -> torch.Tensor | bool:
        """Whether they were cleared since; a tensor where the answer is still on a CUDA device."""
        if not self._marks:
            return False
        if all(parameter.grad is None for parameter, _, _ in self._marks):
            return True
        changed = [
            p.grad.detach() for p, mark, version in self._marks
            if p.grad is not None and (id(p.grad), p.grad._version) != (mark, version)  # noqa: SLF001  likewise
        ]  # fmt: skip
        if len(changed) < len(self._marks):
            return False
        zero = torch.stack(together([gradient.count_nonzero() for gradient in changed])).sum() == 0
        return zero if zero.is_cuda else bool(zero)
