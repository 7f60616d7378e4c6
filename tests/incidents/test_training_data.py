"""Public incidents that the data, the labels or an id caused: each must be named, or kept quiet about."""

import json
import random


def lines(records):
    return "".join(json.dumps(one) + "\n" for one in records)


def losses(count=60):
    return lines({"step": i, "loss": 3 - i / 100, "grad_norm": 1.0, "lr": 1e-4} for i in range(1, count + 1))


def sample(ids, labels, width=16):
    room = width - len(ids)
    return {
        "input_ids": ids + [0] * room,
        "attention_mask": [1] * len(ids) + [0] * room,
        "labels": labels + [-100] * room,
    }


def test_a_token_that_the_embedding_lacks_asserts_at_the_first_step(judged):
    """MedicalGPT issue 275: indexSelectLargeIndex asserts at 0/993 after a stage that added tokens."""
    diagnosis, verdicts = judged(
        "***** Running training *****\n  0%|          | 0/993 [00:00<?, ?it/s]\n"
        "../aten/src/ATen/native/cuda/Indexing.cu:1146: indexSelectLargeIndex: block: [58,0,0], thread: [24,0,0] "
        "Assertion `srcIndex < srcSelectDimSize` failed.\n"
        'Traceback (most recent call last):\n  File "supervised_finetuning.py", line 1, in <module>\n    main()\n'
        "RuntimeError: CUDA error: device-side assert triggered\n"
    )
    assert (diagnosis.primary.rule.id, diagnosis.primary.variant) == ("GF14", "token-id")
    assert verdicts["GF14"].strength == "proven"


def test_an_assertion_on_probabilities_is_no_index(judged):
    """Sampling from NaN logits asserts on the device as well: `probability tensor contains ...` is no bad id."""
    _, verdicts = judged(
        "***** Running training *****\n{'loss': 2.1, 'learning_rate': 1e-4, 'epoch': 0.1}\n"
        "../aten/src/ATen/native/cuda/TensorCompare.cu:110: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] "
        "Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.\n"
        'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n    main()\n'
        "RuntimeError: CUDA error: device-side assert triggered\n"
    )
    assert verdicts["GF14"].outcome != "fired" or verdicts["GF14"].variant == "assert-unknown"


def test_every_label_masked_shows_as_zero_loss_and_zero_gradient(judged):
    """trl issue 6668: loss 0.0 at every step although the forward pass gives NaN; the prompt fills max_length."""
    rows = [{"step": i, "loss": 0.0, "grad_norm": 0.0, "learning_rate": 5e-5, "epoch": i / 8} for i in range(1, 25)]
    diagnosis, verdicts = judged(json.dumps({"log_history": rows, "global_step": 24}), "trainer_state.json")
    assert (diagnosis.primary.rule.id, diagnosis.primary.variant) == ("GF15", "nothing-in-log")
    assert verdicts["GF15"].onset == 1


def test_empty_responses_leave_nothing_to_train(judged):
    """FederatedScope pull 625: samples of dolly without a response."""
    data = [{"instruction": f"say {i}", "output": "" if i % 60 == 0 else f"this is {i}"} for i in range(300)]
    diagnosis, verdicts = judged({"metrics.jsonl": losses(), "train.jsonl": lines(data)})
    assert (verdicts["GF15"].variant, verdicts["GF15"].severity) == ("some-empty-data", "S3")
    assert diagnosis.alarms == []


def test_an_end_that_is_the_pad_is_never_trained(judged):
    """trl issue 976, transformers issue 23530: labels[labels == pad_token_id] = -100 with pad_token = eos_token."""
    data = []
    for i in range(64):
        ids = [5 + (i + k) % 40 for k in range(6 + i % 7)]
        data.append({**sample([*ids, 2], [*ids, -100]), "attention_mask": [1] * (len(ids) + 1) + [0] * (15 - len(ids))})
        data[-1]["input_ids"] = [2 if v == 0 else v for v in data[-1]["input_ids"]]
    files = {"metrics.jsonl": losses(), "train.jsonl": lines(data)}
    diagnosis, _ = judged(files, pad_token_id=2, eos_token_id=2)
    assert (diagnosis.primary.rule.id, diagnosis.primary.variant) == ("GF15", "eos-out-data")


def test_a_tokenizer_that_does_not_append_the_end(judged):
    """transformers issue 22794: input_ids end without 2 (</s>)."""
    generator = random.Random(0)
    data = []
    for i in range(100):
        ids = [1] + [generator.randrange(5, 90) for _ in range(8 + i % 6)]
        data.append(sample(ids, [-100] * 4 + ids[4:]))
    _, verdicts = judged({"metrics.jsonl": losses(), "train.jsonl": lines(data)}, eos_token_id=2, pad_token_id=0)
    assert (verdicts["GF15"].variant, verdicts["GF15"].alarm) == ("eos-missing", False)


def test_a_collator_that_makes_the_labels_anew(judged):
    """transformers issue 26357: prompt masking undone, the labels are the ids."""
    data = [sample([5 + i % 9, 6, 7, 2], [5 + i % 9, 6, 7, 2]) for i in range(64)]
    files = {"metrics.jsonl": losses(), "train.jsonl": lines(data)}
    diagnosis, _ = judged(files, completion_only_loss=True, eos_token_id=2)
    assert (diagnosis.primary.rule.id, diagnosis.primary.variant) == ("GF15", "prompt-in")


def test_a_loss_that_drops_with_every_epoch_is_a_note(judged):
    """transformers issue 18730: a staircase in the training loss; maintainers call it normal."""
    generator = random.Random(1)
    rows = [
        {"step": i, "loss": 1.9 - 0.35 * ((i - 1) // 50) + generator.gauss(0, 0.04), "epoch": i / 50, "lr": 1e-5}
        for i in range(1, 201)
    ]
    diagnosis, verdicts = judged(lines(rows), "log.jsonl")
    assert diagnosis.alarms == []
    assert (verdicts["GF39"].variant, verdicts["GF39"].severity) == ("epoch-steps", "S4")
