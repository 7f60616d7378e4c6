"""What a run says of its environment: the facts that matter, without anything that gives access to something."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradforensics.secrecy import without_credentials, without_secrets
from gradforensics.tables import Fact

_LONGEST = 2000  # characters of a fact
_GIB = 1 << 30
# keys of W&B's metadata -> ours; everything else in it (user name, e-mail, paths, disks) stays where it is
_PLAIN: Mapping[str, str] = {
    "host": "host",
    "os": "os",
    "docker": "docker",
    "cpu_count": "cpu_count",
    "gpu": "gpu",
    "gpu_count": "gpu_count",
    "cudaVersion": "cuda",
    "cuda": "cuda",
    "startedAt": "started",
}
# variables of SLURM without their prefix; the others may hold a token
_SLURM: Mapping[str, str] = {
    "job_id": "slurm_job_id",
    "jobid": "slurm_job_id",
    "array_job_id": "slurm_array_job_id",
    "array_task_id": "slurm_array_task_id",
    "job_name": "slurm_job_name",
    "cluster_name": "slurm_cluster",
    "job_partition": "slurm_partition",
    "job_nodelist": "slurm_nodelist",
    "nodelist": "slurm_nodelist",
    "job_num_nodes": "slurm_nodes",
    "nnodes": "slurm_nodes",
    "ntasks": "slurm_tasks",
    "restart_count": "slurm_restart_count",
    "procid": "slurm_procid",
}


def facts_of(metadata: Mapping[str, Any], source: str) -> list[Fact]:
    """The facts of a wandb-metadata.json, or of an environment record in its form."""
    slurm = metadata.get("slurm")
    slurm = slurm if isinstance(slurm, Mapping) else {}
    process = str(slurm.get("procid", ""))
    rank = int(process) if process.isdecimal() and len(process) < 7 else None
    host = metadata.get("host")
    found: dict[str, str] = {}
    for key, value in (*_stated(metadata), *((_SLURM[k], v) for k, v in slurm.items() if k in _SLURM)):
        if value not in (None, "", 0, []) and not isinstance(value, (Mapping, list)):
            found.setdefault(key, " ".join(str(value).split())[:_LONGEST])
    named = host if isinstance(host, str) and host else None
    return [Fact(key, value, source, rank=rank, host=named) for key, value in found.items()]


def _stated(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, key in _PLAIN.items():
        yield key, metadata.get(name)
    yield "python", str(metadata.get("python") or "").removeprefix("CPython ")
    if program := metadata.get("program"):
        given = metadata.get("args")
        arguments = [str(a) for a in given] if isinstance(given, Sequence) and not isinstance(given, str) else []
        yield "command", " ".join([str(program), *without_secrets(arguments)])
    git = metadata.get("git")
    if isinstance(git, Mapping):
        yield "git_commit", git.get("commit")
        yield "git_remote", without_credentials(str(git.get("remote") or git.get("remote_url") or ""))
    memory = metadata.get("memory")
    if isinstance(memory, Mapping):
        yield "memory", _bytes(memory.get("total"))
    cpu = metadata.get("cpu")
    if isinstance(cpu, Mapping):
        yield "cpu", cpu.get("model")
    for devices in (metadata.get("gpu_nvidia"), metadata.get("gpu_amd"), metadata.get("gpu_devices")):
        if isinstance(devices, list) and devices and isinstance(devices[0], Mapping):
            yield "gpu", devices[0].get("name") or devices[0].get("model") or devices[0].get("series")
            yield "gpu_count", len(devices)
            yield "gpu_memory", _bytes(devices[0].get("memoryTotal") or devices[0].get("memory_total"))
            yield "gpu_architecture", devices[0].get("architecture")


def _bytes(value: Any) -> int | None:
    """Bytes, which older versions gave in GiB."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number * _GIB if number < 1e6 else number) if 0 < number < 1e18 else None
