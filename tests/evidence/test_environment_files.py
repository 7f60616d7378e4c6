"""Environments as other tools and our own leave them become facts; wishes stay wishes."""

import json

import pytest

from gradforensics.evidence import software

LOG = "step,loss\n" + "".join(f"{i},{3 - i / 100}\n" for i in range(1, 30))
REPORT = """PyTorch version: 2.3.0+cu121
Is debug build: False
CUDA used to build PyTorch: 12.1
ROCM used to build PyTorch: N/A

OS: Ubuntu 22.04.4 LTS (x86_64)
Libc version: glibc-2.35

Python version: 3.11.9 (main, Apr  6 2024) (64-bit runtime)
CUDA runtime version: Could not collect
GPU models and configuration: GPU 0: NVIDIA A100-SXM4-80GB
GPU 1: NVIDIA H100 80GB HBM3

Nvidia driver version: 535.104.05
cuDNN version: Probably one of the following:
/usr/lib/libcudnn.so.8.9.7

Versions of relevant libraries:
[pip3] numpy==1.26.4
[pip3] torch==2.3.0+cu121
[conda] blas                      1.0                         mkl
[conda] torch                     2.3.0                    pypi_0    pypi
"""
TOLD = {
    ("package:torch", "2.3.0+cu121"), ("torch_cuda", "12.1"), ("os", "Ubuntu 22.04.4 LTS (x86_64)"),
    ("glibc", "glibc-2.35"), ("python", "3.11.9"), ("gpu", "NVIDIA A100-SXM4-80GB"), ("gpu", "NVIDIA H100 80GB HBM3"),
    ("driver", "535.104.05"), ("package:numpy", "1.26.4"), ("conda:blas", "1.0"),
}  # fmt: skip


def facts_of(run, name, text, **more):
    evidence = run.write({"log.csv": LOG, name: text, **more}).one()
    return [(f.key, f.value) for f in evidence.environment or [] if f.source == name]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("torch==2.3.0", ("torch", "2.3.0")),
        ("Flash_Attn == 2.5.8  # fast", ("flash-attn", "2.5.8")),
        ("uvicorn[standard]==0.30.0 ; python_version > '3.8'", ("uvicorn", "0.30.0")),
        ("torch==2.3.0 \\", ("torch", "2.3.0")),
        ("torch===2.3.0+cu121", ("torch", "2.3.0+cu121")),
        ("apex @ file:///tmp/apex-0.1-cp310-cp310-linux_x86_64.whl", ("apex", "0.1")),
        ("torch>=2.0", None),
        ("torch==2.*", None),
        ("torch==2.3.0,!=2.3.1", None),
        ("-e git+https://example.org/a.git#egg=a", None),
        ("# torch==2.3.0", None),
    ],
)
def test_only_lines_that_name_one_version_pin(line, found):
    assert software.pinned(line) == found


@pytest.mark.parametrize("name", ["pip_freeze.txt", "requirements-lock.txt", "logs/installed_packages.txt"])
def test_a_list_that_a_program_wrote_is_what_was_installed(run, name):
    assert facts_of(run, name, "numpy==1.26.4\ntorch==2.3.0\n") == [
        ("package:numpy", "1.26.4"),
        ("package:torch", "2.3.0"),
    ]


def test_a_requirements_file_states_wishes(run):
    text = "# what we need\ntorch==2.3.0\ntransformers>=4.40\nnumpy==1.26.4 --hash=sha256:0\n"
    evidence = run.write({"log.csv": LOG, "requirements.txt": text}).one()
    assert [(f.key, f.value) for f in evidence.environment] == [("pin:torch", "2.3.0"), ("pin:numpy", "1.26.4")]
    assert "not what was installed" in next(s.remark for s in evidence.sources if s.path == "requirements.txt")


def test_what_mlflow_keeps_beside_a_model_was_installed(run):
    assert facts_of(run, "artifacts/model/requirements.txt", "torch==2.3.0\n") == [("package:torch", "2.3.0")]


def test_pip_list_and_conda_list(run):
    table = "Package    Version\n---------- -------\nnumpy      1.26.4\ntorch      2.3.0\n"
    assert facts_of(run, "pip_list.txt", table) == [("package:numpy", "1.26.4"), ("package:torch", "2.3.0")]
    conda = (
        "# packages in environment at /opt/conda:\n#\n# Name             Version              Build  Channel\n"
        "cudatoolkit               11.8.0               h6a678d5_0\n"
        "torch                     2.3.0                    pypi_0    pypi\n"
    )
    assert facts_of(run, "conda_list.txt", conda) == [("conda:cudatoolkit", "11.8.0"), ("package:torch", "2.3.0")]


def test_an_exported_environment_is_installed_and_a_written_one_is_wished_for(run):
    head = "name: x\nchannels:\n  - defaults\ndependencies:\n"
    exported = head + "  - cudatoolkit=11.8.0=h6a678d5_0\n  - pip:\n    - torch==2.3.0\n"
    assert facts_of(run, "environment.yml", exported) == [("conda:cudatoolkit", "11.8.0"), ("package:torch", "2.3.0")]
    written = head + "  - python=3.11\n  - pip\n  - pip:\n      - torch==2.3.0\n      - numpy>=1.2\n"
    assert facts_of(run, "conda.yaml", written) == [("pin:python", "3.11"), ("pin:torch", "2.3.0")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "We need a GPU.\nAnd some patience.\n"),
        ("packages.yaml", "a: 1\n"),
        ("notes_env.txt", ""),
    ],
)
def test_files_that_are_no_lists_state_nothing(run, name, text):
    assert facts_of(run, name, text) == []


def test_a_report_of_collect_env_in_a_file_of_its_own(run):
    assert set(facts_of(run, "env.txt", REPORT)) == TOLD


def test_reports_inside_of_a_log_are_those_of_its_launches(run):
    rows = "".join(f"step {i}: loss {3 - i / 100:.3f}\n" for i in range(1, 400))
    later = REPORT.replace("2.3.0", "2.4.0")
    log = f"2026-01-01 00:00:00,123 trainer INFO: \n{REPORT}{rows}2026-01-02 00:00:00,123 trainer INFO: \n{later}{rows}"
    evidence = run.write({"train.log": log}).one()
    told = {(f.attempt, f.value) for f in evidence.environment if f.key == "package:torch"}
    assert told == {(0, "2.3.0+cu121"), (1, "2.4.0+cu121")}
    assert len(evidence.series("loss")) == 399


def test_a_report_ends_with_its_lists(run):
    log = REPORT + "OS: a word of the program\nDriver update: x\n" + "step 1: loss 3\nstep 2: loss 2\n" * 30
    evidence = run.write({"train.log": log}).one()
    assert [f.value for f in evidence.environment if f.key == "os"] == ["Ubuntu 22.04.4 LTS (x86_64)"]


def test_the_head_of_nvidia_smi_inside_of_a_log(run):
    head = "| NVIDIA-SMI 535.129.03             Driver Version: 535.129.03   CUDA Version: 12.2     |\n"
    log = head + "".join(f"step {i}: loss {3 - i / 100}\n" for i in range(1, 30))
    evidence = run.write({"train.log": log}).one()
    assert [(f.key, f.value, f.line) for f in evidence.environment] == [
        ("driver", "535.129.03", 1),
        ("cuda", "12.2", 1),
    ]


OWN = {
    "tool": "gradforensics 0.1.0", "kind": "environment", "schema": 1, "collected": "2026-01-01T00:00:00+00:00",
    "host": "n1", "rank": 5, "facts": {"torch": "2.3.0+cu121", "torch_cuda": "12.1"},
    "gpus": [{"name": "H100", "compute_capability": "9.0"}, "?"], "packages": {"torch": "2.3.0", "numpy": "1.26.4"},
    "copies": {"numpy": ["1.26.4", "1.24.0"]}, "variables": {"NCCL_DEBUG": "INFO"},
}  # fmt: skip


def test_our_own_file_with_host_and_rank(run):
    evidence = run.write({"log.csv": LOG, "anything.json": json.dumps(OWN, indent=1)}).one()
    assert {(f.rank, f.host) for f in evidence.environment} == {(5, "n1")}
    told = {f.key: f.value for f in evidence.environment}
    assert told == {
        "host": "n1", "collected": OWN["collected"], "package:torch": "2.3.0+cu121", "torch_cuda": "12.1",
        "gpu_count": "1", "gpu": "H100", "compute_capability": "9.0", "package:numpy": "1.26.4", "copy:numpy": "1.24.0",
        "env:NCCL_DEBUG": "INFO",
    }  # fmt: skip


@pytest.mark.parametrize(
    "change", [{"facts": 7}, {"gpus": {}}, {"packages": [1]}, {"copies": {"a": 1}}, {"rank": True}, {"host": 3}]
)
def test_a_file_of_ours_that_was_changed_is_read_as_far_as_it_goes(run, change):
    evidence = run.write({"log.csv": LOG, "e.json": json.dumps({**OWN, **change}, indent=1)}).one()
    assert any(f.key == "env:NCCL_DEBUG" for f in evidence.environment)
    assert evidence.notices == []


def test_a_torn_file_of_ours_is_a_notice(run):
    evidence = run.write({"log.csv": LOG, "e.json": json.dumps(OWN, indent=1)[:-40]}).one()
    assert [n.source for n in evidence.notices] == ["e.json"]


def test_every_run_of_a_folder_gets_the_environment_that_lies_above_it(run):
    rows = {f"version_{i}/metrics.csv": LOG.replace("3", str(3 + i)) for i in range(2)}
    found = run.write({**rows, "pip_freeze.txt": "torch==2.3.0\n"}).all()
    assert [[f.key for f in e.environment or []] for e in found] == [["package:torch"], ["package:torch"]]
