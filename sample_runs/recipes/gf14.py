"""GF14: token and label ids outside of their tables."""

from __future__ import annotations

from pathlib import Path

import data_lab
import hf_lab
from data_lab import EOS, Fields, Samples, documents, padded, write_lines
from lab import BATCH, VOCAB, Sample, console, json_lines, main, write_json

STEPS = 120
KERNEL = (
    "../aten/src/ATen/native/cuda/Indexing.cu:1146: indexSelectLargeIndex: block: [{0},0,0], thread: [{1},0,0] "
    "Assertion `srcIndex < srcSelectDimSize` failed."
)
ASSERT_ERROR = """Traceback (most recent call last):
  File "train.py", line 88, in <module>
    loss.backward()
  File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 647, in backward
    torch.autograd.backward(
RuntimeError: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


def rows_of(count: int = STEPS * BATCH) -> list[Fields]:
    """Padded documents that end with EOS."""
    return [padded([*one, EOS]) for one in documents(count)]


def label(run: Path) -> None:
    """A label equal to the size of the vocabulary in the batch of step 60, on the CPU."""
    rows = rows_of()
    rows[59 * BATCH + 3]["labels"][5] = VOCAB
    write_json(run / "config.json", data_lab.config(STEPS))
    try:
        with console(run / "train.log") as log:
            data_lab.fit(rows, log, steps=STEPS)
    except IndexError as error:
        data_lab.append_traceback(run / "train.log", error)


def token(run: Path) -> None:
    """HF Trainer: a token that was added to the tokenizer, and the embedding not resized."""
    rows = rows_of()
    for row in rows[len(rows) // 2 :: 400]:
        row["input_ids"][2] = row["labels"][2] = VOCAB
    try:
        hf_lab.fit(run, hf_lab.tiny_gpt2(), Samples(rows), steps=STEPS, console=True)
    except IndexError as error:
        data_lab.append_traceback(run / "train.log", error)


def on_device(run: Path, *, kernel: bool) -> None:
    """The lines that CUDA leaves behind a training that really ran, on the CPU, to step 60."""
    write_json(run / "config.json", data_lab.config(STEPS))
    with console(run / "train.log") as log:
        data_lab.fit(rows_of(), log, steps=60)
        if kernel:
            for thread in range(3):
                print(KERNEL.format(58, 24 + thread))
        print(ASSERT_ERROR, end="")


def data_of_another_tokenizer(run: Path) -> None:
    """Ids of a larger vocabulary in the data; the log keeps metrics only and stops where the run died."""
    rows = rows_of(600)
    for row in rows[320::40]:
        row["input_ids"][1] = VOCAB + 3
    write_json(run / "config.json", data_lab.config(STEPS))
    write_lines(run / "train.jsonl", rows)
    try:
        with json_lines(run / "metrics.jsonl") as log:
            data_lab.fit(rows, log, steps=STEPS)
    except IndexError:
        pass  # nobody kept the console


def negative_labels(run: Path) -> None:
    """Labels of padding are -1, which the loss does not ignore."""
    rows = rows_of(600)
    for row in rows:
        row["labels"] = [-1 if v == -100 else v for v in row["labels"]]
    write_json(run / "config.json", data_lab.config(STEPS))
    write_lines(run / "train.jsonl", rows)
    with json_lines(run / "metrics.jsonl") as log:
        try:
            data_lab.fit(rows, log, steps=STEPS)
        except IndexError:
            log({"step": 0, "loss": None, "grad_norm": None, "lr": 0.0})


def last_rows(run: Path) -> None:
    """The largest id is the last row of the embedding, and labels are ignored by -100."""
    rows = rows_of(600)
    for row in rows[::20]:
        row["input_ids"][1] = row["labels"][1] = VOCAB - 1
    write_json(run / "config.json", data_lab.config(STEPS))
    write_lines(run / "train.jsonl", rows)
    with console(run / "train.log") as log:
        data_lab.fit(rows, log, steps=STEPS)
        print("Training completed")


SAMPLES = (
    Sample(
        "gf14-label-id",
        "gf14",
        label,
        "a label equal to the number of classes at step 60: IndexError on the CPU",
        case="GF14",
        variant="label-id",
        ending="exception",
    ),
    Sample(
        "gf14-token-id",
        "gf14",
        token,
        "HF Trainer: a token beyond the embedding from the middle of the data on: IndexError on the CPU",
        case="GF14",
        variant="token-id",
        ending="exception",
    ),
    Sample(
        "gf14-token-id-cuda",
        "gf14",
        lambda run: on_device(run, kernel=True),
        "the lines of a CUDA kernel and its late traceback (as in MedicalGPT issue 275) behind a real log of 60 steps",
        case="GF14",
        variant="token-id",
        ending="exception",
    ),
    Sample(
        "gf14-assert-unknown",
        "gf14",
        lambda run: on_device(run, kernel=False),
        "a device-side assert whose own line was not kept, behind a real log of 60 steps",
        case="GF14",
        variant="assert-unknown",
        ending="exception",
    ),
    Sample(
        "gf14-ids-in-data",
        "gf14",
        data_of_another_tokenizer,
        "ids of a larger vocabulary in the data; the run died of them, and only its metrics were kept",
        case="GF14",
        variant="ids-in-data",
        ending="truncated",
    ),
    Sample(
        "gf14-labels-in-data",
        "gf14",
        negative_labels,
        "labels of padding are -1 instead of -100: the first step stops",
        case="GF14",
        variant="labels-in-data",
        ending="truncated",
    ),
    Sample(
        "gf14-twin",
        "gf14",
        last_rows,
        "the largest id is the last row of the embedding, and labels are ignored by -100",
        case="GF14",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
