"""GF22: replicas that are no longer identical, in two gloo processes."""

from __future__ import annotations

from functools import partial

from gloo_lab import launch
from lab import Sample, main

SAMPLES = (
    Sample(
        "gf22-parted",
        "gf22",
        partial(launch, job="no-sync"),
        "DDP is left in no_sync() from step 91 on: the gradients are not reduced any more and the replicas part",
        case="GF22",
    ),
    Sample(
        "gf22-never-synchronised",
        "gf22",
        partial(launch, job="inner-module"),
        "the forward pass calls the inner module and not the DDP wrapper: nothing is ever reduced",
        case="GF22",
        variant="never-synchronised",
    ),
    Sample(
        "gf22-started-apart",
        "gf22",
        partial(launch, job="started-apart"),
        "another seed per rank and no broadcast (init_sync=False): equal gradients move different weights",
        case="GF22",
        variant="started-apart",
    ),
    Sample(
        "gf22-twin",
        "gf22",
        partial(launch, job="healthy"),
        "DDP as it should be: losses differ between the ranks, reduced gradient norms and weights do not",
        case="GF22",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
