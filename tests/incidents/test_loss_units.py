"""Losses that are multiples, and gradient norms in foreign units, as public incidents showed them.

The lines are modelled on the reports that each test names; between the reported numbers they are filled up plausibly.
"""

import json

import numpy as np


def dict_lines(rows):
    return "\n".join(str(row) for row in rows) + "\n"


def trainer_state(losses, evals, every, **more):
    """A trainer_state.json with a loss and an evaluation every so many steps."""
    rows = []
    for i, (loss, held_out) in enumerate(zip(losses, evals, strict=True), start=1):
        rows.append({"step": every * i, "epoch": 0.1 * i, "loss": loss, "learning_rate": 1e-5, **more})
        rows.append({"step": every * i, "epoch": 0.1 * i, "eval_loss": held_out})
    return json.dumps({"global_step": every * len(losses), "max_steps": every * len(losses), "log_history": rows})


def config(**facts):
    return json.dumps(facts)


def test_a_loss_summed_over_sixteen_micro_batches(judged):
    """A public law-text fine-tune of Qwen2: loss / eval_loss = 16.5 at every late point, accumulation 16."""
    losses = [284.87, 161.25, 9.9, 5.387, 5.18, 5.024]
    evals = [15.44, 2.384, 0.3468, 0.3185, 0.3077, 0.3038]
    files = {
        "trainer_state.json": trainer_state(losses, evals, 100),
        "training_args.json": config(gradient_accumulation_steps=16, per_device_train_batch_size=4),
    }
    diagnosis, verdicts = judged(files)
    assert diagnosis.primary.rule.id == "GF03"
    assert verdicts["GF03"].variant == "summed"
    assert "AdamW" in verdicts["GF03"].texts().what


def test_a_doubled_loss_is_a_suspect(judged):
    """transformers pull 35438: accumulation over 2 steps doubles the loss."""
    evals = [2.05 - 0.02 * i for i in range(10)]
    files = {
        "trainer_state.json": trainer_state([2 * e + 0.01 for e in evals], evals, 50),
        "training_args.json": config(gradient_accumulation_steps=2),
    }
    diagnosis, verdicts = judged(files)
    assert diagnosis.primary is None
    assert (verdicts["GF03"].variant, verdicts["GF03"].strength) == ("summed", "suspect")


def test_a_loss_of_a_model_that_divides_already(judged):
    """unsloth pull 3597: Qwen3-VL, the loss is divided by the accumulation steps twice; no alarm, but named."""
    evals = [1.4 - 0.02 * i for i in range(10)]
    files = {
        "trainer_state.json": trainer_state([e / 4 for e in evals], evals, 50),
        "training_args.json": config(gradient_accumulation_steps=4),
    }
    diagnosis, verdicts = judged(files)
    assert diagnosis.alarms == []
    assert verdicts["GF03"].variant == "divided-twice"


def test_a_rightly_accumulated_loss_is_clear(judged):
    """The same with a loss that equals its evaluation."""
    evals = [1.4 - 0.02 * i for i in range(10)]
    files = {
        "trainer_state.json": trainer_state([e * 1.02 for e in evals], evals, 50),
        "training_args.json": config(gradient_accumulation_steps=4),
    }
    diagnosis, verdicts = judged(files)
    assert diagnosis.alarms == []
    assert verdicts["GF03"].outcome == verdicts["GF02"].outcome == "clear"


def test_a_loss_divided_for_the_log_by_a_number_nobody_names(judged):
    """Coqui divides the training loss by the accumulation steps before it logs it: a remark."""
    rows = []
    for i in range(300):
        rows.append({"step": 100 * i, "loss": 0.058 - 0.00008 * i, "lr": 5e-6})
        if i % 30 == 29:
            rows.append({"step": 100 * i, "eval_loss": 84 * (0.058 - 0.00008 * i)})
    diagnosis, verdicts = judged("\n".join(json.dumps(r) for r in rows), name="metrics.jsonl")
    assert diagnosis.alarms == []
    assert (verdicts["GF02"].variant, verdicts["GF02"].severity) == ("constant-multiple", "S4")


def test_a_norm_of_a_thousand_from_the_first_step_is_a_unit(judged):
    """Pai-Megatron-Patch issue 587: loss printed rightly, grad norm about 1000 since backward got the token sum."""
    noise = np.random.default_rng(0).normal(0, 80, 200)
    rows = [
        {"step": i, "loss": 2.6 + 8 * 0.98**i, "grad_norm": round(1000 + float(noise[i - 1]), 1), "lr": 1e-5}
        for i in range(1, 201)
    ]
    files = {
        "log.jsonl": "\n".join(json.dumps(r) for r in rows),
        "config.json": config(micro_batch_size=2, seq_length=4096, seq_len=4096, clip_grad=1.0, vocab_size=151936),
    }
    diagnosis, verdicts = judged(files)
    assert diagnosis.alarms == []
    assert {h.sign.variant for h in verdicts["GF28"].holdings} == {"saturated", "foreign-units"}


def test_detectors_with_norms_of_hundreds_are_healthy(judged):
    """WeDetect issue 15: grad_norm 300 to 500 throughout a COCO fine-tune, total loss about 12.5."""
    draw = np.random.default_rng(1)
    rows = [
        {"step": 50 * i, "loss": 12.5 - 0.01 * i, "loss_cls": 4.0, "loss_bbox": 8.5 - 0.01 * i,
         "grad_norm": float(draw.uniform(300, 500)), "lr": 5e-5}
        for i in range(1, 120)
    ]  # fmt: skip
    diagnosis, _ = judged("\n".join(json.dumps(r) for r in rows), name="metrics.jsonl")
    assert diagnosis.alarms == []


def test_a_norm_that_rises_over_a_whole_pretraining_is_healthy(judged):
    """OLMo issue 596: total_grad_norm grows for all of the run while the loss converges; max_norm 1.0."""
    rows = [
        {"step": 10 * i, "loss": 2.4 + 8 * 0.99**i, "total_grad_norm": 0.2 + 0.0012 * i, "lr": 3e-4}
        for i in range(1, 500)
    ]
    files = {
        "log.jsonl": "\n".join(json.dumps(r) for r in rows),
        "config.json": config(max_grad_norm=1.0, vocab_size=50280),
    }
    diagnosis, verdicts = judged(files)
    assert diagnosis.alarms == []
    assert verdicts["GF28"].outcome == "clear"


def test_norms_of_shards_are_units(judged):
    """LlamaFactory pull 10640: under FSDP2 each rank logs and clips by the norm of its own shard."""
    draw = np.random.default_rng(2)
    files = {}
    for rank, size in ((0, 0.6), (1, 0.9)):
        rows = [
            {"step": i, "loss": 2.0 - 0.003 * i, "grad_norm": size + float(draw.uniform(-0.05, 0.05)), "rank": rank}
            for i in range(1, 101)
        ]
        files[f"rank{rank}.jsonl"] = "\n".join(json.dumps(r) for r in rows)
    diagnosis, verdicts = judged(files)
    assert diagnosis.alarms == []
    assert verdicts["GF28"].variant == "foreign-units"


def test_the_refusal_of_a_loss_without_a_mean(judged):
    """reduction='none': torch names it in the first backward."""
    text = (
        "***** Running training *****\n  Num Epochs = 1\n  Total optimization steps = 100\n"
        "Traceback (most recent call last):\n"
        '  File "train.py", line 40, in <module>\n    loss.backward()\n'
        '  File "/usr/lib/python3/site-packages/torch/_tensor.py", line 521, in backward\n'
        "    torch.autograd.backward(\n"
        "RuntimeError: grad can be implicitly created only for scalar outputs\n"
    )
    diagnosis, verdicts = judged(text)
    assert diagnosis.primary.rule.id == "GF02"
    assert verdicts["GF02"].variant == "not-scalar"
