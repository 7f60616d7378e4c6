"""Make all sample runs, or those named: `python -m recipes [NAME ...] [--out DIR]` from the sample_runs folder."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

MODULES = (
    "gf01",
    "gf02",
    "gf04",
    "gf03",
    "gf05",
    "gf06",
    "gf07",
    "gf08",
    "gf09",
    "gf11",
    "gf12",
    "gf18",
    "gf13",
    "gf14",
    "gf15",
    "gf16",
    "gf17",
    "gf20",
    "gf25",
    "gf19",
    "gf20",
    "gf28",
    "gf29",
    "gf35",
    "gf39",
    "gf21",
    "gf23",
    "gf27",
    "gf35",
    "gf40",
    "gf42",
    "gf22",
    "gf24",
    "gf26",
    "gf35",
    "gf41",
    "healthy",
    "healthy_others",
)

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))  # the recipes import each other as flat modules
    samples = [sample for name in MODULES for sample in importlib.import_module(name).SAMPLES]
    importlib.import_module("lab").main(samples)
