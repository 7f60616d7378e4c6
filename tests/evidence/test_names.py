"""Framework names -> canonical series and settings."""

# ruff: noqa: E501  lines of logs and files stand here as they are written

import pytest

from gradforensics.errors import UsageError
from gradforensics.evidence.names import check_mapping, is_loss, is_metric, is_setting, is_unset, series_of, setting_key


@pytest.mark.parametrize(
    ("tag", "phase", "series"),
    [
        ("loss", None, "loss"), ("train_loss", "train", "loss"), ("train/loss", "train", "loss"),
        ("Loss/train", "train", "loss"), ("train_loss_step", "train", "loss"), ("train_loss_epoch", "train", "loss"),
        ("total_loss", None, "loss"), ("lm loss", None, "loss"), ("eval_loss", "eval", "loss"),
        ("val_loss", "eval", "loss"), ("val loss", "eval", "loss"), ("valid_loss", "eval", "loss"),
        ("validation/loss", "eval", "loss"), ("Validation Loss", "eval", "loss"), ("test_loss", "test", "loss"),
        ("loss/val", "eval", "loss"), ("trl", "train", "loss"), ("tel", "eval", "loss"),
        ("eval_g0_loss", "eval", "g0_loss"), ("val/box_loss", "eval", "box_loss"), ("eval_rouge1", "eval", "rouge1"),
        ("test_RMSE", "test", "RMSE"), ("loss_cls", None, "loss_cls"), ("train/ploss_0", "train", "train/ploss_0"),
        ("value loss", None, "value loss"), ("discriminator loss agent", None, "discriminator loss agent"),
        ("Loss/G/loss", None, "Loss/G/loss"), ("grad_norm", None, "grad_norm"), ("gnorm", None, "grad_norm"),
        ("actor/grad_norm", None, "grad_norm"), ("learning_rate", None, "lr"), ("extras/lr/AdamW", None, "lr"),
        ("lr-AdamW", None, "lr"), ("lr/pg0", None, "lr"), ("lr-AdamW/pg1", None, "lr"), ("loss scale", None, "loss_scale"),
        ("val_acc", "eval", "accuracy"), ("metrics/mAP50(B)", "eval", "mAP50(B)"), ("metrics/precision(B)", "eval", "precision(B)"),
        ("results/fid50k_full", None, "fid50k_full"), ("number of skipped iterations", None, "skipped_steps"),
        ("mean 100 episode reward", None, "reward"), ("hellaswag", "test", "hellaswag"), ("ppl", None, "perplexity"),
        ("eval_samples_per_second", "eval", "throughput"), ("", None, ""), ("evaluation", None, "evaluation"),
    ],
)  # fmt: skip
def test_series(tag, phase, series):
    assert series_of(tag) == (phase, series)


@pytest.mark.parametrize("tag", ["loss", "loss_cls", "train/ploss_0", "Loss/G/loss", "box_loss", "tel"])
def test_losses(tag):
    assert is_loss(tag)


@pytest.mark.parametrize(
    "tag", ["loss_weight", "kl_loss_coef", "loss_fn", "glossary", "loss scale", "use_kl_loss_type"]
)
def test_no_losses(tag):
    assert not is_loss(tag)


@pytest.mark.parametrize(
    ("tag", "yes"),
    [("rouge1", True), ("mAP50", True), ("lr", True), ("label", False), ("id", False), ("elapsed", False)],
)
def test_metrics(tag, yes):
    assert is_metric(tag) is yes


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("learning_rate", "learning_rate"), ("lr", "learning_rate"), ("optimizer.params.lr", "learning_rate"),
        ("model.optimizer.lr", "learning_rate"), ("trainer.args.learning_rate", "learning_rate"),
        ("G_opt_kwargs.lr", "G_opt_kwargs.lr"), ("SOLVER.MAX_ITER", "max_steps"), ("SOLVER.BASE_LR", "learning_rate"),
        ("training.steps", "max_steps"), ("fp16.enabled", "fp16"), ("topology.world_size", "world_size"),
        ("train_micro_batch_size_per_gpu", "per_device_train_batch_size"), ("max_epochs", "num_train_epochs"),
        ("gradient_clip_val", "max_grad_norm"), ("text_config.vocab_size", "vocab_size"), ("my_own", "my_own"),
        ("lora_dropout", "lora_dropout"), ("schedule", "schedule"), ("n_steps", "n_steps"), ("diffusion.num_steps", "diffusion.num_steps"),
        ("lr_decay_iters", "decay_steps"), ("lr_scheduler.T_max", "decay_steps"), ("lr_scheduler_kwargs.min_lr", "min_lr"),
        ("lr_scheduler_kwargs.min_lr_rate", "min_lr_rate"), ("lr_end", "lr_end"), ("scheduler.params.total_num_steps", "max_steps"),
        ("unigram_entropy", "unigram_entropy"), ("model.params.total", "model.params.total"),
    ],
)  # fmt: skip
def test_setting_keys(name, key):
    assert setting_key(name) == key


def test_known_and_unset_settings():
    assert is_setting("lr")
    assert not is_setting("my_own")
    assert is_unset("max_steps", -1)
    assert is_unset("learning_rate", "auto")
    assert not is_unset("max_steps", 100)
    assert not is_unset("max_steps", False)


@pytest.mark.parametrize("columns", [{"": "loss"}, {"a": ""}, {" ": " "}, {"a": "eval/"}])
def test_mapping_needs_both_sides(columns):
    with pytest.raises(UsageError, match="--map"):
        check_mapping(columns)


@pytest.mark.parametrize(
    ("column", "values", "series"),
    [
        ("scale", [65536, 65536, 32768, 131072], "loss_scale"),
        ("train/scale", [256, 256], "loss_scale"),
        ("scale", [1, 2, 4], "scale"),
        ("scale", [1000, 900, 800], "scale"),
        ("scale", [0.5, 0.7], "scale"),
        ("loss_scale", [3, 5, 7], "loss_scale"),
        ("amp/scale", [3, 5, 7], "loss_scale"),
    ],
)
def test_a_bare_scale_is_a_loss_scale_only_by_its_values(read, column, values, series):
    evidence = read("log.csv", f"step,loss,{column}\n" + "".join(f"{i},2.5,{v}\n" for i, v in enumerate(values)))
    assert series in evidence.names("train")
    assert ("loss_scale" in evidence.names("train")) is (series == "loss_scale")
