"""The patterns of public incidents with memory, the order of data and pace, as the logs showed them."""

import json

import numpy as np

OOM = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacty of "
    "23.69 GiB of which {free} is free. Including non-PyTorch memory, this process has 23.60 GiB memory in use. Of "
    "the allocated memory {allocated} is allocated by PyTorch, and {idle} is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation."
)


def lines(rows):
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def losses(count, seed=0, noise=0.05):
    rng = np.random.default_rng(seed)
    return 3.0 + 1.2 * np.exp(-np.arange(count) / 60) + rng.normal(0, noise, count)


def test_a_running_loss_that_is_kept_until_memory_is_full(judged):
    """BatsResearch/labelmodels issue 4: running_loss += loss; the process ends when the GPU is full."""
    rows = [
        {"step": i, "loss": float(v), "memory_allocated": 2.0e9 + 4.1e7 * i} for i, v in enumerate(losses(300), start=1)
    ]
    told = OOM.format(asked="20.00 MiB", free="4.06 MiB", allocated="22.91 GiB", idle="301.00 MiB")
    _, verdicts = judged({"metrics.jsonl": lines(rows), "train.log": f"step 300 loss 3.01\n{told}\n"})
    assert (verdicts["GF27"].variant, verdicts["GF27"].severity) == ("leak", "S1")
    assert verdicts["GF27"].strength == "proven"


def test_checkpointing_that_is_gated_by_training_mode(judged):
    """EveryDream2trainer pull 246: out of memory at the first step although checkpointing is on."""
    told = OOM.format(asked="1.00 GiB", free="200.00 MiB", allocated="22.10 GiB", idle="402.00 MiB")
    _, verdicts = judged(f"***** Running training *****\n{told}\n", gradient_checkpointing=True)
    assert verdicts["GF27"].variant == "capacity"
    assert "checkpointing: on" in verdicts["GF27"].texts().what


def test_memory_that_pytorch_holds_and_does_not_use(judged):
    """The message of PyTorch itself: reserved memory is much larger than allocated memory."""
    rows = "".join(f"step {i} loss {v:.4f}\n" for i, v in enumerate(losses(80), start=1))
    told = OOM.format(asked="1.50 GiB", free="90.00 MiB", allocated="15.30 GiB", idle="7.40 GiB")
    _, verdicts = judged(rows + told + "\n")
    assert verdicts["GF27"].variant == "fragmentation"


def test_an_oom_that_a_later_launch_survived_is_a_remark(judged):
    """Users halve the batch and start again: what counts is the launch that went on."""
    told = OOM.format(asked="1.50 GiB", free="90.00 MiB", allocated="22.30 GiB", idle="400.00 MiB")
    first = "".join(f"step {i} loss {v:.4f}\n" for i, v in enumerate(losses(5), start=1))
    second = "".join(f"step {i} loss {v:.4f}\n" for i, v in enumerate(losses(200, seed=1), start=1))
    diagnosis, verdicts = judged(first + told + "\n" + second + "training finished\n")
    assert not verdicts["GF27"].alarm
    assert diagnosis.alarms == []


def test_memory_of_an_image_detector_that_settles(judged):
    """maskrcnn-benchmark logs the highest value so far: 3035 MiB, 3036 from the middle on, is no growth."""
    rows = [
        {"step": i, "loss": float(v), "max mem": 3035 if i < 150 else 3036} for i, v in enumerate(losses(300), start=1)
    ]
    diagnosis, _ = judged(lines(rows), "log.jsonl")
    assert diagnosis.alarms == []


def ranked(series):
    return {
        f"metrics_rank{rank}.jsonl": lines({"step": i, "rank": rank, **row} for i, row in enumerate(rows, start=1))
        for rank, rows in enumerate(series)
    }


def test_eight_ranks_that_print_one_loss(judged):
    """apex issue 840: 38651.69 eight times; the label is weak, since a loss may be averaged before it is printed."""
    same = [{"loss": float(v)} for v in losses(60)]
    diagnosis, verdicts = judged(ranked([same] * 8))
    assert (verdicts["GF23"].outcome, verdicts["GF23"].strength) == ("fired", "suspect")
    assert diagnosis.alarms == []


def test_ranks_whose_local_losses_are_one(judged):
    """icefall issue 1616: rank detection failed and every GPU got the same cuts."""
    same = [{"local_loss": float(v), "loss": float(v)} for v in losses(60)]
    diagnosis, _ = judged(ranked([same] * 4))
    assert diagnosis.primary.rule.id == "GF23"
    other = [[{"local_loss": float(v), "loss": 3.0} for v in losses(60, seed=s)] for s in range(4)]
    diagnosis, _ = judged(ranked(other))
    assert diagnosis.alarms == []


def test_a_resume_that_reads_its_data_again(judged):
    """ml-engineering, impacts of repeat data: lower after the resume until new data begin, then a step up."""
    rng = np.random.default_rng(3)
    before, seen, new = (level + rng.normal(0, 0.02, n) for level, n in ((2.9, 200), (2.6, 120), (2.9, 200)))
    rows = [{"step": i, "loss": float(v), "lr": 1e-4, "elapsed": i * 1.0} for i, v in enumerate(before, start=1)]
    again = np.concatenate([seen, new])
    rows += [{"step": 200 + i, "loss": float(v), "lr": 1e-4, "elapsed": i * 1.0} for i, v in enumerate(again, start=1)]
    diagnosis, verdicts = judged(lines(rows), "metrics.jsonl")
    assert verdicts["GF23"].variant == "data-restarted"
    assert verdicts["GF23"].onset == 201
    assert diagnosis.primary.rule.id == "GF23"


def test_epochs_that_took_longer_are_a_remark(judged):
    """The public healthy run of Coqui XTTS has an epoch that was ten times as slow."""
    pace = np.concatenate([np.full(150, 0.05), np.full(60, 0.5), np.full(190, 0.05)])
    rows = [
        {"step": i, "loss": float(v), "step_time": float(t)}
        for i, (v, t) in enumerate(zip(losses(400), pace, strict=True), 1)
    ]
    diagnosis, verdicts = judged(lines(rows), "metrics.jsonl")
    assert (verdicts["GF42"].variant, verdicts["GF42"].severity) == ("spell", "S4")
    assert diagnosis.alarms == []


def test_rewards_and_their_buffers_do_not_alarm(judged):
    """A replay buffer grows by design, and a policy need not settle anywhere."""
    rows = [
        {"step": i, "loss": 0.01 * (i % 7), "reward": 0.01 * i, "memory_allocated": 1e9 + 1e7 * i}
        for i in range(1, 301)
    ]
    diagnosis, verdicts = judged(lines(rows), "metrics.jsonl")
    assert verdicts["GF27"].outcome == "not_judged"
    assert diagnosis.alarms == []
