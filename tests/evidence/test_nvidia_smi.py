"""The full report of nvidia-smi, and its table."""

import pytest

from gradforensics.evidence.files import File
from gradforensics.evidence.readers import nvidia_smi

HEAD = """
==============NVSMI LOG==============

Timestamp                                 : Thu Jan  1 00:00:00 2026
Driver Version                            : 570.124.06
CUDA Version                              : 12.8

Attached GPUs                             : 2
"""
GPU = """\
GPU 00000000:{bus}:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Clocks Event Reasons
        Idle                              : Active
        SW Power Cap                      : {cap}
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : {thermal}
            HW Power Brake Slowdown       : {brake}
        SW Thermal Slowdown               : Not Active
    Clocks Event Reasons Counters
        HW Thermal Slowdown               : Active
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 7
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : {sram}
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 0
        Aggregate
            DRAM Correctable              : 12
            DRAM Uncorrectable            : {dram}
            SRAM Threshold Exceeded       : {exceeded}
    Retired Pages
        Single Bit ECC                    : N/A
        Double Bit ECC                    : {retired}
        Pending Page Blacklist            : {blacklist}
    Remapped Rows
        Correctable Error                 : 1
        Uncorrectable Error               : {remapped}
        Pending                           : {pending}
        Remapping Failure Occurred        : {failure}
        Bank Remap Availability Histogram
            Max                           : 640 bank(s)
    Temperature
        GPU Current Temp                  : {temperature} C
        GPU T.Limit Temp                  : {limit} C
        GPU Shutdown Temp                 : 92 C
        GPU Slowdown Temp                 : {slowdown}
        GPU Slowdown T.Limit Temp         : -2 C
    Processes
        Process ID                        : 280058
            Name                          : /usr/bin/python
"""
HEALTHY = {
    "bus": "07", "cap": "Active", "thermal": "Not Active", "brake": "Not Active", "sram": "0", "dram": "0",
    "exceeded": "No", "retired": "N/A", "blacklist": "N/A", "remapped": "0", "pending": "No", "failure": "No",
    "temperature": "45", "limit": "40", "slowdown": "89 C",
}  # fmt: skip
TABLE = """\
Thu Jan  1 00:00:00 2026
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 535.129.03             Driver Version: 535.129.03   CUDA Version: 12.2     |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
|=========================================+======================+======================|
|   0  NVIDIA H100 80GB HBM3          On  | 00000000:53:00.0 Off |                    0 |
| N/A   37C    P0             112W / 700W |  46103MiB / 81559MiB |    100%      Default |
+-----------------------------------------+----------------------+----------------------+
|   1  NVIDIA H100 80GB HBM3          On  | 00000000:64:00.0 Off |                    3 |
+-----------------------------------------+----------------------+----------------------+
"""


def report(**changes):
    return HEAD + GPU.format(**HEALTHY) + GPU.format(**{**HEALTHY, "bus": "9B", **changes})


def read_text(path, text):
    (path / "gpu.txt").write_text(text)
    file = File(path / "gpu.txt", "gpu.txt", len(text))
    return nvidia_smi.read(file) if nvidia_smi.sniff(file) else None


def test_a_healthy_report_gives_facts_and_no_event(tmp_path):
    reading = read_text(tmp_path, report())
    assert [(f.key, f.value) for f in reading.facts] == [
        ("driver", "570.124.06"), ("cuda", "12.8"), ("gpu_count", "2"), ("gpu", "NVIDIA H100 80GB HBM3"),
    ]  # fmt: skip
    assert reading.events == []
    assert not reading.speaks_of_training


@pytest.mark.parametrize(
    ("changes", "kind", "told"),
    [
        ({"sram": "2"}, "ecc", {"scope": "volatile", "where": "SRAM SEC-DED", "corrected": False, "count": 2}),
        ({"dram": "9"}, "ecc", {"scope": "aggregate", "where": "DRAM", "corrected": False, "count": 9}),
        ({"exceeded": "Yes"}, "ecc", {"what": "sram threshold exceeded", "corrected": False}),
        ({"retired": "4"}, "ecc", {"what": "retired pages", "corrected": False, "count": 4}),
        ({"blacklist": "Yes"}, "ecc", {"what": "pending page blacklist", "corrected": False}),
        ({"remapped": "1"}, "ecc", {"what": "remapped rows", "corrected": False, "count": 1}),
        ({"pending": "Yes"}, "ecc", {"what": "row remapping pending", "corrected": False}),
        ({"failure": "Yes"}, "ecc", {"what": "row remapping failed", "corrected": False}),
        ({"thermal": "Active"}, "thermal", {"reason": "HW Thermal Slowdown"}),
        ({"brake": "Active"}, "thermal", {"reason": "HW Power Brake Slowdown"}),
        ({"temperature": "90"}, "thermal", {"reason": "slowdown temperature", "degrees": 90, "limit": 89}),
        ({"limit": "-3", "slowdown": "N/A"}, "thermal", {"reason": "slowdown temperature", "left": -3, "limit": -2}),
    ],
)
def test_faults_of_a_gpu(tmp_path, changes, kind, told):
    reading = read_text(tmp_path, report(**changes))
    (event,) = reading.events
    assert (event.kind, dict(event.data)) == (kind, {"gpu": "00000000:9b:00.0", **told})
    assert event.time == 1767225600.0
    assert event.text.startswith("GPU 00000000:9b:00.0: ")


def test_the_double_bit_errors_of_older_drivers(tmp_path):
    old = (
        "    ECC Errors\n        Volatile\n            Single Bit\n                Total                 : 5\n"
        "            Double Bit\n                Device Memory         : 2\n                Total                 : 2\n"
    )
    (event,) = read_text(tmp_path, report() + old).events
    assert (event.data["scope"], event.data["count"]) == ("volatile", 2)


def test_a_gpu_that_is_lost(tmp_path):
    lost = "Unable to determine the device handle for GPU 0000:9B:00.0: Unknown Error\n"
    (event,) = read_text(tmp_path, report() + lost).events
    assert event.kind == "gpu_fallen"


def test_the_table(tmp_path):
    reading = read_text(tmp_path, TABLE)
    assert [(f.key, f.value) for f in reading.facts] == [
        ("driver", "535.129.03"), ("cuda", "12.2"), ("gpu", "NVIDIA H100 80GB HBM3"), ("gpu_count", "2"),
    ]  # fmt: skip
    (event,) = reading.events
    assert (event.kind, event.data["index"], event.data["count"]) == ("ecc", 1, 3)


@pytest.mark.parametrize("head", [TABLE, HEAD])
def test_a_log_that_begins_with_it_is_a_log(read, head):
    text = head + "".join(f"step {i} loss: {3 - i / 100:.3f}\n" for i in range(20))
    evidence = read("train.log", text)
    assert evidence.sources[0].reader == "console"
    assert len(evidence.series("loss")) == 20


def test_a_report_beside_a_training_belongs_to_it(run):
    run.write({"log.csv": "step,loss\n1,2.0\n2,1.0\n", "a_gpu.txt": report(dram="9")})
    evidence = run.one()
    assert [e.kind for e in evidence.events] == ["ecc"]
    assert ("driver", "570.124.06") in [(f.key, f.value) for f in evidence.environment]
