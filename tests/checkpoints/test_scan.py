import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

from gradforensics.checkpoints import refs, stats
from gradforensics.checkpoints import scan as scanning
from gradforensics.checkpoints.model import Checksum, Tensor
from gradforensics.checkpoints.refs import Run, TensorRef
from gradforensics.checkpoints.scan import scan
from gradforensics.checkpoints.stats import Stats
from gradforensics.untrusted.files import Memory, RefusedError, RegularFile

RANDOM = np.random.default_rng(5)


def write(path, *arrays):
    """The arrays one behind the other in a file, and where each begins."""
    path.write_bytes(b"".join(array.tobytes() for array in arrays))
    file = RegularFile(path, path.name, path.stat().st_size)
    offsets = np.cumsum([0, *(array.nbytes for array in arrays)])
    return [tensor(file, int(offset), array) for offset, array in zip(offsets, arrays, strict=False)]


def tensor(file, offset, array, checksum=None):
    run = Run(file, offset, array.size)
    ref = TensorRef(str(array.dtype), array.shape, (run,) if array.size else ())
    return Tensor("w", "param", ref, file.name, "w", checksum=checksum)


def fingerprint(result):
    assert isinstance(result, Stats)
    return result.fingerprint


def numbers(*shape, dtype=np.float32):
    return RANDOM.standard_normal(shape).astype(dtype)


@pytest.fixture
def mixed(tmp_path, monkeypatch):
    """Tensors of several pieces, many small ones and empty ones, with small pieces and units."""
    monkeypatch.setattr(stats, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(scanning, "_UNIT_BYTES", 20_000)
    monkeypatch.setattr(scanning, "_UNIT_PIECES", 7)
    arrays = [numbers(300, 70), *(numbers(k) for k in range(60)), numbers(100_000, dtype=np.float16), numbers(9, 4000)]
    arrays[0][7, 5] = np.nan
    return write(tmp_path / "model.bin", *arrays)


def test_results_are_those_of_each_tensor_alone_in_order(mixed):
    found = scan(mixed, threads=2)
    for result, one in zip(found.results, mixed, strict=True):
        alone = stats.stats(one.ref)
        assert isinstance(result, Stats)
        # parts are added in another grouping: the last digits may differ
        assert (result.count, result.nan, result.min, result.max) == (alone.count, alone.nan, alone.min, alone.max)
        assert result.fingerprint == alone.fingerprint
        assert (result.row_l2_max, result.row_l2_max_index) == (alone.row_l2_max, alone.row_l2_max_index)
        if alone.std is not None:
            assert result.std == pytest.approx(alone.std, rel=1e-12)
    assert found.failed == []


def test_results_do_not_depend_on_the_number_of_threads(mixed):
    first, *others = [repr(scan(mixed, threads=threads)) for threads in (1, 2, 3, 2)]
    assert others == [first] * 3


def test_nothing_to_do():
    seen = []
    assert scan([], progress=lambda *done: seen.append(done)).results == []
    assert seen == []


def test_progress_grows_to_the_bytes_of_all_tensors_and_checksums(mixed):
    file = Memory("m", bytes(50_000))
    seen = []
    scan(mixed, [Checksum(file, 0, 50_000, 0)], threads=2, progress=lambda done, total: seen.append((done, total)))
    total = sum(one.ref.nbytes for one in mixed) + 50_000
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (total, total)
    assert {of for _, of in seen} == {total}
    assert len(seen) > 10


# -- checksums ---------------------------------------------------------------------------------------------------------


def test_a_wrong_checksum_of_a_tensor_is_found_in_the_same_pass(tmp_path):
    array = numbers(1000)
    crc = zlib.crc32(array.tobytes())
    good, bad = write(tmp_path / "a", array, array)
    good.checksum = Checksum(good.ref.runs[0].file, 0, array.nbytes, crc)
    bad.checksum = Checksum(bad.ref.runs[0].file, array.nbytes, array.nbytes, crc ^ 1)
    found = scan([good, bad])
    assert found.failed == [bad.checksum]
    assert [fingerprint(result) for result in found.results] == [f"{crc:08x}"] * 2


def test_a_flipped_bit_in_a_zip_record_of_torch_is_found(tmp_path):
    import zipfile

    import torch

    path = tmp_path / "model.pt"
    torch.save({"w": torch.arange(5000, dtype=torch.float32)}, path)
    with zipfile.ZipFile(path) as archive:
        (info,) = [info for info in archive.infolist() if info.filename.endswith("data/0")]
    data = bytearray(path.read_bytes())
    start = data.find(np.arange(5000, dtype=np.float32).tobytes())
    for flip, failures in ((0, 0), (1, 1)):
        data[start + 777] ^= flip
        path.write_bytes(data)
        file = RegularFile(path, "model.pt", len(data))
        ref = TensorRef("float32", (5000,), (Run(file, start, 5000),))
        checksum = Checksum(file, start, info.file_size, info.CRC)
        found = scan([Tensor("w", "param", ref, "model.pt", "w", checksum=checksum)])
        assert len(found.failed) == failures


def test_bytes_that_are_no_tensor_are_verified(monkeypatch):
    monkeypatch.setattr(stats, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(scanning, "_UNIT_BYTES", 10_000)
    data = RANDOM.integers(0, 256, 50_001, np.uint8).tobytes()
    file = Memory("m", data)
    crc = zlib.crc32(data[1:])
    good, wrong, short = (
        Checksum(file, 1, 50_000, crc),
        Checksum(file, 0, 50_000, crc),
        Checksum(file, 2, 50_000, zlib.crc32(data[2:])),
    )
    empty, not_empty = Checksum(file, 0, 0, 0), Checksum(file, 0, 0, 9)
    found = scan([], [good, wrong, short, empty, not_empty], threads=2)
    assert found.results == []
    assert found.failed == [wrong, short, not_empty]


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_file_that_ends_too_early_costs_only_its_tensors(mixed, tmp_path):
    other = write(tmp_path / "other.bin", numbers(30_000))
    path = tmp_path / "model.bin"
    with path.open("r+b") as file:
        file.truncate(84_000 + 100)
    found = scan([*mixed, *other])
    refused = [index for index, result in enumerate(found.results) if isinstance(result, str)]
    assert isinstance(found.results[0], Stats)
    assert isinstance(found.results[-1], Stats)
    assert refused[-1] == len(mixed) - 1
    assert "ends at byte 84100" in str(found.results[-2])


def test_a_missing_file_is_a_sentence_without_its_path(tmp_path):
    (one,) = write(tmp_path / "gone.bin", numbers(10))
    (tmp_path / "gone.bin").unlink()
    one.checksum = Checksum(one.ref.runs[0].file, 0, 40, 0)
    found = scan([one])
    assert found.results == ["No such file or directory"]
    assert found.failed == []


def test_a_refused_tensor_keeps_the_first_reason(mixed, monkeypatch):
    real = refs.blocks
    offsets = []

    def blocks(runs, itemsize, buffer, opening):
        if runs[0].offset and runs[0].offset < mixed[0].ref.nbytes:
            offsets.append(runs[0].offset)
            raise RefusedError(f"refused at {runs[0].offset}")
        yield from real(runs, itemsize, buffer, opening)

    monkeypatch.setattr(scanning, "blocks", blocks)
    assert scan(mixed, threads=3).results[0] == f"refused at {min(offsets)}"
    assert len(offsets) > 1


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_an_interrupt_ends_the_pass_without_the_rest(mixed, monkeypatch, threads):
    begun = []
    real = stats.measure

    def measure(*given):
        begun.append(given)
        return real(*given)

    def interrupt(done, total):
        raise KeyboardInterrupt

    monkeypatch.setattr(stats, "measure", measure)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        scan(mixed * 20, threads=threads, progress=interrupt)
    assert threading.active_count() == before
    assert len(begun) < 3 * len(mixed)


@pytest.mark.parametrize(("threads", "most"), [(1, 1), (2, 3), (4, 5)])
def test_the_same_few_buffers_are_filled_again_and_again(mixed, monkeypatch, threads, most):
    filled = []
    real = scanning._read

    def read(unit, buffer, opening):
        assert buffer.size == 20_000
        filled.append(id(buffer))
        return real(unit, buffer, opening)

    monkeypatch.setattr(scanning, "_read", read)
    scan(mixed * 5, threads=threads)
    assert len(filled) > 50
    assert len(set(filled)) <= most


@pytest.mark.parametrize("function", ["measure", "crc32"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_fault_of_our_own_is_not_taken_for_a_refusal(mixed, monkeypatch, threads, function):
    monkeypatch.setattr(stats, function, lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        scan(mixed, threads=threads)


# -- real files --------------------------------------------------------------------------------------------------------

SHARED = Path(__file__).parents[2].parent / "shared" / "checkpoints"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the collected checkpoints are not here")
def test_a_real_model_file_is_measured_as_torch_sees_it():
    from safetensors import safe_open
    from safetensors.torch import load_file

    path = SHARED / "hf_fp16" / "checkpoint-6" / "model.safetensors"
    raw = path.read_bytes()
    loaded = load_file(path)
    with safe_open(path, "pt") as opened:
        names = list(opened.keys())
    tensors = []
    for name in names:
        data = loaded[name].numpy()
        start = raw.find(data.tobytes())
        tensors.append(tensor(RegularFile(path, path.name, len(raw)), start, data))
    for name, result in zip(names, scan(tensors).results, strict=True):
        wide = loaded[name].double()
        assert isinstance(result, Stats)
        assert result.l2 == pytest.approx(wide.norm().item(), rel=1e-6)
        assert (result.min, result.max) == (wide.min().item(), wide.max().item())
        assert result.std == pytest.approx(wide.std(correction=0).item(), rel=1e-5)
