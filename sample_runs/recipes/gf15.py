"""GF15: the loss is computed on the wrong tokens."""

from __future__ import annotations

from pathlib import Path

import data_lab
import hf_lab
import numpy as np
from data_lab import EOS, IGNORED, PAD, Document, Fields, Samples, documents, padded, write_lines
from lab import BATCH, Sample, console, json_lines, main, write_json

STEPS = 150
COUNT = 480
PROMPT = 8


def answered(count: int = COUNT, *, end: int | None = EOS, high: int = 28) -> list[Document]:
    """Documents that end with a token of their own."""
    return [one if end is None else [*one, end] for one in documents(count, high=high)]


def with_trainer(run: Path, rows: list[Fields], **facts: int) -> None:
    """Train with the HF Trainer on padded documents, and keep their file beside its record."""
    write_lines(run / "train.jsonl", rows)
    model = hf_lab.tiny_gpt2()
    model.config.update({"pad_token_id": PAD, "eos_token_id": EOS, **facts})
    hf_lab.fit(run, model, Samples(rows), steps=STEPS)


def plainly(run: Path, rows: list[Fields], *, keep: bool = True, **facts: object) -> None:
    """Train with a plain loop."""
    write_json(run / "config.json", data_lab.config(STEPS, **facts))
    if keep:
        write_lines(run / "train.jsonl", rows)
    with console(run / "train.log") as log:
        data_lab.fit(rows, log, steps=STEPS)
        print("Training completed")


def pads_in(run: Path) -> None:
    """The labels are a copy of the padded ids."""
    rows = [padded(one) for one in answered()]
    for row in rows:
        row["labels"] = list(row["input_ids"])
    with_trainer(run, rows)


def eos_out(run: Path) -> None:
    """The pad token is EOS, and labels are masked by the pad id."""
    rows = [padded(one, pad=EOS) for one in answered()]
    for row in rows:
        row["labels"] = [IGNORED if v == EOS else v for v in row["input_ids"]]
    with_trainer(run, rows, pad_token_id=EOS)


def eos_missing(run: Path) -> None:
    """Answers behind a masked prompt, without EOS."""
    plainly(run, [padded(one, prompt=PROMPT) for one in answered(end=None)])


def nothing_in_data(run: Path) -> None:
    """The prompt fills the maximum length in 70 % of the samples."""
    generator = np.random.default_rng(5)
    prompts = np.where(generator.random(COUNT) < 0.7, data_lab.WIDE, PROMPT).tolist()
    plainly(run, [padded(one, prompt=n) for one, n in zip(answered(), prompts, strict=True)])


def nothing_at_all(run: Path) -> None:
    """A response template that is never found: every label is ignored."""
    plainly(run, [padded(one, prompt=data_lab.WIDE) for one in answered()], keep=False)


def some_empty(run: Path) -> None:
    """The prompt fills the maximum length in 5 % of the samples."""
    rows = [padded(one, prompt=data_lab.WIDE if i % 20 == 0 else PROMPT) for i, one in enumerate(answered())]
    plainly(run, rows)


def prompt_in(run: Path) -> None:
    """The configuration asks for completions only; a collator made the labels anew from the ids."""
    plainly(run, [padded(one) for one in answered()], completion_only_loss=True)


def eos_out_config(run: Path) -> None:
    """Only the settings show it: pad is EOS, and the collator masks by the pad id."""
    rows = [padded(one, pad=EOS) for one in answered()]
    for row in rows:
        row["labels"] = [IGNORED if v == EOS else v for v in row["input_ids"]]
    plainly(run, rows, keep=False, pad_token_id=EOS, data_collator="DataCollatorForLanguageModeling", packing=False)


def by_length(run: Path, *, pads_count: bool) -> None:
    """Batches of documents of like lengths, whose share of padding is logged beside the loss."""
    rows = [padded(one) for one in sorted(answered(1600, high=32), key=len)]
    if pads_count:
        for row in rows:
            row["labels"] = list(row["input_ids"])
    generator = np.random.default_rng(3)
    starts = generator.integers(0, len(rows) - BATCH, size=STEPS + 1)

    def order(step: int) -> list[int]:
        return list(range(int(starts[step]), int(starts[step]) + BATCH))

    write_json(run / "config.json", data_lab.config(STEPS))
    with json_lines(run / "metrics.jsonl") as log:

        def with_share(row: dict[str, object]) -> None:
            chosen = order(int(str(row["step"])))
            share = float(np.mean([rows[i]["attention_mask"].count(0) for i in chosen])) / data_lab.WIDE
            log({**row, "pad_share": round(share, 4)})

        data_lab.fit(rows, with_share, steps=STEPS, order=order)  # type: ignore[arg-type]  # the rows are dictionaries


def masked_rightly(run: Path) -> None:
    """Pad is EOS, masked by length: every EOS that ends a text keeps its label."""
    with_trainer(run, [padded(one, pad=EOS) for one in answered()], pad_token_id=EOS)


def packed(run: Path) -> None:
    """Documents one behind the other, cut into full samples: few of them end with EOS, all hold some."""
    stream = [token for one in answered(700) for token in one]
    width = data_lab.WIDE
    rows = [padded(stream[i : i + width]) for i in range(0, len(stream) - width, width)][:COUNT]
    plainly(run, rows, packing=True)


SAMPLES = (
    Sample(
        "gf15-pad-in-data",
        "gf15",
        pads_in,
        "HF Trainer: the labels of tokenised data are a copy of the padded ids, so that padding is trained",
        case="GF15",
        variant="pad-in-data",
    ),
    Sample(
        "gf15-eos-out-data",
        "gf15",
        eos_out,
        "HF Trainer: pad is EOS and labels are masked by the pad id, so that no EOS is trained",
        case="GF15",
        variant="eos-out-data",
    ),
    Sample(
        "gf15-eos-missing",
        "gf15",
        eos_missing,
        "answers behind a masked prompt, without EOS and without another last token",
        case="GF15",
        variant="eos-missing",
        primary="",
    ),
    Sample(
        "gf15-nothing-in-data",
        "gf15",
        nothing_in_data,
        "the prompt fills the maximum length in 70 % of the samples, which have no label",
        case="GF15",
        variant="nothing-in-data",
    ),
    Sample(
        "gf15-nothing-in-log",
        "gf15",
        nothing_at_all,
        "a response template that is never found: all labels are -100, loss NaN and gradient 0 from the first step",
        case="GF15",
        variant="nothing-in-log",
    ),
    Sample(
        "gf15-some-empty",
        "gf15",
        some_empty,
        "the prompt fills the maximum length in 5 % of the samples: waste",
        case="GF15",
        variant="some-empty-data",
        primary="",
    ),
    Sample(
        "gf15-prompt-in",
        "gf15",
        prompt_in,
        "completion_only_loss is set, and the labels are the whole text",
        case="GF15",
        variant="prompt-in",
    ),
    Sample(
        "gf15-eos-out-config",
        "gf15",
        eos_out_config,
        "pad_token_id is eos_token_id and DataCollatorForLanguageModeling masks by it: EOS is never trained",
        case="GF15",
        variant="eos-out-config",
    ),
    Sample(
        "gf15-pad-in-log",
        "gf15",
        lambda run: by_length(run, pads_count=True),
        "padding is trained; no data were kept, but the share of padding is logged, and the loss falls with it",
        case="GF15",
        variant="pad-in-log",
    ),
    Sample(
        "gf15-twin",
        "gf15",
        masked_rightly,
        "HF Trainer: pad is EOS, labels masked by length",
        case="GF15",
        twin=True,
    ),
    Sample(
        "gf15-twin-packed",
        "gf15",
        packed,
        "packed data, cut without regard to EOS",
        case="GF15",
        twin=True,
    ),
    Sample(
        "gf15-twin-lengths",
        "gf15",
        lambda run: by_length(run, pads_count=False),
        "batches of like lengths, padding not trained: the loss does not follow its share",
        case="GF15",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
