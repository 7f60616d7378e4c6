"""Healthy runs with checkpoints in which something looks like a fault and was meant: nothing may be said of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import checkpoint_writers as writers
import hf_lab
import torch
from checkpoint_lab import CHAIN, VOCAB, configure, objective, save, small_lm, train_and_save
from healthy_others import perceptron, rings, update
from lab import (
    Chain,
    Sample,
    constant,
    current_lr,
    json_lines,
    main,
    scheduler,
    silent,
    train,
    write_json,
)
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import Trainer

torch.set_num_threads(1)

STEPS, SAVED = 80, (60, 61)
PEAK = 3e-3
AdamW = torch.optim.AdamW


def plain(
    run: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[int], Tensor] | None = None,
    *,
    steps: int = STEPS,
    saved: tuple[int, ...] = SAVED,
    before_step: Callable[[int], object] | None = None,
    **facts: object,
) -> None:
    """A plain loop with a linear warm-up of ten steps, its configuration and its log."""
    configure(run, learning_rate=current_lr(optimizer), warmup_steps=10, max_steps=steps, **facts)
    with json_lines(run / "metrics.jsonl") as log:
        train_and_save(
            run, model, optimizer, loss or objective(model), log, steps=steps, saved=saved,
            schedule=scheduler(optimizer, constant(10)), before_step=before_step,
        )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- freezing


def _frozen(names: tuple[str, ...]) -> nn.Module:
    """A model that was trained before, whose parameters that begin with one of the names require no gradients."""
    model = small_lm(layers=2, width=8)
    train(model, AdamW(model.parameters(), lr=PEAK), objective(model, seed=7), silent, steps=120)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(names))
    return model


def frozen_in_place(run: Path) -> None:
    """The embeddings and the first block require no gradients; the optimizer got all parameters."""
    model = _frozen(("embedding", "position", "blocks.0"))
    plain(run, model, AdamW(model.parameters(), lr=1e-3))


def frozen_by_setting(run: Path) -> None:
    """The same by keys of the configuration; the optimizer got what is trained."""
    model = _frozen(("embedding", "position", "blocks.0"))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    plain(run, model, AdamW(trained, lr=1e-3), freeze_embeddings=True, freeze_layers=1)


def unfrozen(run: Path) -> None:
    """Head and norm first; the block joins as a group of its own after step 40, the embeddings after step 60."""
    model = _frozen(("embedding", "position", "blocks"))
    optimizer = AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-3)
    loss = objective(model)
    configure(run, learning_rate=1e-3, max_steps=STEPS, gradual_unfreezing=True)
    with json_lines(run / "metrics.jsonl") as log:
        for first, last, joins in ((1, 40, "blocks.1"), (41, 60, "embedding"), (61, STEPS, "")):
            train_and_save(run, model, optimizer, loss, log, first=first, steps=last, saved=(40, 41, STEPS))
            joining = [p for name, p in model.named_parameters() if joins and name.startswith(joins)]
            if joining:
                optimizer.add_param_group({"params": [p.requires_grad_() for p in joining], "lr": 3e-4})


class Adapted(nn.Module):
    """A linear layer (in GPT-2's form, weights (in, out)) that is frozen, with an adapter of low rank beside it."""

    def __init__(self, base: nn.Module, rank: int = 4) -> None:
        super().__init__()
        width_in, width_out = base.weight.shape  # type: ignore[misc]  # of a Conv1D it is a matrix
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(width_in, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, width_out, bias=False)})
        nn.init.zeros_(self.lora_B["default"].weight)  # type: ignore[arg-type]  # of a Linear it is a tensor

    def forward(self, hidden: Tensor) -> Tensor:
        """The frozen layer, plus twice the adapter."""
        changed: Tensor = self.base_layer(hidden) + 2.0 * self.lora_B["default"](self.lora_A["default"](hidden))
        return changed


ADAPTER = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny-gpt2", "r": 4, "lora_alpha": 8,
    "lora_dropout": 0.0, "bias": "none", "target_modules": ["c_attn"], "fan_in_fan_out": True, "inference_mode": True,
}  # fmt: skip


class _AdapterTrainer(Trainer):  # type: ignore[misc]  # mypy is told not to follow transformers
    """Saves what PEFT's models save: the adapter under its names, and its configuration."""

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(exist_ok=True)
        weights = state_dict or self.model.state_dict()
        adapter = {
            f"base_model.model.{name.replace('.default', '')}": tensor.contiguous()
            for name, tensor in weights.items()
            if ".lora_" in name
        }
        save_file(adapter, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        write_json(folder / "adapter_config.json", ADAPTER)


def adapters(run: Path) -> None:
    """LoRA through the Trainer; at step 1 every B has just left 0, and no A has had a gradient."""
    model = hf_lab.tiny_gpt2(VOCAB, width=16)
    hf_lab.pretrain(model, CHAIN, steps=60)
    model.requires_grad_(False)
    for layer in model.transformer.h:
        layer.attn.c_attn = Adapted(layer.attn.c_attn)
    writers.trainer(
        run, model, steps=60, saved=(1, 40, 41), trainer_class=_AdapterTrainer,
        learning_rate=1e-3, warmup_steps=0, lr_scheduler_type="constant", weight_decay=0.0,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------- parameters that lie still


def tied(run: Path) -> None:
    """GPT-2 with tied embeddings through the Trainer: the head has no tensor of its own."""
    writers.trainer(run, hf_lab.tiny_gpt2(VOCAB, width=8, layers=1, tied=True), steps=STEPS, saved=SAVED)


def unseen(run: Path) -> None:
    """A vocabulary of 48 of which 32 occur, positions up to 64 of which 16 occur: rows without any gradient."""
    torch.manual_seed(0)
    from lab import TinyLM  # noqa: PLC0415

    model = TinyLM(vocab=VOCAB + 16, width=8, layers=1)
    plain(run, model, AdamW(model.parameters(), lr=PEAK, weight_decay=0.0), vocab_size=VOCAB + 16)


class Modulated(nn.Module):
    """Two residual branches whose shift, scale and gate come from a condition, all 0 at first, and a head of 0."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.inner = nn.Linear(2, width)
        self.time_embed = nn.Linear(8, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({
                "norm": nn.LayerNorm(width, elementwise_affine=False),
                "adaLN_modulation": nn.Linear(width, 3 * width),
                "up": nn.Linear(width, 2 * width),
                "down": nn.Linear(2 * width, width),
            })
            for _ in range(2)
        )  # fmt: skip
        self.final_layer = nn.Linear(width, 2)
        for layer in (self.final_layer, *(block["adaLN_modulation"] for block in self.blocks)):  # type: ignore[index]  # a ModuleDict in a ModuleList
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, noisy: Tensor, time: Tensor) -> Tensor:
        """The noise in points (n, 2) at times (n,)."""
        frequencies = torch.arange(1, 5)
        condition = self.time_embed(torch.cat([f(time[:, None] * frequencies) for f in (torch.sin, torch.cos)], 1))
        hidden = self.inner(noisy)
        for block in self.blocks:
            shift, scale, gate = block["adaLN_modulation"](functional.silu(condition)).chunk(3, 1)  # type: ignore[index]  # a ModuleDict in a ModuleList
            inner = block["norm"](hidden) * (1 + scale) + shift  # type: ignore[index]  # a ModuleDict in a ModuleList
            hidden = hidden + gate * block["down"](functional.silu(block["up"](inner)))  # type: ignore[index]  # a ModuleDict in a ModuleList
        out: Tensor = self.final_layer(hidden)
        return out


def zero_init(run: Path) -> None:
    """A diffusion model with adaLN-zero and a head of 0: saved after steps 1 and 2, when most gradients are still 0."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Modulated()

    def loss(_step: int) -> Tensor:
        data, noise = rings(generator), torch.randn(64, 2, generator=generator)
        time = torch.rand(64, generator=generator)
        angle = (time * torch.pi / 2)[:, None]
        return functional.mse_loss(model(data * angle.cos() + noise * angle.sin(), time), noise)

    optimizer = AdamW(model.parameters(), lr=PEAK, weight_decay=0.0)
    write_json(run / "config.json", {"model": "dit", "learning_rate": PEAK, "max_steps": 240, "warmup_steps": 10})
    with json_lines(run / "metrics.jsonl") as log:
        schedule = scheduler(optimizer, lambda step: min(1.0, (step + 1) / 10))
        train_and_save(run, model, optimizer, loss, log, steps=240, saved=(1, 2), schedule=schedule)


def pruned(run: Path) -> None:
    """Half of every matrix of the block was pruned for good; the fine-tuning keeps those weights at 0."""
    model = small_lm(layers=1, width=8)
    train(model, AdamW(model.parameters(), lr=PEAK), objective(model, seed=7), silent, steps=120)
    masks: list[tuple[Tensor, Tensor]] = []
    for module in model.modules():
        if isinstance(module, nn.Linear) and module is not model.head:
            prune.l1_unstructured(module, "weight", amount=0.5)  # type: ignore[no-untyped-call]  # torch leaves it so
            mask: Tensor = module.weight_mask.clone()  # type: ignore[operator]  # the buffer that prune made
            prune.remove(module, "weight")  # type: ignore[no-untyped-call]  # torch leaves it untyped
            masks.append((module.weight, mask))

    def masked(_step: int) -> None:
        for weight, mask in masks:
            assert weight.grad is not None
            weight.grad.mul_(mask)

    plain(run, model, AdamW(model.parameters(), lr=1e-3), before_step=masked, sparsity=0.5)


def averaged(run: Path) -> None:
    """An exponential moving average of the weights is saved beside them."""
    model = small_lm(layers=1, width=8)
    optimizer = AdamW(model.parameters(), lr=PEAK)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))  # type: ignore[no-untyped-call]  # torch leaves it so
    schedule, loss = scheduler(optimizer, constant(10)), objective(model)
    configure(run, learning_rate=PEAK, warmup_steps=10, max_steps=STEPS, ema_decay=0.95)
    with json_lines(run / "metrics.jsonl") as log:
        for step in range(1, STEPS + 1):
            train(model, optimizer, loss, log, first=step, steps=step, schedule=schedule)
            average.update_parameters(model)
            if step in SAVED:
                save(run, step, model, optimizer, ema=average.state_dict(), scheduler=schedule.state_dict())


class Net(nn.Module):
    """Two convolutions with batch normalization, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.fc = nn.Linear(12, 4)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (samples, 4)."""
        hidden = functional.max_pool2d(functional.relu(self.bn1(self.conv1(images))), 2)
        hidden = functional.relu(self.bn2(self.conv2(hidden)))
        logits: Tensor = self.fc(hidden.mean((2, 3)))
        return logits


def normalized(run: Path) -> None:
    """A convolutional classifier whose running statistics are saved with the weights."""
    torch.manual_seed(0)
    model, shapes = Net(), torch.randn(4, 1, 8, 8)

    def loss(_step: int) -> Tensor:
        labels = torch.randint(4, (32,))
        return functional.cross_entropy(model(shapes[labels] + torch.randn(32, 1, 8, 8)), labels)

    optimizer = AdamW(model.parameters(), lr=PEAK)
    write_json(run / "config.json", {"model": "cnn", "learning_rate": PEAK, "max_steps": 120, "num_labels": 4})
    with json_lines(run / "metrics.jsonl") as log:
        train_and_save(run, model, optimizer, loss, log, steps=120, saved=(60, 61, 120))


# --------------------------------------------------------------------------------------------- two networks in one file


def two_networks(run: Path) -> None:
    """A GAN: generator and discriminator, each with its optimizer, in one file."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    maker, judge = perceptron(4, 2, width=16), perceptron(2, 1, width=16)
    made_by, judged_by = (torch.optim.Adam(m.parameters(), lr=5e-4, betas=(0.5, 0.999)) for m in (maker, judge))
    write_json(run / "config.json", {"learning_rate": 5e-4, "adam_beta1": 0.5, "batch_size": 64, "model": "gan"})
    with json_lines(run / "metrics.jsonl") as log:
        for step in range(1, 601):
            real, fake = rings(generator), maker(torch.randn(64, 4, generator=generator))
            judged = functional.softplus(-judge(real)).mean() + functional.softplus(judge(fake.detach())).mean()
            update(judged_by, judged, judge, clip=10.0)
            made = functional.softplus(-judge(fake)).mean()
            norm = update(made_by, made, maker, clip=10.0)
            if step % 5 == 0:
                log({"step": step, "loss_G": made.item(), "loss_D": judged.item(), "grad_norm": norm, "lr": 5e-4})
            if step in (500, 501, 600):
                state = {
                    "generator": maker.state_dict(), "discriminator": judge.state_dict(), "step": step,
                    "optimizer_g": made_by.state_dict(), "optimizer_d": judged_by.state_dict(),
                }  # fmt: skip
                torch.save(state, run / f"checkpoint-{step:06d}.pt")


def target_network(run: Path) -> None:
    """DQN on a small contextual problem: a target network follows the trained one and has no optimizer."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    online, target = perceptron(4, 3, width=16), perceptron(4, 3, width=16).requires_grad_(False)
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
    goals = torch.randn(4, 3, generator=generator)
    write_json(run / "config.json", {"algorithm": "dqn", "learning_rate": 1e-3, "gamma": 0.5, "tau": 0.05})
    with json_lines(run / "metrics.jsonl") as log:
        for step in range(1, 401):
            state, following = torch.randn(2, 64, 4, generator=generator)
            action = torch.randint(3, (64,), generator=generator)
            reward = torch.tanh(state @ goals).gather(1, action[:, None]).squeeze(1)
            wanted = reward + 0.5 * target(following).amax(1)
            value = online(state).gather(1, action[:, None]).squeeze(1)
            loss = functional.smooth_l1_loss(value, wanted)
            norm = update(optimizer, loss, online, clip=10.0)
            for old, new in zip(target.parameters(), online.parameters(), strict=True):
                old.data.lerp_(new.data, 0.05)
            if step % 5 == 0:
                log({"step": step, "td_loss": loss.item(), "q_mean": value.mean().item(), "grad_norm": norm})
            if step in (200, 201, 400):
                kept = {"q_network": online.state_dict(), "target_network": target.state_dict(), "step": step}
                torch.save(kept | {"optimizer": optimizer.state_dict()}, run / f"checkpoint-{step:06d}.pt")


# ------------------------------------------------------------------------------------------------ beginnings and ends


def resumed(run: Path) -> None:
    """A second launch went on from the checkpoint of step 60 with everything restored."""
    model = small_lm(layers=1, width=8)
    optimizer = AdamW(model.parameters(), lr=PEAK)
    schedule = scheduler(optimizer, constant(10))
    configure(run, learning_rate=PEAK, warmup_steps=10, max_steps=120, resume_from_checkpoint="checkpoint-000060.pt")
    loss = objective(model)
    with json_lines(run / "metrics.jsonl") as log:
        train_and_save(run, model, optimizer, loss, log, steps=60, saved=(60,), schedule=schedule)
    kept = torch.load(run / "checkpoint-000060.pt", weights_only=True)
    model = small_lm(seed=9, layers=1, width=8)
    optimizer = AdamW(model.parameters(), lr=PEAK)
    schedule = scheduler(optimizer, constant(10))
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    schedule.load_state_dict(kept["scheduler"])
    with json_lines(run / "metrics.jsonl", "a") as log:
        train_and_save(
            run, model, optimizer, objective(model, seed=2), log, first=61, steps=120, saved=(61,),
            schedule=schedule,
        )  # fmt: skip


def fine_tuned(run: Path) -> None:
    """The Trainer on a model that was trained elsewhere, with a fresh optimizer; the base model lies in the run."""
    model = hf_lab.tiny_gpt2(VOCAB, width=8, layers=1)
    hf_lab.pretrain(model, CHAIN, steps=200)
    model.save_pretrained(run / "base")
    (run / "base" / "generation_config.json").unlink()
    other = Chain.make(seed=5, vocab=VOCAB)
    writers.trainer(
        run, model, steps=60, saved=(1, 40), data=hf_lab.fresh(other, 60), learning_rate=1e-3, warmup_steps=5,
        lr_scheduler_type="linear",
    )  # fmt: skip


def begun(run: Path) -> None:
    """Checkpoints of steps 0 and 1 only: no state, then one update."""
    model = small_lm(layers=1, width=8)
    optimizer = AdamW(model.parameters(), lr=PEAK)
    save(run, 0, model, optimizer)
    configure(run, learning_rate=PEAK, max_steps=STEPS)
    with json_lines(run / "metrics.jsonl") as log:
        train_and_save(run, model, optimizer, objective(model), log, steps=STEPS, saved=(1,))


def ended(run: Path) -> None:
    """One checkpoint at the end, weights only."""
    model = small_lm(layers=2, width=8)
    optimizer = AdamW(model.parameters(), lr=PEAK)
    configure(run, learning_rate=PEAK, warmup_steps=10, max_steps=STEPS)
    with json_lines(run / "metrics.jsonl") as log:
        train(model, optimizer, objective(model), log, steps=STEPS, schedule=scheduler(optimizer, constant(10)))
    torch.save(model.state_dict(), run / "model_final.pt")


def _run(name: str, make: Callable[[Path], None], note: str, case: str, ending: str = "completed") -> Sample:
    return Sample(
        f"healthy-{name}", "healthy_checkpoints", make, note, case=case, twin=True, ending=ending, checkpoints=True
    )


SAMPLES = (
    _run("frozen", frozen_in_place, "embeddings and a block are frozen, all given to the optimizer", "GF10"),
    _run("frozen-config", frozen_by_setting, "the same, and the configuration says so", "GF10"),
    _run("unfreezing", unfrozen, "gradual unfreezing: groups join during the run, their counters lag", "GF01"),
    _run("lora", adapters, "LoRA through the Trainer: B is 0 at first, A has no gradient in step 1", "GF18"),
    _run("tied", tied, "GPT-2 with tied embeddings through the Trainer", "GF37"),
    _run("unseen-rows", unseen, "rows of the embeddings that no token ever asked for", "GF38"),
    _run("zero-init", zero_init, "adaLN-zero and a head of zeros, saved when most gradients are still 0", "GF10"),
    _run("pruned", pruned, "half of every matrix was pruned for good", "GF10"),
    _run("ema", averaged, "a moving average of the weights beside them", "GF46"),
    _run("batchnorm", normalized, "running statistics and counters of batches beside the weights", "GF47"),
    _run("gan-checkpoints", two_networks, "a GAN's two networks and optimizers in one file", "GF30", ending="unknown"),
    _run("target-network", target_network, "a target network that no optimizer trains", "GF01", ending="unknown"),
    _run("resumed", resumed, "resumed at step 60 with everything restored", "GF29"),
    _run("fine-tuned", fine_tuned, "a base model beside the checkpoints of its fine-tuning", "GF01"),
    _run("first-steps", begun, "checkpoints of steps 0 and 1 only", "GF29"),
    _run("last-only", ended, "one checkpoint at the end, weights only", "GF11"),
)  # fmt: skip

if __name__ == "__main__":
    main(SAMPLES)
