"""What stopped the communication between processes, and who was missing."""

import pytest

from gradforensics.diagnosis.checks import communication
from gradforensics.diagnosis.examples import evidence_of
from gradforensics.diagnosis.vocabulary import Missing

LOSS = {"loss": "decay(4.2, 3.0, 100)"}


def failure(*events, series=None, **more):
    return communication.failure(evidence_of({"series": LOSS if series is None else series, "events": events, **more}))


def timeout(rank, line=400, **data):
    text = f"[Rank {rank}] Watchdog caught collective operation timeout"
    return {"kind": "timeout", "rank": rank, "step": 100, "line": line, "text": text, "data": data}


def lost(rank, line=410, **data):
    told = {"error": "connection_closed", "type": "RuntimeError", **data}
    return {"kind": "nccl_error", "rank": rank, "line": line, "text": "Connection closed by peer", "data": told}


def killed(rank, signal, line=500, **data):
    return {
        "kind": "killed",
        "rank": rank,
        "line": line,
        "text": f"exitcode: -{signal}",
        "data": {"signal": signal, **data},
    }


def dump(missing=(12,), waiting=(13, 14), *, at=1000.0, **data):
    told = {"first": True, "missing": list(missing), "waiting": list(waiting), "timeout_ms": 600_000, **data}
    return {"kind": "collective_timeout", "time": at, "text": "stalled", "data": told}


def test_a_barrier_names_the_ranks_that_did_not_pass():
    assert failure(timeout(0, missing_ranks=[3, 5])).missing == (3, 5)


def test_with_two_silent_ranks_nobody_is_named():
    found = failure(timeout(0), timeout(1), settings={"world_size": 4})
    assert (found.how, found.missing) == ("unnamed", ())


def test_the_rank_whose_series_ends_first_is_missing():
    series = {"loss@0": "3.0*100", "loss@1": "3.0*99", "loss@2": "3.0*100"}
    found = failure(timeout(0), timeout(1), timeout(2), series=series)
    assert (found.how, found.missing) == ("missing-rank", (1,))


def test_a_kill_that_the_launcher_reports_as_the_root_comes_first_though_its_line_is_later():
    assert failure(lost(0), killed(1, 9, root=True)).how == "consequence"


@pytest.mark.parametrize("signal", [6, 15])
def test_processes_that_are_cleaned_up_explain_nothing(signal):
    assert failure(timeout(0), killed(1, signal), settings={"world_size": 2}).how == "missing-rank"


def test_a_launcher_that_kills_the_others_after_the_root_failed_explains_nothing():
    root = {
        "kind": "child_failed",
        "rank": 0,
        "line": 500,
        "text": "exitcode: 1",
        "data": {"exit_code": 1, "root": True},
    }
    assert failure(timeout(0), root, killed(1, 9), settings={"world_size": 2}).how == "missing-rank"


def test_an_exception_behind_the_timeout_is_no_cause_of_it():
    later = {"kind": "exception", "rank": 0, "line": 900, "text": "ValueError: x", "data": {"type": "ValueError"}}
    assert failure(timeout(0), later, settings={"world_size": 2}).how != "consequence"


def test_sizes_may_differ_in_an_exchange_but_not_in_a_reduction():
    calls = [timeout(r, sequence=7, group="0", collective="ALLTOALL", numel_in=10 + r) for r in (0, 1)]
    assert failure(*calls).how == "unnamed"
    calls = [timeout(r, sequence=7, group="0", collective="ALLREDUCE", numel_in=10 + r) for r in (0, 1)]
    assert failure(*calls).how == "mismatch"


def test_warnings_are_no_complaints():
    found = failure(lost(0, level="warning"), ending="completed")
    assert found is None


def test_dumps_alone_speak_and_a_watchdog_in_them_proves():
    assert failure(dump(), series={}).sure is False
    assert failure(dump(timed_out=True), series={}).sure is True


def test_dumps_beside_a_run_that_ended_without_a_word_do_not_decide():
    assert isinstance(failure(dump()), Missing)
    assert failure(dump(), ending="truncated").missing == (12,)
    assert failure(dump(), ending="completed") is None


def test_a_rank_that_waits_for_others_itself_is_not_the_missing_one():
    assert failure(dump(missing=(3, 12), waiting_elsewhere=[3]), series={}).missing == (12,)


def test_members_that_are_all_in_a_collective_need_a_second_sign():
    assert isinstance(failure(dump(missing=()), series={}), Missing)
    assert failure(dump(missing=()), ending="timeout").how == "unnamed"


def test_one_stack_proves_nothing():
    stack = {"kind": "stack", "text": "x", "data": {"waits": "collective", "frames": ["barrier (torch)"]}}
    assert isinstance(failure(stack), Missing)
    assert isinstance(failure(stack, stack), Missing)  # both wait: the one that is missing is elsewhere


def test_variables_that_are_off_are_left_alone():
    evidence = evidence_of({"settings": {"NCCL_IB_DISABLE": "0", "NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "eth0"}})
    assert communication.communication_variables(evidence) == []
    evidence = evidence_of({"environment": [{"key": "NCCL_DEBUG", "value": "INFO"}]})
    found = communication.communication_variables(evidence)
    assert isinstance(found, list)
    assert found[0].facts["variables"] == "NCCL_DEBUG=INFO"
