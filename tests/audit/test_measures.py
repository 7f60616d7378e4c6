"""What is measured, against the obvious computation."""

import random

import numpy as np
import pytest

from gradforensics.audit import DataFile, Known, audit

EOS, PAD = 1, 0


def row(ids, *, width=8, prompt=0, left=False, **lists):
    room = width - len(ids)
    parts = {
        "input_ids": (ids, [PAD] * room),
        "attention_mask": ([1] * len(ids), [0] * room),
        "labels": ([-100] * prompt + ids[prompt:], [-100] * room),
    }
    laid = {name: (fill + values if left else values + fill) for name, (values, fill) in parts.items()}
    return {**laid, **lists}


def test_characters_that_are_no_text_are_counted_and_the_first_named(audited):
    measures, _ = audited([{"text": "plain\ttext\n"}, {"text": "a\u200bb\ufeff"}, {"text": "\x07\ufffd\ufffd"}])
    zero, control, replaced = (measures[n] for n in ("zero_width", "control", "replacement"))
    assert (zero.count, zero.row, zero.text) == (1, 2, "U+200B")
    assert (control.count, control.row, control.text) == (1, 3, "U+0007")
    assert [one.value for one in (zero, control, replaced)] == pytest.approx([2 / 18, 1 / 18, 2 / 18])


def test_repeated_words_are_found_with_their_sample(audited):
    measures, _ = audited([{"text": "one two three"}, {"text": "so it goes " + "on and " * 40}, {"text": ""}])
    found = measures["repeats"]
    assert (found.value, found.count, found.row, found.text) == (40, 1, 2, "on and")
    assert (measures["empty"].count, measures["empty"].row) == (1, 3)


def test_copies_and_the_overlap_with_an_evaluation(tmp_path):
    texts = [f"sample {i}" for i in range(10)]
    for name, held in (("train.csv", [*texts, "sample 3", " sample 3 "]), ("eval.csv", ["sample 1", "new", "newer"])):
        (tmp_path / name).write_text("text\n" + "".join(f"{t}\n" for t in held))
    files = [DataFile(p, p.name, p.stat().st_size) for p in (tmp_path / "eval.csv", tmp_path / "train.csv")]
    held_out, train = audit(files, Known())
    copies = next(m for m in train.measures if m.quantity == "duplicates")
    assert (copies.count, copies.row) == (2, 11)
    assert copies.text == "as row 4; the most frequent one 3 times"
    overlap = next(m for m in held_out.measures if m.quantity == "overlap")
    assert (overlap.count, overlap.row, overlap.text) == (1, 1, "train.csv")
    assert [copies.value, overlap.value] == pytest.approx([2 / 12, 1 / 3])
    assert not [m for m in train.measures if m.quantity == "overlap"]


def test_labels_on_padding_are_counted_by_the_mask(audited):
    wrong = row([5, 6, 7, EOS])
    wrong["labels"] = list(wrong["input_ids"])
    measures, _ = audited([row([5, 6, EOS]), wrong], ends=frozenset({EOS}))
    pads = measures["pads_trained"]
    assert (pads.count, pads.row) == (4, 2)
    assert pads.value == pytest.approx(4 / 11)
    assert (measures["eos_behind"].count, measures["eos_trained"].count) == (2, 2)


def test_an_end_that_is_masked_by_the_id_of_the_pad_is_hidden(audited):
    rows = [row([5, 6, 7, EOS]) for _ in range(3)]
    for one in rows:
        one["labels"] = [-100 if v in (EOS, PAD) else v for v in one["input_ids"]]
    both = frozenset({EOS})
    measures, _ = audited(rows, ends=both, pads=both)
    assert (measures["eos_behind"].value, measures["eos_trained"].value) == (1, 0)
    assert measures["pad_is_eos"].value == EOS


def test_an_end_between_the_turns_of_a_prompt_needs_no_label(audited):
    measures, _ = audited([row([5, EOS, 6, 7], prompt=3)], ends=frozenset({EOS}))
    assert (measures["eos_behind"].count, measures["eos_held"].count) == (0, 1)


def test_samples_without_labels_and_with_labels_of_the_whole_text(audited):
    measures, _ = audited([row([5, 6, 7], prompt=3), row([5, 6, 7]), row([5, 6, 7], prompt=1)])
    assert (measures["unlabelled"].count, measures["unlabelled"].row) == (1, 1)
    assert (measures["whole_text"].count, measures["whole_text"].row) == (1, 2)


def test_ids_and_labels_outside_of_the_vocabulary(audited):
    measures, _ = audited([row([5, 63]), row([5, 64]), row([5, 6], labels=[5, -1] + [-100] * 6)], vocabulary=64)
    assert (measures["ids_outside"].count, measures["ids_outside"].row, measures["max_id"].value) == (1, 2, 64)
    assert measures["labels_outside"].count == 2
    inside, _ = audited([row([5, 63])], vocabulary=64)
    assert (inside["ids_outside"].count, inside["labels_outside"].count) == (0, 0)


def test_left_padding_empty_masks_and_lists_of_different_lengths(audited):
    measures, _ = audited([row([5, 6], left=True), row([]), row([5], attention_mask=[1])])
    assert (measures["left_padded"].count, measures["left_padded"].text) == (1, "without position_ids")
    assert (measures["unmasked"].count, measures["unmasked"].row) == (1, 2)
    assert (measures["uneven"].count, measures["uneven"].row) == (1, 3)


def test_lengths_are_those_without_padding(audited):
    measures, _ = audited([row([5, 6, 7]), row([5] * 8), row([5] * 8)], longest=8)
    assert (measures["longest"].value, measures["longest"].count) == (8, 2)
    assert (measures["cut_off"].count, measures["full"].count) == (2, 2)


def test_many_random_samples_give_what_a_loop_gives(audited):
    generator = random.Random(3)
    rows = [row([generator.randrange(2, 9) for _ in range(generator.randrange(1, 8))]) for _ in range(300)]
    for one in rows[::7]:
        one["labels"] = list(one["input_ids"])
    measures, _ = audited(rows, vocabulary=8)
    wrong = sum(m == 0 and v != -100 for r in rows for m, v in zip(r["attention_mask"], r["labels"], strict=True))
    counted = sum(v != -100 for r in rows for v in r["labels"])
    assert measures["pads_trained"].count == wrong
    assert measures["pads_trained"].value == pytest.approx(wrong / counted)
    assert measures["ids_outside"].count == sum(max(r["input_ids"]) >= 8 for r in rows)
    lengths = [sum(r["attention_mask"]) for r in rows]
    assert measures["tokens"].value == np.median(lengths)


def test_a_tokenizer_gives_ids_and_lengths_of_texts(audited):
    class Words:
        def encode(self, texts):
            return [[len(word) for word in text.split()] + [EOS] for text in texts]

    measures, found = audited(
        [{"text": "four of them"}, {"text": "one"}], coder=Words(), vocabulary=4, ends=frozenset({EOS}), longest=4
    )
    assert (measures["ids_outside"].count, measures["max_id"].value) == (1, 4)
    assert (measures["eos_held"].count, measures["cut_off"].count) == (2, 1)
    assert measures["max_id"].column == "text (tokenizer)"
    assert found.notices == []
