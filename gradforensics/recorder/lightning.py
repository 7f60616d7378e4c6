"""The recorder as a callback of Lightning, and the loss of a training_step without a Trainer.

    Trainer(..., callbacks=[RecorderCallback(program=build)])

The batch is what training_step is given, after the transfer to the device. The program:

    def build(request):
        return {"model": Module(**request.settings), "loss": training_loss}
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from torch import nn

from gradforensics.recorder.attached import Wrapped
from gradforensics.recorder.recorder import Recorder

_LOG = logging.getLogger("gradforensics.recorder")


class RecorderCallback(Callback):
    """Records a training with automatic or manual optimization and one optimizer.

    folder: the run directory, the logger's or the Trainer's by default. program, settings: as for `Recorder`. options:
    more arguments of `Recorder` (at_steps, pair_at, check ...); scaler, clipping and accumulation are the Trainer's.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        program: Callable[..., Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._folder, self._program, self._settings, self._options = folder, program, settings, options
        self._wrapped: Wrapped | None = None
        self.recorder: Recorder | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach the recorder to the module, its training_step and its optimizer."""
        self._close()
        if len(trainer.optimizers) != 1:
            _LOG.warning("a training with %d optimizers is not recorded", len(trainer.optimizers))
            return
        clips = trainer.gradient_clip_algorithm in (None, "norm")
        self.recorder = Recorder(
            pl_module,
            trainer.optimizers[0],
            self._folder if self._folder is not None else trainer.log_dir or trainer.default_root_dir,
            program=self._program,
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            max_grad_norm=(trainer.gradient_clip_val or None) if clips else None,
            accumulation=trainer.accumulate_grad_batches,
            settings=self._settings,
            first_step=trainer.global_step + 1,
            **self._options,
        )
        self._wrapped = Wrapped(pl_module, "training_step", partial(_recorded, self.recorder))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  Lightning's signature
        """Take everything off."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002  likewise
        """Write a capsule of the step that raised."""
        if self.recorder is not None:
            self.recorder.exception(exception)
        self._close()

    def _close(self) -> None:
        if self._wrapped is not None:
            self._wrapped.restore()
            self._wrapped = None
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None


def _recorded(recorder: Recorder, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    recorder.batch(args[0] if args else next(iter(kwargs.values()), None))
    output = step(*args, **kwargs)
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if isinstance(loss, torch.Tensor):
        recorder.loss(loss)
    return output


def training_loss(module: nn.Module, batch: Any) -> torch.Tensor:
    """The loss of a LightningModule's training_step, shape (), outside of a Trainer; what it logs is dropped.

    Raises TypeError where training_step gives no loss.
    """
    step: Callable[..., Any] = module.training_step  # type: ignore[assignment]  # nn.Module's attributes are untyped
    takes_index = len(inspect.signature(step).parameters) > 1
    with _silent(module):
        output = step(batch, 0) if takes_index else step(batch)
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if not isinstance(loss, torch.Tensor):
        raise TypeError(f"training_step of {type(module).__name__} gave a {type(loss).__name__}, no loss")
    return loss


@contextmanager
def _silent(module: nn.Module) -> Iterator[None]:
    """Without a Trainer there is nothing to log to, and Lightning warns of each attempt."""
    names = ("log", "log_dict")
    for name in names:
        setattr(module, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name in names:
            delattr(module, name)
