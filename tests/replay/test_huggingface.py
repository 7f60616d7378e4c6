"""Models of transformers, built from their configuration alone, and batches out of files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gradforensics.errors import ReplayError, UsageError
from gradforensics.replay import huggingface
from gradforensics.replay.from_checkpoint import read_state, record
from gradforensics.replay.sources import Wanted, choose
from gradforensics.replay.step import StepRunner

SHARED = Path(__file__).parents[2].parent / "shared" / "checkpoints"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the collection of real checkpoints is not here")
LLAMA = {
    "model_type": "llama", "vocab_size": 48, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0, "use_cache": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


@pytest.fixture
def write(tmp_path):
    def make(text, name="batch.json"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return make


# -- batches -----------------------------------------------------------------------------------------------------------


def test_samples_are_one_micro_batch_padded_on_the_right(write):
    lines = [{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}, {"input_ids": [8], "labels": [-100]}]
    (batch,) = huggingface.read_batches(write("\n".join(map(json.dumps, lines)), "b.jsonl"), {"pad_token_id": 3})
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 3, 3]]
    assert batch["labels"].tolist() == [[5, 6, 7], [-100, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_lists_of_samples_are_micro_batches_and_labels_the_ids_that_count(write):
    text = json.dumps([
        {"input_ids": [[1, 2], [3, 0]], "attention_mask": [[1, 1], [1, 0]]}, {"input_ids": [[4]]},
    ])  # fmt: skip
    first, second = huggingface.read_batches(write(text), {})
    assert first["labels"].tolist() == [[1, 2], [3, -100]]
    assert second["labels"].tolist() == [[4]]


def test_one_class_per_sample_is_kept_as_it_is(write):
    lines = [{"input_ids": [5, 6], "labels": 1}, {"input_ids": [8], "labels": 0}]
    (batch,) = huggingface.read_batches(write(json.dumps(lines)), {})
    assert batch["labels"].tolist() == [1, 0]


def test_safetensors_are_one_micro_batch(tmp_path):
    save_file({"input_ids": torch.tensor([[1, 2]])}, tmp_path / "b.safetensors")
    (batch,) = huggingface.read_batches(tmp_path / "b.safetensors", {})
    assert batch["labels"].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "Expecting"),
        ("3", "JSON objects with input_ids"),
        ("{}", "no input_ids"),
        ("[]", "no input_ids"),
        ('[{"input_ids": [1]}, {"input_ids": [[1]]}]', "either samples or micro-batches"),
        ('[{"input_ids": [1], "labels": [1]}, {"input_ids": [2]}]', "labels is not in every sample"),
        ('{"input_ids": [[1, 2], [3]]}', "expected sequence of length"),
    ],
)
def test_a_file_that_holds_no_batch_is_named(write, text, complaint):
    with pytest.raises(UsageError, match=complaint) as caught:
        huggingface.read_batches(write(text), {})
    assert "batch.json" in str(caught.value)


# -- models ------------------------------------------------------------------------------------------------------------


def test_a_model_is_built_with_the_attention_that_was_recorded(transformers):
    for attention in ("eager", "sdpa"):
        settings = {"config": LLAMA, "attn_implementation": attention, "autocast": "bfloat16"}
        program = huggingface.build(settings, "LlamaForCausalLM")
        assert type(program.model) is transformers.LlamaForCausalLM
        config: Any = program.model.config
        assert config._attn_implementation == attention
        assert program.settings["vocab_size"] == 48
        assert program.settings["ignore_index"] == -100
        assert program.autocast == "bfloat16"


@pytest.mark.parametrize(
    ("change", "name", "complaint"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "evil.Model"}}, "LlamaForCausalLM", "auto_map"),
        ({"text_config": {"auto_map": "evil.Model"}}, "LlamaForCausalLM", "auto_map"),
        ({"quantization_config": {"quant_method": "gptq"}}, "LlamaForCausalLM", "quantization_config"),
        ({}, "Trainer", "none of transformers' models"),
        ({}, "GPT2LMHeadModel", "none of transformers' models"),
        ({"model_type": "nothing"}, "LlamaForCausalLM", "none of transformers' models"),
    ],
)
def test_only_models_of_transformers_own_are_built(transformers, change, name, complaint):
    with pytest.raises(ReplayError, match=complaint):
        huggingface.build({"config": {**LLAMA, **change}}, name)


def test_a_batch_without_labels_is_told(transformers):
    program = huggingface.build({"config": LLAMA}, "LlamaForCausalLM")
    with pytest.raises(ReplayError, match="the batch has no labels"):
        program.loss(program.model, {"input_ids": torch.tensor([[1, 2]])})


def test_a_step_of_a_hugging_face_run_is_computed_from_its_checkpoint_and_a_batch_alone(transformers, tmp_path, write):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    folder = tmp_path / "run" / "checkpoint-20"
    model.save_pretrained(folder)
    ids = torch.arange(8).reshape(2, 4)
    path = write(json.dumps({"input_ids": ids.tolist()}))
    found = choose(Wanted(tmp_path / "run", 21, batch=path))
    program = huggingface.build(found.program.settings, found.program.function)
    runner = StepRunner(record(found.state, 21, program), program, "cpu")
    assert runner.compute().losses == [model(input_ids=ids, labels=ids).loss.item()]


def test_a_tied_output_layer_is_filled_from_the_embedding(transformers, tmp_path):
    config = transformers.LlamaConfig(**{**LLAMA, "tie_word_embeddings": True})
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "checkpoint-1")
    program = huggingface.build({"config": config.to_dict()}, "LlamaForCausalLM")
    state = read_state(tmp_path / "checkpoint-1", program.model)
    assert not [n for n, _ in program.model.named_parameters() if n not in state.tensors]
    assert torch.equal(state.tensors["model.embed_tokens.weight"], model.lm_head.weight)


@needs_shared
@pytest.mark.parametrize(
    "name", ["hf_llama/checkpoint-6", "hf_gpt2/checkpoint-3", "hf_sharded", "hf_sharded_bf16", "hf_sharded_bin"]
)
def test_real_checkpoints_fill_the_model_that_their_configuration_describes(transformers, name):
    config = json.loads((SHARED / name / "config.json").read_text())
    program = huggingface.build({"config": config}, config["architectures"][0])
    state = read_state(SHARED / name, program.model)
    own = dict(program.model.named_parameters())
    assert {n: v.shape for n, v in state.tensors.items() if n in own} == {n: p.shape for n, p in own.items()}
    if "checkpoint" in name:  # the program's order names what neither file could name
        assert state.optimizer.keys() == own.keys()
        assert len(state.options) == len(state.groups) == 2
        assert all("lr" in options and options["betas"] == (0.9, 0.999) for options in state.options)
    assert all(v.dtype == (torch.bfloat16 if "bf16" in name else torch.float32) for v in state.tensors.values())


@needs_shared
def test_mixed_precision_and_clipping_come_from_the_training_arguments(transformers, write):
    path = write(json.dumps({"input_ids": [[1, 2, 3]]}))
    found = choose(Wanted(SHARED / "hf_bf16", 7, batch=path))
    assert found.program.settings["autocast"] == "bfloat16"
    assert found.program.settings["max_grad_norm"] == 1.0
    program = huggingface.build(found.program.settings, found.program.function)
    recording = record(found.state, 7, program)
    assert recording.last.max_grad_norm == 1.0
    assert StepRunner(recording, program, "cpu").compute().failure == ""
