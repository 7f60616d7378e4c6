"""gradforensics env: what it collects, what it hides, where it saves it, and that analyze reads it."""

import builtins
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from gradforensics.cli import main
from gradforensics.environment import collect as collecting
from gradforensics.environment.collect import collect
from gradforensics.environment.save import default_path, render
from gradforensics.evidence.gather import gather

SMI = "NVIDIA A100-SXM4-80GB, 535.104.05, 8.0\nNVIDIA A100-SXM4-80GB, 535.104.05, 8.0\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fake_torch(*, gpus=2, cudnn=90100):
    """As much of torch as is asked, on a machine with GPUs."""

    def nccl():
        return (2, 20, 5)

    cuda = SimpleNamespace(
        is_available=lambda: gpus > 0, device_count=lambda: gpus, get_device_capability=lambda _: (9, 0),
        get_device_name=lambda _: "NVIDIA H100", nccl=SimpleNamespace(version=nccl),
    )  # fmt: skip
    return SimpleNamespace(
        __version__="2.4.0+cu121", version=SimpleNamespace(git_version="abc", cuda="12.1", hip=None), cuda=cuda,
        _C=SimpleNamespace(_cuda_getArchFlags=lambda: "sm_80 sm_90"),
        backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: cudnn)),
    )  # fmt: skip


@pytest.fixture
def torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", fake_torch())


@pytest.fixture
def found(torch):
    return collect({"RANK": "3", "NCCL_DEBUG": "INFO", "HOME": "/home/me"})


def test_the_node_its_packages_and_its_variables_are_told(found):
    assert found["tool"].startswith("gradforensics ")
    assert found["rank"] == 3
    assert found["facts"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["packages"]["click"]
    assert found["variables"] == {"NCCL_DEBUG": "INFO", "RANK": "3"}


@pytest.mark.usefixtures("torch")
def test_what_gives_access_is_masked_and_what_is_not_asked_for_is_left_out():
    told = collect(
        {
            "TORCH_HUB_TOKEN": "short", "NCCL_COMMENT": "hf_abcdefghijklmnop", "CUDA_CACHE": "a" * 40,
            "MASTER_ADDR": "tcp://me:secret@node1:29500", "HF_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "y",
            "CUDA_VISIBLE_DEVICES": "0,1", "LD_LIBRARY_PATH": "/usr/lib:/opt/lib",
        }
    )["variables"]  # fmt: skip
    assert told == {
        "TORCH_HUB_TOKEN": "***", "NCCL_COMMENT": "***", "CUDA_CACHE": "***", "MASTER_ADDR": "tcp://node1:29500",
        "CUDA_VISIBLE_DEVICES": "0,1", "LD_LIBRARY_PATH": "/usr/lib:/opt/lib",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "rank"),
    [({}, None), ({"RANK": "0"}, 0), ({"SLURM_PROCID": "12"}, 12), ({"RANK": "x"}, None), ({"RANK": "-1"}, None)],
)
def test_the_rank_is_that_of_the_launcher(environ, rank):
    assert collecting.rank_of(environ) == rank


def without_torch(monkeypatch, error):
    real = builtins.__import__

    def refuse(name, *rest, **named):
        if name == "torch":
            raise error
        return real(name, *rest, **named)

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)


def test_without_torch_the_rest_is_told(monkeypatch):
    without_torch(monkeypatch, ModuleNotFoundError("No module named 'torch'", name="torch"))
    told = collect({})
    assert "torch is not installed" in told["remarks"]
    assert "torch_error" not in told["facts"]
    assert told["packages"]


def test_a_torch_that_cannot_be_imported_is_a_fact(monkeypatch):
    without_torch(monkeypatch, ImportError("libcudart.so.12: cannot open shared object file"))
    assert collect({})["facts"]["torch_error"] == "ImportError: libcudart.so.12: cannot open shared object file"


def test_torch_tells_what_it_was_built_for_what_it_loads_and_the_gpus_that_it_sees(found):
    told = found["facts"]
    assert (told["torch"], told["torch_cuda"], told["torch_arch_list"]) == ("2.4.0+cu121", "12.1", "sm_80 sm_90")
    assert (told["cudnn"], told["nccl"], told["torch_git"]) == ("9.1.0", "2.20.5", "abc")
    assert found["gpus"] == [{"name": "NVIDIA H100", "compute_capability": "9.0"}] * 2
    assert found["remarks"] == []


def test_gpus_and_driver_are_those_of_nvidia_smi_where_torch_sees_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", fake_torch(gpus=0))
    answers = {True: SMI, False: "| NVIDIA-SMI 535.104.05   Driver Version: 535.104.05   CUDA Version: 12.2     |"}
    monkeypatch.setattr(collecting, "_run", lambda *command: answers[len(command) > 1])
    told = collect({})
    assert (told["facts"]["driver"], told["facts"]["cuda"]) == ("535.104.05", "12.2")
    assert told["gpus"] == [{"name": "NVIDIA A100-SXM4-80GB", "compute_capability": "8.0"}] * 2


def test_a_program_that_hangs_or_fails_says_nothing(monkeypatch):
    def hang(*_, **__):
        raise subprocess.TimeoutExpired("nvidia-smi", 20)

    monkeypatch.setattr("subprocess.run", hang)
    assert collecting._run("nvidia-smi") == ""


def test_packages_that_are_there_twice_are_told(monkeypatch):
    both = [SimpleNamespace(metadata={"Name": "nvidia_nccl-cu12", "Version": v}) for v in ("2.20.5", "2.18.1")]
    monkeypatch.setattr("importlib.metadata.distributions", lambda: both)
    assert collecting._packages() == (
        {"nvidia-nccl-cu12": "2.20.5"},
        {"nvidia-nccl-cu12": ["2.20.5", "2.18.1"]},
    )


@pytest.mark.parametrize(("number", "text"), [(8902, "8.9.2"), (90100, "9.1.0"), (91002, "9.10.2"), (None, "")])
def test_versions_of_cudnn_have_dots(number, text):
    assert collecting._dotted(number) == text


def test_a_file_for_each_host_and_rank_and_the_environment_before_a_restart_is_kept(found, tmp_path):
    found["host"] = "node 07/é"
    first = default_path(found, tmp_path)
    assert first.name == "gradforensics-env-node-07-rank3.json"
    first.write_text(json.dumps(found))
    assert default_path({**found, "collected": "later"}, tmp_path) == first
    other = {**found, "packages": {"torch": "1"}}
    second = default_path(other, tmp_path)
    assert second.name == "gradforensics-env-node-07-rank3-attempt1.json"
    second.write_text("no JSON")
    assert default_path(other, tmp_path).name == "gradforensics-env-node-07-rank3-attempt2.json"
    assert default_path({**found, "rank": None}, tmp_path).name == "gradforensics-env-node-07.json"


def test_the_terminal_shows_what_matters(found):
    found["gpus"] = [{"name": "H100", "compute_capability": "9.0"}] * 8
    found["copies"] = {"nvidia-nccl-cu12": ["2.20.5", "2.18.1"]}
    shown = render(found, None)
    assert "8 x H100 (compute capability 9.0)" in shown
    assert "installed in several versions: 2.20.5, 2.18.1" in shown
    assert "saved in" not in shown


def test_the_command_saves_what_analyze_reads(here, capsys):
    assert main(["env", "-o", "gradforensics-env-a.json"]) == 0
    assert "saved in gradforensics-env-a.json" in capsys.readouterr().out
    (here / "log.csv").write_text("step,loss\n" + "".join(f"{i},{3 - i / 100}\n" for i in range(1, 30)))
    (evidence,) = gather([here])
    facts = {f.key: f.value for f in evidence.environment or ()}
    assert facts["package:click"]
    assert facts["python"].startswith("3.")
    assert {s.reader for s in evidence.sources} == {"environment", "csv"}


@pytest.mark.usefixtures("torch")
def test_the_command_can_write_to_stdout_and_spares_the_files_of_others(here, capsys):
    assert main(["env", "-o", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "environment"
    (here / "mine.json").write_text("{}")
    assert main(["env", "-o", "mine.json"]) == 2
    assert (here / "mine.json").read_text() == "{}"
    assert main(["env", "-o", "mine.json", "--force"]) == 0
