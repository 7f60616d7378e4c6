"""Flight Recorder dumps: what is read of them, and which rank they name."""

import importlib
import json
import pickle
import pickletools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradforensics.evidence.flight_recorder import analyse, looks_like_one, notices, read_dump
from gradforensics.untrusted.files import RefusedError, RegularFile

CORPUS = Path(__file__).parents[2].parent / "shared" / "corpus"
NOW = 1758610505_000000000
WORLD = ("0", "default_pg")


def call(number, state="completed", operation="all_reduce", group=WORLD, **changed):
    """One entry as torch 2.9 writes it; it is created `number` milliseconds after NOW."""
    return {
        "frames": [
            {"name": operation, "filename": "/venv/torch/distributed/distributed_c10d.py", "line": 2810},
            {"name": "step", "filename": "/home/u/train.py", "line": 35},
        ],
        "record_id": number, "pg_id": int(group[0]), "process_group": group, "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": f"nccl:{operation}",
        "time_created_ns": NOW + number * 1_000_000, "input_sizes": [[4, 8]], "input_dtypes": ["Float"],
        "output_sizes": [[4, 8]], "output_dtypes": ["Float"], "state": state, "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "retired": state == "completed", "timeout_ms": 600000, "is_p2p": False,
    } | changed  # fmt: skip


def paired(number, operation, state="scheduled", group=WORLD, **changed):
    """A point-to-point entry: operation is "send 0->1" or "recv 1<-0"."""
    changed = {"is_p2p": True, "p2p_seq_id": number, "collective_seq_id": 0} | changed
    return call(number, state, operation, group, **changed)


def calls(last, waiting=0, **changed):
    """Completed calls, and after them `waiting` ones that are not; the record begins with number 1."""
    numbers = range(1, last + waiting + 1)
    return [call(n, "completed" if n <= last else "scheduled", record_id=n - 1, **changed) for n in numbers]


def content(entries, groups=None, **changed):
    groups = groups or {WORLD: [0, 1, 2, 3]}
    config = {name: {"name": name, "desc": desc, "ranks": str(ranks)} for (name, desc), ranks in groups.items()}
    return {"version": "2.9", "pg_config": config, "nccl_version": "2.27.3", "entries": entries} | changed


class Job:
    """Writes dumps of one job into a folder and reads them."""

    def __init__(self, folder):
        self.folder = folder

    def write(self, name, data):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else pickle.dumps(data, 2))
        return RegularFile(path, name, path.stat().st_size)

    def read(self, name, data):
        return read_dump(self.write(name, data))

    def dumps(self, by_rank, groups=None, **changed):
        """Dumps of {rank: entries}."""
        return [self.read(f"_dump_{rank}", content(es, groups, **changed)) for rank, es in by_rank.items()]

    def events(self, by_rank, groups=None, **changed):
        return analyse(self.dumps(by_rank, groups, **changed))


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def corpus(name):
    folder = CORPUS / name
    if not folder.exists():
        pytest.skip("the corpus is not here")
    paths = sorted(folder.glob("_dump_*"))
    assert all(looks_like_one(path.name, path.read_bytes()[:4096]) for path in paths)
    assert not looks_like_one("fault_injection.log", (folder / "fault_injection.log").read_bytes())
    return [read_dump(RegularFile(path, f"dumps/{path.name}", path.stat().st_size)) for path in paths]


# -- real dumps -------------------------------------------------------------------------------------------------------


def test_a_real_gpu_error_names_the_rank_that_the_others_wait_for():
    dumps = corpus("flight-recorder-gpu-error")
    assert {(dump.version, dump.nccl_version) for dump in dumps} == {("2.9", "2.27.3")}
    assert sorted(dump.rank for dump in dumps) == list(range(16))
    assert sum(len(dump.entries) for dump in dumps) == 289
    events = analyse(dumps)
    assert {event.kind for event in events} == {"collective_timeout"}
    assert {tuple(event.data["missing"]) for event in events} == {(12,)}
    first, *others = events
    assert first.data["first"]
    assert not any(event.data["first"] for event in others)
    assert first.text.startswith(
        "rank 12 is missing in all_to_all #20537 of group 74 (EXPERT_MODEL_PARALLEL_GROUP); ranks 13-15 wait in it"
    )
    assert (first.rank, first.source, first.data["waiting"]) == (12, "dumps/_dump_14", [13, 14, 15])
    assert first.data["unfinished"] == [12, 14]  # the ranks into which the GPU error was injected
    assert (first.data["timeout_ms"], first.data["sizes"]) == (600000, [[4007, 5120]])
    assert first.time == pytest.approx(1758610505.9255853, abs=1e-5)
    assert notices(dumps) == []


def test_a_real_held_gil_names_the_ranks_whose_dumps_are_empty():
    events = analyse(corpus("flight-recorder-lock-gil"))
    assert {rank for event in events for rank in event.data["missing"]} == {9, 14}
    first = events[0]
    assert (first.data["description"], first.data["sequence"]) == ("EXPERT_MODEL_PARALLEL_GROUP", 45265)
    assert first.data["missing"] == first.data["empty"] == [9, 14]
    assert first.data["waiting"] == [8, 10, 11, 12, 13, 15]
    assert "the dumps of ranks 9, 14 are empty" in first.text


def test_what_this_torch_records_is_read_as_pickle_and_as_json_alike(job, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "20")
    import torch
    import torch.distributed as dist

    recorder = importlib.import_module("torch._C._distributed_c10d")
    if not hasattr(recorder, "_dump_fr_trace_json"):
        pytest.skip("this torch has no recorder for gloo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for _ in range(30):
            dist.all_reduce(torch.ones(4, 2))
        pickled = recorder._dump_fr_trace(includeCollectives=True, includeStackTraces=True, onlyActive=False)
        text = recorder._dump_fr_trace_json(includeCollectives=True, onlyActive=False)
    finally:
        dist.destroy_process_group()
    assert looks_like_one("nccl_trace_rank_0", pickled)
    assert looks_like_one("nccl_trace_rank_0.json", text)
    dump, same = job.read("nccl_trace_rank_0", pickled), job.read("json/nccl_trace_rank_0.json", text)
    last = dump.entries[-1]
    assert (last.backend, last.operation, last.sequence) == ("gloo", "all_reduce", 30)
    assert (last.input_sizes, last.input_dtypes) == (((4, 2),), ("Float",))
    assert [entry.sequence for entry in dump.entries] == list(range(11, 31))  # the ring buffer was lapped
    assert dump.entries[0].finished
    assert [(e.sequence, e.created, e.group) for e in same.entries] == [
        (e.sequence, e.created, e.group) for e in dump.entries
    ]
    assert [event.data["missing"] for event in analyse([dump]) if event.data["missing"]] == []


# -- who is missing ---------------------------------------------------------------------------------------------------


def test_a_healthy_job_has_no_event(job):
    dumps = job.dumps({rank: calls(9) for rank in range(4)})
    assert analyse(dumps) == []
    assert notices(dumps) == []


def test_one_silent_rank_is_named_and_not_those_that_complain(job):
    (event,) = job.events({0: calls(5, 1), 1: calls(5), 2: calls(5, 1), 3: calls(5, 1)})
    assert event.kind == "collective_timeout"
    assert event.text == "rank 1 is missing in all_reduce #6 of group 0 (default_pg); ranks 0, 2, 3 wait in it"
    assert (event.rank, event.source, event.time) == (1, "_dump_0", pytest.approx(1758610505.006))
    assert event.data == {
        "collective": "all_reduce", "sequence": 6, "group": "0", "description": "default_pg", "first": True,
        "missing": [1], "empty": [], "waiting_elsewhere": [], "without_dump": [], "unknown": [], "waiting": [0, 2, 3],
        "unfinished": [], "since": event.time, "state": "scheduled", "timeout_ms": 600000, "timed_out": False,
        "sizes": [[4, 8]], "dtypes": ["Float"], "frame": "step at /home/u/train.py:35",
    }  # fmt: skip
    assert json.loads(json.dumps(event.data)) == event.data


def test_a_rank_that_enqueued_less_ahead_than_others_is_not_missing(job):
    (event,) = job.events({0: calls(5, 4), 1: calls(5), 2: calls(5, 2), 3: calls(5, 1)})
    assert (event.data["sequence"], event.data["missing"], event.data["waiting"]) == (6, [1], [0, 2, 3])


def test_nobody_is_named_when_all_members_are_in_it(job):
    (event,) = job.events({0: calls(5, 3), 1: calls(5, 1), 2: calls(5, 2), 3: calls(5, 1)})
    assert (event.kind, event.rank, event.data["missing"], event.data["waiting"]) == (
        "collective_timeout", None, [], [0, 1, 2, 3],
    )  # fmt: skip
    assert event.text.startswith(
        "all members are in all_reduce #6 of group 0 (default_pg), which does not finish: a network or GPU fault"
    )


def test_what_the_watchdog_gave_up_is_not_finished(job):
    given_up = [*calls(5), call(6, "started", retired=True)]
    status = {"0": {"last_enqueued_collective": 6, "last_started_collective": 6, "last_completed_collective": 6}}
    dumps = [job.read(f"_dump_{rank}", content(given_up, pg_status=status)) for rank in (0, 2, 3)]
    (event,) = analyse([*dumps, job.read("_dump_1", content(calls(5)))])
    assert (event.data["sequence"], event.data["missing"], event.data["timed_out"]) == (6, [1], True)


def test_a_rank_without_a_dump_is_told_apart_from_one_with_an_empty_one(job):
    (event,) = job.events({0: calls(5, 1), 1: calls(5, 1), 3: []})
    assert (event.data["missing"], event.data["empty"], event.data["without_dump"]) == ([3], [3], [2])
    assert event.rank == 3
    assert "rank 2 left no dump and may be missing too" in event.text


def test_a_rank_without_a_dump_is_not_accused(job):
    dumps = job.dumps({0: calls(5, 1), 1: calls(5, 1), 2: calls(5, 1)})
    (event,) = analyse(dumps)
    assert (event.rank, event.data["missing"], event.data["without_dump"]) == (None, [], [3])
    assert event.text.startswith("ranks 0-2 wait in all_reduce #6 of group 0 (default_pg); rank 3 left no dump")
    assert notices(dumps) == [("_dump_0", "rank 3 of the process groups left no dump that can be read")]


def test_a_lapped_ring_buffer_is_no_proof_of_absence(job):
    tensor = ("1", "TENSOR")
    groups = {WORLD: [0, 1], tensor: [0, 1]}
    lapped = [call(n, group=tensor, record_id=5000 + n) for n in range(8, 20)]
    waiting = [call(n, group=tensor, record_id=n) for n in range(8, 20)] + [call(3, "scheduled")]
    (event,) = job.events({0: waiting, 1: lapped}, groups)
    assert (event.rank, event.data["missing"], event.data["unknown"]) == (None, [], [1])
    assert "the dump of rank 1 cannot tell" in event.text


def test_the_last_number_tells_where_old_ones_fell_out_of_the_buffer(job):
    late = [call(n, record_id=5000 + n) for n in range(90, 100)]
    events = job.events(
        {0: [*late, call(100, "scheduled")], 1: late[-2:], 2: [*late[-1:], call(100, "scheduled")]}, {WORLD: [0, 1, 2]}
    )
    assert [(e.data["sequence"], e.data["missing"]) for e in events] == [(100, [1])]


def test_a_dump_that_is_older_than_the_others_accuses_nobody(job):
    events = job.events({0: calls(50, 1), 1: calls(20), 2: calls(50, 1), 3: calls(50, 1)})
    assert [(e.rank, e.data["missing"], e.data["unknown"]) for e in events] == [(None, [], [1])]


def test_a_root_that_finished_its_broadcast_left_nobody_behind(job):
    # the root of a broadcast finishes without the others: that it did so says nothing about rank 2
    root = [*calls(4), call(5, operation="broadcast"), call(6, "scheduled", record_id=5)]
    waits = [*calls(4), call(5, "scheduled", operation="broadcast", record_id=4)]
    (event,) = job.events({0: root, 1: waits, 2: calls(4)}, {WORLD: [0, 1, 2]})
    assert (event.data["collective"], event.data["sequence"]) == ("broadcast", 5)
    assert (event.data["missing"], event.data["waiting"]) == ([2], [1])


def test_dumps_of_unfinished_entries_only_are_judged_by_the_status(job):
    def dump(rank, entries, enqueued, completed):
        status = {"0": {"last_enqueued_collective": enqueued, "last_completed_collective": completed}}
        return job.read(f"_dump_{rank}", content(entries, {WORLD: [0, 1, 2]}, pg_status=status))

    open_entry = call(41, "scheduled", record_id=9041)
    dumps = [dump(0, [open_entry], 41, 40), dump(1, [], 40, 40), dump(2, [open_entry], 41, 40)]
    (event,) = analyse(dumps)
    assert (event.data["missing"], event.data["empty"]) == ([1], [1])
    assert [d.status["0"].completed for d in dumps] == [40, 40, 40]
    dumps[1] = dump(1, [], 41, 41)  # it finished the call: its own record says that it was in it
    assert [e.data["missing"] for e in analyse(dumps)] == []


def test_a_dump_without_entries_is_judged_by_its_status_alone(job):
    status = {"0": {"last_enqueued_collective": "5", "last_completed_collective": "5"}}
    silent = {key: value for key, value in content([], pg_status=status).items() if key != "entries"}
    others = job.dumps({rank: calls(5, 1) for rank in (0, 2, 3)})
    (event,) = analyse([*others, job.read("_dump_1", json.dumps(silent).encode())])
    assert (event.data["missing"], event.data["unknown"]) == ([1], [])
    dump = job.read("_dump_1", json.dumps(silent | {"pg_status": {}}).encode())
    assert dump.notices == ["the dump holds no entries"]
    (event,) = analyse([*others, dump])
    assert (event.data["missing"], event.data["unknown"]) == ([], [1])


def test_an_entry_that_never_came_to_its_end_is_no_wait_where_later_ones_finished(job):
    # of a batch only its last entry is marked as completed; the others look open for ever
    batch = [call(3, "scheduled", operation="_all_gather_base"), call(3, operation="coalesced")]
    assert job.events({rank: [*calls(2), *batch] for rank in range(4)}) == []
    assert job.events({rank: [*calls(2), batch[0], *calls(9)[3:]] for rank in range(4)}) == []


def test_a_group_with_both_kinds_of_operations_is_not_judged_by_its_status(job):
    # the status counts sends and collectives alike: this one speaks of the send
    status = {"0": {"last_enqueued_collective": 90, "last_completed_collective": 90}}
    sent = paired(90, "send 1->0", "completed")
    dumps = job.dumps({rank: calls(5, 1) for rank in (0, 2, 3)})
    (event,) = analyse([*dumps, job.read("_dump_1", content([*calls(5), sent], pg_status=status))])
    assert event.data["missing"] == [1]


# -- which stall came first -------------------------------------------------------------------------------------------


def test_the_stall_whose_missing_rank_waits_for_nobody_is_the_first(job):
    # rank 3 is silent; rank 2 waits for it in a pair and is therefore missing among three, whose clocks are behind
    three, pair = ("1", "THREE"), ("2", "PAIR")
    groups = {three: [0, 1, 2], pair: [2, 3]}
    early = [*calls(5, group=three), call(6, "scheduled", group=three, time_created_ns=NOW - 10**9)]
    waits = [*calls(5, group=three), call(9, "scheduled", group=pair)]
    events = job.events({0: early, 1: early, 2: waits, 3: calls(5, group=pair)}, groups)
    assert [(e.data["group"], e.data["first"], e.rank) for e in events] == [("2", True, 3), ("1", False, 2)]
    assert [e.data["waiting_elsewhere"] for e in events] == [[], [2]]
    assert "rank 2 waits for others elsewhere" in events[1].text


def test_the_rank_of_an_event_is_one_that_does_not_wait_itself(job):
    pair = ("1", "PAIR")
    groups = {WORLD: [0, 1, 2, 3], pair: [1, 2]}
    waits = [*calls(5), call(9, "scheduled", group=pair)]
    events = job.events({0: calls(5, 1), 1: waits, 2: calls(5), 3: calls(5, 1)}, groups)
    world = next(event for event in events if event.data["group"] == "0")
    assert (world.data["missing"], world.data["waiting_elsewhere"], world.rank) == ([1, 2], [1], 2)


def test_ranks_that_wait_for_each_other_leave_the_earliest_stall_as_the_first(job):
    one, two = ("1", "ONE"), ("2", "TWO")
    groups = {WORLD: [0, 1], one: [0, 1], two: [0, 1]}
    events = job.events(
        {0: [call(1, "scheduled", group=one)], 1: [call(2, "scheduled", group=two, collective_seq_id=1)]}, groups
    )
    assert [(e.data["group"], e.data["first"], e.rank) for e in events] == [("1", True, 1), ("2", False, 0)]


def test_groups_that_only_follow_are_not_reported_as_faults_of_the_network(job):
    pair = ("1", "PAIR")
    groups = {WORLD: [0, 1, 2, 3], pair: [0, 1]}
    stuck = call(1, "scheduled", group=pair)
    events = job.events({0: [stuck, *calls(5, 1)], 1: [stuck, *calls(5, 1)], 2: calls(5, 1), 3: calls(5)}, groups)
    assert [(e.data["group"], e.data["missing"]) for e in events] == [("0", [3])]


def test_two_groups_of_one_name_with_other_members_are_two(job):
    halves = {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]}
    entries = {0: calls(5, 1), 1: calls(5), 2: calls(30), 3: calls(30)}
    dumps = [job.read(f"_dump_{r}", content(entries[r], {WORLD: members})) for r, members in halves.items()]
    (event,) = analyse(dumps)
    assert (event.data["missing"], event.data["waiting"], event.data["sequence"]) == ([1], [0], 6)


def test_members_that_a_dump_does_not_tell_come_from_the_other_dumps(job):
    def bare(rank, entries):
        return job.read(f"_dump_{rank}", {"version": "2.0", "entries": entries})

    (event,) = analyse([bare(0, calls(5, 1)), *job.dumps({1: calls(5), 2: calls(5, 1)})])
    assert (event.data["missing"], event.data["waiting"], event.data["without_dump"]) == ([1], [0, 2], [3])
    # where no dump tells them, the default group is that of all ranks
    (event,) = analyse([bare(0, calls(5, 1)), bare(1, []), bare(2, calls(5, 1))])
    assert (event.data["missing"], event.data["waiting"]) == ([1], [0, 2])
    # where two dumps tell otherwise, only those that took part are known to be members
    other = [job.read(f"_dump_{r}", content(calls(1), {("1", "A"): ranks})) for r, ranks in ((3, [0, 3]), (4, [0, 4]))]
    (event,) = analyse([bare(0, [call(7, "scheduled", group=("1", "A"))]), *other])
    assert (event.data["waiting"], event.data["without_dump"], event.data["missing"]) == ([0], [], [])


# -- point to point ---------------------------------------------------------------------------------------------------

PIPE = ("1", "PIPELINE")
STAGES = {WORLD: [0, 1, 2, 3], PIPE: [3, 2, 1, 0]}  # the numbers in an operation count within the group


def stage(*operations, record=0):
    return [paired(n, op, group=PIPE, record_id=record + n - 1) for n, op in enumerate(operations, 1)]


def test_the_silent_end_of_a_chain_of_receives_is_named(job):
    left_open = [call(3, "scheduled"), *calls(9)[3:]]  # an entry of a batch, which ended: no wait
    events = job.events({3: stage("recv 0<-1"), 2: stage("recv 1<-2"), 1: stage("recv 2<-3"), 0: left_open}, STAGES)
    (event,) = events
    assert event.text == "rank 0 is missing in recv 2<-3 #1 of group 1 (PIPELINE); rank 1 waits in it"
    assert (event.rank, event.data["first"]) == (0, True)


def test_a_send_that_waits_for_its_receive_names_nobody_while_all_are_busy(job):
    two = ("2", "TWO")
    groups = STAGES | {two: [2, 3]}
    both_in = call(1, "scheduled", group=two)  # and this collective, which all have entered, only follows
    ends = {3: [*stage("recv 0<-1", "recv 0<-1"), both_in], 2: [*stage("send 1->0", "recv 1<-0"), both_in]}
    assert job.events({**ends, 1: calls(2), 0: calls(2)}, groups) == []


def test_a_batch_of_sends_that_never_show_their_end_is_no_stall(job):
    batch = [paired(1, "send 0->1", group=PIPE), paired(1, "coalesced", "completed", group=PIPE)]
    assert job.events({3: batch, 2: calls(2), 1: calls(2), 0: calls(2)}, STAGES) == []
    lapped = stage("send 0->1", record=900)  # the end of the batch may have been left out as completed
    assert job.events({3: lapped, 2: calls(2), 1: calls(2), 0: calls(2)}, STAGES) == []


def test_a_peer_whose_dump_is_not_whole_is_not_accused(job):
    assert job.events({3: stage("recv 0<-1"), 2: [*calls(2), None], 1: calls(2), 0: calls(2)}, STAGES) == []


def test_a_pipeline_whose_peer_left_no_dump(job):
    (event,) = job.events({3: stage("recv 0<-1")}, STAGES)
    assert (event.rank, event.data["without_dump"], event.data["waiting"]) == (None, [2], [3])


# -- mismatches -------------------------------------------------------------------------------------------------------


def test_a_rank_that_calls_something_else_is_a_mismatch(job):
    other = [*calls(5), call(6, "scheduled", operation="_all_gather_base", record_id=5)]
    (event,) = job.events({0: calls(5, 1), 1: calls(5, 1), 2: other, 3: calls(5, 1)})
    assert (event.kind, event.rank, event.source) == ("collective_mismatch", 2, "_dump_2")
    assert event.text == (
        "call #6 of group 0 (default_pg) differs in its operation: ranks 0, 1, 3: all_reduce; rank 2: _all_gather_base"
    )
    assert event.data["calls"] == {"all_reduce": [0, 1, 3], "_all_gather_base": [2]}
    assert (event.data["what"], event.data["deviating"], event.data["first"]) == ("operation", [2], True)


@pytest.mark.parametrize(
    ("changed", "what", "described"),
    [
        ({"input_sizes": [[4, 9]], "output_sizes": [[4, 9]]}, "size", "all_reduce of 36 to 36 elements"),
        ({"input_dtypes": ["Half"], "output_dtypes": ["Half"]}, "type", "all_reduce of Half"),
    ],
)
def test_other_sizes_and_types_are_mismatches(job, changed, what, described):
    other = [*calls(5), call(6, "scheduled", record_id=5, **changed)]
    (event,) = job.events({0: calls(5, 1), 1: other, 2: calls(5, 1), 3: calls(5, 1)})
    assert (event.kind, event.data["what"], event.data["deviating"]) == ("collective_mismatch", what, [1])
    assert event.data["calls"][described] == [1]


def test_the_ends_of_batches_are_not_compared(job):
    def batch(end):
        return [*calls(5), call(6, "scheduled", operation="_all_gather_base"), call(6, "scheduled", operation=end)]

    events = job.events(
        {0: batch("coalesced"), 1: batch("coalesced"), 2: batch("_all_gather_base"), 3: batch("coalesced")}
    )
    assert [event.kind for event in events] == ["collective_timeout"]


def test_types_whose_names_look_alike_when_joined(job):
    entries = [[*calls(5), call(6, "scheduled", record_id=5, input_dtypes=names)] for names in (["a/b"], ["a", "b"])]
    (event,) = job.events(dict(enumerate(entries)), {WORLD: [0, 1]})
    assert (event.data["what"], event.data["deviating"]) == ("type", [])


def test_two_ranks_that_differ_are_not_judged_against_each_other(job):
    other = [*calls(5), call(6, "scheduled", operation="broadcast", record_id=5)]
    (event,) = job.events({0: calls(5, 1), 1: other}, {WORLD: [0, 1]})
    assert (event.kind, event.rank, event.data["deviating"]) == ("collective_mismatch", None, [])


@pytest.mark.parametrize(
    "changed",
    [
        {"operation": "all_gather"}, {"operation": "scatter"}, {"input_sizes": [[32]], "output_sizes": [[32]]},
        {"state": "completed", "input_sizes": [[5]]},
    ],
)  # fmt: skip
def test_sizes_that_may_differ_are_no_mismatch(job, changed):
    shared = {key: changed[key] for key in ("operation", "state") if key in changed}
    usual = {"state": "scheduled", "record_id": 5} | shared
    other = {"input_sizes": [[7]]} | usual | changed
    entries = {0: [*calls(5), call(6, **other)]} | {rank: [*calls(5), call(6, **usual)] for rank in (1, 2, 3)}
    assert [e for e in job.events(entries) if e.kind == "collective_mismatch"] == []


def test_an_exchange_in_which_more_is_sent_than_received(job):
    def entries(received):
        sizes = {"input_sizes": [[10, 2]], "output_sizes": [[received, 2]]}
        return [*calls(5), call(6, "scheduled", operation="all_to_all", record_id=5, **sizes)]

    fitting = job.events({0: entries(12), 1: entries(8)}, {WORLD: [0, 1]})
    assert [e.data["missing"] for e in fitting] == [[]]
    assert fitting[0].kind == "collective_timeout"
    (event,) = job.events({0: entries(12), 1: entries(9)}, {WORLD: [0, 1]})
    assert (event.kind, list(event.data["calls"])) == (
        "collective_mismatch", ["all_to_all of 40 elements sent and 42 received"],
    )  # fmt: skip
    old = job.events({0: entries(12), 1: entries(9)}, {WORLD: [0, 1]}, version="2.3")
    assert [e.kind for e in old] == ["collective_timeout"]


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3), ("a/_dump_12", 12), ("3.pkl", 3), ("comm_lib_trace_rank_7.json", 7),
        ("lora_rank_8/_dump_2", 2), ("rank_5/dump.pkl", 5), ("trace_rank3_1758610505", 3), ("_dump_20250923", None),
        ("dump.pickle", None),
    ],
)  # fmt: skip
def test_the_rank_comes_from_the_name(job, name, rank):
    dump = job.read(name, content(calls(1), {WORLD: list(range(16))}))
    assert dump.rank == rank
    assert bool(dump.notices) == (rank is None)


def test_the_rank_comes_from_the_groups_where_the_name_has_none(job):
    dump = job.read("dump.pkl", content(calls(1), {WORLD: [0, 1, 2, 3], ("1", "TP"): [2, 3], ("2", "DP"): [0, 2]}))
    assert (dump.rank, dump.notices) == (2, [])


def test_a_name_that_contradicts_the_groups_is_told(job):
    assert job.read("_dump_9", content(calls(1))).notices == [
        "the name says rank 9, which is no member of all groups of the dump"
    ]


def test_the_json_variant_tells_the_same(job):
    entries = {0: calls(5, 1), 1: calls(5), 2: calls(5, 1), 3: calls(5, 1)}
    status = {"0": {"last_enqueued_collective": "5", "last_started_collective": "5", "last_completed_collective": "5"}}
    pickled = job.events(entries)
    texts = {rank: json.dumps(content(es), sort_keys=True).encode() for rank, es in entries.items()}
    assert all(looks_like_one(f"{rank}.json", text) for rank, text in texts.items())
    dumps = [job.read(f"{rank}.json", text) for rank, text in texts.items()]
    (event,) = analyse(dumps)
    assert (event.text, event.data) == (pickled[0].text, pickled[0].data)
    dump = job.read("1.json", json.dumps(content(calls(5), pg_status=status)).encode())
    assert (dump.status["0"].enqueued, dump.status["0"].completed) == (5, 5)


def test_a_torn_pickle_is_read_up_to_its_last_whole_entry_and_accuses_nobody(job):
    whole = pickletools.optimize(pickle.dumps(content(calls(9)), 2))  # without the puts that torch leaves out too
    ends = [at for at in range(len(whole)) if whole[at : at + 4] == b"\x89u}("]
    torn = whole[: ends[6] + 30]  # within the eighth entry
    dump = job.read("_dump_1", torn)
    assert [entry.sequence for entry in dump.entries] == [1, 2, 3, 4, 5, 6, 7]
    assert not dump.complete
    assert "read up to the last whole entry" in dump.notices[0]
    (event,) = analyse([*job.dumps({rank: calls(9, 1) for rank in (0, 2, 3)}), dump])
    assert (event.rank, event.data["missing"], event.data["unknown"]) == (None, [], [1])


def test_a_torn_json_file_is_read_up_to_there(job):
    text = json.dumps(content(calls(9)))
    dump = job.read("_dump_1", text[: text.index('"record_id": 5')].encode())
    assert [entry.sequence for entry in dump.entries] == [1, 2, 3, 4, 5]
    assert (dump.complete, len(dump.notices)) == (False, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x80\x02", b"{", b"\x80\x02]q\x00.", b'{"entries": 3}', b'{"entries": [{"a": 1}], "version": "2.9"}',
        b'{"version": 1}',
        pickle.dumps({"entries": [1, 2], "pg_config": [3]}), pickle.dumps([call(1)]), b"[" * 100000, b'{"a":' * 100000,
    ],
)  # fmt: skip
def test_what_is_no_dump_is_refused(job, data):
    with pytest.raises(RefusedError):
        job.read("_dump_1", data)


def test_nothing_that_a_dump_names_is_run(job, tmp_path):
    class Evil:
        def __reduce__(self):
            import os

            return os.mkdir, (str(tmp_path / "made"),)

    dump = job.read("_dump_0", content([call(1, frames=Evil(), timeout_ms=Evil())]))
    assert [(entry.frames, entry.timeout_ms) for entry in dump.entries] == [((), None)]
    assert not (tmp_path / "made").exists()


def test_entries_of_impossible_types_are_left_out_and_told(job):
    bad = [
        call(True), call(1, collective_seq_id="x"), call(1, process_group="0"), call(1, record_id=-1),
        call(1, process_group=(0, 1)), call(1, profiling_name=None), call(1, collective_seq_id=1 << 80),
        {"is_p2p": True}, None, 3,
    ]  # fmt: skip
    dump = job.read("_dump_0", content([*calls(3), *bad]))
    assert [entry.sequence for entry in dump.entries] == [1, 2, 3]
    assert dump.notices == ["10 of 13 entries have missing fields or fields of impossible types"]
    assert not dump.complete


def test_frames_are_kept_of_what_is_not_finished(job):
    done, waiting = job.read("_dump_0", content(calls(1, 1))).entries
    assert done.frames == ()
    assert waiting.frames[1] == "step at /home/u/train.py:35"


def test_an_unknown_version_is_told(job):
    assert job.read("_dump_0", content(calls(1), version="3.1")).notices == [
        "version 3.1 of the dump: only versions 2.x are known; read by the fields of those"
    ]
    assert job.read("_dump_0", content(calls(1), version="2.99")).notices == []


def test_an_entry_that_a_dump_repeats_a_million_times_costs_one(job):
    sizes = [[2] * 16] * 4096
    entry = call(1, input_sizes=sizes, output_sizes=sizes)
    dump = job.read("_dump_0", content([entry] * 1_000_000))
    assert len({id(entry) for entry in dump.entries}) == 1
    assert dump.notices == ["1000000 entries: only the last 200000 are read"]


def test_members_without_number_are_bounded(job):
    ranks = list(range(150_000))
    config = {str(i): {"name": str(i), "desc": "", "ranks": ranks} for i in range(16)}
    dump = job.read("_dump_0", {"version": "2.9", "pg_config": config, "entries": []})
    assert sum(len(group.ranks) for group in dump.groups.values()) <= 2_000_000
    assert dump.notices == ["3 of 16 process groups of pg_config cannot be read"]


def test_attempts_in_several_folders_are_analysed_apart(job):
    dumps = [
        job.read(f"{attempt}/_dump_{rank}", content(calls(5, int(rank != silent))))
        for attempt, silent in (("try0", 1), ("try1", 2))
        for rank in range(4)
    ]
    assert [(e.source, e.rank, e.data["first"]) for e in analyse(dumps)] == [
        ("try0/_dump_0", 1, True), ("try1/_dump_0", 2, True),
    ]  # fmt: skip


def test_dumps_in_a_folder_for_each_rank_belong_together(job):
    dumps = [job.read(f"rank_{rank}/dump.pkl", content(calls(5, int(rank != 2)))) for rank in range(4)]
    assert [event.rank for event in analyse(dumps)] == [2]
    assert notices(dumps) == []


def test_of_two_dumps_of_a_rank_in_one_folder_the_later_counts(job):
    entries = {0: calls(5, 1), 1: calls(5, 1), 2: calls(5, 1), 3: calls(5, 1)}
    dumps = [*job.dumps(entries), job.read("early_dump_3", content(calls(4)))]
    assert [e.data["missing"] for e in analyse(dumps)] == [[]]
    assert notices(dumps) == [("early_dump_3", "a second dump of rank 3, older than _dump_3")]


def test_a_dump_of_an_unknown_rank_takes_no_part(job):
    dumps = [*job.dumps({rank: calls(5) for rank in range(4)}), job.read("dump.pkl", content(calls(5, 9)))]
    assert analyse(dumps) == []
    assert ("dump.pkl", "neither the name nor the groups tell of which rank the dump is: not analysed") in notices(
        dumps
    )


def test_a_thousand_ranks(job):
    members = {WORLD: list(range(1000))}
    ordinary, silent = content(calls(2, 1), members), content(calls(2), members)
    dumps = [job.read(f"_dump_{rank}", silent if rank == 777 else ordinary) for rank in range(1000)]
    (event,) = analyse(dumps)
    assert (event.rank, len(event.data["waiting"])) == (777, 999)
    assert event.text.endswith("ranks 0-776, 778-999 wait in it")


@pytest.mark.parametrize(
    ("name", "head", "whether"),
    [
        ("nccl_trace_rank_3", b"\x80\x02}(X\x07\x00\x00\x00versionX\x09\x00\x00\x00pg_config", True),
        ("model.pkl", b"\x80\x02}(X\x09\x00\x00\x00pg_config", False), ("x", b'{"pg_config": 1, "entries": []}', True),
        ("trace.json", b'{"entries": [1]}', False), ("metrics.jsonl", b'{"loss": 1.0}', False),
        ("x", b"pg_config entries", False), ("trainer_state.json", b'{"log_history": []}', False), ("x", b"", False),
    ],
)  # fmt: skip
def test_the_first_look(name, head, whether):
    assert looks_like_one(name, head) is whether


ODD = st.sampled_from(["send 0->1", "nccl:", "gloo:x", "[0, 1]", "[0", "completed"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | ODD,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.tuples(inner, inner)
    ),
    max_leaves=6,
)
TOP = st.sampled_from(["pg_config", "pg_status", "entries", "version", "nccl_version"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(sorted(call(1))), ANYTHING), max_size=6),
    whole=st.dictionaries(TOP, ANYTHING, max_size=2),
)
def test_no_content_breaks_the_analysis(job, changes, whole):
    entries = [*calls(3, 1), paired(5, "send 0->1"), paired(6, "recv 0<-1", "completed")]
    for index, key, value in changes:
        entries[index][key] = value
    ordinary = job.read("_dump_1", content(calls(3, 1)))
    try:
        dump = job.read("_dump_0", content(entries) | whole)
    except RefusedError:
        return
    for event in analyse([dump, ordinary]):
        json.dumps(event.data)
        assert event.rank is None or event.rank in (0, 1)
    notices([dump, ordinary])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.booleans())
def test_no_damaged_byte_breaks_the_analysis(job, at, byte, cut):
    data = bytearray(pickle.dumps(content([*calls(3, 1), paired(5, "send 0->1")]), 2))
    data[at % len(data)] = byte
    try:
        dump = job.read("_dump_0", bytes(data[: at % len(data)] if cut else data))
    except RefusedError:
        return
    analyse([dump, job.read("_dump_1", content(calls(3, 1)))])
