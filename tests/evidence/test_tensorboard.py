"""TensorBoard event files, real ones and ones that are encoded here."""

import gzip
import math
import random
import struct
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradforensics.evidence import protobuf
from gradforensics.evidence.event_files import crc, framing
from gradforensics.evidence.event_files.columns import Columns
from gradforensics.evidence.event_files.framing import Frames, payloads_fit
from gradforensics.evidence.event_files.summaries import Summaries
from gradforensics.evidence.event_files.templates import Templates
from gradforensics.evidence.event_files.walker import Walker
from gradforensics.evidence.files import File
from gradforensics.evidence.readers import tensorboard

DATA = Path(__file__).parent / "data" / "tensorboard"
CORPUS = Path(__file__).parents[2].parent / "shared" / "corpus"
NAME = "events.out.tfevents.1700000000.host.1.0"

# -- an encoder -------------------------------------------------------------------------------------------------------


def slow_crc(data):
    """CRC-32C, bit by bit."""
    found = 0xFFFFFFFF
    for byte in data:
        found ^= byte
        for _ in range(8):
            found = found >> 1 ^ (0x82F63B78 if found & 1 else 0)
    return found ^ 0xFFFFFFFF


def sealed(data):
    found = slow_crc(data)
    return struct.pack("<I", ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(payload):
    length = struct.pack("<Q", len(payload))
    return length + sealed(length) + payload + sealed(payload)


def varint(number):
    number &= (1 << 64) - 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def field(number, content):
    """A field: of bytes, a float as double, or an int as varint."""
    if isinstance(content, bytes):
        return varint(number << 3 | 2) + varint(len(content)) + content
    if isinstance(content, float):
        return varint(number << 3 | 1) + struct.pack("<d", content)
    return varint(number << 3) + varint(content)


def simple(tag, value):
    return field(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value)


def plugin(name, content=b""):
    return field(9, field(1, field(1, name.encode()) + field(2, content)))


def tensor(tag, dtype, body, shape=()):
    dims = b"".join(field(2, field(1, size)) for size in shape)
    return field(1, tag.encode()) + field(8, field(1, dtype) + field(2, dims) + body)


def event(step, *values, time=1.7e9):
    summary = b"".join(field(1, value) for value in values)
    return field(1, time) + (field(2, step) if step else b"") + (field(5, summary) if values else b"")


VERSION = record(field(1, 1.7e9) + field(3, b"brain.Event:2"))


def scalars(count, tags=("train/loss",)):
    return [record(event(s, simple(tag, 2.0 + 1 / s), time=1.7e9 + s)) for s in range(1, count + 1) for tag in tags]


# -- reading ----------------------------------------------------------------------------------------------------------


def reading(folder, data, name=NAME):
    path = folder / name
    path.write_bytes(data)
    file = File(path, name, len(data))
    assert tensorboard.sniff(file)
    return tensorboard.read(file)


def points(found):
    return {t.tag: list(t.stored.frame.select("step", "time", "value").iter_rows()) for t in found.tracks}


def values(found, tag):
    return [row[2] for row in points(found)[tag]]


def texts(found):
    return [text for _, text in found.notices]


def test_scalars_of_both_styles_are_exact(tmp_path):
    found = reading(tmp_path, (DATA / "torch_run" / f"{NAME[:-1]}3").read_bytes())
    assert values(found, "train/grad_norm") == [1.0 + s / 8 for s in range(1, 21)]
    assert values(found, "train/lr") == [1e-4 / s for s in range(1, 21)]
    steps, times, losses = zip(*points(found)["train/loss"], strict=True)
    assert steps == tuple(range(1, 21))
    assert times == tuple(1.7e9 + s for s in steps)
    assert losses[0] == 3.0
    assert losses[1] == 1.5
    assert losses[19] == float(np.float32(0.15))
    kinds = found.tracks[0].stored.frame["kind"].to_list()
    assert kinds[6:8] == ["nan", "posinf"]
    assert set(kinds[:6] + kinds[8:]) == {"finite"}
    assert {(t.phase, t.series) for t in found.tracks} >= {("train", "loss"), ("eval", "loss"), ("train", "lr")}


def test_a_torch_histogram_becomes_exact_numbers(tmp_path):
    found = reading(tmp_path, (DATA / "torch_run" / f"{NAME[:-1]}3").read_bytes())
    for step, index in ((10, 0), (20, 1)):
        made = np.arange(-8, 8) * step / 4
        want = {"min": made.min(), "max": made.max(), "mean": made.mean(), "std": made.std(), "count": 16}
        for what, number in want.items():
            assert values(found, f"layer/weight/hist_{what}")[index] == pytest.approx(number, rel=1e-6)


def test_a_histogram_of_tensorflow_2_becomes_numbers_from_its_buckets(tmp_path):
    found = reading(tmp_path, (DATA / "tensorflow_run" / NAME).read_bytes())
    made = np.linspace(-1.0, 20.0, 101)
    last = {what: values(found, f"dense/kernel/hist_{what}")[-1] for what in ("min", "max", "mean", "std", "count")}
    assert (last["min"], last["max"], last["count"]) == (-1.0, 20.0, 101.0)
    assert last["mean"] == pytest.approx(made.mean(), abs=1.0)
    assert last["std"] == pytest.approx(made.std(), rel=0.1)


def test_histograms_that_overflow_or_are_empty_are_read(tmp_path):
    def buckets(step, *rows):
        content = field(4, np.array(rows, dtype="<f8").tobytes())
        return record(event(step, tensor("h", 2, content, (len(rows), 3)) + plugin("histograms")))

    huge = buckets(1, (-1e308, 1e308, 4.0), (1e308, math.inf, 1e308))
    equal = record(event(1, field(1, b"t") + field(5, field(3, 3.0) + field(4, 0.3) + field(5, 0.03))))
    found = reading(tmp_path, huge + buckets(2) + equal)
    assert values(found, "h/hist_count") == [1e308, 0.0]
    assert values(found, "h/hist_max") == [None]  # the infinity
    assert values(found, "t/hist_std") == [0.0]
    assert found.notices == []


def test_a_signalling_nan_is_a_nan(tmp_path):
    data = [record(event(s, tensor("x", 1, field(4, b"\x01\x00\xa0\x7f")))) for s in range(1, 12)]
    found = reading(tmp_path, b"".join(data))
    assert set(found.tracks[0].stored.frame["kind"].to_list()) == {"nan"}


def test_numbers_of_every_type_are_read(tmp_path):
    found = reading(tmp_path, (DATA / "tensorflow_run" / NAME).read_bytes())
    steps = range(20)
    assert values(found, "typed/double") == [s / 3 for s in steps]
    assert values(found, "typed/half") == [s / 4 for s in steps]
    assert values(found, "typed/int32") == [-s for s in steps]
    assert values(found, "typed/int64") == [s << 40 for s in steps]
    assert values(found, "typed/uint8") == list(steps)
    assert values(found, "typed/bool") == [s % 2 for s in steps]


def test_means_of_an_epoch_count_in_epochs_and_others_in_steps(tmp_path):
    found = reading(tmp_path, (DATA / "tensorflow_run" / NAME).read_bytes())
    units = {t.tag: t.stored.step_unit for t in found.tracks}
    assert units["epoch_loss"] == "epoch"
    assert units["typed/half"] == "step"
    assert [(t.phase, t.series) for t in found.tracks if t.tag == "epoch_loss"] == [("train", "loss")]


def test_hyperparameters_and_tables_in_texts_are_settings(tmp_path):
    found = reading(tmp_path, (DATA / "tensorflow_run" / NAME).read_bytes())
    told = [(s.key, s.value, s.origin) for s in found.settings or []]
    assert {("learning_rate", 0.01, "runtime"), ("num_units", 32, "runtime"), ("optim", "sgd", "runtime")} < set(told)
    assert told[3:] == [
        ("learning_rate", 0.00025, "runtime"), ("total_timesteps", 100000, "runtime"), ("seed", 1, "runtime"),
        ("gamma", 0.99, "runtime"),
    ]  # fmt: skip


def test_json_in_a_text_is_settings_and_other_texts_are_counted(tmp_path):
    found = reading(tmp_path, (DATA / "torch_run" / f"{NAME[:-1]}3").read_bytes())
    told = {s.key: s.value for s in found.settings or []}
    assert told == {"learning_rate": 5e-05, "max_steps": 20, "warmup_steps": 4, "output_dir": "out"}
    assert texts(found) == [
        '2 image summaries: not read (first: tag "picture")',
        '1 PR curve summary: not read (first: tag "curve")',
        '1 text summary was not read as settings (first: tag "sample/text_summary")',
    ]


def text_summary(tag, text):
    return record(event(0, tensor(tag, 7, field(8, text.encode())) + plugin("text")))


def test_yaml_and_single_texts_are_settings_where_enough_of_them_are_known(tmp_path):
    megatron = [text_summary(f"{k}/text_summary", v) for k, v in {"lr": "0.0003", "seed": "7", "note": "x"}.items()]
    yaml = text_summary("config", "```yaml\nmax_steps: 50\noptimizer:\n  weight_decay: 0.1\n```")
    story = text_summary("story", "Once: upon\na time there was a loss of 3.")
    found = reading(tmp_path, VERSION + b"".join(megatron) + yaml + story)
    told = {s.key: s.value for s in found.settings or []}
    assert told == {"learning_rate": 0.0003, "seed": 7, "note": "x", "max_steps": 50, "weight_decay": 0.1}
    assert texts(found) == ['1 text summary was not read as settings (first: tag "story")']


def test_tags_beyond_all_bounds_are_left_out_and_told(tmp_path, monkeypatch):
    monkeypatch.setattr("gradforensics.evidence.event_files.columns.TAG_LIMIT", 2)
    data = scalars(20, ("a", "b", "c")) + scalars(3, ("x" * 1025,))
    found = reading(tmp_path, VERSION + b"".join(data))
    assert [(t.tag, t.stored.frame.height) for t in found.tracks] == [("a", 20), ("b", 20)]
    assert len(texts(found)) == 1
    assert texts(found)[0].endswith(": 23 values are left out")


def test_only_a_session_that_ends_at_a_time_is_an_ending(tmp_path):
    at_the_end = reading(tmp_path, (DATA / "tensorflow_run" / NAME).read_bytes())
    assert at_the_end.trail.finished == "the hparams session ended as SUCCESS"
    at_the_start = reading(tmp_path, (DATA / "torch_run" / "hparams" / NAME).read_bytes())
    assert at_the_start.trail.finished == ""
    told = {s.key: s.value for s in at_the_start.settings or []}
    assert told == {"learning_rate": 0.5, "per_device_train_batch_size": 16, "optim": "adam", "bf16": True}
    ended = field(4, field(1, 2) + field(2, 1.7e9))
    failed = reading(tmp_path, VERSION + record(event(0, field(1, b"_hparams_/x") + plugin("hparams", ended))))
    assert failed.trail.finished == ""
    assert texts(failed) == ["the hparams session ended as FAILURE"]


def test_sub_runs_of_add_scalars_hold_one_series_each(tmp_path):
    found = reading(tmp_path, (DATA / "torch_run" / "both_val" / f"{NAME[:-1]}2").read_bytes())
    assert [(step, round(value, 6)) for step, _, value in points(found)["both"]] == [(10, 0.2), (20, 0.1)]


@pytest.mark.skipif(not CORPUS.exists(), reason="the labelled corpus is not here")
def test_labelled_runs_hold_what_their_labels_say(tmp_path):
    labels = {run["dir"]: run["series"] for run in tomllib.loads((CORPUS / "INDEX.toml").read_text())["run"]}
    checked = 0
    for run in ("pl-fish-overfit", "coqui-xtts", "stylegan-fid-blowup"):
        (path,) = (CORPUS / run).glob("events*")
        found = points(reading(tmp_path, path.read_bytes()))
        for label, want in labels[run].items():
            what, _, tag = label.partition("_")
            if what == "points" and tag in found:
                assert len({step for step, _, _ in found[tag]}) == want
                checked += 1
            tag, _, what = label.rpartition("_")
            if tag not in found or what not in ("first", "last", "min"):
                continue
            held = [value for _, _, value in found[tag]]
            got = {"first": held[0], "last": held[-1], "min": min(held)}[what]
            assert got == pytest.approx(want, rel=1e-5)
            checked += 1
    assert checked >= 14
    for label, want in labels["keras-tfevents-v2"].items():
        folder, _, tag = label.rpartition("/")
        if folder:
            (path,) = (CORPUS / "keras-tfevents-v2" / folder).glob("events*")
            assert values(reading(tmp_path, path.read_bytes()), tag) == [pytest.approx(want, rel=1e-5)]


# -- what files look like ---------------------------------------------------------------------------------------------


def test_a_file_without_values_is_claimed_in_silence(tmp_path):
    graph = record(field(1, 1.7e9) + field(4, b"\x0a\x03abc"))
    for data in (VERSION, VERSION + graph, graph):
        found = reading(tmp_path, data)
        assert (found.tracks, found.notices, found.settings, found.claimed) == ([], [], None, True)
        assert not found.speaks_of_training


def test_a_renamed_file_is_known_by_its_first_record(tmp_path):
    (tmp_path / "log.bin").write_bytes(VERSION + scalars(1)[0])
    assert tensorboard.sniff(File(tmp_path / "log.bin", "log.bin", 200))
    (tmp_path / "other.bin").write_bytes(bytes([VERSION[0] ^ 1]) + VERSION[1:])
    assert not tensorboard.sniff(File(tmp_path / "other.bin", "other.bin", 200))
    (tmp_path / "short.bin").write_bytes(VERSION[:9])
    assert not tensorboard.sniff(File(tmp_path / "short.bin", "short.bin", 9))


def test_a_compressed_file_is_read(tmp_path):
    found = reading(tmp_path, gzip.compress(VERSION + b"".join(scalars(30))), f"{NAME}.gz")
    assert len(points(found)["train/loss"]) == 30


def test_a_run_is_gathered_from_its_event_file(read):
    evidence = read(NAME, VERSION + b"".join(scalars(30, ("train/loss", "val/loss"))))
    loss = evidence.series("loss", "eval")
    assert len(loss) == 30
    assert loss.times[-1] == 1.7e9 + 30
    assert [source.reader for source in evidence.sources] == ["tensorboard"]
    assert evidence.notices == []


def test_steps_that_go_back_are_a_second_attempt(tmp_path):
    found = reading(tmp_path, VERSION + b"".join(scalars(20) + scalars(25)[9:]))
    assert found.tracks[0].stored.frame["attempt"].to_list() == [0] * 20 + [1] * 16
    assert texts(found) == ["steps go back once: 2 attempts in this file"]


def test_a_negative_and_a_missing_step_are_read(tmp_path):
    found = reading(tmp_path, b"".join(record(event(step, simple("x", 1.0))) for step in (-3, 0, 1 << 40)))
    assert [step for step, _, _ in points(found)["x"]] == [-3, 0, 1 << 40]


def test_many_values_of_one_event_share_its_row(tmp_path):
    data = [record(event(s, simple("a", s), simple("b/c", s * 2), time=float(s))) for s in range(1, 50)]
    found = reading(tmp_path, VERSION + b"".join(data))
    assert points(found) == {
        "a": [(s, float(s), float(s)) for s in range(1, 50)],
        "b/c": [(s, float(s), s * 2.0) for s in range(1, 50)],
    }


def test_nan_is_never_taken_for_a_filler(tmp_path):
    both = [event(s, simple("train/loss", math.nan if s % 2 else 1.0), simple("val/loss", 1.0)) for s in range(1, 40)]
    found = reading(tmp_path, VERSION + b"".join(map(record, both)))
    assert found.tracks[0].stored.frame["kind"].to_list().count("nan") == 20
    assert found.notices == []


@pytest.mark.parametrize(
    ("dtype", "body", "shape", "want"),
    [
        (1, field(4, struct.pack("<f", 0.5)), (), 0.5),
        (1, field(5, struct.pack("<f", 0.5)), (1, 1), 0.5),
        (1, varint(5 << 3 | 5) + struct.pack("<f", 0.5), (), 0.5),  # a repeated field that is not packed
        (14, field(4, b"\x80\x3f"), (), 1.0),  # bfloat16
        (14, field(13, varint(0x4000)), (), 2.0),
        (19, field(4, struct.pack("<e", 1.5)), (), 1.5),
        (9, field(10, -5), (), -5.0),
        (23, field(17, (1 << 64) - 1), (), float((1 << 64) - 1)),
        (5, field(4, struct.pack("<h", -7)), (), -7.0),
        (10, field(11, varint(1)), (), 1.0),
        (2, b"", (), 0.0),  # zeros may be left out
    ],
)
def test_a_tensor_of_one_element_is_a_scalar(tmp_path, dtype, body, shape, want):
    data = [record(event(s, tensor("x", dtype, body, shape))) for s in range(1, 12)]
    assert values(reading(tmp_path, b"".join(data)), "x") == [want] * 11


@pytest.mark.parametrize(
    ("dtype", "body", "shape"),
    [
        (1, field(5, struct.pack("<f", 0.5)), (2,)),  # one number that stands for two
        (1, field(4, bytes(3)), ()),
        (7, field(8, b"text"), ()),
        (8, field(4, bytes(8)), ()),  # a complex number
        (1, field(5, bytes(8)), ()),
        (1, b"", (1 << 40, 1 << 40)),
    ],
)
def test_any_other_tensor_is_named(tmp_path, dtype, body, shape):
    found = reading(tmp_path, record(event(1, tensor("x", dtype, body, shape))))
    assert found.tracks == []
    assert texts(found) == ['1 tensor summary: not read (first: tag "x")']


# -- damage -----------------------------------------------------------------------------------------------------------

PARTS = [VERSION, *scalars(40, ("train/loss", "lr"))]
WHOLE = b"".join(PARTS)
BEGINS = [sum(map(len, PARTS[:i])) for i in range(len(PARTS) + 1)]


@given(st.integers(0, len(WHOLE) * 8 - 1))
@settings(max_examples=150, deadline=None)
def test_a_flipped_bit_costs_exactly_one_record_which_is_named(tmp_path_factory, bit):
    data = bytearray(WHOLE)
    data[bit // 8] ^= 1 << bit % 8
    found = reading(tmp_path_factory.mktemp("x"), bytes(data))
    hit = max(i for i, begin in enumerate(BEGINS) if begin <= bit // 8)
    held = sum(len(rows) for rows in points(found).values())
    assert held == len(PARTS) - 1 - (hit > 0)
    (text,) = texts(found)
    assert text.startswith(f"record {hit + 1} at byte {BEGINS[hit]} is lost: ")
    after = len(PARTS) - 1 - hit
    words = {0: "no record after it was read", 1: "the one record after it was read"}
    assert text.endswith(words.get(after, f"{after} records after it were read"))


@given(st.integers(1, len(WHOLE) - 1))
@settings(max_examples=60, deadline=None)
def test_a_cut_file_keeps_every_whole_record(tmp_path_factory, size):
    found = reading(tmp_path_factory.mktemp("x"), WHOLE[:size])
    whole = sum(end <= size for end in BEGINS[1:])
    assert sum(len(rows) for rows in points(found).values()) == max(whole - 1, 0)
    told = texts(found)
    if size in BEGINS:
        assert told == []
    else:
        assert told[0].startswith("the file ends inside of ")
        assert f"record {whole + 1} at byte {BEGINS[whole]}" in told[0]


@pytest.mark.parametrize("noise", [b"x", bytes(100), random.Random(0).randbytes(300)])
def test_records_behind_foreign_bytes_are_found_again(tmp_path, noise):
    found = reading(tmp_path, WHOLE[: BEGINS[30]] + noise + WHOLE[BEGINS[30] :])
    assert sum(len(rows) for rows in points(found).values()) == len(PARTS) - 1
    (text,) = texts(found)
    assert text.startswith(f"record 31 at byte {BEGINS[30]} is lost: {len(noise)} bytes are damaged or missing; ")
    assert text.endswith(f"; {len(PARTS) - 30} records after it were read")


def test_bytes_missing_inside_of_a_payload_cost_that_record_only(tmp_path):
    found = reading(tmp_path, WHOLE[: BEGINS[30] + 20] + WHOLE[BEGINS[30] + 23 :])
    assert sum(len(rows) for rows in points(found).values()) == len(PARTS) - 2
    assert len(texts(found)) == 1


def test_a_tail_of_zeros_is_told(tmp_path):
    found = reading(tmp_path, WHOLE + bytes(200))
    assert sum(len(rows) for rows in points(found).values()) == len(PARTS) - 1
    (text,) = texts(found)
    assert text.startswith(f"record {len(PARTS) + 1} at byte {len(WHOLE)} is lost: 200 bytes up to the end of the file")


def test_many_damages_are_told_one_by_one_up_to_a_number(tmp_path):
    data = bytearray(WHOLE)
    for begin in BEGINS[1:-1]:
        data[begin + 15] ^= 1
    found = reading(tmp_path, bytes(data))
    assert found.tracks == []
    assert len(texts(found)) == 21
    assert texts(found)[-1] == f"{len(PARTS) - 21} more damaged records are lost"


def test_a_length_beyond_all_bounds_is_not_believed(tmp_path):
    huge = struct.pack("<Q", 1 << 50)
    found = reading(tmp_path, PARTS[0] + huge + sealed(huge) + WHOLE[BEGINS[1] :])
    assert sum(len(rows) for rows in points(found).values()) == len(PARTS) - 1
    assert texts(found)[0].startswith(f"record 2 at byte {BEGINS[1]} is lost: 12 bytes are damaged or missing")


def test_a_sound_record_that_is_no_event_is_counted(tmp_path):
    found = reading(tmp_path, WHOLE + record(b"\x0f\xff") + record(b"\x2a\x7fab"))
    assert texts(found) == [f"2 records are no events (first: record {len(PARTS) + 1} at byte {len(WHOLE)}): left out"]


def test_what_holds_no_record_says_so(tmp_path):
    found = reading(tmp_path, random.Random(1).randbytes(3000))
    assert texts(found)[-1] == "no record of an event file was found"


def test_records_that_cross_the_borders_of_chunks_are_whole():
    parts = [VERSION, *scalars(10), text_summary("long", "x" * 700), *scalars(10)]
    data = b"".join(parts)
    for size in (1, 7, 64, 1000):
        frames = Frames(data[i : i + size] for i in range(0, len(data), size))
        found = [
            window.data[start : start + length]
            for window in frames.windows()
            for start, length in zip(window.starts.tolist(), window.lengths.tolist(), strict=True)
        ]
        assert found == [part[12:-4] for part in parts]
        assert (frames.cut, len(frames.damages.records), frames.records) == ("", 0, len(parts))


# -- the fast way and the slow way ------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=12), st.binary(max_size=9))
@settings(max_examples=80, deadline=None)
def test_the_crcs_of_ranges_are_those_of_the_slow_way(parts, front):
    data = np.frombuffer(front + b"".join(parts), dtype=np.uint8)
    lengths = np.array([len(part) for part in parts])
    starts = len(front) + np.cumsum(lengths) - lengths
    assert crc.of_ranges(data, starts, lengths).tolist() == [slow_crc(part) for part in parts]
    wanted = [slow_crc(struct.pack("<Q", length)) for length in lengths.tolist()]
    assert crc.of_lengths(lengths.astype(np.uint64)).tolist() == wanted


def test_the_crcs_of_long_ranges_and_of_several_batches_are_right(monkeypatch):
    data = np.random.default_rng(0).integers(0, 256, 150_000, dtype=np.uint8)
    starts, lengths = np.array([5, 0, 70_000]), np.array([70_000, 0, 80_000])
    want = [slow_crc(data[start : start + length].tobytes()) for start, length in zip(starts, lengths, strict=True)]
    assert crc.of_ranges(data, starts, lengths).tolist() == want
    monkeypatch.setattr(crc, "_BATCH", 1000)
    assert crc.of_ranges(data, starts, lengths).tolist() == want


finite32 = st.floats(width=32)
tags = st.sampled_from(["loss", "lr", "acc", "a/b/c", "", "löss", "train/grad_norm", "losz"])
steps = st.one_of(st.integers(0, 300), st.integers(-(1 << 63), (1 << 63) - 1))


@st.composite
def one_value(draw):
    tag, number = draw(tags), draw(finite32)
    single = struct.pack("<f", number)
    kind = draw(st.integers(0, 6))
    if kind == 0:
        return simple(tag, number)
    if kind == 1:
        return tensor(tag, 1, field(5, single)) + plugin("scalars")
    if kind == 2:
        return tensor(tag, 1, field(4, single))
    if kind == 3:
        return tensor(tag, 2, field(6, struct.pack("<d", draw(st.floats()))))
    if kind == 4:
        return tensor(tag, 3, field(7, draw(st.integers(-5, 5))))
    if kind == 5:
        return tensor(tag, 14, field(4, draw(st.binary(min_size=2, max_size=2))))
    return field(1, tag.encode()) + field(
        5, field(1, 0.0) + field(2, 1.0) + field(3, 2.0) + field(4, 1.0) + field(5, 1.0)
    )


events = st.builds(
    lambda step, held, time: event(step, *held, time=time),
    steps,
    st.lists(one_value(), max_size=3),
    st.floats(1e9, 2e9),
)


def collected(data, *, fast):
    """What the two ways of reading collect."""
    columns, frames = Columns(), Frames(iter([data]))
    templates, walker = Templates(columns), Walker(columns, Summaries())
    for window in frames.windows():
        rest = templates.read(window) if fast else np.arange(len(window.starts))
        assert payloads_fit(window.data, window.starts[rest], window.lengths[rest]).all()
        walker.read(window, rest)
        columns.close_window()
    return [(t.tag, t.stored.step_unit, t.stored.frame.rows()) for t in columns.settled({}).tracks], walker.malformed


@given(st.lists(events, min_size=1, max_size=6), st.randoms(use_true_random=False))
@settings(max_examples=120, deadline=None)
def test_templates_read_what_the_walker_reads(made, chance):
    records = [record(one) for one in made]
    # enough of each, in any order, for templates to be made
    data = b"".join(chance.choice(records) for _ in range(12 * len(records)))
    fast, slow = (collected(data, fast=way) for way in (True, False))
    assert repr(fast) == repr(slow)  # NaN is equal to NaN here


def test_templates_take_all_scalars_of_an_ordinary_file():
    templates = Templates(Columns())
    window = next(Frames(iter([WHOLE])).windows())
    assert len(window.starts) == len(PARTS) - 1  # the last one comes when it is known to be the last
    assert templates.read(window).tolist() == [0]  # the version


def test_tags_with_the_same_mark_are_told_apart():
    columns = Columns()
    found = Templates(columns)._tags(b"aabbaacc", np.array([0, 2, 4, 6]), (0, 2), np.zeros(4, dtype=np.uint32))
    assert found.tolist() == [0, 1, 0, 2]
    assert [columns.tag(name) for name in (b"aa", b"bb", b"cc")] == [0, 1, 2]


def test_a_message_that_breaks_the_wire_format_is_refused():
    for data in (b"\x0a\x05ab", b"\x80" * 11, b"\x0b", b"\x09\x01", b"\x0d\x01", b"\x08"):
        with pytest.raises(protobuf.MalformedError):
            list(protobuf.fields(data, 0, len(data)))


def test_a_header_is_searched_across_the_borders_of_blocks(monkeypatch):
    monkeypatch.setattr(framing, "_SEARCHED", 16)
    data = WHOLE[: BEGINS[5]] + b"\1" * 100 + WHOLE[BEGINS[5] :]
    frames = Frames(iter([data[:400], data[400:]]))
    assert sum(len(window.starts) for window in frames.windows()) == len(PARTS)
