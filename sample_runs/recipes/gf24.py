"""GF24: communication that stalls or times out, in two gloo processes."""

from __future__ import annotations

from functools import partial

from gloo_lab import alone, launch
from lab import Sample, main

SAMPLES = (
    Sample(
        "gf24-missing-rank",
        "gf24",
        partial(launch, job="stuck-data"),
        "rank 1 waits for its data at step 91 for longer than the timeout of 5 s; rank 0 complains",
        case="GF24",
        variant="missing-rank",
        ending="timeout",
    ),
    Sample(
        "gf24-rendezvous",
        "gf24",
        partial(alone, job="healthy"),
        "rank 1 of 2 finds nobody at MASTER_ADDR and MASTER_PORT",
        case="GF24",
        variant="rendezvous",
        ending="exception",
    ),
    Sample(
        "gf24-mismatch",
        "gf24",
        partial(launch, job="mismatch", variables={"TORCH_FR_BUFFER_SIZE": "200"}),
        "at step 91 rank 0 broadcasts while rank 1 reduces; both time out and leave Flight Recorder dumps",
        case="GF24",
        variant="mismatch",
        ending="timeout",
    ),
    Sample(
        "gf24-connection-lost",
        "gf24",
        partial(launch, job="gone"),
        "rank 1 leaves without a word at step 91; rank 0 loses its connection",
        case="GF24",
        variant="connection-lost",
        ending="killed",
    ),
    Sample(
        "gf24-consequence",
        "gf24",
        partial(launch, job="bad-sample"),
        "rank 1 raises a ValueError at step 91, rank 0 then loses its connection: the communication is not at fault",
        case="GF24",
        variant="consequence",
        primary="",
        ending="exception",
    ),
    Sample(
        "gf24-silent",
        "gf24",
        partial(launch, job="hung"),
        "rank 1 hangs at step 91, rank 0 waits in a barrier; faulthandler wrote their stacks; killed without a word",
        case="GF24",
        variant="silent",
        ending="truncated",
    ),
    Sample(
        "gf24-after-training",
        "gf24",
        partial(launch, job="last-save"),
        "after the last step rank 0 alone calls a save that holds a barrier, which times out",
        case="GF24",
        variant="after-training",
        ending="timeout",
    ),
    Sample(
        "gf24-variables",
        "gf24",
        partial(launch, job="healthy", variables={"NCCL_SOCKET_TIMEOUT": "1800", "NCCL_IB_DISABLE": "1"}),
        "a healthy run whose environment sets a variable that NCCL does not know and one of a diagnosis",
        case="GF24",
        variant="variables",
        primary="",
    ),
    Sample(
        "gf24-twin",
        "gf24",
        partial(launch, job="slow-step"),
        "one step of rank 1 takes a third of the timeout longer; the run goes on and completes",
        case="GF24",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
