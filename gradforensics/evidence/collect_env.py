"""What `python -m torch.utils.collect_env` prints, alone in a file or inside of a log (PyTorch 1.0 to 2.13).

Also the head of the table that nvidia-smi prints, which many launch scripts leave in their logs.
"""

from __future__ import annotations

import re

from gradforensics.evidence import software
from gradforensics.tables import Fact

MARKS = ("PyTorch version: ", "Driver Version: ")  # lines that begin a report, or are one
_MOST_LINES = 250  # of a report: lscpu's flags and vulnerabilities make it long
_UNKNOWN = frozenset({"", "n/a", "none", "could not collect", "no cuda"})
_SMI = re.compile(r"NVIDIA-SMI [\d.]{3,20}\s+Driver Version: ([\d.]{3,20})\s+CUDA Version: ([\d.]{1,9})")
_PAIR = re.compile(r"^([A-Z][\w ()-]{1,50}?): ?(.*)$")
_GPU = re.compile(r"^GPU \d{1,3}: (.{3,80}?)(?: \(UUID.*)?\s*$")
_PIP = re.compile(r"^\[pip3?\] (\S+==\S+)")
_CONDA = re.compile(r"^\[conda\] ([\w.-]{1,80}) +(\d\S{0,60}) +(\S+)")
_KEYS = {
    "OS": "os",
    "Libc version": "glibc",
    "CUDA runtime version": "cuda_toolkit",
    "Nvidia driver version": "driver",
}
_LISTS = ("[pip", "[conda")


class Report:
    """Fed with the lines of a log; collects the facts of every report in it, each an attempt of its own."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.facts: list[Fact] = []
        self._attempt = -1
        self._until = 0
        self._label = ""
        self._listed = self._gpus = False
        self._rank: int | None = None
        self._host: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether the next line may belong to a report."""
        return self._until > 0

    def line(
        self, number: int, text: str, *, label: str = "", rank: int | None = None, host: str | None = None
    ) -> None:
        """Take a line without its prefix; label: what the prefix called its writer."""
        if "Driver Version: " in text and (found := _SMI.search(text)):
            self.facts += [
                Fact("driver", found[1], self.source, number, rank, host),
                Fact("cuda", found[2], self.source, number, rank, host),
            ]
            return
        if text.startswith(MARKS[0]):
            self._attempt += 1
            self._until, self._label, self._rank, self._host = number + _MOST_LINES, label, rank, host
            self._listed = self._gpus = False
        if not self._until or label != self._label:
            return
        if number > self._until:
            self._until = 0
            return
        self._inside(number, text)

    def _inside(self, number: int, text: str) -> None:
        if text.startswith(_LISTS):
            self._listed = True
            self._package(number, text)
            return
        if self._listed:
            self._until = 0
            return
        pair = _PAIR.match(text)
        if self._gpus and (found := _GPU.match(text)):
            self._add("gpu", found[1], number)
        elif pair is not None:
            self._pair(number, pair[1], pair[2].strip())

    def _pair(self, number: int, name: str, value: str) -> None:
        self._gpus = name == "GPU models and configuration"
        if self._gpus:
            if found := _GPU.match(value):
                self._add("gpu", found[1], number)
        elif name == "CUDA used to build PyTorch":
            self._add("torch_cuda", "none" if value.lower() in _UNKNOWN else value, number)
        elif value.lower() in _UNKNOWN:
            return
        elif name == "PyTorch version":
            self._add("package:torch", value, number)
        elif name == "Python version":
            self._add("python", value.split(" ", maxsplit=1)[0], number)
        elif name in _KEYS:
            self._add(_KEYS[name], value.splitlines()[0], number)

    def _package(self, number: int, text: str) -> None:
        if (found := _PIP.match(text)) and (named := software.pinned(found[1])):
            if named[0] != "torch":
                self._add(f"package:{named[0]}", named[1], number)
        elif (found := _CONDA.match(text)) and not found[3].startswith("pypi"):
            self._add(f"conda:{software.normalised(found[1])}", found[2], number)

    def _add(self, key: str, value: str, number: int) -> None:
        self.facts.append(Fact(key, value, self.source, number, self._rank, self._host, max(self._attempt, 0)))
