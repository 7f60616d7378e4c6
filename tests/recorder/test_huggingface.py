"""The callback in a real Trainer: what it records is the Trainer's step bit by bit, from the configuration alone."""

import json
import math

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from gradforensics import capsule  # noqa: E402  after the skip
from gradforensics.recorder.huggingface import RecorderCallback  # noqa: E402
from gradforensics.replay.program import Program  # noqa: E402
from gradforensics.replay.recording import from_capsule  # noqa: E402
from gradforensics.replay.step import StepRunner  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks


def model():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=30, n_embd=16, n_layer=1, n_head=2, n_positions=16, pad_token_id=0, eos_token_id=1, bos_token_id=1,
        loss_type="ForCausalLMLoss",
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def documents(count=26):
    generator = torch.Generator().manual_seed(0)
    return [{"input_ids": torch.randint(2, 30, (8,), generator=generator)} for _ in range(count)]


def collate(rows):
    ids = torch.stack([row["input_ids"] for row in rows])
    labels = ids.clone()
    labels[0, :4] = -100  # so that the number of tokens differs between micro-batches
    return {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}


def train(folder, callback=None, **options):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=2, gradient_accumulation_steps=3, num_train_epochs=1,
        max_grad_norm=0.5, logging_steps=1, report_to="none", disable_tqdm=True, save_strategy="no", use_cpu=True,
        seed=3, **options,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=model(), args=arguments, train_dataset=documents(), data_collator=collate,
        callbacks=[] if callback is None else [callback],
    )  # fmt: skip
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row], trainer.model


@pytest.mark.parametrize("check", ["now", "late"])
def test_a_step_of_the_trainer_is_replayed_bit_by_bit_and_the_training_is_unchanged(check, tmp_path):
    losses, trained = train(tmp_path / "bare")
    callback = RecorderCallback(at_steps=(2, 5), check=check)
    recorded, other = train(tmp_path / "run", callback)
    assert recorded == losses
    assert all(torch.equal(a, b) for a, b in zip(trained.parameters(), other.parameters(), strict=True))
    for step, micros in ((2, 3), (5, 1)):  # 26 documents are 13 micro-batches: the last step has one
        folder = tmp_path / "run" / "capsules" / capsule.folder_name(step, 0, 1)
        header = capsule.read_header(folder)
        assert header.program is not None
        assert header.program.kind == "huggingface"
        assert header.program.function == "GPT2LMHeadModel"
        assert header.settings["pad_token_id"] == 0
        assert header.settings["gradient_accumulation_steps"] == 3
        assert header.tied == {"lm_head.weight": "transformer.wte.weight"}
        rebuilt = transformers.GPT2LMHeadModel(transformers.GPT2Config.from_dict(header.program.settings["config"]))
        program = Program(rebuilt, lambda model, batch: model(**batch).loss)
        recording = from_capsule(folder)
        assert len(recording.last.micros) == micros
        assert "num_items_in_batch" in recording.last.micros[0].batch
        found = StepRunner(recording, program, "cpu").compute()
        assert found.loss == header.steps[0].loss
        assert found.clipped_norm == header.steps[0].grad_norm


def test_the_step_log_has_the_loss_that_the_trainer_logs(tmp_path):
    callback = RecorderCallback(tmp_path / "own")
    losses, _ = train(tmp_path / "run", callback)
    rows = [json.loads(line) for line in (tmp_path / "own" / "gradforensics-steps.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["loss"] for row in rows] == pytest.approx(losses, rel=1e-4)
    assert callback.recorder is None


def test_autocast_of_the_trainer_is_seen_and_evaluation_is_not_recorded(tmp_path):
    train(
        tmp_path, RecorderCallback(at_steps=(2,)), bf16=True, eval_strategy="no",
    )  # fmt: skip
    header = capsule.read_header(next(iter(capsule.find(tmp_path))))
    assert header.steps[0].micro_batches[0].autocast == capsule.Autocast("cpu", True, "bfloat16")
    callback = RecorderCallback()
    network = model().eval()
    callback._before_forward(network, (torch.ones(1, 2),), {})  # no training runs: nothing happens
    assert math.isfinite(float(network(torch.ones(1, 2, dtype=torch.long)).logits.sum()))
