"""Which framework a run speaks of, and the one line of advice for it."""

import importlib.util
import re
import string
import tomllib
from pathlib import Path

import pytest

from gradforensics.diagnosis import frameworks, needs
from gradforensics.diagnosis.causes import diagnose
from gradforensics.diagnosis.frameworks import framework_of
from gradforensics.diagnosis.rules import load_rules
from gradforensics.evidence.gather import gather
from gradforensics.report.build import build
from gradforensics.tables import Evidence, SeriesFrame, SeriesKey, Setting, Source, series_frame

TABLE = tomllib.loads(Path(frameworks.__file__).with_name("advice.toml").read_text(encoding="utf-8"))
SAMPLES = Path(__file__).parents[2] / "sample_runs"
LOG = "train.log"


def of_source(reader, path="x", remark=""):
    return Evidence("run", sources=[Source(path, 1, reader=reader, remark=remark)])


def of_settings(*names):
    return Evidence("run", settings=[Setting(name, name, 1, "config.json") for name in names])


def of_tag(tag):
    return Evidence("run", frames={SeriesKey("run", "train", "x", tag, "x"): SeriesFrame(series_frame({}, [1.0]))})


@pytest.mark.parametrize(
    ("evidence", "framework"),
    [
        (of_source("hf-trainer-state", "trainer_state.json"), "hf-trainer"),
        (of_source("console", LOG, "dialect: Hugging Face Trainer, TRL, Axolotl"), "hf-trainer"),
        (
            of_source("console", LOG, "same values as x.csv; dialect: Megatron-LM, Megatron-DeepSpeed, GPT-NeoX"),
            "megatron-lm",
        ),
        (of_source("checkpoint (hf-trainer+torch-zip)", "checkpoint-5"), "hf-trainer"),
        (of_source("checkpoint (torch-zip)", "a.pt"), "general"),
        (of_source("llamafactory-log", "trainer_log.jsonl"), "llamafactory"),
        (of_source("config", "version_0/hparams.yaml"), "lightning"),
        (of_source("csv", "lightning_logs/version_3/metrics.csv"), "lightning"),
        (of_source("checkpoint (torch-zip)", "checkpoints/epoch=0-step=4-v1.ckpt"), "lightning"),
        (of_source("checkpoint (torch-zip)", "model.ckpt"), "general"),
        (of_source("csv", "metrics.csv"), "general"),
        (of_source("deepspeed-config", "ds_config.json"), "deepspeed"),
        (of_source("console", LOG, "dialect: torchtitan"), "torchtitan"),
        (of_source("console", LOG, "dialect: Keras"), "keras"),
        (of_source("console", LOG, "dialect: nanoGPT"), "general"),
        (of_settings("distributed_type", "compute_environment", "mixed_precision"), "accelerate"),
        (of_settings("learning_rate", "seed"), "general"),
        (of_settings("finetuning_type", "stage"), "llamafactory"),
        (of_settings("logging_nan_inf_filter"), "hf-trainer"),
        (of_tag("lr-AdamW/pg1"), "lightning"),
        (of_tag("epoch_loss"), "keras"),
        (of_tag("lr-decay"), "general"),
        (of_tag("Train/Samples/train_loss"), "deepspeed"),
    ],
)
def test_the_framework_is_known_by_what_only_it_writes(evidence, framework):
    assert framework_of(evidence) == framework


def test_of_a_trainer_on_deepspeed_the_one_that_the_user_configures_counts():
    evidence = of_source("hf-trainer-state")
    evidence.sources.append(Source("ds_config.json", 1, reader="deepspeed-config"))
    assert framework_of(evidence) == "hf-trainer"
    evidence.sources.append(Source("trainer_log.jsonl", 1, reader="llamafactory-log"))
    assert framework_of(evidence) == "llamafactory"


@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_line_stands_in_both_languages_with_the_same_placeholders(name):
    english, chinese = TABLE[name]["en"], TABLE[name]["zh"]
    assert set(english) == set(chinese) <= set(TABLE["general"]["en"]) | {"throughput"}
    assert TABLE[name]["source"]
    for key, text in english.items():
        placeholders = [{n for _, n, _, _ in string.Formatter().parse(one) if n} for one in (text, chinese[key])]
        assert placeholders[0] == placeholders[1] <= {"name", "where", "checkpoint", "next"}
        assert text.endswith(".")
        assert chinese[key].endswith("。")
        assert "\n" not in text


@pytest.mark.parametrize(
    ("framework", "need", "piece"),
    [
        ("hf-trainer", "series:loss:points>=64", "logging_nan_inf_filter=False"),
        ("hf-trainer", "series:eval/loss", 'eval_strategy="steps"'),
        ("hf-trainer", "travels", "save_steps=500"),
        ("lightning", "series:lr", "LearningRateMonitor"),
        ("lightning", "series:grad_norm", "on_before_optimizer_step"),
        ("lightning", "series:eval/accuracy", 'self.log("val_accuracy"'),
        ("megatron-lm", "series:grad_norm", "--log-num-zeros-in-grad"),
        ("megatron-lm", "series:memory_allocated", "--log-memory-to-tensorboard"),
        ("deepspeed", "series:step_time", '"wall_clock_breakdown": true'),
        ("deepspeed", "series:loss", '{"enabled": true, "output_path"'),
        ("accelerate", "series:kl", 'accelerator.log({"kl": ...}'),
        ("torchtitan", "series:loss:ranks>=2", "save_for_all_ranks"),
        ("keras", "checkpoints:rows>=2", "epoch-{epoch}.keras"),
        ("llamafactory", "series:memory_reserved", "RECORD_VRAM=1"),
        ("hf-trainer", "events:kernel", "dmesg"),
        ("general", "series:grad_norm", "clip_grad_norm_"),
        ("unheard-of", "series:grad_norm", "clip_grad_norm_"),
    ],
)
def test_the_line_names_the_option_of_the_framework(framework, need, piece):
    assert piece in needs.advice(need, framework=framework)


def test_a_chinese_report_gets_chinese_lines():
    assert needs.advice("series:lr", framework="lightning", language="zh").endswith("。")
    assert "gradforensics replay RUN --step N --experiment padding" in needs.advice(
        "experiments:padding", language="zh"
    )


@pytest.mark.parametrize(
    ("sample", "piece", "language"),
    [
        ("healthy-lightning", "self.save_hyperparameters()", "en"),
        ("gf07-twin", "trainer.args.to_json_string()", "zh"),
        ("gf06-tiny", "--set", "en"),
    ],
)
def test_the_report_shows_the_line_of_the_runs_framework(sample, piece, language):
    (evidence,) = gather([SAMPLES / sample / "run"])
    report = build([diagnose(evidence, load_rules(examples=False))], evidence.sources, language=language)
    framework = framework_of(evidence)
    told = needs.advice("settings:something", evidence.path, framework=framework, language=language)
    assert piece in told
    gaps = {gap.need: gap.advice.in_(language) for verdict in report.runs[0].verdicts for gap in verdict.missing}
    expected = {n: needs.advice(n, evidence.path, framework=framework, language=language) for n in gaps}
    assert gaps == expected
    assert any(gaps.values())


def test_the_options_of_the_trainer_are_fields_of_its_arguments():
    """Read from the source of the library, where it is installed: importing it takes seconds."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        pytest.skip("transformers is not installed")
    source = Path(spec.origin).with_name("training_args.py").read_text(encoding="utf-8")
    fields = set(re.findall(r"^    (\w+):", source, re.MULTILINE))
    lines = " ".join(TABLE["hf-trainer"]["en"].values())
    named = {
        name for call in re.findall(r"TrainingArguments\(([^)]*)\)", lines) for name in re.findall(r"(\w+)=", call)
    }
    assert len(named) > 5
    assert named <= fields
