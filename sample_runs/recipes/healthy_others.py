"""Healthy runs that are unlike a language model from scratch: losses that rise, swing, lie near zero or below it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from lab import (
    LENGTH,
    Chain,
    Log,
    Sample,
    adamw,
    beginning,
    console,
    cosine,
    csv_rows,
    current_lr,
    gradient_norm,
    json_lines,
    main,
    next_token_loss,
    plain_config,
    scheduler,
    silent,
    train,
    write_json,
)
from torch import Tensor, nn
from torch.nn import functional

torch.set_num_threads(1)  # of networks this small, a second thread only waits for the first

STEPS = 400
BATCH = 64


def perceptron(inputs: int, outputs: int, width: int = 64) -> nn.Sequential:
    """Three layers."""
    return nn.Sequential(
        nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, outputs)
    )


def update(optimizer: torch.optim.Optimizer, loss: Tensor, model: nn.Module, clip: float = 1.0) -> float:
    """One step of the optimizer; gives the gradient norm before clipping."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), clip))
    optimizer.step()
    return norm


def rings(generator: torch.Generator, count: int = BATCH) -> Tensor:
    """Points on two noisy circles."""
    angle = torch.rand(count, generator=generator) * 2 * math.pi
    radius = 1.0 + (torch.rand(count, generator=generator) > 0.5).float()
    noise = 0.05 * torch.randn(count, 2, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1) + noise


def annealed_vae(run: Path) -> None:
    """The weight of the KL term grows from 0 to 1 over three quarters of the run: the loss rises with it."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = nn.ModuleDict({"encoder": perceptron(8, 8), "decoder": perceptron(4, 8)})
    mixing = torch.randn(3, 8, generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    write_json(run / "config.json", {"learning_rate": 1e-3, "model": "vae", "kl_anneal_steps": 3 * STEPS // 4})
    with csv_rows(run / "log.csv", ("step", "loss", "recon_loss", "kl_loss", "beta", "grad_norm", "lr")) as log:
        for step in range(1, STEPS + 1):
            data = torch.randn(BATCH, 3, generator=generator) @ mixing
            mean, spread = model["encoder"](data).chunk(2, dim=1)
            drawn = mean + torch.randn_like(mean) * (0.5 * spread).exp()
            reconstruction = (model["decoder"](drawn) - data).square().sum(dim=1).mean()
            kl = 0.5 * (mean.square() + spread.exp() - 1 - spread).sum(dim=1).mean()
            beta = min(1.0, step / (0.75 * STEPS))
            loss = reconstruction + beta * kl
            norm = update(optimizer, loss, model)
            log({"step": step, "loss": loss.item(), "recon_loss": reconstruction.item(), "kl_loss": kl.item(),
                 "beta": beta, "grad_norm": norm, "lr": 1e-3})  # fmt: skip


def adversarial(run: Path) -> None:
    """A GAN: the losses of generator and discriminator swing and go nowhere."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    maker, judge = perceptron(4, 2), perceptron(2, 1)
    optimizers = [torch.optim.Adam(m.parameters(), lr=5e-4, betas=(0.5, 0.999)) for m in (maker, judge)]
    write_json(run / "config.json", {"learning_rate": 5e-4, "adam_beta1": 0.5, "batch_size": BATCH, "model": "gan"})
    with console(run / "train.log") as log:
        for step in range(1, 3 * STEPS + 1):
            real, fake = rings(generator), maker(torch.randn(BATCH, 4, generator=generator))
            judged = functional.softplus(-judge(real)).mean() + functional.softplus(judge(fake.detach())).mean()
            update(optimizers[1], judged, judge, clip=10.0)
            made = functional.softplus(-judge(fake)).mean()
            norm = update(optimizers[0], made, maker, clip=10.0)
            if step % 5 == 0:
                log({"step": step, "loss_G": made.item(), "loss_D": judged.item(), "grad_norm": norm, "lr": 5e-4})
        print("Training completed")


def contrastive(run: Path) -> None:
    """InfoNCE over pairs of views."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = perceptron(16, 16)
    optimizer = adamw(model, 1e-3)
    schedule = scheduler(optimizer, cosine(20, STEPS))
    write_json(
        run / "config.json", {"learning_rate": 1e-3, "batch_size": BATCH, "temperature": 0.1, "max_steps": STEPS}
    )
    with json_lines(run / "metrics.jsonl") as log:
        for step in range(1, STEPS + 1):
            data = torch.randn(BATCH, 16, generator=generator)
            views = [data + 0.8 * torch.randn(BATCH, 16, generator=generator) for _ in range(2)]
            first, second = (functional.normalize(model(view), dim=1) for view in views)
            loss = functional.cross_entropy(first @ second.T / 0.1, torch.arange(BATCH))
            rate = current_lr(optimizer)
            norm = update(optimizer, loss, model)
            schedule.step()
            log({"step": step, "contrastive_loss": loss.item(), "loss": loss.item(), "grad_norm": norm, "lr": rate})


def density(run: Path) -> None:
    """A mixture of Gaussians fitted by likelihood: densities are above 1, and the loss falls below zero."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = perceptron(1, 3 * 8)
    optimizer = adamw(model, 2e-3)
    write_json(run / "config.json", {"learning_rate": 2e-3, "loss": "nll", "batch_size": BATCH})
    with json_lines(run / "metrics.jsonl") as log:
        for step in range(1, STEPS + 1):
            point = torch.rand(BATCH, 1, generator=generator) * 6 - 3
            target = 0.3 * point.sin() + 0.02 * torch.randn(BATCH, 1, generator=generator)
            share, centre, spread = model(point).chunk(3, dim=1)
            parts = torch.distributions.Normal(centre, functional.softplus(spread) + 1e-2)
            likely: Tensor = parts.log_prob(target)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            loss = -(share.log_softmax(dim=1) + likely).logsumexp(dim=1).mean()
            norm = update(optimizer, loss, model)
            log({"step": step, "train_loss": loss.item(), "grad_norm": norm, "lr": 2e-3})


def denoising(run: Path) -> None:
    """A diffusion model: the loss falls at once and is then flat and noisy for the rest of the run."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = perceptron(3, 2, width=128)
    optimizer = adamw(model, 1e-3)
    write_json(run / "config.json", {"learning_rate": 1e-3, "train_batch_size": BATCH, "num_train_timesteps": 1000})
    with csv_rows(run / "log.csv", ("step", "loss", "grad_norm", "lr")) as log:
        for step in range(1, 3 * STEPS + 1):
            clean = rings(generator)
            time = torch.rand(BATCH, 1, generator=generator)
            noise = torch.randn(BATCH, 2, generator=generator)
            noisy = (0.5 * math.pi * time).cos() * clean + (0.5 * math.pi * time).sin() * noise
            loss = (model(torch.cat([noisy, time], dim=1)) - noise).square().mean()
            norm = update(optimizer, loss, model)
            log({"step": step, "loss": loss.item(), "grad_norm": norm, "lr": 1e-3})


def classes(run: Path) -> None:
    """A classifier of ten classes: the loss begins at ln 10, the accuracy of the evaluation rises."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(10, 16, generator=generator)
    model = perceptron(16, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def batch() -> tuple[Tensor, Tensor]:
        label = torch.randint(10, (BATCH,), generator=generator)
        return centres[label] + 0.9 * torch.randn(BATCH, 16, generator=generator), label

    write_json(run / "config.json", {"lr": 0.05, "momentum": 0.9, "num_classes": 10, "epochs": 20, "batch_size": BATCH})
    with console(run / "train.log"):
        for epoch in range(1, 21):
            total = 0.0
            for _ in range(20):
                data, label = batch()
                loss = functional.cross_entropy(model(data), label)
                update(optimizer, loss, model)
                total += loss.item() / 20
            with torch.no_grad():
                data, label = batch()
                logits = model(data)
                held_out, right = (
                    functional.cross_entropy(logits, label),
                    (logits.argmax(dim=1) == label).float().mean(),
                )
            print(f"Epoch {epoch}/20 - loss: {total:.4f} - val_loss: {held_out:.4f} - val_accuracy: {right:.4f}")
        print("Training completed")


def several_tasks(run: Path) -> None:
    """Detection in small: a sum of a classification, a box and an objectness loss, each logged."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = perceptron(12, 4 + 5 + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    schedule = scheduler(optimizer, lambda step: min(1.0, (step + 1) / 40) * (0.1 if step >= 300 else 1.0))
    projection = torch.randn(12, 6, generator=generator)
    write_json(run / "config.json", {"lr": 0.02, "momentum": 0.9, "weight_decay": 1e-4, "max_iters": STEPS})
    with json_lines(run / "metrics.json") as log:
        for step in range(1, STEPS + 1):
            data = torch.randn(BATCH, 12, generator=generator)
            truth = data @ projection
            boxes, logits, object_ = model(data).split([4, 5, 1], dim=1)
            parts = {
                "loss_cls": functional.cross_entropy(logits, truth[:, :5].argmax(dim=1)),
                "loss_box_reg": functional.smooth_l1_loss(boxes, truth[:, :4].tanh()),
                "loss_rpn_cls": functional.binary_cross_entropy_with_logits(object_[:, 0], (truth[:, 5] > 0).float()),
            }
            loss = torch.stack(list(parts.values())).sum()
            rate = current_lr(optimizer)
            update(optimizer, loss, model, clip=35.0)
            schedule.step()
            if step % 5 == 0:
                row = {name: value.item() for name, value in parts.items()}
                log({"iteration": step, "total_loss": loss.item(), **row, "lr": rate})


def preferences(run: Path) -> None:
    """DPO in small: the loss begins at ln 2, the margins grow, the loss goes towards zero."""
    chain, policy, generator = beginning()

    def first(_step: int) -> Tensor:
        tokens = chain.sample(generator)
        return next_token_loss(policy(tokens[:, :-1]), tokens)

    train(policy, adamw(policy, 3e-3), first, silent, steps=100)
    _, reference, _ = beginning()
    reference.load_state_dict(policy.state_dict())
    other = Chain.make(seed=7)
    optimizer = adamw(policy, 3e-5)
    config = plain_config(learning_rate=3e-5, beta=0.1, loss_type="sigmoid", max_steps=200, max_grad_norm=20.0)
    write_json(run / "config.json", config)
    with json_lines(run / "log.jsonl") as log:
        for step in range(1, 201):
            pair = [source.sample(generator, count=8) for source in (chain, other)]
            rewards = []
            for tokens in pair:
                scores = [model(tokens[:, :-1]).log_softmax(dim=-1) for model in (policy, reference)]
                taken = [score.gather(2, tokens[:, 1:, None])[..., 0].sum(dim=1) for score in scores]
                rewards.append(0.1 * (taken[0] - taken[1].detach()))
            margin = rewards[0] - rewards[1]
            loss = -functional.logsigmoid(margin).mean()
            norm = update(optimizer, loss, policy, clip=20.0)
            row = {"rewards/chosen": rewards[0].mean().item(), "rewards/rejected": rewards[1].mean().item()}
            row |= {"rewards/margins": margin.mean().item(), "rewards/accuracies": (margin > 0).float().mean().item()}
            log({"step": step, "loss": loss.item(), "grad_norm": norm, "learning_rate": 3e-5, **row})


def group_policy(run: Path) -> None:
    """GRPO in small: on-policy advantages sum to zero in each group, so the loss is 0 while the reward rises."""
    torch.manual_seed(0)
    policy = perceptron(4, 6)
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
    best = torch.randint(6, (16,))
    prompts = torch.randn(16, 4)
    write_json(run / "config.json", {"learning_rate": 2e-3, "num_generations": 8, "beta": 0.0, "max_steps": STEPS})
    with console(run / "train.log"):
        for step in range(1, STEPS + 1):
            which = torch.randint(16, (8,))
            chances = policy(prompts[which]).log_softmax(dim=1)
            drawn = torch.multinomial(chances.exp().detach(), 8, replacement=True)
            reward = (drawn == best[which][:, None]).float()
            deviation = reward.std(dim=1, keepdim=True)
            advantage = (reward - reward.mean(dim=1, keepdim=True)) / (deviation + 1e-4)
            taken = chances.gather(1, drawn)
            loss = -((taken - taken.detach()).exp() * advantage).mean()
            norm = update(optimizer, loss, policy)
            row = {"loss": round(loss.item(), 4) + 0.0, "grad_norm": norm, "learning_rate": 2e-3 * (1 - step / STEPS)}
            row |= {"reward": reward.mean().item(), "reward_std": deviation.mean().item(), "kl": 0.0}
            optimizer.param_groups[0]["lr"] = row["learning_rate"]
            print(row | {"epoch": round(step / STEPS, 4)})


def policy_and_value(run: Path) -> None:
    """PPO in small: the value loss grows with the returns, the policy loss lies around zero."""
    torch.manual_seed(0)
    policy, value = perceptron(3, 4), perceptron(3, 1)
    both = nn.ModuleList([policy, value])
    optimizer = torch.optim.Adam(both.parameters(), lr=3e-4)
    favour = torch.randn(3, 4)
    columns = ("global_step", "loss", "policy_loss", "value_loss", "entropy", "approx_kl", "ep_rew_mean", "lr")
    write_json(run / "config.json", {"learning_rate": 3e-4, "gamma": 0.99, "clip_range": 0.2, "n_steps": 256})
    with csv_rows(run / "progress.csv", columns) as log:
        for step in range(1, STEPS + 1):
            seen = torch.randn(256, 3)
            with torch.no_grad():
                before = policy(seen).log_softmax(dim=1)
                action = torch.multinomial(before.exp(), 1)[:, 0]
                returns = 20 * (seen @ favour).gather(1, action[:, None])[:, 0] * (1 + step / STEPS)
                advantage = returns - value(seen)[:, 0]
                advantage = (advantage - advantage.mean()) / advantage.std()
            for _ in range(4):
                after = policy(seen).log_softmax(dim=1)
                change = after.gather(1, action[:, None])[:, 0] - before.gather(1, action[:, None])[:, 0]
                ratio = change.exp()
                clipped = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                entropy = -(after.exp() * after).sum(dim=1).mean()
                value_loss = (value(seen)[:, 0] - returns).square().mean()
                policy_loss = -clipped.mean()
                loss = policy_loss + 0.5 * value_loss - 0.01 * entropy
                update(optimizer, loss, both, clip=0.5)
            log({"global_step": step, "loss": loss.item(), "policy_loss": policy_loss.item(),
                 "value_loss": value_loss.item(), "entropy": entropy.item(), "approx_kl": -change.mean().item(),
                 "ep_rew_mean": returns.mean().item(), "lr": 3e-4})  # fmt: skip


def curriculum(run: Path) -> None:
    """Sequences grow from 8 to 32 tokens: the mean over more context falls in steps, the time of a step grows."""
    chain, model, generator = beginning()
    optimizer = adamw(model, 3e-3)
    lengths = {}

    def objective(step: int) -> Tensor:
        length = min(LENGTH, 8 + 8 * (4 * step // STEPS))
        lengths[step] = length
        tokens = chain.sample(generator, length=length + 1)
        return next_token_loss(model(tokens[:, :-1]), tokens)

    def with_length(log: Log) -> Log:
        return lambda row: log({**row, "sequence_length": lengths[int(str(row["step"]))]})

    write_json(run / "config.json", plain_config(learning_rate=3e-3, max_steps=STEPS, curriculum="length"))
    schedule = scheduler(optimizer, cosine(20, STEPS))
    with json_lines(run / "metrics.jsonl") as log:
        train(model, optimizer, objective, with_length(log), steps=STEPS, schedule=schedule)


def small_regression(run: Path) -> None:
    """A regression of targets of the size of a millionth: loss and gradients are tiny and mean nothing by that."""
    torch.manual_seed(0)
    generator = np.random.default_rng(1)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    true = torch.from_numpy(generator.normal(size=(8, 1))).float()
    with torch.no_grad():
        model.weight.mul_(1e-3)
        model.bias.zero_()
    write_json(run / "config.json", {"learning_rate": 1e-4, "loss": "mse", "batch_size": BATCH})
    with csv_rows(run / "log.csv", ("step", "loss", "grad_norm", "lr")) as log:
        for step in range(1, STEPS + 1):
            data = torch.from_numpy(generator.normal(size=(BATCH, 8))).float()
            target = 1e-3 * data @ true + 2e-4 * torch.from_numpy(generator.normal(size=(BATCH, 1))).float()
            loss = (model(data) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            norm = gradient_norm(model)
            optimizer.step()
            log({"step": step, "loss": loss.item(), "grad_norm": norm, "lr": 1e-4})


def _healthy(name: str, make: Callable[[Path], None], note: str, ending: str = "unknown") -> Sample:
    return Sample(f"healthy-{name}", "healthy_others", make, note, twin=True, ending=ending)


DONE = "completed"
SAMPLES = (
    _healthy("vae", annealed_vae, "VAE with KL annealing: the loss rises as the weight of the KL term grows"),
    _healthy("gan", adversarial, "GAN on two rings: the losses of both networks hover around ln 2", DONE),
    _healthy("contrastive", contrastive, "InfoNCE on pairs of views, in batches of 64", DONE),
    _healthy("density", density, "mixture density network: the negative log-likelihood falls below zero"),
    _healthy("diffusion", denoising, "denoising diffusion on two rings: flat, noisy loss for most of the run"),
    _healthy("classifier", classes, "ten classes, one line per epoch with validation", DONE),
    _healthy("detection", several_tasks, "sum of three losses with warm-up and a step of the rate, metrics.json", DONE),
    _healthy("dpo", preferences, "DPO on a tiny language model: ln 2 at first, towards zero later", DONE),
    _healthy("grpo", group_policy, "GRPO on a bandit: loss 0.0, rewards of a group often equal"),
    _healthy(
        "ppo", policy_and_value, "PPO on a contextual bandit: the loss is that of the values, for growing returns"
    ),
    _healthy("curriculum", curriculum, "language model whose sequences grow during training", DONE),
    _healthy("regression", small_regression, "regression with a loss of a millionth"),
)

if __name__ == "__main__":
    main(SAMPLES)
