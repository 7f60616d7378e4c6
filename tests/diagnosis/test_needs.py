"""The grammar of needs, and what satisfies them."""

import polars as pl
import pytest

from gradforensics.diagnosis import needs
from gradforensics.diagnosis.examples import evidence_of

EVIDENCE = evidence_of(
    {
        "series": {"loss": "1*70", "eval/loss": "1*4", "grad_norm@0": "1*5", "grad_norm@1": "1*5"},
        "settings": {"max_steps": 70},
        "events": [],
        "checkpoints": [{"path": "a"}, {"path": "b"}],
        "tensors": [{"name": "w", "rank": 0}, {"name": "w", "rank": 1}],
        "experiments": [
            {"experiment": "severed", "verdict": "clean"},
            {"experiment": "padding", "verdict": "inconclusive"},
            {"experiment": "content", "verdict": "failed"},
        ],
    }
)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("series:loss", True),
        ("series:loss:points>=64", True),
        ("series:loss:points>=71", False),
        ("series:eval/loss", True),
        ("series:eval/loss:points>=5", False),
        ("series:lr", False),
        ("series:grad_norm:ranks>=2", True),
        ("series:loss:ranks>=2", False),
        ("settings:max_steps", True),
        ("settings:learning_rate", False),
        ("events:console", True),
        ("events:kernel", False),
        ("checkpoints", True),
        ("checkpoints:rows>=2", True),
        ("checkpoints:rows>=3", False),
        ("tensors:ranks>=2", True),
        ("travels", False),
        ("travels:one-update", False),
        ("checkpoints:named", False),
        ("experiments:severed", True),
        ("experiments:padding", False),
        ("experiments:content", False),
        ("experiments:anomaly", False),
    ],
)
def test_satisfied(text, holds):
    assert needs.satisfied(needs.parse(text), EVIDENCE) is holds


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("tables", "names no table"),
        ("series:", "names nothing"),
        ("series:loss:many", "unknown condition 'many'"),
        ("events:all", "events:console or events:kernel"),
    ],
)
def test_malformed_needs_say_why(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        needs.parse(text)


def test_every_kind_of_need_has_advice():
    for text in (
        "series:lr",
        "series:eval/loss",
        "series:loss:ranks>=2",
        "settings:max_steps",
        "events:console",
        "events:kernel",
        "experiments:severed",
        "checkpoints:rows>=2",
        "batch",
        "environment",
    ):
        assert needs.advice(text).endswith(".")
    assert needs.advice("a loss that is meant to fall") == ""
    assert needs.advice("series:perplexity of one attempt") == needs.advice("series:perplexity")


@pytest.mark.parametrize("series", ["loss", "lr", "loss_scale", "accuracy", "eval/loss"])
def test_needs_that_differ_in_their_points_alone_share_one_line(series):
    assert needs.advice(f"series:{series}:points>=10") == needs.advice(f"series:{series}")


def test_dumps_of_collectives_are_no_console():
    evidence = evidence_of({"events": [{"kind": "collective_timeout", "text": "rank 1 is missing"}]})
    assert not needs.satisfied(needs.parse("events:console"), evidence)
    evidence = evidence_of({"events": [{"kind": "collective_timeout", "text": "x"}, {"kind": "warning", "text": "y"}]})
    assert needs.satisfied(needs.parse("events:console"), evidence)


def test_a_missing_experiment_is_advised_as_the_command_that_runs_it():
    assert "gradforensics replay RUN --step N --experiment padding" in needs.advice("experiments:padding")
    told = needs.advice("experiments:padding", "runs/my run", 1207)
    assert "gradforensics replay 'runs/my run' --step 1207 --experiment padding" in told


ADAM = {"group": 0, "optimizer": "adamw", "betas": [0.9, 0.999], "names": ["w"]}


def saved_at(*steps, gradient=None):
    return evidence_of(
        {
            "checkpoints": [{"path": f"checkpoint-{step}", "step": step, "complete": True} for step in steps],
            "groups": [{"checkpoint": f"checkpoint-{step}", **ADAM} for step in steps],
            "travels": [{"first_step": steps[0], "step": steps[-1], "name": "w", "grad_l2": gradient}],
        }
    )


def test_a_pair_one_update_apart_is_known_by_its_recovered_gradient():
    need = needs.parse("travels:one-update")
    assert need.one_update
    assert needs.satisfied(need, saved_at(5, 6, gradient=0.5))
    assert not needs.satisfied(need, saved_at(5, 9))
    with pytest.raises(ValueError, match="unknown condition 'one-update'"):
        needs.parse("moments:one-update")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("framework", ["general", "hf-trainer", "lightning", "deepspeed", "keras"])
def test_the_missing_half_of_a_pair_is_made_from_the_newest_checkpoint(framework, language):
    checkpoint = needs.resumable(saved_at(500, 1000))
    assert checkpoint == ("checkpoint-1000", 1000)
    told = needs.advice("travels:one-update", framework=framework, language=language, checkpoint=checkpoint)
    assert "checkpoint-1000" in told or framework == "keras"  # Keras has no line of its own, nor a pair to make
    without = needs.advice("travels:one-update", framework=framework, language=language)
    assert without == needs.advice("checkpoints", framework=framework, language=language)


def test_names_are_certain_where_a_file_says_them_or_numbers_confirm_them():
    need = needs.parse("checkpoints:named")
    for sure, holds in (("exact", True), ("confirmed", True), ("likely", False), ("none", False)):
        evidence = evidence_of({"checkpoints": [{"path": "a", "naming_sure": sure}]})
        assert needs.satisfied(need, evidence) is holds
    assert "--names-from-config" in needs.advice("checkpoints:named", framework="hf-trainer")
    assert "named_parameters" in needs.advice("checkpoints:named")


def test_a_broken_checkpoint_or_one_without_a_state_is_not_resumed_from():
    evidence = saved_at(500, 1000)
    table = evidence.tables["checkpoints"]
    evidence.tables["checkpoints"] = table.with_columns(complete=table["step"] < 1000)
    assert needs.resumable(evidence) == ("checkpoint-500", 500)
    poisoned = saved_at(500, 1000)
    table = poisoned.tables["checkpoints"]
    poisoned.tables["checkpoints"] = table.with_columns(nonfinite=(table["step"] == 1000).cast(int) * 7)
    assert needs.resumable(poisoned) == ("checkpoint-500", 500)
    evidence = saved_at(500, 1000)
    evidence.tables["groups"] = evidence.tables["groups"].clear()
    assert needs.resumable(evidence) is None


def test_a_pair_is_advised_of_adam_alone():
    evidence = saved_at(500, 1000)
    table = evidence.tables["groups"]
    evidence.tables["groups"] = table.with_columns(optimizer=pl.lit("sgd"))
    assert needs.resumable(evidence) is None
