"""Runs that are unlike a language model from scratch, or that only stopped: no alarm by any rule of the catalogue.

The logs are generated, with the numbers that such runs have (each test says whose); trained ones lie in sample_runs as
healthy-*. HEALTHY names them all: a rule that is added must leave every one of them without an alarm.
"""

import json
import math
import random
from collections.abc import Callable

import pytest

Log = str | dict[str, str]
HEALTHY: dict[str, Callable[[], Log]] = {}


def healthy(log: Callable[[], Log]) -> Callable[[], Log]:
    HEALTHY[log.__name__] = log
    return log


def noise(seed: int) -> Callable[[float], float]:
    drawn = random.Random(seed)
    return lambda scale: drawn.gauss(0.0, scale)


def dict_lines(rows: list[dict[str, object]]) -> str:
    return "\n".join(str(row) for row in rows) + "\n"


def json_lines(rows: list[dict[str, object]]) -> dict[str, str]:
    return {"metrics.jsonl": "\n".join(json.dumps(row) for row in rows) + "\n"}


def csv(rows: list[dict[str, object]], name: str = "log.csv") -> dict[str, str]:
    lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
    return {name: "\n".join(lines) + "\n"}


def trainer_state(rows: list[dict[str, object]], **facts: object) -> dict[str, str]:
    state = {"log_history": rows, "global_step": rows[-1]["step"], "max_steps": rows[-1]["step"], **facts}
    return {"trainer_state.json": json.dumps(state)}


def falling(first: float, last: float, share: float) -> float:
    """A loss that falls fast and then slowly; share: of the run that is done."""
    return last + (first - last) * math.exp(-6 * share)


# -- reinforcement learning and preferences --------------------------------------------------------------------------


@healthy
def grpo_with_all_rewards_equal() -> Log:
    """trl issue 3857: loss 0.0, grad_norm 0.0 and reward_std 0.0 for a while, then learning goes on."""
    wave = noise(1)
    rows: list[dict[str, object]] = []
    for i in range(1, 121):
        solved = i > 80
        rows.append(
            {
                "loss": 0.0 if solved else round(abs(wave(0.002)), 4),
                "grad_norm": 0.0 if solved else 0.3 + abs(wave(0.1)),
                "learning_rate": 1e-6 * (1 - i / 120),
                "reward": 3.0 if solved else 1.0 + i / 60 + wave(0.2),
                "reward_std": 0.0 if solved else 0.4 + abs(wave(0.1)),
                "kl": 0.0004 * i,
                "completion_length": 180 + wave(20),
                "epoch": i / 120,
            }
        )
    return dict_lines(rows)


@healthy
def grpo_with_a_loss_that_grows_with_its_kl() -> Log:
    """TRL: the loss is beta times the KL term, so it rises from 0 while the policy moves (documentation of GRPO)."""
    wave = noise(2)
    rows: list[dict[str, object]] = [
        {
            "step": 5 * i,
            "loss": max(0.0, 0.04 * 0.002 * i + wave(0.0004)),
            "grad_norm": 0.4 + abs(wave(0.2)),
            "learning_rate": 5e-7,
            "reward": 0.2 + 0.6 * i / 200 + wave(0.05),
            "reward_std": 0.3 + wave(0.03),
            "kl": 0.002 * i,
        }
        for i in range(1, 201)
    ]
    return trainer_state(rows)


@healthy
def ppo_returns() -> Log:
    """Stable-Baselines3: value loss of hundreds that rises with the returns, policy loss below zero, noisy reward."""
    wave = noise(3)
    rows: list[dict[str, object]] = [
        {
            "time/total_timesteps": 2048 * i,
            "rollout/ep_rew_mean": -200 + 400 * (1 - math.exp(-i / 60)) + wave(25),
            "train/loss": 20 + 0.8 * i + wave(15),
            "train/policy_gradient_loss": -0.01 + wave(0.004),
            "train/value_loss": 60 + 2 * i + wave(20),
            "train/entropy_loss": -1.4 + i / 300,
            "train/approx_kl": 0.008 + abs(wave(0.003)),
            "train/learning_rate": 3e-4,
        }
        for i in range(1, 201)
    ]
    return csv(rows, "progress.csv")


@healthy
def a_reinforce_loss_of_either_sign() -> Log:
    """Policy gradients: the loss is an advantage times a log-probability; its sign and size mean nothing."""
    wave = noise(4)
    return json_lines(
        [
            {"step": i, "loss": wave(3.0) - 0.5, "reward": 10 * (1 - math.exp(-i / 100)) + wave(1), "lr": 1e-3}
            for i in range(1, 401)
        ]
    )


@healthy
def dpo_from_ln_2() -> Log:
    """TRL's DPOTrainer: ln 2 at first, 0.05 at the end of the epochs; chosen rewards fall too, margins grow."""
    wave = noise(5)
    rows: list[dict[str, object]] = [
        {
            "loss": round(max(0.01, falling(math.log(2), 0.08, i / 150) + wave(0.03)), 4),
            "grad_norm": 12 + abs(wave(6)),
            "learning_rate": 5e-7 * (1 - i / 150),
            "rewards/chosen": -0.01 * i + wave(0.1),
            "rewards/rejected": -0.05 * i + wave(0.1),
            "rewards/accuracies": min(1.0, 0.5 + i / 200),
            "rewards/margins": 0.04 * i + wave(0.1),
            "logps/chosen": -280 - 0.1 * i,
            "logps/rejected": -300 - 0.5 * i,
            "epoch": i / 50,
        }
        for i in range(1, 151)
    ]
    return dict_lines(rows)


# -- losses that rise, swing or lie below zero -----------------------------------------------------------------------


@healthy
def a_vae_under_kl_annealing() -> Log:
    """Bowman et al. 2016: the weight of the KL term goes from 0 to 1 in the middle of the run, and the loss rises."""
    wave = noise(6)

    def weight(i: int) -> float:
        return 1 / (1 + math.exp(-(i - 250) / 30))

    return json_lines(
        [
            {
                "step": i,
                "loss": falling(110, 62, i / 500) + 30 * weight(i) + wave(1.0),
                "recon_loss": falling(110, 62, i / 500) + wave(1.0),
                "kl_loss": 30 * math.exp(-i / 2000) + wave(0.5),
                "kl_weight": weight(i),
                "grad_norm": 3 + abs(wave(0.5)),
                "lr": 1e-3,
            }
            for i in range(1, 501)
        ]
    )


@healthy
def a_gan_whose_losses_swing() -> Log:
    """DCGAN: both losses swing by their own size and go nowhere; G's rises as D learns."""
    wave = noise(7)
    return "".join(
        f"[{i // 40}/25][{i % 40}/40]\tLoss_D: {abs(0.5 + 0.3 * math.sin(i / 9) + wave(0.25)):.4f}\t"
        f"Loss_G: {abs(2.0 + 1.5 * math.sin(i / 9 + 2) + i / 400 + wave(0.8)):.4f}\tD(x): {0.75 + wave(0.08):.4f}\n"
        for i in range(1000)
    )


@healthy
def a_wasserstein_critic() -> Log:
    """WGAN-GP: the critic's loss begins far below zero and comes towards it."""
    wave = noise(8)
    return csv(
        [{"step": 10 * i, "d_loss": -40 * math.exp(-i / 80) - 2 + wave(1), "g_loss": wave(15)} for i in range(1, 301)]
    )


@healthy
def a_likelihood_of_densities() -> Log:
    """Normalising flows and mixture densities: the negative log-likelihood goes through zero to -3."""
    wave = noise(9)
    return json_lines(
        [
            {"step": i, "loss": falling(2.1, -3.0, i / 400) + wave(0.15), "grad_norm": 4 + abs(wave(3)), "lr": 1e-3}
            for i in range(1, 401)
        ]
    )


@healthy
def speech_separation() -> Log:
    """SI-SNR (asteroid, Conv-TasNet): negative decibels from the first epoch on."""
    wave = noise(10)
    return "".join(
        f"Epoch {i} | Train Loss: {falling(-2.0, -16.5, i / 80) + wave(0.15):.4f} | "
        f"Val Loss: {falling(-3.0, -15.5, i / 80) + wave(0.2):.4f}\n"
        for i in range(1, 81)
    )


@healthy
def face_recognition_with_margins() -> Log:
    """ArcFace: the margin keeps the loss at 20 for long (above ln of 85 742 classes), then it falls; the rate steps."""
    wave = noise(11)
    return "".join(
        f"Training: Loss {falling(38, 4, max(0.0, i / 300 - 0.15)) + wave(0.4):.4f}   "
        f"LearningRate {0.1 if i < 200 else 0.01:.6f}   Epoch: {i // 30}   "
        f"Global Step: {50 * i}   Fp16 Grad Scale: 32768\n"
        for i in range(1, 301)
    )


# -- small, flat and summed losses -----------------------------------------------------------------------------------


@healthy
def a_diffusion_model() -> Log:
    """DDPM on images: 0.02 after a few hundred steps, flat and noisy by a factor of two from then on."""
    wave = noise(12)
    return json_lines(
        [
            {
                "step": 50 * i,
                "train_loss": max(0.004, falling(0.9, 0.022, min(1.0, i / 60)) * math.exp(wave(0.25))),
                "lr": 1e-4 * min(1.0, i / 10),
                "grad_norm": 0.05 * math.exp(wave(0.4)),
            }
            for i in range(1, 401)
        ]
    )


@healthy
def a_latent_diffusion_fine_tuning() -> Log:
    """diffusers' text-to-image and DreamBooth scripts: the loss of single steps is all noise from 0.005 to 0.5."""
    drawn = random.Random(13)
    rows = [
        f"Steps: {i * 100 // 400:3d}%|##        | {i}/400 [00:10<01:00,  1.5it/s, "
        f"lr=1e-05, step_loss={10 ** drawn.uniform(-2.3, -0.3):.3g}]"
        for i in range(1, 401)
    ]
    return "\n".join(rows) + "\n"


@healthy
def a_regression_of_tiny_targets() -> Log:
    """pytorch-lightning on returns of stocks: losses of 1e-4 from the first epoch on."""
    wave = noise(14)
    return csv(
        [
            {
                "epoch": i,
                "train_loss": 2.1e-4 * (1 + 2 * math.exp(-i / 5)) * math.exp(wave(0.05)),
                "val_loss": 2.4e-4 * math.exp(wave(0.05)),
            }
            for i in range(100)
        ]
    )


@healthy
def infonce_at_ln_batch() -> Log:
    """CLIP-like: ln(32768) = 10.4 at first, 1.5 later, temperature learned."""
    wave = noise(15)
    return json_lines(
        [
            {
                "step": 10 * i,
                "loss": falling(10.3, 1.5, i / 300) + wave(0.05),
                "logit_scale": 14 + i / 4,
                "lr": 5e-4 * min(1, i / 20),
                "grad_norm": 0.8 + abs(wave(0.3)),
            }
            for i in range(1, 301)
        ]
    )


@healthy
def a_classifier_at_ln_classes() -> Log:
    """ResNet-50 on ImageNet: 6.9 = ln 1000 at first, the rate steps at epochs 30 and 60, accuracy printed."""
    wave = noise(16)
    return "".join(
        f"Epoch: [{i // 10}][{i % 10 * 500}/5000]\tTime 0.31 (0.32)\tData 0.00 (0.01)\t"
        f"Loss {falling(6.93, 1.9 - (i > 300) * 0.5 - (i > 600) * 0.25, i / 150) + wave(0.08):.4e} (2.2)\t"
        f"Acc@1 {min(76.0, i / 8) + wave(1):.2f}\n"
        for i in range(900)
    )


@healthy
def a_detector() -> Log:
    """Detectron2: total_loss is a sum of five that rises for the first hundred steps of warm-up; box AP rises later."""
    wave = noise(17)
    rows: list[dict[str, object]] = []
    for i in range(1, 301):
        parts = {
            "loss_cls": falling(4.4, 0.3, i / 200) + abs(wave(0.03)),
            "loss_box_reg": 0.02 + 0.45 * min(1, i / 15) * math.exp(-i / 300) + abs(wave(0.03)),
            "loss_rpn_cls": falling(0.7, 0.05, i / 100) + abs(wave(0.01)),
            "loss_rpn_loc": 0.1 + abs(wave(0.02)),
            "loss_mask": falling(0.69, 0.3, i / 200) + abs(wave(0.02)),
        }
        rate = 0.02 * min(1.0, i / 50) * (0.1 if i > 220 else 1)
        rows.append({"iteration": 20 * i - 1, "total_loss": sum(parts.values()), **parts, "lr": rate, "time": 0.41})
        if i % 60 == 0:
            rows.append({"iteration": 20 * i - 1, "bbox/AP": 5 + i / 9})
    return {"metrics.json": "\n".join(json.dumps(row) for row in rows) + "\n"}


@healthy
def a_sum_over_tasks_and_perplexity() -> Log:
    """Multi-task T5-like: a sum of hundreds beside its parts and the perplexity of one of them."""
    wave = noise(18)
    rows: list[dict[str, object]] = []
    for i in range(1, 301):
        tokens, spans, value = (
            falling(9.2, 2.2, i / 300) + wave(0.04),
            falling(180, 60, i / 300) + wave(4),
            falling(40, 12, i / 300) + wave(1),
        )
        rows.append(
            {
                "step": 10 * i,
                "loss": tokens + spans + value,
                "lm_loss": tokens,
                "span_loss": spans,
                "value_loss": value,
                "ppl": math.exp(tokens),
                "lr": 1e-4,
            }
        )
    return json_lines(rows)


@healthy
def a_curriculum_of_lengths() -> Log:
    """The length doubles at each third of the run: the loss jumps by a little, the time of a step doubles."""
    wave = noise(19)
    rows: list[dict[str, object]] = []
    for i in range(1, 451):
        phase = (i - 1) // 150
        jump = 0.12 * math.exp(-((i - 1) % 150) / 20) * (phase > 0)
        rows.append(
            {
                "step": 10 * i,
                "loss": falling(8.0, 2.6, i / 450) + jump + wave(0.03),
                "seq_len": 512 << phase,
                "step_time": 0.5 * 2**phase + abs(wave(0.01)),
                "lr": 3e-4 * min(1, i / 20),
                "grad_norm": 0.6 + abs(wave(0.1)),
            }
        )
    return json_lines(rows)


# -- runs that were fine and only stopped ----------------------------------------------------------------------------


def training(first: int, last: int, total: int = 400, seed: int = 20) -> str:
    """Lines of a healthy fine-tuning; the same step has the same values in every launch."""
    lines = []
    for i in range(first, last + 1):
        wave = noise(1000 * seed + i)
        loss, norm = falling(2.4, 1.1, i / total) + wave(0.03), 0.9 + abs(wave(0.1))
        lines.append(
            f"step: {i} loss: {loss:.4f} grad_norm: {norm:.4f} "
            f"lr: {2e-5 * min(1.0, i / 20) * (1 - i / total / 2):.3e}\n"
        )
    return "".join(lines)


TRACEBACK = """\
Traceback (most recent call last):
  File "/workspace/train.py", line 210, in <module>
    main()
  File "/workspace/train.py", line 188, in main
"""


@healthy
def stopped_by_hand() -> Log:
    """Ctrl-C when it was good enough."""
    return training(1, 300) + TRACEBACK + "    loss.backward()\nKeyboardInterrupt\n"


@healthy
def stopped_by_slurm_for_its_time() -> Log:
    """A time limit is the scheduler's."""
    return (
        training(1, 300)
        + "slurmstepd: error: *** JOB 8843 ON node7 CANCELLED AT 2025-03-01T12:00:00 DUE TO TIME LIMIT ***\n"
    )


@healthy
def preempted_and_resumed_three_times() -> Log:
    """Each launch goes on a few steps before the last, from the last checkpoint, with the same values."""
    launches = [(1, 120), (101, 230), (201, 310), (301, 400)]
    text = ""
    for number, (first, last) in enumerate(launches):
        text += "***** Running training *****\n"
        text += f"Resuming training from checkpoint-{first - 1}\n" if number else ""
        text += training(first, last)
        text += (
            "slurmstepd: error: *** JOB 77 CANCELLED AT 2025-03-01T12:00:00 DUE TO PREEMPTION ***\n"
            if last < 400
            else ""
        )
    return text + "Training completed\n"


@pytest.mark.parametrize("name", sorted(HEALTHY))
def test_no_alarm(judged, name):
    text = HEALTHY[name]()
    diagnosis, verdicts = judged(text)
    assert [(v.rule.id, v.variant, v.onset) for v in diagnosis.alarms] == []
    assert diagnosis.evidence.frames
    if diagnosis.evidence.series("loss") is not None:  # two losses of two networks are no loss of a run
        assert any(v.outcome == "clear" for v in verdicts.values())


# A run whose training was fine and whose end was not: what stopped it may be named, and nothing about the training.
STOPS = {
    "a_full_disk": (
        TRACEBACK + "    torch.save(state, path)\nOSError: [Errno 28] No space left on device\n",
        {"GF26", "GF27"},
    ),
    "out_of_memory_in_the_evaluation": (
        "***** Running Evaluation *****\n"
        + TRACEBACK
        + "    logits = torch.cat(all_logits)\ntorch.OutOfMemoryError: CUDA out of "
        "memory. Tried to allocate 12.40 GiB. GPU 0 has a total capacity of 79.15 GiB of which 3.01 GiB is free.\n",
        {"GF27"},
    ),
    "a_bug_behind_the_loop": (TRACEBACK + "    plot(history[\"val\"])\nKeyError: 'val'\n", set()),
    "a_push_to_the_hub": (
        TRACEBACK + "    trainer.push_to_hub()\nrequests.exceptions.HTTPError: 403 Client Error\n",
        set(),
    ),
    "a_tracker_that_timed_out": (
        TRACEBACK + "    run.finish()\nwandb.errors.CommError: Run initialization has timed out\n",
        set(),
    ),
}


@pytest.mark.parametrize("name", sorted(STOPS))
def test_a_run_that_only_crashed_at_its_end_is_not_blamed_for_its_training(judged, name):
    end, may_be_named = STOPS[name]
    diagnosis, verdicts = judged(training(1, 400) + end)
    assert {v.rule.id for v in diagnosis.alarms} <= may_be_named
    assert diagnosis.evidence.ending.kind in ("exception", "oom")
    for case in ("GF05", "GF06", "GF11", "GF35"):
        assert verdicts[case].outcome == "clear"
