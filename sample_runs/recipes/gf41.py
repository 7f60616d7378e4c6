"""GF41: one rank is slower than the others, in two gloo processes."""

from __future__ import annotations

from functools import partial

from gloo_lab import launch
from lab import Sample, main

SAMPLES = (
    Sample(
        "gf41-slow-data",
        "gf41",
        partial(launch, job="straggler"),
        "rank 1 needs 50 ms longer for every batch; the time before the reduction shows it",
        case="GF41",
    ),
    Sample(
        "gf41-twin",
        "gf41",
        partial(launch, job="slow-step"),
        "rank 1 is slow in one single step",
        case="GF41",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
