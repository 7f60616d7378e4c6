"""Samples per step: planned, set and counted."""

import pytest

from gradforensics.diagnosis.checks import CHECKS
from gradforensics.diagnosis.examples import evidence_of
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.tables import Setting

SET = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "world_size": 8}


def ask(check, evidence, **arguments):
    answer = CHECKS[check](evidence, **({"tolerance": 0.01} | arguments))
    return "missing" if isinstance(answer, Missing) else answer[0].facts if answer else "clear"


def of(**example):
    return evidence_of(example)


def last_row(samples_per_second, steps_per_second, steps):
    """What the Trainer logs in its last row, behind a loss of so many steps."""
    return {
        "series": {
            "loss": f"decay(3, 2, {steps})",
            "train_samples_per_second": f"{samples_per_second}",
            "train_steps_per_second": f"{steps_per_second}",
        },
        "start": {"train_samples_per_second": steps, "train_steps_per_second": steps},
    }


@pytest.mark.parametrize(("planned", "wanted"), [(128, "clear"), (129, "clear"), (256, 0.5), (131072, "clear")])
def test_the_plan_against_the_settings(planned, wanted):
    found = ask("batch_differs_from_plan", of(settings={**SET, "global_batch_size": planned, "max_seq_length": 1024}))
    assert (found["ratio"] if isinstance(found, dict) else found) == wanted


def test_a_plan_that_may_be_in_tokens_is_not_judged_without_a_length():
    assert ask("batch_differs_from_plan", of(settings={**SET, "global_batch_size": 524288})) == "missing"


def test_a_bare_batch_size_may_be_that_of_all_devices():
    evidence = of(settings={**SET, "global_batch_size": 4})
    evidence.settings[0] = Setting("per_device_train_batch_size", "batch_size", 4, "config.json")
    assert ask("batch_differs_from_plan", evidence) == "missing"


def test_ranks_of_model_parallelism_share_a_batch():
    settings = {**SET, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "global_batch_size": 32}
    assert ask("batch_differs_from_plan", of(settings=settings)) == "clear"
    assert ask("batch_differs_from_plan", of(settings={**settings, "tp_size": 3})) == "missing"


def test_a_declared_ramp_is_not_judged():
    settings = {**SET, "global_batch_size": 256, "rampup_batch_size": "16 16 300000"}
    assert ask("batch_differs_from_plan", of(settings=settings)) == "missing"


def test_the_trainers_last_row_counts_the_samples():
    example = last_row(19.2, 0.6, 60)  # 32 samples per step
    settings = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "max_steps": 60}
    found = ask("batch_differs_from_settings", of(**example, settings={**settings, "world_size": 8}))
    assert found["ratio"] == pytest.approx(0.25)
    assert ask("batch_differs_from_settings", of(**example, settings={**settings, "world_size": 2})) == "clear"
    assert ask("batch_differs_from_settings", of(**example, settings=settings)) == "clear"  # two ranks fit


def test_no_number_of_ranks_explains_a_batch_below_that_of_one():
    example = last_row(1.6, 0.8, 80)  # 2 samples per step
    settings = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "max_steps": 80}
    assert ask("batch_differs_from_settings", of(**example, settings=settings))["size"] == pytest.approx(2.0)


def test_epochs_times_the_samples():
    series = {"loss": "decay(3, 2, 250)", "epoch": "ramp(0.016, 4.0, 250)"}  # 62.5 steps per epoch
    settings = {**SET, "dataset_size": 8000}
    assert ask("batch_differs_from_settings", of(series=series, settings=settings)) == "clear"
    found = ask("batch_differs_from_settings", of(series=series, settings={**SET, "dataset_size": 1000}))
    assert found["size"] == pytest.approx(16.0, rel=0.01)


def test_whole_epochs_say_nothing_about_steps():
    series = {"loss": "decay(3, 2, 250)", "epoch": "1*100 2*100 3*50"}
    assert ask("batch_differs_from_settings", of(series=series, settings={**SET, "dataset_size": 1000})) == "missing"


def test_an_uneven_count_of_tokens_is_no_batch():
    series = {"n_tokens_seen": "ramp(100, 30000, 300) + noise(sd=20)"}
    assert ask("batch_differs_from_settings", of(series=series, settings={**SET, "max_seq_length": 128})) == "missing"


def test_one_attempt_cannot_change_its_batch():
    assert ask("batch_changed_on_resume", of(series={"loss": "decay(3, 2, 100)"})) == "clear"


def test_a_resume_with_the_same_batch():
    series = {
        "loss#0": "decay(3, 2, 100)", "loss#1": "decay(2, 1.9, 100)",
        "epoch#0": "ramp(0.01, 1.0, 100)", "epoch#1": "ramp(1.01, 2.0, 100)",
    }  # fmt: skip
    start = {"loss#1": 101, "epoch#1": 101}
    assert ask("batch_changed_on_resume", of(series=series, start=start)) == "clear"


def test_noise_that_hides_the_signal_gives_no_scale_from_above():
    """Squared norms of 100 +- 20 % for 1 and 4 samples: their difference is drowned in noise."""
    series = {"grad_norm": "10*60 + noise(sd=2)", "micro_grad_norm": "20*60 + noise(sd=4, seed=1)"}
    settings = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "world_size": 1}
    check = "batch_far_from_noise_scale"
    evidence = of(series=series, settings=settings)
    for side in ("above", "below"):
        answer = CHECKS[check](evidence, side=side, times=10.0 if side == "above" else 50.0, points=50)
        assert answer == []


def test_the_noise_scale_of_known_gradients():
    """|G|^2 = 1 and tr S = 4 give squared norms of 1 + 4/64 for 64 samples and 1 + 4/1024 for 1024."""
    series = {"micro_grad_norm": f"{(1 + 4 / 64) ** 0.5}*60", "grad_norm": f"{(1 + 4 / 1024) ** 0.5}*60"}
    settings = {"per_device_train_batch_size": 64, "gradient_accumulation_steps": 16, "world_size": 1}
    found = CHECKS["batch_far_from_noise_scale"](
        of(series=series, settings=settings), side="above", times=10.0, points=50
    )
    assert isinstance(found, list)
    assert found[0].facts["noise_scale"] == pytest.approx(4.0)
