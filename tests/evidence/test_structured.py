"""Structured logs of single frameworks, as the frameworks wrote them (data/structured/make.py)."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from gradforensics.evidence.gather import gather

DATA = Path(__file__).parent / "data" / "structured"
CORPUS = Path(__file__).parents[3] / "shared" / "corpus"


@pytest.fixture
def given(tmp_path):
    """The evidence of a folder that holds one of the files, or several, under the names that frameworks use."""

    def giver(**files):
        folder = tmp_path / "myrun"
        folder.mkdir()
        for source, name in files.values():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(DATA / source, folder / name)
        (evidence,) = gather([folder])
        return evidence

    return giver


def frames(evidence):
    return {(key.phase, key.tag): stored for key, stored in evidence.frames.items()}


def steps(evidence, phase, tag):
    return frames(evidence)[phase, tag].frame["step"].to_list()


# -- MMEngine and MMCV -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vis_data/scalars.json", "20261130_004120.json"])
def test_a_validation_of_mmengine_stands_at_the_iteration_before_it(given, name):
    evidence = given(log=("scalars.json", name))
    assert steps(evidence, "train", "loss") == list(range(5, 65, 5))
    assert steps(evidence, "eval", "accuracy/top1") == [20, 40, 60]
    assert frames(evidence)["eval", "accuracy/top1"].frame["value"][0] == 62.5
    assert frames(evidence)["train", "loss"].frame["attempt"].to_list() == [0] * 12
    assert frames(evidence)["train", "loss"].frame["epoch"].to_list() == [1.0] * 4 + [2.0] * 4 + [3.0] * 4
    assert evidence.notices == []
    assert evidence.sources[0].reader == "openmmlab"


def test_both_copies_of_mmengines_log_are_one_run(given):
    evidence = given(a=("scalars.json", "vis_data/scalars.json"), b=("scalars.json", "vis_data/20261130_004120.json"))
    assert len(evidence.keys("loss")) == 2
    assert len(evidence.series("loss")) == 12


def test_iterations_of_mmcv_are_counted_through_its_epochs(given):
    evidence = given(log=("mmcv.log.json", "20230101_120000.log.json"))
    assert steps(evidence, "train", "loss") == [50, 100, 150, 200, 250, 300, 350, 400, 450]
    assert steps(evidence, "eval", "bbox_mAP") == [150, 300, 450]  # its own "iter" is the length of the validation set
    assert frames(evidence)["eval", "bbox_mAP"].frame["value"].to_list() == [0.1, 0.2, 0.3]
    (notice,) = evidence.notices
    assert notice.text == "steps begin anew in every epoch: counted through with 150 steps per epoch"


def test_a_long_first_line_of_mmcv_and_nan_and_a_torn_end(read):
    first = json.dumps({"env_info": "x" * 100_000, "config": "y"})
    rows = [{"mode": "train", "epoch": 1, "iter": i, "loss": math.nan if i == 2 else 1.0 / i} for i in (1, 2, 3)]
    text = "\n".join([first, *map(json.dumps, rows), '{"mode": "train", "epo'])
    evidence = read("a.log.json", text)
    assert frames(evidence)["train", "loss"].frame["kind"].to_list() == ["finite", "nan", "finite"]
    assert frames(evidence)["train", "loss"].frame["line"].to_list() == [2, 3, 4]
    assert [(n.line, n.text) for n in evidence.notices] == [(5, "the last line is torn: not complete JSON")]


# -- StyleGAN ----------------------------------------------------------------------------------------------------------


def test_stylegan_counts_images(given):
    evidence = given(a=("stats.jsonl", "stats.jsonl"), b=("metric-fid50k_full.jsonl", "metric-fid50k_full.jsonl"))
    loss = frames(evidence)["train", "Loss/G/loss"]
    assert loss.step_unit == "samples"
    assert loss.frame["step"].to_list()[:3] == [32, 4032, 8032]
    assert loss.frame["value"][0] == 3.4799304008483887
    assert loss.frame["time"][0] == 1714470115.8023489
    fid = frames(evidence)["train", "results/fid50k_full"]
    assert fid.step_unit == "samples"
    assert fid.frame["step"].to_list() == [40_000 * i for i in range(8)]
    assert fid.frame["value"][3] == -3.1003938667223236e68
    assert {s.reader for s in evidence.sources} == {"stylegan"}


def test_a_file_of_another_program_called_stats_is_left_to_the_others(read):
    evidence = read("stats.jsonl", '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
    assert evidence.sources[0].reader == "json-lines"


# -- tables on a console -----------------------------------------------------------------------------------------------


def test_tables_of_baselines(given):
    evidence = given(log=("log.baselines.txt", "log.txt"))
    reward = frames(evidence)["train", "mean 100 episode reward"]
    assert reward.frame["value"].to_list()[:2] == [25.8, 62.0]
    assert reward.frame["line"].to_list()[:2] == [13, 31]
    assert reward.step_unit == "row"
    assert frames(evidence)["train", "kl"].frame["value"][0] == -2.5609508e-05
    assert [n.text for n in evidence.notices] == ["the last table is torn: it has no end"]


def test_tables_of_stable_baselines3_and_their_twins_are_one_run(given):
    files = {name: (name, name) for name in ("progress.csv", "progress.json")}
    evidence = given(log=("log.sb3.txt", "log.txt"), **files)
    found = {
        key.source: stored.frame["value"].to_list()
        for key, stored in evidence.frames.items()
        if key.tag == "rollout/ep_rew_mean"
    }
    assert found["log.txt"][:3] == [30.0, 22.8, 23.5]
    assert found["progress.csv"] == found["progress.json"]
    tables = {key.tag: stored for key, stored in evidence.frames.items() if key.source == "log.txt"}
    assert tables["train/loss"].frame["step"].to_list() == list(range(256, 1281, 128))
    assert tables["rollout/ep_rew_mean"].frame["step"].to_list() == list(range(128, 1281, 128))
    assert tables["rollout/ep_rew_mean"].resolution == 0.1
    assert evidence.series("reward").source == "progress.csv"
    assert evidence.notices == []


TABLE = """-----------------------
| rollout/      |     |
|    ep_rew_mean | {0}  |
| time/         |     |
|    total_timesteps | {1} |
| train/        |     |
|    loss       | {2} |
-----------------------
"""


def test_what_stands_between_the_tables_of_a_log_is_read_too(read):
    log = "Using cpu device\n" + "".join(TABLE.format(i, 10 * i, 5 - i) for i in range(1, 4))
    log += 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: no more\n'
    evidence = read("train.log", log)
    assert evidence.series("reward").values.tolist() == [1.0, 2.0, 3.0]
    assert (evidence.ending.kind, evidence.ending.line) == ("exception", 28)


def test_a_log_of_two_launches_has_two_attempts(read):
    log = "".join(TABLE.format(i, 10 * i, 1) for i in (1, 2, 3, 2, 3, 4))
    frame = frames(read("train.log", log))["train", "rollout/ep_rew_mean"].frame
    assert frame["attempt"].to_list() == [0, 0, 0, 1, 1, 1]


def test_a_table_without_its_lines_of_dashes_ends_where_a_name_repeats(read):
    whole = TABLE.format(1, 10, 2)
    cut = TABLE.format(2, 20, "nan").replace("-----------------------\n", "")
    evidence = read("train.log", whole + cut + cut.replace("| 20 |", "| 30 |"))
    frame = frames(evidence)["train", "train/loss"].frame
    assert frame["step"].to_list() == [10, 20, 30]
    assert frame["kind"].to_list() == ["finite", "nan", "nan"]


def test_a_table_in_a_readme_is_no_log(run):
    run.write({"README": TABLE.format(1, 2, 3), "log.csv": "step,loss\n1,2.0\n2,1.0\n"})
    assert {s.path: s.reader for s in run.one().sources} == {"log.csv": "csv"}


# -- detectron2 --------------------------------------------------------------------------------------------------------


def test_metrics_of_detectron2_and_its_evaluations(run):
    text = (DATA / "metrics.detectron2.json").read_text()
    text += '{"bbox/AP": 21.5, "bbox/AP50": NaN, "iteration": 799}\n'
    evidence = run.write({"metrics.json": text}).one()
    assert steps(evidence, "train", "total_loss") == list(range(19, 819, 20))
    assert evidence.series("loss").values[0] == 2.725107299629599
    assert steps(evidence, "eval", "bbox/AP") == [799]
    assert frames(evidence)["eval", "bbox/AP50"].frame["kind"].to_list() == ["nan"]
    assert evidence.notices == []


# -- DeepSpeed ---------------------------------------------------------------------------------------------------------

DEEPSPEED: dict[str, Any] = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": 500, "total_num_steps": 10000},
    },
    "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16},
    "bf16": {"enabled": False},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
}
LOG = {"log.csv": "step,loss\n1,2.0\n2,1.0\n"}


def test_a_configuration_of_deepspeed(run):
    evidence = run.write({"ds_config.json": json.dumps(DEEPSPEED, indent=2), **LOG}).one()
    expected = {
        "global_batch_size": 64, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
        "max_grad_norm": 1.0, "optim": "AdamW", "learning_rate": 3e-5, "adam_beta1": 0.8, "adam_beta2": 0.999,
        "adam_epsilon": 1e-8, "weight_decay": 3e-7, "lr_scheduler_type": "WarmupDecayLR", "min_lr": 0,
        "warmup_steps": 500, "max_steps": 10000, "fp16": True, "bf16": False, "loss_scale": None,
        "zero_optimization.stage": 2,
    }  # fmt: skip
    assert {key: evidence.setting(key) for key in expected} == expected
    assert next(s.line for s in evidence.settings if s.key == "global_batch_size") == 2


def test_auto_means_that_deepspeed_was_told_nothing(run):
    auto: dict[str, Any] = {key: "auto" for key in DEEPSPEED if not isinstance(DEEPSPEED[key], dict)}
    auto["optimizer"] = {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    }
    auto["scheduler"] = {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_num_steps": "auto"}}
    auto |= {"fp16": {"enabled": "auto", "loss_scale": 128}, "zero_optimization": {"stage": 3}}
    evidence = run.write({"deepspeed_zero3.json": json.dumps(auto), **LOG}).one()
    assert {s.key for s in evidence.settings if s.value is not None} == {
        "optim", "lr_scheduler_type", "loss_scale", "zero_optimization.stage",
    }  # fmt: skip
    assert evidence.setting("loss_scale") == 128


def test_train_batch_size_elsewhere_is_that_of_one_device(run):
    evidence = run.write({"config.json": '{"train_batch_size": 8, "learning_rate": 0.1}', **LOG}).one()
    assert evidence.setting("per_device_train_batch_size") == 8
    assert evidence.setting("global_batch_size") is None


# -- whole public runs -------------------------------------------------------------------------------------------------

pytestmark_corpus = pytest.mark.skipif(not CORPUS.exists(), reason="the labelled corpus is not here")


@pytestmark_corpus
def test_both_logs_of_a_public_run_of_baselines_agree(tmp_path):
    (evidence,) = gather([CORPUS / "rl-gail"])
    found = {key.source: stored.frame for key, stored in evidence.frames.items() if key.series == "reward"}
    assert found["ppo/progress.csv"]["value"][-1] == 194.39
    assert found["ppo/log.txt"]["value"][-1] == 194.0
    assert [f.height for f in found.values()] == [100, 100]


@pytestmark_corpus
def test_golden_values_of_megatron(tmp_path):
    found = {e.name: e.series("loss") for e in gather([CORPUS / "megatron-golden-values"])}
    series = found["t5_mcore_te_tp2_pp1_vp1"]
    assert series is not None
    assert (series.steps[0], series.steps[-1], series.values[0], series.values[-1]) == (1, 100, 10.39692, 6.76536)
