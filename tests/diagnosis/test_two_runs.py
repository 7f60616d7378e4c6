"""Two runs beside each other: where they part, what else differs, what could explain it."""

import json
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from gradforensics.diagnosis.causes import diagnose
from gradforensics.diagnosis.examples import evidence_of
from gradforensics.diagnosis.rules import load_rules
from gradforensics.diagnosis.two_runs.changes import changes
from gradforensics.diagnosis.two_runs.contrast import contrast
from gradforensics.diagnosis.two_runs.partings import partings
from gradforensics.evidence.gather import gather

SAMPLES = Path(__file__).parent.parent.parent / "sample_runs"
RECIPE = {"learning_rate": 1e-3, "optim": "adamw", "max_steps": 100, "weight_decay": 0.1, "lr_scheduler_type": "cosine"}


def run(loss="decay(4.2, 2.9, 200) + noise(sd=0.03)", /, **more):
    series = {"loss": loss, **more.pop("series", {})}
    return evidence_of({"series": series, "settings": {**RECIPE, **more.pop("settings", {})}, **more})


T = TypeVar("T")


def known(one: T | None) -> T:
    """What must be there."""
    assert one is not None
    return one


def parting(here, there, name="loss"):
    return next(one for one in partings(here, there) if one.label == name)


def logged(folder, rows, form=json.dumps):
    """A run with a log of JSON lines, read as any other."""
    folder.mkdir()
    (folder / "log.jsonl").write_text("".join(form(row) + "\n" for row in rows))
    (found,) = gather([folder])
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train a small model: with a seed, with another sample at a step, with another rate from a step on."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the last digits must not depend on how many threads are free

    def train(name, seed=0, sample_at=None, rate_at=None, steps=30):
        folder = tmp_path_factory.mktemp(name)
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        rows = []
        for step in range(1, steps + 1):
            inputs, labels = torch.randn(16, 8), torch.randint(4, (16,))
            if step == sample_at:
                inputs[0] = 3.0
            for group in optimizer.param_groups:
                group["lr"] = 2e-2 if rate_at and step >= rate_at else 1e-2
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rows.append({"step": step, "loss": loss.item(), "lr": optimizer.param_groups[0]["lr"]})
            if step % 10 == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, folder / f"checkpoint-{step}.pt")
        (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "config.json").write_text(json.dumps({**RECIPE, "seed": seed}))
        (found,) = gather([folder])
        return found

    yield train
    torch.set_num_threads(threads)


def test_a_run_repeated_with_its_seed_is_identical_in_every_digit_and_every_weight(trained):
    found = contrast(trained("a"), trained("b"))
    assert {one.label: one.course for one in found.partings} == {"loss": "identical", "lr": "identical"}
    assert [one.same for one in found.weights] == [True] * 3
    assert not found.parted
    assert found.candidates == ()
    assert found.changes.things == ()


def test_one_other_sample_parts_two_runs_at_its_step_and_their_weights_after_it(trained):
    found = contrast(trained("a"), trained("c", sample_at=15))
    result, equal, unequal = known(found.result), known(found.equal_weights), known(found.unequal_weights)
    assert (result.course, result.until, result.step) == ("parts", 14, 15)
    assert (equal.step, unequal.step) == (10, 20)
    assert unequal.apart == 4
    assert unequal.states_apart > 0
    assert unequal.widest in ("0.weight", "0.bias", "2.weight", "2.bias")
    assert [(one.what, one.weight) for one in found.candidates] == [("sample", "possible")]
    assert not found.changes.confounded


def test_a_rate_that_changes_at_a_step_is_named_though_no_setting_tells_it(trained):
    found = contrast(trained("a"), trained("d", rate_at=20))
    result, earliest = known(found.result), known(found.earliest)
    assert (result.until, result.step) == (20, 21)  # the loss of step 20 precedes the update
    assert (earliest.label, earliest.step) == ("lr", 20)
    (cause,) = found.candidates
    assert (cause.what, cause.weight) == ("rate", "likely")
    assert {sign.key for sign in cause.signs} >= {"only_difference", "rates_part_first"}


def test_other_seeds_are_never_identical_and_the_seed_is_the_only_recorded_difference(trained):
    found = contrast(trained("a"), trained("e", seed=1))
    result = known(found.result)
    assert (result.course, result.until, result.step) == ("never_identical", None, 1)
    (cause,) = found.candidates
    assert (cause.what, cause.weight) == ("seed", "likely")
    assert known(found.unequal_weights).step == 10
    assert found.equal_weights is None


def test_real_siblings_that_differ_in_the_seed_alone_do_not_leave_the_noise():
    (here,), (there,) = (gather([SAMPLES / name / "run"]) for name in ("gf44-twin", "gf05-twin-sibling"))
    found = contrast(here, there)
    assert known(found.result).noise_judged
    assert known(found.result).beyond is None
    assert [change.key for change in found.changes.counted] == ["seed"]


def test_a_rate_that_is_too_high_shows_in_the_lasting_difference_of_real_runs():
    (here,), (there,) = (gather([SAMPLES / name / "run"]) for name in ("gf05-above-sibling", "gf05-twin-sibling"))
    found = contrast(here, there)
    result = known(found.result)
    assert (result.until, result.step, known(found.earliest).label) == (2, 3, "lr")
    assert 3 < known(result.beyond) < 30
    assert result.gap == pytest.approx(0.32, abs=0.03)
    assert [(one.what, one.weight) for one in found.candidates] == [("rate", "likely")]


# -- how values were written ------------------------------------------------------------------------------------------

NOISY = [3 + 0.5 * np.sin(i * 1.7) + 0.1 * np.cos(i * 5.3) for i in range(1, 81)]


def test_values_printed_with_fewer_digits_are_equal_as_far_as_they_were_printed(tmp_path):
    exact = logged(tmp_path / "a", [{"step": i, "loss": v} for i, v in enumerate(NOISY, 1)])
    printed = logged(tmp_path / "b", [{"step": i, "loss": round(v, 3)} for i, v in enumerate(NOISY, 1)])
    found = parting(exact, printed)
    assert (found.course, found.rounded) == ("identical", True)
    other = [{"step": i, "loss": round(v + (0.004 if i >= 50 else 0), 3)} for i, v in enumerate(NOISY, 1)]
    found = parting(exact, logged(tmp_path / "c", other))
    assert (found.course, found.until, found.step, found.rounded) == ("parts", 49, 50, True)


def test_values_printed_with_few_significant_digits_are_compared_by_these(tmp_path):
    small = [v * 1e-4 for v in NOISY]
    exact = logged(tmp_path / "a", [{"step": i, "loss": v} for i, v in enumerate(small, 1)])
    printed = logged(tmp_path / "b", [{"step": i, "loss": float(f"{v:.3e}")} for i, v in enumerate(small, 1)])
    found = parting(exact, printed)
    assert (found.course, found.rounded) == ("identical", True)


def test_single_precision_of_one_run_is_no_difference(tmp_path):
    exact = logged(tmp_path / "a", [{"step": i, "loss": v} for i, v in enumerate(NOISY, 1)])
    single = logged(tmp_path / "b", [{"step": i, "loss": float(np.float32(v))} for i, v in enumerate(NOISY, 1)])
    assert parting(exact, single).course == "identical"
    assert parting(single, exact).course == "identical"


def test_equal_points_at_the_start_that_coarse_printing_explains_are_no_common_beginning(tmp_path):
    other = [v + 0.2 * np.sin(i * 3.1) for i, v in enumerate(NOISY, 1)]
    coarse = [[round(v, 0) for v in values] for values in (NOISY, other)]
    coarse[1][0] = coarse[0][0]
    here, there = (
        logged(tmp_path / name, [{"step": i, "loss": v} for i, v in enumerate(values, 1)])
        for name, values in zip("ab", coarse, strict=True)
    )
    assert parting(here, there).course == "never_identical"


def test_a_nan_equals_a_nan_and_nothing_else():
    here, there = run("3.0*30 nan*5 3.0*5"), run("3.0*30 nan*5 3.0*4 nan")
    found = parting(here, there)
    assert (found.course, found.until, found.step) == ("parts", 39, 40)
    assert (found.here, found.there) == (3.0, None)
    assert parting(run("3.0*30 nan*5"), run("3.0*30 nan*5")).course == "identical"


# -- the noise --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_a_lasting_difference_is_dated_and_noise_alone_is_none(seed):
    here = run(f"decay(4.2, 2.9, 400) + noise(sd=0.05, seed={seed})")
    same = run(f"decay(4.2, 2.9, 400) + noise(sd=0.05, seed={seed + 100})")
    assert parting(here, same).noise_judged
    assert parting(here, same).beyond is None
    shifted = [*(4.2 - i * 0.004 for i in range(200)), *(3.4 + 0.4 - i * 0.002 for i in range(200))]
    text = " ".join(f"{v:.4f}" for v in shifted)
    base = " ".join(
        f"{v:.4f}" for v in [*(4.2 - i * 0.004 for i in range(200)), *(3.4 - i * 0.002 for i in range(200))]
    )
    found = parting(run(f"{text} + noise(sd=0.05, seed={seed})"), run(f"{base} + noise(sd=0.05, seed={seed + 100})"))
    assert found.beyond == pytest.approx(201, abs=15)
    assert found.gap > 0.1


def test_a_difference_that_comes_back_is_not_lasting():
    text = "4.0*100 5.0*100 4.0*200 + noise(sd=0.05, seed=1)"
    assert parting(run(text), run("4.0*400 + noise(sd=0.05, seed=2)")).beyond is None


def test_few_points_say_nothing_about_noise():
    found = parting(run("4.0*12 + noise(sd=0.1, seed=1)"), run("9.0*12 + noise(sd=0.1, seed=2)"))
    assert (found.course, found.noise_judged, found.beyond) == ("never_identical", False, None)


# -- steps, attempts --------------------------------------------------------------------------------------------------


def test_runs_that_log_at_different_steps_are_compared_at_those_that_both_logged():
    here = evidence_of({"series": {"loss": "ramp(4, 3, 100)"}})
    some = " ".join(map(repr, np.linspace(4, 3, 100)[9::10].tolist()))
    there = evidence_of({"series": {"loss": some}, "every": {"loss": 10}})
    found = parting(here, there)
    assert (found.course, found.points, found.first, found.last) == ("identical", 10, 10, 100)


def test_runs_without_a_common_step_are_not_judged():
    here = evidence_of({"series": {"loss": "4.0*10"}, "every": {"loss": 10}})
    there = evidence_of({"series": {"loss": "4.0*10"}, "every": {"loss": 10}, "start": {"loss": 5}})
    found = contrast(here, there)
    assert [(one.course, one.why) for one in found.partings] == [("not_judged", "no_shared_steps")]
    assert found.result is None
    assert found.candidates == ()


def test_series_of_the_machine_are_not_compared():
    here = run(series={"step_time": "1.0*200", "grad_norm": "1.0*200"})
    there = run(series={"step_time": "2.0*200", "grad_norm": "1.0*200"})
    assert [one.label for one in partings(here, there)] == ["loss", "grad_norm"]


def test_a_restart_right_before_the_runs_part_is_a_candidate():
    base = "ramp(4, 3, 60)"
    here = evidence_of({"series": {"loss": base}, "settings": {**RECIPE, "seed": 0}})
    values = " ".join(str(4 - i / 59) for i in range(40))
    again = {"loss#0": values, "loss#1": "ramp(3.9, 3.0, 30)"}
    there = evidence_of({"series": again, "start": {"loss#1": 31}, "settings": {**RECIPE, "seed": 0}})
    found = contrast(here, there)
    result = known(found.result)
    assert (result.until, result.step) == (30, 31)
    assert [(one.what, dict(one.signs[0].facts)) for one in found.candidates if one.what == "restart"] == [
        ("restart", {"step": 31, "here": 0})
    ]


# -- what else differs ------------------------------------------------------------------------------------------------


def test_names_places_and_settings_of_one_run_do_not_count():
    here = run(settings={"output_dir": "out/a", "run_name": "a", "dropout": 0.1})
    there = run(settings={"output_dir": "out/b", "run_name": "b"})
    found = changes(here, there)
    assert found.things == ()
    assert [(one.key, one.here) for one in found.one_sided] == [("dropout", True)]


def test_every_setting_is_a_thing_of_its_own_and_seeds_and_environment_are_one_each():
    here = run(
        settings={"learning_rate": 1e-3, "weight_decay": 0.0, "seed": 0, "data_seed": 0},
        environment=[{"key": "package:torch", "value": "2.4.0"}, {"key": "gpu", "value": "A100"}],
    )
    there = run(
        settings={"learning_rate": 3e-4, "weight_decay": 0.1, "seed": 1, "data_seed": 1},
        environment=[{"key": "package:torch", "value": "2.6.0"}, {"key": "gpu", "value": "H100"}],
    )
    found = changes(here, there)
    assert [[change.key for change in thing] for thing in found.things] == [
        ["data_seed", "seed"],
        ["learning_rate"],
        ["weight_decay"],
        ["gpu", "package:torch"],
    ]
    assert found.confounded


def test_packages_that_hardly_change_numbers_and_places_of_data_are_uncertain():
    here = run(settings={"dataset": "data/a"}, environment=[{"key": "package:rich", "value": "13"}])
    there = run(settings={"dataset": "data/b"}, environment=[{"key": "package:rich", "value": "14"}])
    found = changes(here, there)
    assert found.things == ()
    assert [(one.kind, one.key) for one in found.uncertain] == [("data", "dataset"), ("environment", "package:rich")]


def test_what_not_both_runs_record_is_named():
    assert changes(run(), run()).unknown == ("seed", "data", "environment", "code")
    fact = [{"key": "package:torch", "value": "2.4.0"}, {"key": "git_commit", "value": "ab"}]
    known = run(settings={"seed": 0}, environment=fact)
    assert changes(known, known).unknown == ("data",)


def test_another_commit_is_another_code():
    here, there = (run(environment=[{"key": "git_commit", "value": value}]) for value in ("ab", "cd"))
    assert [(change.kind, change.key) for change in changes(here, there).counted] == [("code", "git_commit")]


# -- candidates -------------------------------------------------------------------------------------------------------


def test_identical_rates_speak_against_a_changed_rate():
    rates = {"lr": "1e-3*200"}
    here = run("ramp(4, 3, 200)", series=rates, settings={"warmup_steps": 10, "seed": 0})
    there = run("ramp(4, 2.5, 200)", series=rates, settings={"warmup_steps": 20, "seed": 0})
    cause = next(one for one in contrast(here, there).candidates if one.what == "rate")
    assert [(sign.key, sign.against) for sign in cause.signs if sign.key == "rates_identical"] == [
        ("rates_identical", True)
    ]
    assert cause.weight != "likely"


def test_a_setting_that_is_in_force_from_the_start_does_not_explain_a_late_parting():
    values = [4 - i / 100 for i in range(60)]
    late = [v if i < 40 else v * 1.02 for i, v in enumerate(values)]
    here, there = (
        run(" ".join(map(str, v)), settings={"weight_decay": decay, "seed": 0})
        for v, decay in ((values, 0.1), (late, 0.2))
    )
    found = contrast(here, there)
    cause = next(one for one in found.candidates if one.what == "setting")
    assert (cause.weight, cause.signs[0].key, cause.signs[0].against) == ("unlikely", "starts_late", True)
    assert "sample" in {one.what for one in found.candidates}


def test_a_difference_that_begins_in_the_last_digits_looks_like_rounding():
    values = [4 - i / 97 for i in range(60)]
    drift = [v if i < 20 else v * (1 + 1e-7 * 1.3 ** (i - 20)) for i, v in enumerate(values)]
    found = contrast(run(" ".join(map(repr, values))), run(" ".join(map(repr, drift))))
    assert [(one.what, one.weight) for one in found.candidates] == [("rounding", "possible")]


def test_with_two_things_changed_none_is_called_likely():
    here = run("ramp(4, 3, 200)", settings={"weight_decay": 0.0, "seed": 0, "dropout": 0.0})
    there = run("ramp(4, 2, 200)", settings={"weight_decay": 0.1, "seed": 0, "dropout": 0.1})
    found = contrast(here, there)
    assert found.changes.confounded
    assert {one.weight for one in found.candidates if one.changed} == {"possible"}


# -- the rule ---------------------------------------------------------------------------------------------------------


def test_a_sibling_that_was_chosen_by_itself_is_no_confounded_comparison():
    rule = next(rule for rule in load_rules(examples=False) if rule.id == "GF44")
    here = run(settings={"weight_decay": 0.0, "learning_rate": 1e-2, "seed": 0})
    here.baseline = run(settings={"weight_decay": 0.1, "learning_rate": 1e-3, "seed": 0})
    (verdict,) = diagnose(here, [rule]).verdicts
    assert (verdict.outcome, verdict.severity, verdict.alarm) == ("fired", "S4", False)
    assert "learning_rate, weight_decay" in verdict.texts("en").what
    assert "learning_rate, weight_decay" in verdict.texts("zh").what
    here.baseline_is_sibling = True
    (verdict,) = diagnose(here, [rule]).verdicts
    assert (verdict.outcome, verdict.missing) == ("not_judged", ("baseline:series:loss",))


def test_with_few_settings_in_common_nothing_is_called_likely():
    here, there = (
        evidence_of({"series": {"loss": f"ramp(4, {end}, 60)"}, "settings": {"learning_rate": rate, "seed": 0}})
        for end, rate in ((3, 1e-3), (2, 3e-3))
    )
    found = contrast(here, there)
    assert "setting" in found.changes.unknown
    assert [one.weight for one in found.candidates if one.changed] == ["possible"]
