"""Files damaged at random are refused or read as data; the long run is `python benchmarks/fuzz.py`."""

import runpy
from pathlib import Path

import pytest

FUZZ = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "fuzz.py"))


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    return FUZZ["make"](tmp_path_factory.mktemp("healthy"))


def test_the_files_to_damage_are_read_when_they_are_healthy(seeds):
    assert {seed.name for seed in seeds} == {"legacy.pt", "module.pt", "plain.pkl", "two.safetensors", "zip.pt"}
    for seed in seeds:
        FUZZ["read"](seed.name, seed.data)


def test_three_thousand_damaged_files_raise_nothing_but_refusals(seeds):
    outcome = FUZZ["run"](seeds, 3000, seed=7)
    assert outcome.failed == []
    assert outcome.opened + outcome.refused == 3000
    assert min(outcome.opened, outcome.refused) > 300


def test_any_other_exception_is_kept_with_its_bytes(seeds, monkeypatch):
    def breaks(name, data):
        raise KeyError(name)

    monkeypatch.setitem(FUZZ["run"].__globals__, "read", breaks)
    outcome = FUZZ["run"](seeds, 3, seed=7)
    assert [type(data) for _, data, _ in outcome.failed] == [bytes] * 3
    assert "KeyError" in outcome.failed[0][2]
