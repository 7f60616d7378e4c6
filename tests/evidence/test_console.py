"""Console logs: the lines that count, those that must not, and the steps that are not printed."""

# ruff: noqa: E501  lines of logs and files stand here as they are written

import gzip

import pytest

from gradforensics.errors import NoEvidenceError
from gradforensics.evidence.console.lines import read_dict, read_pairs

NAN = float("nan")


@pytest.mark.parametrize(
    ("line", "step", "total", "epoch", "values"),
    [
        ("step 10: train loss 2.31, val loss 2.40", 10, None, None, {"train loss": 2.31, "val loss": 2.40}),
        ("Epoch 3/10 - loss: 0.53 - val_loss: 0.61", None, None, 3, {"loss": 0.53, "val_loss": 0.61}),
        ("s:10 trl:3.4 lr:0.0003 norm:0.28", 10, None, None, {"trl": 3.4, "lr": 0.0003, "norm": 0.28}),
        ("s:250 eval:0.2437", 250, None, None, {"hellaswag": 0.2437}),
        ("step:2810/6200 train_loss:3.46 train_time:60ms step_avg:nanms", 2810, 6200, None, {"train_loss": 3.46, "train_time": 60}),
        ("iter: 30160  loss: 0.9787 (1.0989)  lr: 0.0025  max mem: 2895", 30160, None, None, {"loss": 0.9787, "lr": 0.0025, "max mem": 2895}),
        ("2021-07-22 10:50:44,669 x INFO: eta: 1 day, 1:13:27  iter: 20  loss: 7.3 (25.0)", 20, None, None, {"loss": 7.3}),
        ("Epoch [3/10], Step [100/500], Loss: 0.53", 100, 500, 3, {"Loss": 0.53}),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.263480", 640, 60000, 1, {"Loss": 2.26348}),
        ("[3, 2000] loss: 2.21", 2000, None, 3, {"loss": 2.21}),
        ("Epoch 3:  12%|#  | 120/1000 [00:10<01:10, 12.3it/s, loss=2.31, v_num=0]", 120, 1000, 3, {"loss": 2.31}),
        ("epoch 001:    100 / 5000 loss=9.1, ppl=340.12, num_updates=100, gnorm=2.3", 100, None, 1, {"loss": 9.1, "ppl": 340.12, "gnorm": 2.3}),
        ("iteration 10/ 500 | lm loss: 9.3E+00 | grad norm: 5.2 | number of nan iterations: 0 |", 10, 500, None, {"lm loss": 9.3, "grad norm": 5.2, "number of nan iterations": 0}),
        ("elapsed time per iteration (ms): 1234.5 iteration 7 | loss: 1", 7, None, None, {"elapsed time per iteration ms": 1234.5, "loss": 1}),
        ("step: 1  loss:  8.13  memory:  1.10GiB(1.2%)  tps: 1,234", 1, None, None, {"loss": 8.13, "memory": 1.1, "tps": 1234}),
        ("step 100 | loss: 3.11e-01 | lr 4.0e-04 | dt: 100.11ms", 100, None, None, {"loss": 0.311, "lr": 4e-4, "dt": 100.11}),
        ("global_step=100, step=3, loss = nan (12.3 sec)", 100, None, None, {"loss": NAN}),
        ("epoch 3, step 100, loss=inf, grad_norm=-inf", 100, None, 3, {"loss": float("inf"), "grad_norm": float("-inf")}),
        ("2024-05-01 12:00:00,123 INFO loss: 2.78 step: 0", 0, None, None, {"loss": 2.78}),
        ("WARNING grad_norm: 2.78 loss: 3 step: 7", 7, None, None, {"grad_norm": 2.78, "loss": 3}),
        ("05/01 12:00:00 epoch 3 loss 2.1", None, None, 3, {"loss": 2.1}),
        ("[05/01/24 12:00:00] loss: 2.1 iter: 4", 4, None, None, {"loss": 2.1}),
        ("saved checkpoint-500 with loss 2.5", None, None, None, {"loss": 2.5}),
        ("loss weight: 0.5", None, None, None, {"loss weight": 0.5}),
    ],
)  # fmt: skip
def test_pairs(line, step, total, epoch, values):
    found = read_pairs(line)
    assert (found.step, found.total, found.epoch) == (step, total, epoch)
    assert found.values == pytest.approx(values, nan_ok=True)
    again = read_pairs(line)  # the second time the plan of the line is known
    assert again.values == pytest.approx(values, nan_ok=True)


@pytest.mark.parametrize(
    ("line", "epoch", "values"),
    [
        ("{'loss': 2.31, 'grad_norm': nan, 'learning_rate': 4.0e-06, 'epoch': 0.03}", 0.03, {"loss": 2.31, "grad_norm": NAN, "learning_rate": 4e-6}),
        ("x 3%|# | 1/30 [0:00]{'loss': '2.31', 'learning_rate': '4e-06', 'epoch': '0.03'}", 0.03, {"loss": 2.31, "learning_rate": 4e-6}),
        ("{'eval_loss': inf, 'eval_runtime': 1.2, 'epoch': 1.0}", 1, {"eval_loss": float("inf"), "eval_runtime": 1.2}),
        ("{'loss': tensor(0.5, device='cuda:0'), 'reward': np.float64(2.0)}", None, {"loss": 0.5, "reward": 2.0}),
        ('{"loss": 1.5, "epoch": 1}', 1, {"loss": 1.5}),
    ],
)  # fmt: skip
def test_dicts(line, epoch, values):
    found = read_dict(line)
    assert found is not None
    assert found.epoch == epoch
    assert found.values == pytest.approx(values, nan_ok=True)


@pytest.mark.parametrize(
    "line",
    [
        "{'task': 'qa', 'init_lr': 3e-05, 'max_epoch': 10, 'loss': 'ce'}", "{'kl_loss_coef': 0.001, 'epoch': 3}", "{'a': 1}",
        "{'loss': }", "{}", "{'loss': 1.0",
    ],
)  # fmt: skip
def test_no_dicts_of_a_training(line):
    assert read_dict(line) is None


# -- whole logs --------------------------------------------------------------------------------------------------------


def test_a_generic_log(read):
    text = "start\nstep 10: train loss 2.3100, val loss 2.40\nnoise\nstep 20: train loss 2.1000, val loss nan\n"
    evidence = read("train.log", text)
    loss = evidence.series("loss")
    assert (loss.steps.tolist(), loss.values.tolist(), loss.lines.tolist()) == ([10, 20], [2.31, 2.1], [2, 4])
    assert loss.resolution == pytest.approx(1e-4)
    assert evidence.series("loss", "eval").kinds == ("finite", "nan")
    assert evidence.events == []
    assert evidence.sources[0].reader == "console"


def test_a_single_line_is_no_series(read):
    with pytest.raises(NoEvidenceError):
        read("train.log", "step 10: loss 2.0\n")


def test_exponents_are_exact(read):
    evidence = read("t.log", "step 1 loss: 2.5e+00 lr: 0.00100\nstep 2 loss: 2.4e+00 lr: 0.00050\n")
    assert evidence.series("loss").resolution == 0
    assert evidence.series("lr").resolution == pytest.approx(1e-5)


def test_llmc_phases(read):
    evidence = read("main.log", "s:0 tel:11.0\ns:0 trl:10.9 norm:1.5\ns:1 trl:10.8 norm:nan\ns:1 eval:0.25\n")
    assert evidence.series("loss").values.tolist() == [10.9, 10.8]
    assert evidence.series("loss", "eval").values.tolist() == [11.0]
    assert evidence.series("grad_norm").kinds == ("finite", "nan")
    assert evidence.series("hellaswag", "test").values.tolist() == [0.25]


def test_two_launches_in_one_file(read):
    text = "iter: 20  loss: nan\niter: 40  loss: nan\nrestart\niter: 20  loss: 4.5\niter: 40  loss: 3.5\niter: 60 loss: 3.0\n"
    evidence = read("log.txt", text)
    assert [a.kinds for a in evidence.attempts("loss")] == [("nan", "nan"), ("finite",) * 3]
    assert evidence.series("loss").values.tolist() == [4.5, 3.5, 3.0]


def test_epochs_only(read):
    text = "".join(f"Epoch {e}/3 - loss: {1 / e:.4f}\nEpoch {e}/3 - val_loss: {2 / e:.4f}\n" for e in (1, 2, 3))
    evidence = read("train.log", text)
    loss = evidence.series("loss")
    assert (loss.step_unit, loss.steps.tolist()) == ("epoch", [1, 2, 3])
    assert evidence.series("loss", "eval").steps.tolist() == [1, 2, 3]
    assert evidence.setting("num_train_epochs") == 3
    assert evidence.ending.kind == "completed"


def test_iterations_inside_epochs(read):
    text = "".join(
        f"Train: data epoch: [{e}]  [{i:4d}/20]  eta: 0:00:01  loss: 1.0  lr: 0.1\n"
        for e in range(3)
        for i in (0, 10, 19)
    )
    evidence = read("x.out", text)
    assert evidence.series("loss").steps.tolist() == [0, 10, 19, 20, 30, 39, 40, 50, 59]
    assert len(evidence.attempts("loss")) == 1


def test_keras_bars(read):
    text = "".join(
        f"Epoch {e}/2\n"
        + "\r".join(f"{i}/3 [=>...] - ETA: 0s - loss: {e}.{i}" for i in (1, 2))
        + f"\r3/3 [====] - 1s - loss: {e}.3 - val_loss: 9.0\n"
        for e in (1, 2)
    )
    evidence = read("train.log", text)
    assert evidence.series("loss").steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert evidence.series("loss").values.tolist() == [1.1, 1.2, 1.3, 2.1, 2.2, 2.3]
    assert evidence.series("loss").lines.tolist() == [2, 2, 2, 4, 4, 4]
    assert evidence.series("loss", "eval").steps.tolist() == [3, 6]


def test_blocks_below_a_header(read):
    text = "".join(f"--- Step {s} ---\nwork\nTrained 64 batches | KL: 0.{s}1 | Loss: 0.{s}5\n" for s in range(3))
    evidence = read("driver.log", text)
    assert evidence.series("loss").steps.tolist() == [0, 1, 2]
    assert evidence.series("kl").values.tolist() == [0.01, 0.11, 0.21]


def test_coqui_blocks(read):
    block = "\x1b[1m   --> TIME: 2026-02-11 01:08:34 -- STEP: {s}/100 -- GLOBAL_STEP: {s}\x1b[0m\n     | > loss: 0.5{s}  (0.5)\n     | > current_lr: 5e-06 \n\n"
    text = (
        block.format(s=10)
        + block.format(s=20)
        + "\x1b[1m > EVALUATION \x1b[0m\n     | > avg_loss:\x1b[92m 2.75 \x1b[0m(-0.5)\n"
    )
    evidence = read("trainer_0_log.txt", text)
    assert evidence.series("loss").steps.tolist() == [10, 20]
    assert evidence.series("lr").values.tolist() == [5e-6, 5e-6]
    assert evidence.series("loss", "eval").values.tolist() == [2.75]
    assert evidence.series("loss", "eval").steps.tolist() == [20]


def bar(n, total=30):
    return f"\r {n * 100 // total}%|###  | {n}/{total} [00:0{n % 10}<00:20,  1.93it/s]"


def test_dict_lines_take_their_step_from_the_bar(read):
    text = ""
    for n in (10, 20, 30):
        text += (
            bar(n - 1)
            + f"\n{{'loss': 2.{n}, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': {n / 30:.2f}}}\n"
            + bar(n)
        )
    text += "\n{'train_runtime': 12.5, 'train_samples_per_second': 3.0, 'train_loss': 2.2, 'epoch': 1.0}\n"
    evidence = read("train.log", text)
    loss = evidence.series("loss")
    assert (loss.step_unit, loss.steps.tolist(), loss.values.tolist()) == ("step", [10, 20, 30], [2.1, 2.2, 2.3])
    assert evidence.keys("loss")[0].tag == "loss"
    assert evidence.series("train_loss").values.tolist() == [2.2]
    assert [(e.kind, e.step) for e in evidence.events] == [("completed", 30)]
    assert evidence.ending.kind == "completed"
    assert evidence.notices == []


def test_an_evaluation_between_the_bars(read):
    text = ""
    for n in (10, 20):
        text += bar(n) + f"{{'loss': 2.{n}, 'epoch': 0.{n}}}\n" + bar(n)
        text += f"\r 50%|## | 1/2 [00:00<00:00]{{'eval_loss': 3.{n}, 'eval_runtime': 1.0, 'epoch': 0.{n}}}\n" + bar(
            n + 1
        )
    evidence = read("train.log", text)
    assert evidence.series("loss").steps.tolist() == [10, 20]
    assert evidence.series("loss", "eval").steps.tolist() == [10, 20]


def test_dict_lines_without_bars_are_rows(read):
    rows = [
        "{'loss': '2.315', 'learning_rate': '9.441e-05', 'epoch': '0.1'}",
        "{'eval_loss': '2.5', 'epoch': '0.1'}",
        "{'loss': 'nan', 'learning_rate': '0', 'epoch': '0.2'}",
    ]
    evidence = read("train.log", "\n".join(rows) + "\n")
    loss = evidence.series("loss")
    assert (loss.step_unit, loss.steps.tolist(), loss.kinds) == ("row", [1, 2], ("finite", "nan"))
    assert evidence.series("loss", "eval").steps.tolist() == [1]
    assert loss.resolution == pytest.approx(1e-3)
    assert evidence.series("lr").resolution == pytest.approx(1e-8)
    assert [n.text for n in evidence.notices] == ["the printed rows name no step: they are numbered in their order"]


def test_ranks(read):
    text = "".join(f"[rank{r}]: step={s} loss={s}.{r}\n" for s in (1, 2) for r in (1, 0))
    evidence = read("train.log", text)
    assert evidence.ranks("loss") == [0, 1]
    assert evidence.series("loss", rank=1).values.tolist() == [1.1, 2.1]
    assert len(evidence.attempts("loss")) == 1


def test_settings_of_the_banner(read):
    text = (
        "***** Running training *****\n  Num examples = 1,000\n  Num Epochs = 3\n  Instantaneous batch size per device = 4\n"
        "  Gradient Accumulation steps = 2\n  Total optimization steps = 375\nstep 1 loss 2.0\nstep 2 loss 1.9\n"
    )
    evidence = read("train.log", text)
    wanted = {
        "num_train_epochs": 3,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 375,
    }
    assert {s.key: s.value for s in evidence.settings} == wanted
    assert evidence.ending.kind == "truncated"


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nfor step in range(10):\n    loss = 0.5\n    val_loss = 0\nprint(f'step:{step}/{n} val_loss:{val_loss:.4f}')\n",
        "loss_weight: 0.5\nnum_epochs: 3\nlearning_rate: 0.001\nkl_loss_coef: 0.1\n" * 3,
        "Downloading:  50%|##   | 5/10 [00:01<00:01, 3.2MB/s]\nLoading checkpoint shards: 100%|###| 4/4 [00:01<00:00]\n",
        "INFO 11-04 22:02:03 llm_engine.py: Avg prompt throughput: 12.5 tokens/s, Running: 1 reqs, GPU KV cache usage: 0.3%\n" * 3,
        "|gsm8k|      3|flexible-extract|    10|exact_match|0.33|0.0272|\n" * 3,
        "[Sat Mar  4 04:27:15 2023] NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s\n",
        "6,3973,227996636,-;nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context\n" * 3,
        "job.sh: line 25: 1200261 Killed                  python generate.py\n",
        'Traceback (most recent call last):\n  File "serve.py", line 3, in <module>\nValueError: no\n',
    ],
)  # fmt: skip
def test_other_logs_give_nothing(read, text):
    with pytest.raises(NoEvidenceError):
        read("some.log", text)


# -- bytes -------------------------------------------------------------------------------------------------------------

PLAIN = "step 1 loss: 2.50\nstep 2 loss: 2.25\n"


@pytest.mark.parametrize(
    "content",
    [
        PLAIN.encode("utf-16"), PLAIN.encode("utf-8-sig"), b"\xff\xfe bad \xe9\n" [2:] + PLAIN.encode(), PLAIN.replace("\n", "\r\n").encode(),
        PLAIN.replace("loss", "\x1b[31mloss\x1b[0m").encode(), b"caf\xe9 \x80\n" + PLAIN.encode(), PLAIN.rstrip().encode(),
    ],
)  # fmt: skip
def test_encodings(read, content):
    assert read("train.log", content).series("loss").values.tolist() == [2.5, 2.25]


def test_gzip(read):
    evidence = read("train.log.gz", gzip.compress(PLAIN.encode()))
    assert evidence.series("loss").values.tolist() == [2.5, 2.25]
    assert evidence.series("loss").lines.tolist() == [1, 2]


def test_a_cut_gzip_gives_what_it_holds(read):
    whole = "".join(f"step {i} loss: {i}.50\n" for i in range(20_000))
    evidence = read("train.log.gz", gzip.compress(whole.encode())[:20_000])
    assert 100 < len(evidence.series("loss")) < 20_000


def test_a_huge_line_is_bounded(read):
    evidence = read("train.log", "step 1 loss: 2.50\n" + "x" * 30_000_000 + "\nstep 2 loss: 2.25\n")
    assert evidence.series("loss").lines.tolist() == [1, 3]


def test_openmmlab_lines(read):
    text = "".join(
        f"Epoch(train)  [{e}][ {i}/20]  lr: 1.0e-02  eta: 0:00:01  time: 0.3  loss: {e}.{i}\n"
        for e in (1, 2)
        for i in (10, 20)
    )
    assert read("a.log", text).series("loss").steps.tolist() == [10, 20, 30, 40]


def test_an_evaluation_that_counts_its_own_steps_is_no_restart(read):
    text = ""
    for s in (10, 20):
        text += f"step {s} loss 2.{s}\n" + "".join(f"Validation step {i} loss 3.{i}\n" for i in (1, 2, 3))
    evidence = read("a.log", text)
    assert evidence.series("loss").steps.tolist() == [10, 20]
    assert len(evidence.attempts("loss", "eval")) == 1
    assert evidence.notices == []


def test_a_stray_dict_does_not_replace_the_lines(read):
    text = "".join(f"step {s} loss 2.{s}\n" for s in range(10, 20)) + "{'eval_loss': 0.5, 'epoch': 1.0}\n"
    assert len(read("a.log", text).series("loss")) == 10


def test_a_nul_in_a_line_is_no_number():
    known = read_pairs("step: 8 loss: 1.5 grad_norm: 0.430904 lr: 0.00105")
    torn = read_pairs("step: 8 loss: \x00 grad_norm: 0.430904 lr: 0.00105")
    assert (known.values["loss"], "loss" in torn.values, torn.values["lr"]) == (1.5, False, 0.00105)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("iter {step}: loss 2.5, time 12.00ms, mfu 3.00%", "dialect: nanoGPT"),
        ("my own step {step} >> loss={step}.5", "no known dialect: read by the names beside its numbers"),
    ],
)
def test_the_inventory_says_which_dialect_a_log_was_read_with(read, line, said):
    evidence = read("train.log", "\n".join(line.format(step=step) for step in range(1, 6)) + "\n")
    assert len(evidence.series("loss")) == 5
    (source,) = evidence.sources
    assert (source.reader, source.remark) == ("console", said)
