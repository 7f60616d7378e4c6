"""Small models saved by other writers than torch.save: DCP, DeepSpeed's layout, Trainer, Lightning, Accelerate.

Every writer trains for real, logs as its users would, saves after the steps `saved` (any, also neighbouring ones), and
calls `before_step(step)` between the backward pass (after clipping) and the optimizer's step, where a recipe injects
its fault. The step that is named is the one about to be taken, from 1.

DCP takes two processes; there the recipe names a function that gives a Setup in each of them (see dcp).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import hf_lab
import lightning_lab
import numpy as np
import torch
import torch.distributed as dist
from checkpoint_lab import CHAIN, VOCAB, configure, objective
from checkpoint_lab import save as save_plain
from gloo_lab import start
from lab import BATCH, LENGTH, Log, Schedule, TinyLM, constant, current_lr, json_lines, next_token_loss, print_row
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.data import Dataset
from transformers import GPT2LMHeadModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

torch.set_num_threads(1)

HERE = Path(__file__).resolve().parent
PEAK = 3e-3
WORLD = 2
"""Processes of DCP, and ranks of DeepSpeed's layout."""

Hook = Callable[[int], object]


def nothing(_step: int) -> None:
    """The hook of a run without a fault."""


# ------------------------------------------------------------------------------------------------- Hugging Face Trainer


class _SaveAt(TrainerCallback):  # type: ignore[misc]  # mypy is told not to follow transformers
    """Saves after certain steps, and calls the hook before every optimizer step."""

    def __init__(self, saved: Collection[int], before_step: Hook) -> None:
        self.saved = saved
        self.before_step = before_step

    def on_pre_optimizer_step(
        self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_facts: object
    ) -> None:
        """Call the hook."""
        self.before_step(state.global_step + 1)

    def on_step_end(
        self, _args: TrainingArguments, state: TrainerState, control: TrainerControl, **_facts: object
    ) -> None:
        """Save after the steps that were named, and no others."""
        control.should_save = state.global_step in self.saved


def trainer(
    run: Path,
    model: GPT2LMHeadModel,
    *,
    steps: int,
    saved: Collection[int],
    before_step: Hook = nothing,
    data: Dataset[dict[str, Tensor]] | None = None,
    shard_bytes: int = 0,
    **arguments: object,
) -> None:
    """Train with the Trainer: checkpoint-N/ with safetensors, optimizer.pt, scheduler.pt and trainer_state.json.

    model: such as hf_lab.tiny_gpt2(VOCAB, width=16). shard_bytes: weights are cut into files of this size at most.
    arguments: of TrainingArguments, beside those of hf_lab.fit. Random states are left out: they are large.
    """
    if shard_bytes:
        whole = model.save_pretrained
        model.save_pretrained = lambda *names, **more: whole(*names, max_shard_size=shard_bytes, **more)
    hf_lab.fit(
        run,
        model,
        data or hf_lab.fresh(CHAIN, steps),
        steps=steps,
        keep=True,
        callbacks=[_SaveAt(saved, before_step)],
        **arguments,  # type: ignore[arg-type]  # a mapping of objects, as fit takes it
    )
    for path in (*run.rglob("rng_state*.pth"), *run.rglob("generation_config.json")):
        path.unlink()


# ------------------------------------------------------------------------------------------------------------ Lightning


def pytorch_lightning(
    run: Path,
    model: TinyLM,
    *,
    steps: int,
    saved: Collection[int],
    before_step: Hook = nothing,
    lr: float = PEAK,
    schedule: Schedule | None = None,
    accumulate: int = 1,
) -> None:
    """Train with Lightning: one ModelCheckpoint(save_top_k=-1, every_n_train_steps=N) for each step N that is saved.

    The files are checkpoints/step=N.ckpt. steps, saved: of the optimizer.
    """
    lightning_lab.fit(
        run,
        CHAIN,
        steps=steps,
        steps_per_epoch=steps * accumulate,
        schedule=schedule or constant(10),
        model=model,
        saved=saved,
        before_step=before_step,
        accumulate=accumulate,
        learning_rate=lr,
        vocab_size=VOCAB,
        max_steps=steps,
        gradient_accumulation_steps=accumulate,
        optim="adamw_torch",
    )


# ----------------------------------------------------------------------------------------------------------- Accelerate


def accelerate(
    run: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    steps: int,
    saved: Collection[int],
    before_step: Hook = nothing,
) -> None:
    """Train with Accelerate: save_state writes model.safetensors, optimizer.bin, scheduler.bin into checkpoint-N/."""
    from accelerate import Accelerator  # type: ignore[import-untyped]  # noqa: PLC0415  only this writer needs it

    configure(run, learning_rate=current_lr(optimizer), warmup_steps=10, max_steps=steps)
    loss = objective(model)
    accelerator = Accelerator(cpu=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, constant(10))
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    with json_lines(run / "metrics.jsonl") as log:
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            value = loss(step)
            accelerator.backward(value)
            norm = float(accelerator.clip_grad_norm_(model.parameters(), 1.0))
            before_step(step)
            rate = current_lr(optimizer)
            optimizer.step()
            schedule.step()
            log({"step": step, "loss": value.item(), "grad_norm": norm, "lr": rate})
            if step in saved:
                accelerator.save_state(str(run / f"checkpoint-{step}"))
    for path in run.rglob("random_states_*.pkl"):
        path.unlink()  # large, and no evidence of anything


# ---------------------------------------------------------------------------------------------------- DeepSpeed, ZeRO-2


class _ZeroStage(IntEnum):
    optimizer_states = 1
    gradients = 2


class _Fragment:
    """Where a parameter lies in a rank's flat vector."""

    def __init__(self, numel: int, start: int) -> None:
        self.numel, self.start = numel, start


class _LossScaler:
    """That of training in bfloat16, which never scales."""

    def __init__(self) -> None:
        self.cur_scale, self.dynamic = 1.0, False


_CLASSES = {
    _ZeroStage: ("deepspeed.runtime.zero.config", "ZeroStageEnum"),
    _Fragment: ("deepspeed.utils.tensor_fragment", "fragment_address"),
    _LossScaler: ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
}


@contextlib.contextmanager
def _names_of_deepspeed() -> Iterator[None]:
    """Pickles the classes above under the names that DeepSpeed's have, as far as those are in its files."""
    before = {kind: (kind.__module__, kind.__qualname__) for kind in _CLASSES}
    stand_ins: set[str] = set()
    for kind, (module, name) in _CLASSES.items():
        parts = module.split(".")
        folders = {".".join(parts[:length]) for length in range(1, len(parts) + 1)} - sys.modules.keys()
        sys.modules.update({folder: ModuleType(folder) for folder in folders})
        stand_ins |= folders
        setattr(sys.modules[module], name, kind)
        kind.__module__, kind.__qualname__ = module, name
    try:
        yield
    finally:
        for kind, (module, name) in before.items():
            kind.__module__, kind.__qualname__ = module, name
        for folder in stand_ins:
            del sys.modules[folder]


class _Zero2:
    """Parameters of a bfloat16 model in one flat float32 vector per group, of which each rank updates its part.

    As deepspeed.runtime.zero.stage_1_and_2 does, with the ranks in one process: AdamW works element by element, so the
    parts come out as on two machines that had averaged their gradients.
    """

    def __init__(self, model: nn.Module, groups: Sequence[dict[str, Any]], defaults: dict[str, Any]) -> None:
        named = dict(model.named_parameters())
        self.model = model
        self.groups: list[list[tuple[str, nn.Parameter]]] = [[(n, named[n]) for n in g["names"]] for g in groups]
        self.padding = [-sum(p.numel() for _, p in group) % WORLD for group in self.groups]
        parts = [
            [nn.Parameter(part.clone()) for part in self._flat(index, "data").chunk(WORLD)]
            for index in range(len(groups))
        ]
        options = [{key: value for key, value in group.items() if key != "names"} for group in groups]
        self.optimizers = [
            torch.optim.AdamW(
                [{"params": [part[rank]], **more} for part, more in zip(parts, options, strict=True)], **defaults
            )
            for rank in range(WORLD)
        ]

    def _flat(self, index: int, kind: Literal["data", "grad"]) -> Tensor:
        tensors = [getattr(parameter, kind) for _, parameter in self.groups[index]]
        flat = torch.cat([t.detach().float().flatten() for t in tensors])
        return nn.functional.pad(flat, (0, self.padding[index]))

    def step(self) -> None:
        """Update the masters from the gradients of the model, and the model from the masters."""
        for index in range(len(self.groups)):
            for rank, gradient in enumerate(self._flat(index, "grad").chunk(WORLD)):
                self.master(rank, index).grad = gradient
        for optimizer in self.optimizers:
            optimizer.step()
        for index, group in enumerate(self.groups):
            whole = torch.cat([self.master(rank, index).detach() for rank in range(WORLD)])
            place = 0
            for _, parameter in group:
                parameter.data.copy_(whole[place : place + parameter.numel()].view_as(parameter))
                place += parameter.numel()

    def master(self, rank: int, index: int) -> nn.Parameter:
        """The flat master of a rank's part of a group."""
        parameter: nn.Parameter = self.optimizers[rank].param_groups[index]["params"][0]
        return parameter

    def fragments(self, rank: int, index: int) -> OrderedDict[str, _Fragment]:
        """What of each parameter lies in a rank's part, and where."""
        size = self.master(rank, index).numel()
        found: OrderedDict[str, _Fragment] = OrderedDict()
        at = -rank * size
        for name, parameter in self.groups[index]:
            low, high = max(at, 0), min(at + parameter.numel(), size)
            if low < high:
                found[name] = _Fragment(high - low, low)
            at += parameter.numel()
        return found

    def state(self, rank: int) -> dict[str, object]:
        """The optimizer_state_dict of one rank's file."""
        count = len(self.groups)
        paddings = [self.padding[i] if rank == WORLD - 1 else 0 for i in range(count)]
        masters = [self.master(rank, i).detach() for i in range(count)]
        return {
            "loss_scaler": _LossScaler(),
            "dynamic_loss_scale": False,
            "overflow": False,
            "clip_grad": 1.0,
            "base_optimizer_state": self.optimizers[rank].state_dict(),
            "single_partition_of_fp32_groups": [
                m[: m.numel() - padding].clone() for m, padding in zip(masters, paddings, strict=True)
            ],
            "zero_stage": _ZeroStage.gradients,
            "group_paddings": paddings,
            "partition_count": [WORLD] * count,
            "ds_version": "0.19.8",
            "param_slice_mappings": [self.fragments(rank, i) for i in range(count)],
        }


def deepspeed(
    run: Path,
    model: nn.Module,
    *,
    steps: int,
    saved: Collection[int],
    before_step: Hook = nothing,
    groups: Sequence[dict[str, Any]] | None = None,
    lr: float = 1e-3,
    weight_decay: float = 0.1,
) -> None:
    """Train a bfloat16 model with float32 masters and save global_stepN/ and `latest` as ZeRO-2 on two ranks does.

    groups: of AdamW, each with "names" of parameters in place of "params"; None: one with all that require gradients.
    """
    model.to(torch.bfloat16)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    zero = _Zero2(model, groups or [{"names": trained}], {"lr": lr, "weight_decay": weight_decay})
    settings = {
        "train_micro_batch_size_per_gpu": BATCH // WORLD,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW", "params": {"lr": lr, "weight_decay": weight_decay}},
        "bf16": {"enabled": True},
    }
    configure(run, learning_rate=lr, max_steps=steps, bf16=True, deepspeed=settings)
    loss = objective(model)
    with json_lines(run / "metrics.jsonl") as log:
        for step in range(1, steps + 1):
            model.zero_grad(set_to_none=False)
            value = loss(step)
            value.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            norm = float(nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0))
            before_step(step)
            zero.step()
            log({"step": step, "loss": value.item(), "grad_norm": norm, "lr": lr})
            if step in saved:
                _save_zero(run, step, zero, settings)


def _save_zero(run: Path, step: int, zero: _Zero2, settings: dict[str, object]) -> None:
    folder = run / f"global_step{step}"
    folder.mkdir()
    frozen = OrderedDict((n, p.detach()) for n, p in zero.model.named_parameters() if not p.requires_grad)
    states = {
        "module": OrderedDict((name, tensor.clone()) for name, tensor in zero.model.state_dict().items()),
        "buffer_names": [name for name, _ in zero.model.named_buffers()],
        "optimizer": None,
        "param_shapes": [OrderedDict((n, p.shape) for n, p in group) for group in zero.groups],
        "frozen_param_shapes": OrderedDict((n, p.shape) for n, p in frozen.items()),
        "shared_params": {},
        "frozen_param_fragments": frozen,
        "lr_scheduler": None,
        "data_sampler": None,
        "random_ltd": None,
        "skipped_steps": 0,
        "global_steps": step,
        "global_samples": step * BATCH,
        "dp_world_size": WORLD,
        "mp_world_size": 1,
        "ds_config": settings,
        "ds_version": "0.19.8",
    }
    with _names_of_deepspeed():
        torch.save(states, folder / "mp_rank_00_model_states.pt")
        for rank in range(WORLD):
            state = {"optimizer_state_dict": zero.state(rank), "ds_config": settings, "ds_version": "0.19.8"}
            torch.save(state, folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (run / "latest").write_text(folder.name, encoding="utf-8")


# ---------------------------------------------------------------------------------- DCP with FSDP on two gloo processes


class Words(nn.Module):
    """A next-token model of four tensors: DCP spends 2 kB on each piece of a tensor, whatever it holds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, width)
        self.inner = nn.Linear(width, 2 * width)
        self.head = nn.Linear(2 * width, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Give the logits of every next token, from this token alone."""
        logits: Tensor = self.head(nn.functional.gelu(self.inner(self.embedding(tokens))))
        return logits


def words(seed: int = 0, width: int = 8) -> Words:
    """A fresh one, the same in every process."""
    torch.manual_seed(seed)
    return Words(width)


@dataclass
class Setup:
    """What a process of a DCP run trains. before_step gets the wrapped model and the step.

    sharding: "ddp" saves with torch.save on rank 0, as scripts with DistributedDataParallel do.
    """

    model: nn.Module
    steps: int
    saved: Collection[int]
    sharding: Literal["fsdp2", "fsdp1", "ddp"] = "fsdp2"
    lr: float = PEAK
    weight_decay: float = 0.1
    before_step: Callable[[nn.Module, int], object] = lambda _model, _step: None
    groups: Callable[[nn.Module], Any] = lambda model: model.parameters()
    """Of the wrapped model: what its AdamW gets."""


def dcp(run: Path, setup: Callable[[], Setup]) -> None:
    """Train what `setup` gives on two processes, saving checkpoint-N/ with torch.distributed.checkpoint.

    setup: a function at the top of a recipe's module, which torchrun's processes import.
    """
    job = f"{Path(sys.modules[setup.__module__].__file__ or '').stem}:{setup.__name__}"
    made = setup()
    configure(
        run, learning_rate=made.lr, warmup_steps=10, max_steps=made.steps, strategy=made.sharding, world_size=WORLD
    )
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD)]
    start(run, [*command, str(HERE / "checkpoint_writers.py"), job, str(run)], {})


def _wrapped(made: Setup) -> nn.Module:
    from torch.distributed import fsdp  # noqa: PLC0415  only the processes of this writer need it

    if made.sharding == "fsdp1":
        return fsdp.FullyShardedDataParallel(made.model, device_id=torch.device("cpu"), use_orig_params=True)
    if made.sharding == "fsdp2":
        mesh = dist.device_mesh.init_device_mesh("cpu", (WORLD,))
        fsdp.fully_shard(made.model, mesh=mesh)
        return made.model
    return nn.parallel.DistributedDataParallel(made.model)


def _norm(model: nn.Module) -> float:
    """The gradient norm before clipping to 1, over all processes."""
    from torch.distributed import fsdp  # noqa: PLC0415  as above

    if isinstance(model, fsdp.FullyShardedDataParallel):
        return float(model.clip_grad_norm_(1.0))
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def _work(made: Setup, log: Log) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict  # noqa: PLC0415  as above
    from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415  as above

    model = _wrapped(made)
    optimizer = torch.optim.AdamW(made.groups(model), lr=made.lr, weight_decay=made.weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, constant(10))
    generator = np.random.default_rng(dist.get_rank() + 1)
    for step in range(1, made.steps + 1):
        tokens = CHAIN.sample(generator, length=LENGTH // 2 + 1)
        optimizer.zero_grad()
        value = next_token_loss(model(tokens[:, :-1]), tokens)
        value.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
        norm = _norm(model)
        made.before_step(model, step)
        rate = current_lr(optimizer)
        optimizer.step()
        schedule.step()
        log({"step": step, "loss": value.item(), "grad_norm": norm, "lr": rate})
        if step in made.saved and made.sharding == "ddp":
            if dist.get_rank() == 0:
                save_plain(Path(), step, model, optimizer, scheduler=schedule.state_dict())
        elif step in made.saved:
            weights, states = get_state_dict(model, optimizer)
            save({"model": weights, "optim": states, "step": step}, checkpoint_id=f"checkpoint-{step}")


def _process(job: str, run: Path) -> None:
    """One of the processes: rank 0 logs. It works inside the run directory: DCP keeps the path that it is given."""
    module, _, function = job.partition(":")
    dist.init_process_group("gloo")
    made: Setup = getattr(importlib.import_module(module), function)()
    os.chdir(run)
    _work(made, print_row if dist.get_rank() == 0 else lambda _row: None)
    dist.destroy_process_group()


if __name__ == "__main__":
    _process(sys.argv[1], Path(sys.argv[2]))
