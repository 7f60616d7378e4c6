"""The recorder as a callback of the Trainer of transformers.

    Trainer(..., callbacks=[RecorderCallback()])

The batch is what the model is called with, num_items_in_batch included, and the loss is the model's own; replay
rebuilds the model from its configuration, so that no program is needed. A Trainer whose loss is not the model's (label
smoothing, compute_loss_func) gets the step log and capsules without a loss: give it a program.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from gradforensics.recorder.names import unwrapped
from gradforensics.recorder.recorder import Recorder

_LOG = logging.getLogger("gradforensics.recorder")


class RecorderCallback(TrainerCallback):
    """Records a training of the Trainer. Step numbers are those of the Trainer's global_step after the step.

    folder: the run directory, the Trainer's output_dir by default. program, settings: as for `Recorder`, only needed
    for a model that is not of transformers. options: more arguments of `Recorder` (at_steps, pair_at, check ...);
    scaler, clipping and accumulation are the Trainer's.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        program: Callable[..., Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._folder, self._program, self._settings, self._options = folder, program, settings, options
        self._handles: list[Any] = []
        self._model: nn.Module | None = None
        self.recorder: Recorder | None = None

    def __deepcopy__(self, _memo: Any) -> RecorderCallback:
        """A copy of the model shares the hooks; calls of the copy are not recorded."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """A pickled model has hooks that do nothing."""
        return {**vars(self), "recorder": None, "_model": None, "_handles": []}

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002  the Trainer's signature
        """Attach the recorder to the Trainer's model and optimizer."""
        self._close()
        model, optimizer = given["model"], given["optimizer"]
        self.recorder = Recorder(
            model,
            optimizer,
            self._folder if self._folder is not None else args.output_dir,
            program=self._program,
            scaler=getattr(optimizer, "scaler", None),
            max_grad_norm=args.max_grad_norm or None,
            accumulation=args.gradient_accumulation_steps,
            settings=self._settings,
            first_step=state.global_step + 1,
            **self._options,
        )
        if args.torch_compile or args.n_gpu > 1:
            what = "torch_compile" if args.torch_compile else "several devices in one process"
            _LOG.warning("with %s the batches cannot be seen: no capsules, only the step log", what)
            return
        inner = self._model = unwrapped(model)
        self._handles = [
            inner.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            inner.register_forward_hook(self._after_forward),
        ]

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002  likewise
        """Take everything off."""
        self._close()

    def _before_forward(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep what the model is called with, by name; calls of an evaluation are left alone."""
        if self.recorder is None or not self._trains(model):
            return
        if args:
            names = [name for name in inspect.signature(model.forward).parameters if name not in kwargs]
            kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
        if "num_items_in_batch" in kwargs:  # every loss is then its part of the step's
            self.recorder.log_sum()
        self.recorder.batch(kwargs)

    def _after_forward(self, model: nn.Module, _args: Any, output: Any) -> None:
        if self.recorder is None or not self._trains(model):
            return
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(loss, torch.Tensor):
            self.recorder.loss(loss)

    def _close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._model = [], None
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None

    def _trains(self, model: nn.Module) -> bool:
        return model is self._model and model.training and torch.is_grad_enabled()
