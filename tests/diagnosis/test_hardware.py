"""What a machine tells of itself, and when it is none of this run's business."""

import pytest

from gradforensics.diagnosis.checks import hardware
from gradforensics.diagnosis.examples import evidence_of
from gradforensics.diagnosis.judge import judge
from gradforensics.diagnosis.rules import load_rules
from gradforensics.diagnosis.vocabulary import Missing

LOSS = {"loss": "decay(4.2, 3.0, 100)"}


def listed(answer):
    assert isinstance(answer, list)
    return answer


def evidence(*events, **more):
    return evidence_of({"series": LOSS, "reader": "kernel-log", "events": events, **more})


def xid(number, text="NVRM: Xid", **more):
    return {"kind": "xid", "text": text, "data": {"number": number, "pci": "0000:3b:00"}, **more}


def reported(*events, numbers="74 79 149", outlived="no", **more):
    return hardware.xid_reported(evidence(*events, **more), numbers=numbers, outlived=outlived)


def test_one_hit_per_device_with_the_number_of_its_messages():
    other = {"kind": "xid", "text": "NVRM: Xid", "data": {"number": 79, "pci": "0000:af:00"}}
    hits = reported(xid(74), xid(74), other)
    assert [(h.facts["device"], h.facts["count"]) for h in hits] == [("0000:3b:00", 2), ("0000:af:00", 1)]


@pytest.mark.parametrize(("word", "count"), [("Fatal", 1), ("Nonfatal", 0)])
def test_errors_of_nvlink_5_count_where_they_are_called_fatal(word, count):
    text = f"NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT {word} XC0 i0 Link 00"
    assert len(reported(xid(149, text))) == count


def test_a_run_that_completed_with_a_failure_on_the_way_did_not_outlive_the_fault():
    failed = {
        "kind": "exception",
        "text": "RuntimeError: CUDA error",
        "data": {"type": "RuntimeError"},
        "source": "a.log",
    }
    assert len(reported(xid(79), ending="completed", outlived="yes")) == 1
    assert reported(xid(79), failed, ending="completed", outlived="yes") == []
    assert len(reported(xid(79), failed, ending="completed", outlived="no")) == 1


@pytest.mark.parametrize(("later", "count"), [(10.0, 1), (600.0, 0), (8 * 3600.0, 1)])
def test_what_comes_soon_after_the_failure_is_none_of_its_causes(later, count):
    """Hours later may be the same moment on a clock of another zone."""
    failed = {"kind": "exception", "text": "E", "data": {"type": "ValueError"}, "source": "a.log", "time": 1000.0}
    assert len(reported(failed, xid(79, time=1000.0 + later))) == count


@pytest.mark.parametrize(("data", "count"), [
    ({"scope": "aggregate", "where": "SRAM", "corrected": False, "count": 5}, 1),
    ({"scope": "aggregate", "where": "SRAM", "corrected": False, "count": 4}, 0),
    ({"scope": "aggregate", "where": "DRAM", "corrected": False, "count": 50}, 0),
    ({"scope": "volatile", "where": "DRAM", "corrected": False, "count": 1}, 1),
    ({"what": "remapped rows", "corrected": False, "count": 2}, 0),
    ({"what": "row remapping failed", "corrected": False}, 1),
    ({"where": "host memory", "corrected": False}, 0),
    ({"error": "uncorrectable"}, 1),
])  # fmt: skip
def test_which_memory_errors_count(data, count):
    found = listed(hardware.memory_uncorrectable(evidence({"kind": "ecc", "data": data}), sram=4, outlived="no"))
    assert len(found) == count


@pytest.mark.parametrize(("kind", "text", "data", "count"), [
    ("mce", "mce: [Hardware Error]: Machine check events logged", {}, 0),
    ("mce", "mce: Uncorrected hardware memory error", {"corrected": False}, 1),
    ("ecc", "EDAC MC0: 1 UE memory read error", {"where": "host memory", "corrected": False}, 1),
    ("pcie_error", "AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal)", {"corrected": False}, 0),
    ("pcie_error", "AER: PCIe Bus Error: severity=Uncorrected (Fatal)", {"corrected": False}, 1),
    ("lockup", "BUG: soft lockup - CPU#3 stuck for 22s!", {"cpu": 3}, 0),
    ("lockup", "Watchdog detected hard LOCKUP on cpu 3", {"cpu": 3}, 1),
    ("panic", "Kernel panic - not syncing: Fatal exception", {}, 1),
])  # fmt: skip
def test_which_faults_of_the_host_count(kind, text, data, count):
    found = listed(hardware.host_failed(evidence({"kind": kind, "text": text, "data": data}), outlived="no"))
    assert len(found) == count


def hung(process, pid=7, waits="file system"):
    return {
        "kind": "hung_task",
        "text": "INFO",
        "data": {"process": process, "pid": pid, "seconds": 120, "waits": waits},
    }


def test_a_task_must_be_of_the_training_and_stay_blocked():
    def found(*events):
        return hardware.task_hung(evidence(*events), waits="file system", reports=2, outlived="no")

    assert found(hung("epilog.sh"), hung("epilog.sh")) == []
    assert found(hung("python", 7), hung("python", 8)) == []
    assert found(hung("python", waits="GPU driver"), hung("python", waits="GPU driver")) == []
    (hit,) = found(hung("pt_main_thread"), hung("pt_main_thread"))
    assert hit.facts["process"] == "pt_main_thread"


def test_a_link_that_is_down_counts_where_processes_lost_each_other_later():
    down = {"kind": "link_down", "data": {"device": "0000:1a:00.0", "uptime": 5000.0}}
    boot = {"kind": "link_down", "data": {"device": "0000:1a:00.0", "uptime": 12.0}}
    gone = {
        "kind": "nccl_error",
        "text": "Connection reset by peer",
        "data": {"error": "connection_reset", "type": "E"},
    }
    assert hardware.network_lost(evidence(down), outlived="no") == []
    assert hardware.network_lost(evidence(boot, gone), outlived="no") == []
    assert len(listed(hardware.network_lost(evidence(down, gone), outlived="no"))) == 1


def test_disk_errors_need_a_program_that_felt_them():
    disk = {"kind": "io_error", "data": {"device": "nvme0n1"}}
    felt = {"kind": "exception", "text": "OSError: [Errno 5] Input/output error", "data": {"type": "OSError"}}
    assert isinstance(hardware.storage_failed(evidence(disk), outlived="no"), Missing)
    assert len(listed(hardware.storage_failed(evidence(disk, felt), outlived="no"))) == 1


def test_heat_without_slow_steps_is_no_fault():
    hot = {"kind": "thermal", "text": "HW Thermal Slowdown : Active", "data": {"reason": "HW Thermal Slowdown"}}
    limits = {"slowdown": 0.2, "tolerance": 0.1, "share": 0.8}
    steady = evidence(hot, series={"step_time": "0.5*100"})
    assert hardware.slowed_by_heat(steady, **limits) == []
    assert isinstance(hardware.slowed_by_heat(evidence(hot), **limits), Missing)
    one_rank = evidence(hot, series={"step_time@0": "0.5*100", "step_time@1": "0.7*100"})
    assert listed(hardware.slowed_by_heat(one_rank, **limits))[0].facts["later"] == pytest.approx(0.7)


def test_a_host_without_a_name_is_that_of_the_file_which_shows_the_fault():
    (rule,) = [one for one in load_rules() if one.id == "GF26"]
    unnamed = judge(rule, evidence(xid(119)))
    source = unnamed.holdings[0].hits[0].source
    assert unnamed.facts["host"] is None
    assert unnamed.texts("en").what.startswith(f"Host of {source}, GPU 0000:3b:00: Xid 119")
    assert f"（见 {source}）" in unnamed.texts("zh").fix[0]
    assert judge(rule, evidence({**xid(119), "host": "n7"})).texts("en").what.startswith("Host n7,")
