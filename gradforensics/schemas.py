"""The columns of every canonical table (a leaf; tables.py offers them too)."""

from __future__ import annotations

from typing import Any

import polars as pl

KINDS = ("finite", "nan", "posinf", "neginf", "missing")
KIND = pl.Enum(KINDS)

SERIES_SCHEMA: dict[str, Any] = {
    "attempt": pl.UInt16,
    "rank": pl.UInt32,
    "step": pl.Int64,
    "epoch": pl.Float64,
    "time": pl.Float64,
    "value": pl.Float64,
    "kind": KIND,
    "line": pl.UInt32,
}

# The tables besides series; an absent table means "not available", an empty one "read and nothing found".
TABLES: dict[str, dict[str, Any]] = {
    "settings": {
        "run": pl.String, "attempt": pl.UInt16, "key": pl.String, "name": pl.String, "value": pl.String,
        "origin": pl.String, "source": pl.String, "line": pl.UInt32,
    },
    "events": {
        "kind": pl.String, "attempt": pl.UInt16, "rank": pl.UInt32, "host": pl.String, "time": pl.Float64,
        "step": pl.Int64, "text": pl.String, "data": pl.String, "source": pl.String, "line": pl.UInt32,
    },
    "checkpoints": {
        "path": pl.String, "format": pl.String, "step": pl.Int64, "complete": pl.Boolean, "bytes": pl.UInt64,
        "source": pl.String, "tensors": pl.Int64, "parameters": pl.Int64, "nonfinite": pl.Int64, "naming": pl.String,
        "naming_sure": pl.String, "damage": pl.String, "damaged": pl.String, "damage_text": pl.String,
    },
    "tensors": {
        "checkpoint": pl.String, "step": pl.Int64, "rank": pl.UInt32, "placement": pl.String, "role": pl.String,
        "name": pl.String, "dtype": pl.String, "shape": pl.List(pl.Int64), "count": pl.Int64, "nan": pl.Int64,
        "posinf": pl.Int64, "neginf": pl.Int64, "zero": pl.Int64, "one": pl.Int64, "subnormal": pl.Int64,
        "min": pl.Float64, "max": pl.Float64, "mean": pl.Float64, "std": pl.Float64, "l2": pl.Float64,
        "fingerprint": pl.String, "row_l2_min": pl.Float64, "row_l2_max": pl.Float64, "row_l2_max_index": pl.Int64,
        "zero_rows": pl.Int64, "key": pl.String, "source": pl.String,
    },
    "moments": {
        "checkpoint": pl.String, "step": pl.Int64, "name": pl.String, "bound_ratio_max": pl.Float64,
        "bound_violations": pl.Int64, "update_rms": pl.Float64, "below_eps": pl.Float64,
        "v_zero_m_nonzero": pl.Int64, "count": pl.Int64, "nonfinite": pl.Int64, "v_negative": pl.Int64,
    },
    "travels": {
        "first_step": pl.Int64, "step": pl.Int64, "name": pl.String, "changed": pl.Float64, "rel_travel": pl.Float64,
        "ratio_mean": pl.Float64, "ratio_std": pl.Float64, "recovered_lr": pl.Float64, "recovered_wd": pl.Float64,
        "residual": pl.Float64, "grad_l2": pl.Float64, "bound_ratio": pl.Float64, "count": pl.Int64,
        "nonfinite": pl.Int64, "lr_error": pl.Float64, "wd_error": pl.Float64, "v_error": pl.Float64,
        "rms_t": pl.Float64, "checkpoint": pl.String,
    },
    "groups": {
        "checkpoint": pl.String, "rank": pl.UInt32, "group": pl.Int64, "lr": pl.Float64, "betas": pl.List(pl.Float64),
        "eps": pl.Float64, "weight_decay": pl.Float64, "names": pl.List(pl.String), "step_min": pl.Int64,
        "step_max": pl.Int64, "optimizer": pl.String, "momentum": pl.Float64, "values": pl.String,
    },
    "facts": {"checkpoint": pl.String, "step": pl.Int64, "key": pl.String, "value": pl.String},
    "calls": {"source": pl.String, "name": pl.String, "danger": pl.Boolean, "arguments": pl.String},
    "batch": {"sample": pl.String, "tokens": pl.Int64, "labels": pl.Int64, "masked": pl.Int64},
    # what an audit of the training data measured: one quantity of one file, and the sample that shows it first or most
    "data": {
        "file": pl.String, "column": pl.String, "quantity": pl.String, "value": pl.Float64, "unit": pl.String,
        "count": pl.Int64, "row": pl.Int64, "line": pl.Int64, "text": pl.String,
    },
    "experiments": {
        "experiment": pl.String, "step": pl.Int64, "quantity": pl.String, "variation": pl.String, "value": pl.Float64,
        "unit": pl.String, "verdict": pl.String, "text": pl.String, "question": pl.String, "changed": pl.String,
        "result": pl.String, "conclusion": pl.String, "source": pl.String, "line": pl.UInt32,
    },
    "environment": {
        "key": pl.String, "value": pl.String, "rank": pl.UInt32, "host": pl.String, "source": pl.String,
        "line": pl.UInt32, "attempt": pl.UInt16,
    },
}  # fmt: skip
