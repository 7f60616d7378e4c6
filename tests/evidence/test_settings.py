"""Configuration files: names, canonical keys, lines, origins, and the files that must not pollute."""

# ruff: noqa: E501  lines of logs and files stand here as they are written

import json

import pytest

from gradforensics.errors import UsageError
from gradforensics.evidence.settings import parse_value

LOG = {"m.jsonl": '{"step": 1, "loss": 2}\n'}


def rows(evidence):
    return [(s.key, s.name, s.value, s.line) for s in evidence.settings or []]


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("args.json", '{\n "lr": 1e-3,\n "optimizer": {"params":\n {"eps": 1e-6}}\n}', [("learning_rate", "lr", 1e-3, 2), ("adam_epsilon", "optimizer.params.eps", 1e-6, 4)]),
        ("config.yaml", "lr: 1e-4\noptim:\n  name: adamw\n  betas: [0.9, 0.95]\nnone: null\n", [
            ("learning_rate", "lr", 1e-4, 1), ("optim.name", "optim.name", "adamw", 3), ("adam_beta1", "optim.betas", 0.9, 4),
            ("adam_beta2", "optim.betas", 0.95, 4), ("none", "none", None, 5)]),
        ("hparams.yaml", "learning_rate: 1.0e-05\noptimizer: !!python/name:torch.optim.adam.Adam ''\nfp16: no\nuse: true\n", [
            ("learning_rate", "learning_rate", 1e-5, 1), ("optim", "optimizer", "name:torch.optim.adam.Adam", 2), ("fp16", "fp16", "no", 3), ("use", "use", True, 4)]),
        ("train.toml", "seed = 1\n[training]\nsteps = 100  # n\n[optimizer]\nlr = 8e-4\n", [
            ("seed", "seed", 1, 1), ("max_steps", "training.steps", 100, 3), ("learning_rate", "optimizer.lr", 8e-4, 5)]),
        ("training_args.bin", '{"max_steps": -1, "learning_rate": 0.1}', [("max_steps", "max_steps", None, 1), ("learning_rate", "learning_rate", 0.1, 1)]),
        ("ds_config.json", '{"fp16": {"enabled": true}, "gradient_clipping": "auto"}', [("fp16", "fp16.enabled", True, 1), ("max_grad_norm", "gradient_clipping", None, 1)]),
        ("adapter_config.json", '{"peft_type": "LORA", "r": 8}', [("peft_type", "peft_type", "LORA", 1), ("r", "r", 8, 1)]),
        ("config.json", '{"vocab_size": 32000, "model_type": "llama"}', [("vocab_size", "vocab_size", 32000, 1), ("model_type", "model_type", "llama", 1)]),
    ],
)  # fmt: skip
def test_files(run, name, text, wanted):
    evidence = run.write({**LOG, name: text}).one()
    found = rows(evidence)
    if name == "hparams.yaml":  # a foreign tag is kept as text, never constructed
        assert "torch.optim.adam.Adam" in str(found[1][2])
        found[1], wanted[1] = found[1][:2], wanted[1][:2]
    assert found == wanted
    assert {s.origin for s in evidence.settings} == {"config"}
    assert {s.reader for s in evidence.sources} == {"json-lines", "config"}
    assert evidence.notices == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("generation_config.json", '{"max_length": 20, "seed": 1}'), ("tokenizer_config.json", '{"model_max_length": 512}'),
        ("manifest.json", '{"seed": 1, "precision": "x"}'), ("package.json", '{"name": "x", "version": "1"}'),
        ("oracle.json", '{"clean.pt": {"tensors": 5}}'), ("vocab.json", '{"lr": 5, "epochs": 7}'), ("notes.yaml", "a: 1\n"),
        ("pyproject.toml", "[tool]\nlr = 1\n"), ("config.json", '{"name": "x"}'), ("model.safetensors.index.json", '{"metadata": {"total_size": 5}}'),
    ],
)  # fmt: skip
def test_files_that_are_no_configuration(run, name, text):
    assert run.write({**LOG, name: text}).one().settings is None


@pytest.mark.parametrize(
    ("name", "text", "line", "said"),
    [
        ("config.json", '{"lr": 0.1,\n "epochs": 3,\n', 3, "not read to its end"), ("args.yaml", "lr: 0.1\nbad: [1\n", 3, "no valid YAML"),
        ("args.toml", "lr = 0.1\nbad =\n", 2, "no valid TOML"),
    ],
)  # fmt: skip
def test_broken_files(run, name, text, line, said):
    evidence = run.write({**LOG, name: text}).one()
    if name == "config.json":
        assert evidence.setting("learning_rate") == 0.1
        assert [(n.line, said in n.text) for n in evidence.notices] == [(line, True)]
    else:
        assert evidence.settings is None


def test_aliases_that_explode_or_loop_are_bounded(run):
    lines = ["a0: &a0 {lr: 1, epochs: 2}"] + [f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}" for i in range(1, 30)]
    evidence = run.write({**LOG, "config.yaml": "\n".join(lines), "args.yaml": "lr: 1\nloop: &b\n  x: *b\n"}).one()
    assert len(evidence.settings) <= 5002


def test_the_user_beats_the_runtime_beats_the_file(run):
    state = {"global_step": 1, "max_steps": 10, "log_history": [{"step": 1, "loss": 1.0}]}
    run.write({"trainer_state.json": json.dumps(state), "training_args.json": '{"max_steps": 5, "learning_rate": 0.1}'})
    evidence = run.one()
    assert evidence.setting("max_steps") == 10
    assert sorted(s.value for s in evidence.settings if s.key == "max_steps") == [5, 10]
    evidence = run.one(settings={"max_steps": "20", "vocab_size": "32_000x", "fp16": "true"})
    assert (evidence.setting("max_steps"), evidence.setting("fp16"), evidence.setting("vocab_size")) == (
        20,
        True,
        "32_000x",
    )
    assert [s.source for s in evidence.settings if s.origin == "user"] == ["--set"] * 3


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e4", 10000.0), ("5", 5), ("-1", -1), ("0.5", 0.5), ("True", True), ("no", False), ("none", None), ("cosine", "cosine"), (7, 7), ("1e999", float("inf"))],
)  # fmt: skip
def test_values_of_the_user(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def test_a_setting_needs_a_key(run):
    with pytest.raises(UsageError, match="--set"):
        run.write(LOG).one(settings={" ": 1})


def test_settings_of_a_parent_folder_apply_below_the_nearest_first(run):
    files = {
        "config.yaml": "learning_rate: 0.1\nseed: 1\n", "a/log.csv": "step,loss\n1,2\n", "b/log.csv": "step,loss\n1,3\n",
        "b/args.json": '{"lr": 0.2}', "b/checkpoint-5/config.json": '{"vocab_size": 50}',
    }  # fmt: skip
    a, b = run.write(files).all()
    assert (a.name, a.setting("learning_rate"), a.setting("vocab_size")) == ("a", 0.1, None)
    assert (b.name, b.setting("learning_rate"), b.setting("vocab_size"), b.setting("seed")) == ("b", 0.2, 50, 1)


def test_settings_of_wandb(run):
    text = "_wandb:\n  value:\n    cli_version: 0.19\nlearning_rate:\n  desc: null\n  value: 0.5\n"
    evidence = run.write({**LOG, "wandb/run-1/files/config.yaml": text}).one()
    assert rows(evidence) == [("learning_rate", "learning_rate", 0.5, 6)]
