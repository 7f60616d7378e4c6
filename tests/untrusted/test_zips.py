"""Zip archives: records where they are, nothing believed that does not fit, and what a cut archive still holds."""

import io
import struct
import zipfile
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradforensics.checkpoints.formats import torch_file
from gradforensics.untrusted.files import Memory, RefusedError
from gradforensics.untrusted.zips import CutError, descriptor, local_record, read_directory
from tests.untrusted.assembly import Record, archive, tensor, torch_zip, tupled, whole


def directory(data):
    return read_directory(Memory("test", data))


def content(data, name, **options):
    memory = Memory("test", data)
    found = read_directory(memory)
    return found.content(memory, found.entries[name], **options)


class Stream(io.BytesIO):
    """What torch writes to: there is no way back, so sizes and checksums stand behind each record."""

    def seek(self, *_):
        raise OSError


def written(contents, *, unseekable=False, comment=b"", method=zipfile.ZIP_STORED, wide=False):
    """An archive by Python's zipfile. unseekable: with sizes behind the records, as torch writes them."""
    out = Stream() if unseekable else io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        file.comment = comment
        for name, data in contents.items():
            with file.open(zipfile.ZipInfo(name), "w", force_zip64=wide) as record:
                record.write(data)
    return out.getvalue()


names = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/\\:"), min_size=1, max_size=12)


@given(
    contents=st.dictionaries(names, st.binary(max_size=200), max_size=6),
    unseekable=st.booleans(),
    wide=st.booleans(),
    method=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
    comment=st.binary(max_size=30).filter(lambda c: b"PK" not in c),
)
@settings(deadline=None)
def test_what_zipfile_wrote_is_found_and_read(contents, unseekable, wide, method, comment):
    data = written(contents, unseekable=unseekable, comment=comment, method=method, wide=wide)
    found = directory(data)
    assert list(found.entries) == list(contents)
    for name, expected in contents.items():
        entry = found.entries[name]
        if not entry.method:
            start = found.stored(Memory("test", data), entry)
            assert data[start : start + entry.size] == expected
        assert content(data, name) == expected


def test_the_64_bit_directory_is_read():
    found = directory(archive(Record(b"a", b"first"), Record(b"b", b"second"), wide=True))
    assert [(entry.name, entry.size) for entry in found.entries.values()] == [("a", 5), ("b", 6)]


def test_sizes_beyond_4_gb_are_taken_from_the_64_bit_field():
    data = bytearray(archive(Record(b"a", b"12345")))
    at = data.find(b"PK\1\2")
    data[at + 20 : at + 28] = b"\xff" * 8
    data[at + 30 : at + 32] = struct.pack("<H", 20)
    extra = struct.pack("<HHQQ", 1, 16, 5, 5)
    end = data.find(b"PK\5\6")
    data[end + 12 : end + 16] = struct.pack("<I", end - at + 20)
    found = directory(bytes(data[: at + 47]) + extra + bytes(data[at + 47 :]))
    assert (found.entries["a"].size, found.entries["a"].packed) == (5, 5)


def test_damage_of_a_record_is_found_by_its_checksum():
    data = archive(Record(b"a", b"some content"))
    assert content(data, "a") == b"some content"
    with pytest.raises(RefusedError, match="CRC-32 is wrong"):
        content(data.replace(b"some content", b"come sontent"), "a")


def test_damage_of_a_pickle_is_found_by_its_checksum():
    data = torch_zip(whole(tensor((4,))), {"0": b"\0" * 16})
    assert torch_file.read(Memory("test", data)).kind == "torch-zip"
    damaged = data.replace(b"_rebuild_tensor_v2", b"_rebuild_tensor_v3")
    with pytest.raises(RefusedError, match=r"data\.pkl.*CRC-32 is wrong") as caught:
        torch_file.read(Memory("test", damaged))
    assert "torch._utils._rebuild_tensor_v3" in caught.value.uses


def test_a_record_larger_than_asked_for_is_refused():
    data = archive(Record(b"a", b"12345678"))
    with pytest.raises(RefusedError, match="would be 8 bytes"):
        content(data, "a", limit=7)


@pytest.mark.parametrize(
    ("lies", "refusal"),
    [
        ({"local_name": b"b"}, "tells otherwise"),
        ({"flags": 1}, "encrypted"),
        ({"local_flags": 1}, "encrypted"),
        ({"size": 4}, "has not the size"),
        ({"size": 6}, "has not the size"),
        ({"crc": 1}, "CRC-32"),
        ({"method": 12}, "method 12 is not known"),
    ],
)
def test_a_record_that_tells_two_stories_is_refused(lies, refusal):
    with pytest.raises(RefusedError, match=refusal):
        content(archive(Record(b"a", b"12345", **lies)), "a")


def test_records_that_overlap_or_share_a_name_are_refused():
    with pytest.raises(RefusedError, match="overlap"):
        directory(archive(Record(b"a", b"12345"), Record(b"b", b"12345", where=0)))
    with pytest.raises(RefusedError, match="two zip records are called 'a'"):
        directory(archive(Record(b"a"), Record(b"a")))


def test_an_archive_cut_anywhere_never_raises_anything_else():
    data = written({"a/data.pkl": whole(tensor()), "a/data/0": b"\1" * 16}, unseekable=True, comment=b"a comment")
    for end in range(len(data) - len(b"a comment")):
        with pytest.raises(CutError):
            directory(data[:end])
    assert directory(data[: -len(b"a comment")]).entries == directory(data).entries


@pytest.mark.parametrize("byte", [0, 1, 127, 128, 255])
def test_an_archive_with_any_byte_changed_never_raises_anything_else(byte):
    data = torch_zip(whole(tensor()), {"0": b"\1" * 16})
    for at in range(len(data)):
        changed = data[:at] + bytes([byte]) + data[at + 1 :]
        try:
            torch_file.read(Memory("test", changed))
        except RefusedError as error:
            assert str(error)  # noqa: PT017  either outcome is right, another exception is not


def test_a_record_is_found_by_its_local_header():
    data = written({"a": b"12345", "b": b"678"}, unseekable=True)
    memory = Memory("test", data)
    first = local_record(memory, 0)
    assert first is not None
    assert (first.name, data[first.start : first.start + 5]) == ("a", b"12345")
    crc, following = descriptor(memory, first.start + 5)
    assert crc == zlib.crc32(b"12345")
    second = local_record(memory, following)
    assert second is not None
    assert second.name == "b"
    assert local_record(memory, 1) is None
    assert local_record(memory, len(data) - 10) is None


@pytest.fixture(scope="module")
def saved():
    """A file of torch.save with storages of several sizes."""
    import torch

    out = io.BytesIO()
    torch.save({f"t{i}": torch.full((40 * i + 1,), float(i)) for i in range(6)}, out)
    return out.getvalue()


def test_a_cut_file_gives_back_exactly_the_storages_that_are_whole(saved):
    healthy = torch_file.read(Memory("test", saved))
    starts = {key: storage.offset for key, storage in healthy.storages.items() if storage.offset is not None}
    ends = {key: start + healthy.storages[key].nbytes for key, start in starts.items()}
    assert len(ends) == 6
    last_header = saved.find(b"PK\1\2")
    for end in [
        *range(min(starts.values()), last_header, 61),
        *ends.values(),
        *(at - 1 for at in ends.values()),
        len(saved) - 1,
    ]:
        found = torch_file.read(Memory("test", saved[:end]))
        whole_ones = {key for key, at in ends.items() if at <= end}
        assert {key for key, storage in found.storages.items() if storage.offset is not None} == whole_ones
        assert all(found.storages[key].offset == starts[key] for key in whole_ones)
        assert set(found.missing) == set(ends) - whole_ones
        assert found.complete is False
        assert f"{len(whole_ones)} of {len(ends)} storages are whole" in found.notices[0]


def test_the_checksums_of_a_cut_file_are_those_of_the_whole_one(saved):
    stated = {check.offset: check.crc for check in torch_file.read(Memory("test", saved)).checks()}
    cut = torch_file.read(Memory("test", saved[:-30]))
    found = {check.offset: check.crc for check in cut.checks()}
    assert found
    assert found.items() <= stated.items()


def test_a_file_cut_inside_of_its_pickle_is_refused(saved):
    at = saved.find(b"data.pkl") + 40
    with pytest.raises(RefusedError):
        torch_file.read(Memory("test", saved[:at]))


def test_many_storages_of_one_record_are_located_once(saved):
    twice = torch_zip(whole(tupled(tensor(), tensor())), {"0": b"\1" * 16})
    first, second = torch_file.read(Memory("test", twice)).root
    assert first.storage is second.storage
