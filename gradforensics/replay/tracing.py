"""Watching every operation of a step, forward and backward, for the first value that is NaN or infinite.

torch.autograd.set_detect_anomaly stops at NaN of the backward only. Here a dispatch mode looks at the result of every
operator; anomaly mode merely keeps the forward's Python stack with every node of the graph.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gradforensics.replay import batches
from gradforensics.replay.program import LossFunction
from gradforensics.replay.step import StepRunner
from gradforensics.replay.tracing_causes import explained, fully_masked
from gradforensics.replay.tracing_lineage import Input, Lineage, Phase, Record, origin, root_of
from gradforensics.replay.tracing_modules import OUTSIDE, ROOT, ModuleWatch
from gradforensics.replay.tracing_ops import Operator, infinite_constant, operator_of
from gradforensics.replay.tracing_sources import line_of_error, line_of_stack, module_of_error, running_line
from gradforensics.replay.tracing_values import kind_of, place_of, summary_of, traceable
from gradforensics.torch_state import tensors_of

_MOST_ROOTS = 1000
_IN_NODE = re.compile(r"Error detected in (\S+?)\. Traceback of forward call that caused the error:\n(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Finding:
    """The first non-finite value that reaches the loss or a gradient.

    root: what made it. became: where its infinity became NaN. beside: an infinity of the forward that the backward met.
    parameters: whose gradients it reached (empty where it is in the loss).
    """

    root: Record
    became: Record | None = None
    beside: Record | None = None
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Raised:
    """Where the step raised an exception. node: of the graph whose backward raised it, else ""."""

    module: str
    source_line: str
    node: str = ""


class Tracer(TorchDispatchMode):
    """Watches one run of a step: `runner.compute(watch=tracer.watch)`, then read `finding`.

    roots: everything non-finite that was made where nothing was before, in order, whether it reached loss and gradient
    or was masked again. missed: operations that could not be looked at.
    """

    def __init__(self, runner: StepRunner) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.finding: Finding | None = None
        self.roots: list[Record] = []
        self.missed = 0
        self.micro = 0
        self._runner = runner
        self._modules = ModuleWatch(runner.model)
        self._lineage = Lineage()
        self._weights = frozenset(p.shape for p in runner.model.parameters())
        self._size = (0, 0)  # samples and tokens of the micro-batch
        self._in_forward = False
        self._closed = False  # the first bad value is found: the rest is not looked at
        self._busy = False  # the tracer computes something itself
        self._loss: torch.Tensor | None = None
        self._bad_gradients: list[tuple[str, Record | None]] = []
        self._warned: list[warnings.WarningMessage] = []

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        """Entered around a run of the step."""
        program = self._runner.program
        with ExitStack() as stack:
            self._warned = stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")
            stack.enter_context(torch.autograd.detect_anomaly(check_nan=False))
            stack.enter_context(_eager())
            self._state(model)
            stack.enter_context(self._modules)
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    hook: Any = parameter.register_post_accumulate_grad_hook(self._accumulated(name))  # type: ignore[no-untyped-call]  # torch's own
                    stack.callback(hook.remove)
            self._runner.program = replace(program, loss=self._watched(program.loss))
            stack.callback(setattr, self._runner, "program", program)
            stack.enter_context(self)
            yield
        self._settle()

    def raised(self, error: Exception) -> Raised:
        """Where an exception of the run comes from: its own traceback, in the backward the stack of the forward."""
        for warning in self._warned:
            match = _IN_NODE.search(str(warning.message))
            if match:
                node, stack = match[1], match[2].splitlines()
                return Raised(self._module_of_failed(node, match[2]) or OUTSIDE, line_of_stack(stack), node)
        return Raised(module_of_error(error, self._modules.names) or OUTSIDE, line_of_error(error))

    def _module_of_failed(self, name: str, stack: str) -> str | None:
        """The module of the node with this name and stack in the graph of the last loss."""
        pending: list[Any] = [self._loss.grad_fn] if self._loss is not None else []
        seen: set[Any] = set()
        while pending:
            node = pending.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            own = node.metadata.get("traceback_", [])
            if node.name() == name and stack.startswith("".join(own).rstrip("\n")):
                return self._modules.of_node(node, own)
            pending += [following for following, _ in node.next_functions]
        return None

    # -- around the step ----------------------------------------------------------------------------------------------

    def _state(self, model: nn.Module) -> None:
        """Parameters and buffers that are not finite before the step."""
        for what, named in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
            for name, tensor in named:
                if not traceable(tensor) or not (kind := kind_of(tensor)):
                    continue
                place = place_of(tensor, kind, 0, 0, ())
                path = name.rpartition(".")[0] or ROOT
                self._keep(
                    tensor,
                    Record(
                        self._lineage.count, "state", kind, f"{what} {name}", module=path, place=place,
                        intended=what == "buffer" and kind != "nan", inputs=(summary_of(name, tensor),),
                    ),
                )  # fmt: skip

    def _batch(self, batch: Any) -> None:
        """Parts of the micro-batch that are not finite before the step."""
        self._size = (batches.size(batch), _tokens(batch))
        for name, tensor in _named_tensors(batch, ""):
            if not traceable(tensor) or not (kind := kind_of(tensor)):
                continue
            rest = tensor[torch.isfinite(tensor)]
            mask = "mask" in name or "bias" in name or bool((rest == 0).all())
            self._keep(
                tensor,
                Record(
                    self._lineage.count, "batch", kind, f"batch {name}", module=name, micro=self.micro,
                    intended=kind != "nan" and mask, inputs=(summary_of(name, tensor),),
                    place=place_of(tensor, kind, *self._size, ()),
                ),
            )  # fmt: skip

    def _watched(self, loss_function: LossFunction) -> LossFunction:
        def loss_of(model: nn.Module, batch: Any) -> Any:
            self._settle()
            if self._runner.running is not None:
                self.micro = self._runner.running[0]
            if not self._closed:
                with self._unwatched():
                    self._batch(batch)
            self._in_forward = True
            loss: Any = loss_function(model, batch)  # the user's code may return anything
            self._in_forward = False
            self._loss = loss if isinstance(loss, torch.Tensor) else None
            if not self._closed and traceable(loss):
                with self._unwatched():
                    self._judge_loss(loss)
            return loss

        return loss_of

    def _judge_loss(self, loss: torch.Tensor) -> None:
        kind = kind_of(loss)
        if not kind:
            return
        record = self._lineage.get(loss, kind)
        if record is None:  # made by something that no dispatch mode sees
            record = Record(self._lineage.count, "forward", kind, "loss", module=OUTSIDE, micro=self.micro)
        self._close(record, ())

    def _accumulated(self, name: str) -> Callable[[torch.Tensor], None]:
        def look(parameter: torch.Tensor) -> None:
            if self._closed or not traceable(parameter.grad):
                return
            assert parameter.grad is not None  # traceable
            with self._unwatched():
                kind = kind_of(parameter.grad)
                if kind:
                    self._bad_gradients.append((name, self._lineage.get(parameter.grad, kind)))

        return look

    def _settle(self) -> None:
        """After a backward: find where the non-finite values of its gradients come from."""
        if self._closed or not self._bad_gradients:
            return
        names = tuple(dict.fromkeys(name for name, _ in self._bad_gradients))
        records = [record for _, record in self._bad_gradients if record is not None]
        made = [r for r in self.roots if r.phase == "backward" and r.micro == self.micro]
        candidates = records or made
        if candidates:
            self._close(min(candidates, key=lambda r: root_of(r)[0].order), names)
        else:
            self._close(Record(self._lineage.count, "backward", "nan", "gradient", micro=self.micro), names)

    def _close(self, record: Record, parameters: tuple[str, ...]) -> None:
        root, became = root_of(record)
        beside = next((p for p in root.parents if root.phase == "backward" and p.phase == "forward"), None)
        self.finding = Finding(root, became, beside, parameters)
        self._closed = True

    @contextmanager
    def _unwatched(self) -> Iterator[None]:
        """What the tracer itself computes is not looked at."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    # -- every operation ----------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator, and look at what it gives."""
        del types
        kwargs = kwargs or {}
        operator = operator_of(func)
        if self._closed or self._busy or operator.ignored:
            return func(*args, **kwargs)
        changed = self._changed(operator, args, kwargs) if operator.mutated else {}
        out = func(*args, **kwargs)
        try:
            self._look(operator, args, kwargs, out, changed)
        except Exception:  # noqa: BLE001  a tensor of a kind that nobody thought of must not end the step
            self.missed += 1
        return out

    def _changed(self, operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[int, Input]:
        """The tensors that the operator is about to change, as they are before, by identity."""
        found = {}
        for name, value in operator.named(args, kwargs):
            if name.partition("[")[0] in operator.mutated and traceable(value):
                kind = "" if operator.overwrites else kind_of(value)
                summary = None if operator.overwrites else summary_of(_shown(name), value)
                found[id(value)] = Input(name, value, kind, self._came(value, kind), summary)
        return found

    def _look(
        self,
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        out: Any,
        changed: Mapping[int, Input],
    ) -> None:
        bad = [(tensor, kind) for tensor in tensors_of(out) if traceable(tensor) and (kind := kind_of(tensor))]
        if not bad:
            return
        inputs = [
            changed.get(id(value)) or self._input(name, value)
            for name, value in operator.named(args, kwargs)
            if traceable(value)
        ]
        tensor, kind = bad[0]
        constant = infinite_constant(args, kwargs)
        intended, parents = origin(kind, operator, inputs, tensor.numel(), constant=constant)
        if operator.name == "where" and kind == "nan":
            parents = self._selected(tensor, inputs) or parents
        if kind == "nan" and fully_masked(operator, args):
            parents = ()
        record = self._record(kind)
        record.operation, record.aten = record.operation or operator.name, operator.aten
        record.parents, record.intended = parents, intended or operator.uninitialised
        for one, _ in bad:
            self._lineage.put(one, record)
        self._note_root(record)
        if not record.intended and not record.followed:
            self._describe(record, operator, args, kwargs, tensor, inputs)

    def _input(self, name: str, tensor: torch.Tensor) -> Input:
        kind = kind_of(tensor)
        return Input(name, tensor, kind, self._came(tensor, kind))

    def _came(self, tensor: torch.Tensor, kind: Any) -> Record | None:
        """The record of a non-finite input; one that was never seen is a constant of the program's."""
        if not kind:
            return None
        record = self._lineage.get(tensor, kind)
        if record is None:
            record = self._record(kind)
            record.operation, record.intended = "a constant", kind != "nan"
            record.note = "it is a constant of the program's, or was made outside PyTorch"
            self._keep(tensor, record)
        return record

    @staticmethod
    def _selected(out: torch.Tensor, inputs: list[Input]) -> tuple[Record, ...]:
        """The NaN inputs of a torch.where that it really took."""
        spoiled = torch.isnan(out)
        return tuple(
            i.record
            for i in inputs
            if i.kind == "nan" and i.record is not None and bool((torch.isnan(i.tensor) & spoiled).any())
        )

    def _record(self, kind: Any) -> Record:
        """A record of what runs now; its operation is the node's in the backward, "" in the forward."""
        node: Any = torch._C._current_autograd_node()  # noqa: SLF001  there is no public way to it
        # What activation checkpointing computes again runs inside a node, too, but with gradients on.
        if node is None or torch.is_grad_enabled():
            phase: Phase = "forward" if self._in_forward or node is not None else "backward"
            module, line, operation = self._modules.running(), running_line(), ""
        else:
            stack = node.metadata.get("traceback_", [])
            phase, operation = "backward", node.name().rpartition("::")[2]
            module, line = self._modules.of_node(node, stack), running_line() or line_of_stack(stack)
        return Record(
            self._lineage.count, phase, kind, operation, module=module or OUTSIDE, source_line=line, micro=self.micro
        )

    def _describe(
        self,
        record: Record,
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        out: torch.Tensor,
        inputs: list[Input],
    ) -> None:
        """What is worth knowing of a root only: its inputs, whose sample and token it is, why it is not finite."""
        record.inputs = tuple(i.summary or summary_of(_shown(i.name), i.tensor) for i in inputs)
        record.place = place_of(out, record.kind, *self._size, self._weights)
        node = record.operation if record.phase == "backward" and record.operation != operator.name else ""
        record.note = explained(operator, node, dict(operator.named(args, kwargs)), args, out, record.kind)

    def _keep(self, tensor: torch.Tensor, record: Record) -> None:
        self._lineage.put(tensor, record)
        self._note_root(record)

    def _note_root(self, record: Record) -> None:
        if not record.intended and not record.followed and len(self.roots) < _MOST_ROOTS:
            self.roots.append(record)


def _tokens(batch: Any) -> int:
    """The number of tokens per sample; 0 where the second dimension is of features or of an image's channels."""
    samples, tokens = batches.size(batch), batches.length(batch)
    alike = [t for t in tensors_of(batch) if t.dim() >= 2 and t.shape[:2] == (samples, tokens)]
    return tokens if any(t.dim() == 3 or (t.dim() == 2 and not t.dtype.is_floating_point) for t in alike) else 0


def _shown(name: str) -> str:
    return "input" if name == "self" else name


def _named_tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a batch with the keys and positions under which they are found."""
    if isinstance(value, torch.Tensor):
        yield name or "0", value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named_tensors(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _named_tensors(item, f"{name}.{index}" if name else str(index))


def _eager() -> AbstractContextManager[Any]:
    """Compiled functions run as they were written, so that their operations can be seen (PyTorch 2.6 and later)."""
    stance = getattr(torch.compiler, "set_stance", None)
    return ExitStack() if stance is None else stance("force_eager")
