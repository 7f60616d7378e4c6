"""The recorder: three lines in a training loop that keep what a replay of the next bad step needs."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import torch
from torch import nn

from gradforensics.capsule import Autocast
from gradforensics.recorder import gradients, log, measuring, sources, state
from gradforensics.recorder.attached import Attached, after_backward, unwrapped_optimizer, with_closure
from gradforensics.recorder.capsules import Capsules
from gradforensics.recorder.forward import FirstCall
from gradforensics.recorder.gradients import Clearing
from gradforensics.recorder.judge import Finding, Judge, nonfinite
from gradforensics.recorder.names import Names, place, sharded, unwrapped
from gradforensics.recorder.past import Past
from gradforensics.recorder.readings import Reading
from gradforensics.recorder.steps import KeptBatch, MicroRecord, StepRecord, kept, options_of
from gradforensics.recorder.writing import Setting
from gradforensics.torch_state import RandomState, UnrecordableError, autocast_state, total_norm

_LOG = logging.getLogger("gradforensics.recorder")
_Batch = TypeVar("_Batch")


class Recorder:
    """Records what `gradforensics replay` needs, and writes a capsule of a step that goes wrong.

        with Recorder(model, optimizer, "runs/7", program=build) as recorder:
            for batch in loader:
                batch = recorder.batch(batch)             # before the forward of every micro-batch
                loss = recorder.loss(loss_of(model, batch))   # before its backward
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    A step ends with `optimizer.step()`, or with `scaler.step(optimizer)` where the scaler skips it. A capsule is
    written where the loss or the gradient is not finite, where one of them jumps (see `judge.Spikes`), where the scaler
    skips five steps in a row, where an exception leaves the loop, where `save` asks for it, and at the steps of
    `at_steps`. Every step becomes a line of gradforensics-steps.jsonl.

    model: the model, also inside DistributedDataParallel or torch.compile. folder: the run directory; capsules go to
    capsules/ in it. program: a function at the top level of a file that rebuilds model and loss (see
    `gradforensics.replay.program`); not needed for a model of transformers. scaler: the GradScaler, if any.
    max_grad_norm: of the clipping between backward and step. accumulation: micro-batches per step. settings: plain data
    that the program is given, and facts for the experiments (pad_token_id, ignore_index ...). first_step: the number of
    the next optimizer step. keep: on CUDA the state is copied every so many steps (see `check`). pair_at: steps before
    and after which a checkpoint is saved, as the exact comparison of two checkpoints wants them. log_every: every so
    many steps the line has the gradient norm of every module and, on CUDA, the memory in use. max_capsules: that the
    recorder writes on its own account; those that were asked for do not count. max_bytes: of all capsules.

    check: "now" looks at the numbers of a step before the optimizer changes the weights; that waits for a CUDA device.
    "late" looks when they have arrived; the capsule then starts from the last copied state and holds the steps since,
    which takes host memory for two copies of weights and optimizer state, and for batches above 16 MB device memory, up
    to 2 GB. With several ranks only "now" gives the weights before the step exactly. "auto" is "late" on CUDA, "now"
    elsewhere.

    The training is never changed and never stopped: what goes wrong in here is said once in the log of the logger
    "gradforensics.recorder", and then the recorder is quiet. Raises ValueError for arguments that make no sense.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        folder: str | os.PathLike[str],
        program: Callable[..., Any] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        max_grad_norm: float | None = None,
        accumulation: int = 1,
        settings: Mapping[str, Any] | None = None,
        first_step: int = 1,
        keep: int = 8,
        at_steps: Collection[int] = (),
        pair_at: Collection[int] = (),
        log_every: int = 10,
        max_capsules: int = 3,
        max_bytes: int = 20 << 30,
        check: Literal["auto", "now", "late"] = "auto",
    ) -> None:
        if check not in ("auto", "now", "late"):
            raise ValueError(f'check is {check!r}; it must be "auto", "now" or "late"')
        if accumulation < 1 or keep < 1 or log_every < 1:
            raise ValueError("accumulation, keep and log_every must be at least 1")
        self._closed = False
        self._open: StepRecord | None = None
        self._current: MicroRecord | None = None
        self._requests: list[str] = []
        self._stepping = self._within_closure = False
        self._raised_before = 0  # the id: the exception itself would keep the tensors of all its frames
        self._process = os.getpid()
        self._told: set[str] = set()
        self._held = 0  # parameters of the optimizer, when the model was read
        self._changes: int | None = None  # of the weights, counted after the step before
        self._step, self._at_steps, self._pairs = first_step, frozenset(at_steps), sorted(pair_at)
        self._scaler, self._accumulation, self._every = scaler, accumulation, log_every
        self._clips = bool(max_grad_norm)
        self._judge, self._clearing, self._buffers = Judge(), Clearing(), state.Buffers()
        self._attached = Attached()
        self._check, self._keep = check, keep
        self._past: Past | None = None
        self._autocast: Autocast | None = None
        self._started = False
        self._run(self._set_up, model, optimizer, Path(folder), program, settings or {}, max_grad_norm, max_bytes)
        self._run(self._attach, model, max_capsules)

    # -- what a training calls ----------------------------------------------------------------------------------------

    def batch(self, batch: _Batch) -> _Batch:
        """Keep the micro-batch that comes next, and the random states. Call it right before the forward.

        batch: tensors, arrays and plain data in dicts, lists and tuples: what the program's loss function is given.
        """
        self._run(self._begin_micro, batch)
        return batch

    def loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Keep the loss of the micro-batch, shape (). Call it before dividing, scaling and backward."""
        self._run(self._take_loss, loss)
        return loss

    def save(self, why: str) -> None:
        """Ask for a capsule of the step that runs; between two steps, of the next.

        It is written when the gradients of that step are complete, before the optimizer changes the weights.
        """
        self._requests.append(why)

    def close(self) -> None:
        """Write what is still to be written and take all hooks off. Safe to call again."""
        self._run(self._finish)
        self._shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.exception(error)
        self.close()

    def exception(self, error: BaseException) -> None:
        """Write a capsule for an exception that ends the training, if it was raised within a step.

        The with-statement and the interpreter's excepthook call this. Only an Exception counts, not KeyboardInterrupt.
        """
        if isinstance(error, Exception) and id(error) != self._raised_before:
            self._raised_before = id(error)
            self._run(self._raised, error)

    @property
    def step(self) -> int:
        """The number of the step that runs, or of the next one."""
        return self._step

    def log_sum(self) -> None:
        """Log a step's loss as the sum over its micro-batches: for losses divided by the number of all its tokens."""
        self._run(lambda: setattr(self._log, "total", True))

    # -- a step -------------------------------------------------------------------------------------------------------

    def _set_up(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, program: Callable[..., Any] | None,
        settings: Mapping[str, Any], max_grad_norm: float | None, max_bytes: int,
    ) -> None:  # fmt: skip
        rank, world_size = place()
        inner, self._optimizer = unwrapped(model), unwrapped_optimizer(optimizer)
        self._names = Names(inner)
        self._log = log.StepLog(folder, rank, world_size)
        found = sources.of_program(program, inner, settings)
        facts = {**sources.facts(inner), "gradient_accumulation_steps": self._accumulation, **settings}
        self._setting = Setting(
            self._names, self._optimizer, folder / "capsules", max_bytes // world_size, max_grad_norm,
            sources.plain(facts), found, rank, world_size,
        )  # fmt: skip
        if found.problem:
            self._tell(f"the program is not in the capsules: {found.problem}; replay then needs --program")
            self._setting.notices.append(f"no program: {found.problem}")
        self._sharded = sharded(model)
        if self._sharded:
            self._tell(
                f"the parameters are sharded ({self._sharded}): no capsules, no checkpoint pairs, no gradient norms; "
                "loss, learning rate and memory are logged"
            )

    def _attach(self, model: nn.Module, most: int) -> None:
        self._capsules = Capsules(self._setting, most, self._sharded)
        self._forward = FirstCall(self._names.model, model, partial(self._run, self._saw_autocast))
        self._attached.optimizer(
            self._optimizer,
            lambda *given: self._run(self._before_optimizer, *given),
            lambda *_: self._run(self._after_optimizer),
        )
        if self._scaler is not None:
            self._attached.scaler(self._scaler, self._optimizer, lambda: self._run(self._after_scaler))
        self._attached.interpreter(self.exception, self.close)

    def _start(self) -> None:
        """At the first step: now the model is where it trains."""
        self._started = True
        device = next((p.device for p in self._names.model.parameters()), torch.device("cpu"))
        self._setting.device = device
        if self._check == "late" or (self._check == "auto" and device.type == "cuda"):
            self._past = Past(self._keep)

    def _begin_step(self) -> StepRecord:
        if not self._started:
            self._start()
        moved = self._changes is not None and self._changes != self._names.changes()
        held = sum(len(group["params"]) for group in self._optimizer.param_groups)
        if self._step % self._every == 0 or held != self._held:
            self._names.refresh()
            self._held = held
        self._buffers.start(self._names)
        self._clearing.start()
        self._open = StepRecord(self._step, changes=self._names.changes(), moved=moved)
        if self._past is not None and not self._sharded:
            self._past.before(self._step, self._now)
            if self._past.refused:
                self._tell(
                    "host memory cannot hold two copies of weights and optimizer state: a fault that shows late gets "
                    'no capsule; with check="now" it does, at the price of waiting for the device in every step'
                )
        return self._open

    def _begin_micro(self, batch: Any) -> None:
        if self._stepping:
            if self._within_closure:
                return
            self._open, self._stepping = None, False  # the optimizer raised, and the loop goes on
        self._look_back()
        if self._open is not None:
            self._look_at_the_skipped(self._open)
        record = self._open or self._begin_step()
        most = max(4 * self._accumulation, 64)
        if len(record.micros) >= most:  # a loop that never steps must not fill the memory
            self._tell(
                f"more than {most} micro-batches since the last step of the optimizer that the recorder was given: of "
                "these only the last are kept"
            )
            del record.micros[0]
            record.dropped += 1
        held = KeptBatch({}, {})
        if not self._sharded:
            try:
                held = kept(batch)
            except UnrecordableError as error:
                record.unrecordable = str(error)
                self._tell(f"no capsules: {error}")
        self._forward.arm()
        self._current = MicroRecord(held, RandomState.capture(), self._autocast)
        record.micros.append(self._current)

    def _saw_autocast(self) -> None:
        self._autocast = autocast_state(self._setting.device.type)
        if self._current is not None:
            self._current.autocast = self._autocast

    def _take_loss(self, loss: torch.Tensor) -> None:
        self._forward.disarm()
        if self._stepping:  # a closure that the optimizer calls again
            return
        record, micro = self._open, self._current
        if record is None or micro is None or loss.numel() != 1:
            self._tell(
                "loss() needs a scalar, and batch() before it" if loss.numel() != 1 else "loss() without batch()"
            )
            return
        if record.modes is None and loss.requires_grad:
            record.modes = self._names.evaluating(), self._names.frozen()
        if micro.loss is not None:
            self._tell("loss() was called twice after one batch(): the last loss counts, and a replay has only that")
        micro.loss = loss.detach().clone() if loss.is_cuda else float(loss.detach())
        if loss.requires_grad:
            hook = partial(self._run, self._begin_backward, record, micro)
            loss.register_hook(hook)  # type: ignore[no-untyped-call]  # torch's own
        if self._logs(record):
            record.memory |= log.memory(self._setting.device, "/after_forward")

    def _begin_backward(self, record: StepRecord, micro: MicroRecord, gradient: torch.Tensor) -> None:
        """Called in the backward, with the gradient of the loss."""
        if micro.backward is not None or record is not self._open or micro not in record.micros:
            return
        micro.backward = gradient.detach().clone()
        if record.micros[0] is not micro:
            micro.cleared = self._clearing.since()
        last = record.micros.index(micro) + record.dropped + 1 >= self._accumulation
        after_backward(lambda: self._run(self._end_backward, record, last))

    def _end_backward(self, record: StepRecord, last: bool) -> None:
        self._clearing.after_backward(self._names)
        if last and self._clips and not self._sharded:
            record.names, record.single, record.unclipped = gradients.norms(self._names)

    def _before_optimizer(self, _optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A closure computes the gradients within the step: then they are complete when it returns."""
        replaced = with_closure(args, kwargs, self._evaluate)
        if replaced is None:
            self._complete()
        return replaced

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        """Called by the optimizer, perhaps several times: what its closure computes first is the step."""
        self._within_closure = True
        try:
            result = closure()
        finally:
            self._within_closure = False
        if not self._stepping:
            self._run(self._complete)
        return result

    def _complete(self, skipped: bool = False) -> None:
        """The gradients are as the optimizer gets them: measure, judge, and write what is asked for."""
        record = self._open or self._begin_step()
        self._stepping = True
        record.skipped = skipped
        record.touched = record.changes != self._names.changes()
        measuring.leave_out_idle(record)
        record.options = options_of(self._optimizer)
        if self._logs(record):
            record.memory |= log.memory(self._setting.device, "/after_backward")
        numbers = {**measuring.losses(record, self._scaler), **measuring.options(record)}
        record.clipped_only = self._clips and record.unclipped is None
        if not self._sharded:
            late, layers = self._past is not None, self._logs(record)
            numbers |= measuring.step(record, self._names, self._optimizer, always_clipped=late, layers=layers)
        record.reading = Reading(numbers)
        finding = None
        if self._past is None:
            record.settle()
            finding = self._judged(record)
        else:
            self._past.anchors.before_optimizer()
        if finding is None and self._requests:
            finding = Finding("request", "; ".join(self._requests))
        if finding is None and record.step in self._at_steps:
            finding = Finding("at_step", f"step {record.step} was to be recorded")
        self._requests.clear()
        if finding is not None:
            record.settle()
            self._write_now(record, finding, with_gradients=True)
        if self._pairs and record.step >= self._pairs[0] and not skipped:
            self._capsules.save_pair(record, self._buffers.copies())

    def _after_scaler(self) -> None:
        if self._open is not None and not self._stepping:
            self._complete(skipped=True)
            self._after_optimizer()

    def _after_optimizer(self) -> None:
        record = self._open
        if record is None:
            return
        if self._pairs and record.step >= self._pairs[0] and not record.skipped:
            self._capsules.save_pair(record, None)
            self._pairs = [step for step in self._pairs if step > record.step]
        if self._logs(record):
            record.memory |= log.memory(self._setting.device, "")
        self._open = self._current = None
        self._stepping = False
        self._step += 1
        self._changes = self._names.changes()
        if self._past is None:
            self._log.write(record, scaled=self._scaled)
        else:
            self._past.add(record)

    # -- numbers ------------------------------------------------------------------------------------------------------

    @property
    def _scaled(self) -> bool:
        return self._scaler is not None and self._scaler.is_enabled()

    def _logs(self, record: StepRecord) -> bool:
        return record.step % self._every == 0

    def _now(self) -> state.State:
        return state.now(self._names, self._buffers.copies(), self._optimizer, self._scaler)

    def _judged(self, record: StepRecord) -> Finding | None:
        losses = [loss for loss in record.losses if loss is not None]
        finding = self._judge.look(losses, record.norm, skipped=record.skipped, scaled=self._scaled)
        if finding is not None and finding.reason == "nonfinite_gradient" and self._past is None:
            where = gradients.not_finite(self._names)
            return Finding(finding.reason, f"{finding.text}; {where}") if where else finding
        return finding

    def _look_back(self, *, wait: bool = False) -> None:
        """Judge and log the steps whose numbers have arrived."""
        if self._past is None:
            return
        for record in self._past.arrived(wait=wait):
            finding = self._judged(record)
            if finding is not None:
                chain = self._past.chain(record.step)
                if chain is None:
                    self._capsules.refused(record, finding, "no state before it was kept")
                else:
                    self._capsules.write(record, finding, chain[1], chain[0], None)
            self._log.write(record, scaled=self._scaled)

    def _look_at_the_skipped(self, record: StepRecord) -> None:
        """A loop that sees a bad loss itself and goes on with the next batch never comes to the optimizer."""
        last = record.micros[-1] if record.micros else None
        if last is None or last.backward is not None or not isinstance(last.loss, float):
            return
        finding = nonfinite([last.loss])
        if finding is not None:
            if not self._capsules.has(record.step):  # a loop may leave out many
                record.options = options_of(self._optimizer)
                self._write_now(record, finding)
            record.micros.pop()

    def _finish(self) -> None:
        self._look_back(wait=True)
        if self._open is not None:
            self._look_at_the_skipped(self._open)

    # -- capsules -----------------------------------------------------------------------------------------------------

    def _write_now(self, record: StepRecord, finding: Finding, *, with_gradients: bool = False) -> None:
        """A capsule of the step that runs, from the weights as they are: the optimizer has not changed them."""
        held = None
        if with_gradients and not self._sharded:
            held = gradients.dense(self._names)
            factor = getattr(self._optimizer, "grad_scale", None)
            if isinstance(factor, torch.Tensor):
                held = {name: gradient / factor for name, gradient in held.items()}
            if record.clipped is None:
                record.clipped = float(total_norm(gradients.present(self._names).values()))
        if not self._stepping:
            record.touched = record.changes != self._names.changes()
        self._capsules.write(record, finding, [record], self._now(), held)

    def _raised(self, error: Exception) -> None:
        finding = Finding("exception", f"{type(error).__name__}: {str(error)[:500]}")
        try:
            self._look_back(wait=True)
            record = self._open
            if record is not None and record.micros:
                self._write_raised(record, finding)
                self._log.write(record, scaled=self._scaled)
        except RuntimeError as failure:  # a device that raised can often not be read any more
            if self._past is None:
                raise
            for arrived in self._past.survived():
                self._log.write(arrived, scaled=self._scaled)
            lost = self._capsules.rescue(self._past, self._open, finding)
            if lost is None:
                self._tell(f"the device failed between two steps: {failure}")
            else:
                self._log.write(lost, scaled=self._scaled)
            self._shut()

    def _write_raised(self, record: StepRecord, finding: Finding) -> None:
        if not self._stepping:
            record.options = options_of(self._optimizer)
            record.reading = Reading(measuring.losses(record, self._scaler))
        record.settle()
        if self._stepping:
            chain = self._past.chain(record.step, record) if self._past is not None else None
            if chain is not None:
                self._capsules.write(record, finding, chain[1], chain[0], None)
                return
            record.notices.append("the exception came from within optimizer.step(): weights may have changed")
        self._write_now(record, finding)

    # -- never in the way ---------------------------------------------------------------------------------------------

    def _run(self, function: Callable[..., Any], *given: Any) -> Any:
        """Call a function of ours so that nothing of it reaches the training."""
        if self._closed or self._process != os.getpid():  # a forked process is not the training
            return None
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]  # torch's own
            self._tell("what is captured as a CUDA graph is not recorded")
            return None
        try:
            with torch.no_grad():
                return function(*given)
        except Exception as error:  # noqa: BLE001  a fault of the recorder must not end a training
            self._stop(error)
        return None

    def _stop(self, error: Exception) -> None:
        if isinstance(error, RuntimeError) and "CUDA error" in str(error):  # seen here first; the training sees it next
            with contextlib.suppress(Exception), torch.no_grad():
                self._raised(error)
        self._tell(f"the recorder stops: {type(error).__name__}: {error}")
        self._shut()

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            _LOG.warning("%s", text)

    def _shut(self) -> None:
        self._closed = True
        self._attached.remove()
        self._open = self._current = self._past = None
        self._buffers, self._clearing = state.Buffers(), Clearing()  # their tensors would stay as long as the recorder
        for part in ("_forward", "_log"):
            held = getattr(self, part, None)
            if held is not None:
                with contextlib.suppress(Exception):
                    (held.disarm if part == "_forward" else held.close)()
