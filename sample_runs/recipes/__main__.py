"""Make all sample runs, or those named: `python -m recipes [NAME ...] [--out DIR]` from the sample_runs folder.

wandb_runs.py, which needs wandb, is called by itself: `python recipes/wandb_runs.py`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

MODULES = (
    "gf01",
    "gf01_checkpoints",
    "gf02",
    "gf03",
    "gf03_checkpoints",
    "gf03_counters",
    "gf04",
    "gf05",
    "gf05_checkpoints",
    "gf06",
    "gf06_checkpoints",
    "gf07",
    "gf07_checkpoints",
    "gf07_counters",
    "gf08",
    "gf09",
    "gf09_checkpoints",
    "gf10_checkpoints",
    "gf11",
    "gf11_checkpoints",
    "gf12",
    "gf12_counters",
    "gf13",
    "gf13_checkpoints",
    "gf14",
    "gf15",
    "gf16",
    "gf17",
    "gf18",
    "gf18_checkpoints",
    "gf19",
    "gf20",
    "gf21",
    "gf22",
    "gf22_checkpoints",
    "gf23",
    "gf24",
    "gf25",
    "gf26",
    "gf26_checkpoints",
    "gf27",
    "gf28",
    "gf29",
    "gf29_counters",
    "gf30_checkpoints",
    "gf33",
    "gf34",
    "gf35",
    "gf36",
    "gf37",
    "gf38",
    "gf39",
    "gf40",
    "gf41",
    "gf42",
    "gf44",
    "gf45",
    "gf46",
    "gf47",
    "healthy",
    "healthy_checkpoints",
    "healthy_optimizers",
    "healthy_others",
    "healthy_writers",
)

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))  # the recipes import each other as flat modules
    samples = [sample for name in MODULES for sample in importlib.import_module(name).SAMPLES]
    importlib.import_module("lab").main(samples)
