"""Where a run was resumed."""

from gradforensics.diagnosis.examples import evidence_of
from gradforensics.diagnosis.resumes import resumes


def found(example):
    return [(r.step, r.last, r.how, r.said, r.again) for r in resumes(evidence_of(example))]


def test_an_attempt_that_repeats_steps_is_a_resume():
    example = {"series": {"loss#0": "1.0*150", "loss#1": "1.0*100"}, "start": {"loss#1": 141}}
    assert found(example) == [(141, 140, "attempt", False, False)]


def test_an_attempt_that_counts_from_the_beginning_says_so():
    example = {"series": {"loss#0": "1.0*150", "loss#1": "1.0*100"}}
    assert found(example) == [(1, 150, "attempt", False, True)]


def test_a_line_names_the_step_it_goes_on_from():
    event = {"kind": "resume", "text": "Resuming from checkpoint-150", "data": {"step": 150}}
    assert found({"series": {"loss": "1.0*300"}, "events": [event]}) == [(151, 150, "line", True, False)]


def test_a_line_about_the_checkpoint_of_another_run_is_no_resume():
    event = {"kind": "resume", "text": "loaded checkpoint at step 90000", "data": {"step": 90000}}
    assert found({"series": {"loss": "1.0*300"}, "events": [event]}) == []


def test_a_clock_that_starts_anew_is_a_resume():
    example = {"series": {"loss": "1.0*300", "elapsed": "ramp(1, 150, 150) ramp(1, 150, 150)"}}
    assert found(example) == [(151, 150, "clock", False, False)]


def test_an_attempt_and_a_line_at_the_same_step_are_one_resume():
    example = {
        "series": {"loss#0": "1.0*150", "loss#1": "1.0*100"},
        "start": {"loss#1": 141},
        "events": [{"kind": "resume", "attempt": 1, "text": "Resuming from checkpoint-140"}],
    }
    assert found(example) == [(141, 140, "attempt", True, False)]


def test_a_checkpoint_that_is_loaded_may_begin_a_fine_tune():
    example = {
        "series": {"loss#0": "1.0*150", "loss#1": "1.0*100"},
        "events": [{"kind": "resume", "attempt": 1, "text": "=> loaded checkpoint 'stage1.pth'"}],
    }
    assert found(example) == [(1, 150, "attempt", False, True)]
