"""The software stack: versions, torch's own pins, kernels, and what a failure to load is not."""

import pytest

from gradforensics.diagnosis import stacks
from gradforensics.diagnosis.judge import judge
from gradforensics.diagnosis.rules import load_rules
from gradforensics.tables import Ending, Event, Evidence, Fact, SeriesFrame, SeriesKey, Setting, series_frame

STACK = next(rule for rule in load_rules() if rule.id == "GF25")
PINS = {f"package:{name}": version for name, version in stacks.wheels()["2.3.0"][1].items()}


def evidence(facts=(), *, events=None, steps=None, ending="unknown", settings=None):
    found = Evidence("run", environment=list(facts) or None, events=events, ending=Ending(ending))
    found.settings = [Setting(k, k, v, "config.json") for k, v in (settings or {}).items()] or None
    if steps:
        frame = series_frame({"step": list(range(1, steps + 1))}, [1.0] * steps)
        found.frames[SeriesKey("run", "train", "loss", "loss", "log")] = SeriesFrame(frame)
    return found


def node(host=None, attempt=None, source="env.json", **facts):
    return [Fact(key.replace("__", ":"), value, source, None, None, host, attempt) for key, value in facts.items()]


def stack(source="freeze.txt", **changed):
    versions = {"package:torch": "2.3.0", **PINS, **changed}
    return [Fact(key, value, source) for key, value in versions.items()]


def verdict(facts=(), **more):
    return judge(STACK, evidence(facts, **more))


@pytest.mark.parametrize("name", [f"2.{minor}" for minor in range(14)])
def test_every_release_has_its_pins(name):
    known = [wheel for release, wheel in stacks.wheels().items() if release.rpartition(".")[0] == name]
    assert known
    for cuda, pins in known:
        assert {n.rpartition("-")[2] for n in pins} == {f"cu{cuda.partition('.')[0]}"}
        assert any(n.startswith("nvidia-nccl-cu") for n in pins)
        assert any(n.startswith("nvidia-cudnn-cu") for n in pins)


def test_the_pins_of_known_releases():
    """As the public metadata has them."""
    assert stacks.wheels()["2.0.1"][1]["nvidia-cudnn-cu11"] == "8.5.0.96"
    assert stacks.wheels()["2.3.0"][1]["nvidia-cudnn-cu12"] == "8.9.2.26"
    assert stacks.wheels()["2.9.1"][1]["nvidia-nccl-cu12"] == "2.27.5"


@pytest.mark.parametrize(
    ("version", "other", "is_older", "is_same"),
    [
        ("2.3.0", "2.3.0+cu121", False, True),
        ("2.3.0+cu118", "2.3.0+cu121", False, False),
        ("2.9.1", "2.10.0", True, False),
        ("525.60", "525.60.13", True, True),
        ("9.1.0", "9.1.0.70", True, True),
        ("2.2.0", "2.20.5", True, False),
        ("4.48.0.dev0", "4.48.0", False, False),
        ("580", "580.65.06", True, True),
        ("3.11", "3.11.4", True, True),
    ],
)
def test_versions_are_numbers_and_agree_as_far_as_both_go(version, other, is_older, is_same):
    assert stacks.older(version, other) is is_older
    assert stacks.same(version, other) is is_same
    assert stacks.same(other, version) is is_same


@pytest.mark.parametrize(
    ("arches", "capability", "able"),
    [
        ("sm_80 sm_90", "8.0", True),
        ("sm_80 sm_90", "8.9", True),
        ("sm_80 sm_90", "7.5", False),
        ("sm_80 sm_90", "12.0", False),
        ("sm_80 sm_90 compute_90", "12.0", True),
        ("sm_86", "8.0", False),
        ("sm_90a", "9.0", True),
        ("sm_100a", "10.3", False),
        ("gfx90a", "9.0", None),
        ("sm_80", "unknown", None),
    ],
)
def test_kernels_run_on_newer_minor_versions_and_intermediate_code_on_everything_newer(arches, capability, able):
    assert stacks.capable(arches, capability) is able


def test_exact_pins_are_clear():
    assert verdict(stack()).outcome == "clear"


@pytest.mark.parametrize("package", ["nvidia-nccl-cu12", "nvidia-cublas-cu12"])
def test_one_package_that_was_upgraded_is_proven_and_no_alarm(package):
    found = verdict(stack(**{f"package:{package}": "99.1"}))
    assert (found.outcome, found.variant, found.strength, found.severity) == ("fired", "pins-differ", "proven", "S3")
    assert found.facts["package"] == package
    assert not found.alarm


@pytest.mark.parametrize("torch", ["2.3.0+cu118", "2.3.0a0+40ec155e58.nv24.3", "1.13.1", "2.99.0"])
def test_wheels_from_elsewhere_and_unknown_releases_are_not_judged_by_these_pins(torch):
    found = verdict(stack(**{"package:torch": torch, "package:nvidia-nccl-cu12": "2.19.3"}))
    assert "software_pins_differ" not in found.judged_signs


def test_a_stack_whose_packages_all_differ_is_another_build():
    other = dict.fromkeys(PINS, "1.0")
    assert "software_pins_differ" not in verdict(stack(**other)).judged_signs


def test_a_list_of_wishes_is_no_installation():
    found = verdict([Fact(f.key.replace("package:", "pin:"), "1.0", "requirements.txt") for f in stack()])
    assert found.outcome == "not_judged"


@pytest.mark.parametrize(
    ("driver", "built", "outcome"),
    [
        ("525.60.13", "12.8", "clear"),
        ("525.60.11", "12.1", "fired"),
        ("450.119.03", "11.8", "clear"),
        ("575.57.08", "13.0", "fired"),
        ("580.65.06", "13.0", "clear"),
        ("470.57.02", "10.2", "not_judged"),
        ("470.57.02", "none", "not_judged"),
    ],
)
def test_a_driver_serves_its_major_version_of_cuda(driver, built, outcome):
    assert verdict(node(driver=driver, torch_cuda=built)).outcome == outcome


def test_a_driver_known_by_its_cuda_alone_and_a_compatibility_package():
    facts = node(cuda="11.4", torch_cuda="12.1")
    assert verdict(facts).variant == "driver-too-old"
    assert verdict([*facts, *node(env__LD_LIBRARY_PATH="/usr/local/cuda/compat:/lib")]).outcome == "not_judged"


def test_the_driver_of_one_file_is_held_against_the_torch_of_another():
    facts = [*node(source="nvidia-smi.txt", driver="470.57.02"), *node(source="f.txt", package__torch="2.3.0+cu121")]
    assert verdict(facts).variant == "driver-too-old"


def test_two_copies_for_two_versions_of_cuda():
    found = verdict([*stack(), *node(source="freeze.txt", **{"package__nvidia-cudnn-cu11": "8.5.0.96"})])
    assert found.variant == "two-copies"
    assert found.facts["package"] == "nvidia-cudnn"


def test_the_library_that_torch_loads_is_the_installed_one():
    assert verdict([*stack(), *node(source="freeze.txt", nccl="2.20.5", cudnn="8.9.2")]).outcome == "clear"
    assert verdict([*stack(), *node(source="freeze.txt", nccl="2.19.3")]).variant == "two-copies"


def test_nodes_are_compared_by_their_latest_statement():
    first = [*node("a", collected="1", package__torch="2.2.0"), *node("b", source="b", package__torch="2.3.0")]
    again = node("a", source="env-2.json", collected="2", package__torch="2.3.0")
    assert verdict(first).variant == "node-drift"
    assert {h.sign.name for h in verdict([*first, *again]).holdings} == set()


def test_ranks_of_one_node_may_differ_and_are_no_two_launches():
    def rank(number, version):
        return Fact("package:torch", version, f"gradforensics-env-a-rank{number}.json", None, number, "a")

    assert verdict([rank(0, "2.3.0"), rank(1, "2.4.0")]).variant == "node-drift"
    assert verdict([rank(0, "2.3.0"), rank(1, "2.3.0")]).outcome == "clear"


def test_lists_of_two_folders_are_no_two_launches_unless_the_folders_are_those_of_runs():
    def listed(folder, version):
        return Fact("package:torch", version, f"{folder}/requirements-lock.txt")

    assert verdict([listed("a", "2.3.0"), listed("docs", "2.4.0")]).outcome == "not_judged"
    runs = [listed(f"wandb/run-20250102_03040{i}-ab{i}c/files", f"2.{i}.0") for i in (3, 4)]
    assert verdict(runs).variant == "attempt-drift"


def test_what_the_training_does_not_compute_with_may_differ():
    assert verdict([*node("a", package__rich="1"), *node("b", package__rich="2")]).outcome == "not_judged"
    both = [*node("a", package__torch="2.3.0"), *node("b", package__torch="2.3.0")]
    assert verdict([*both, *node("a", package__rich="1"), *node("b", package__rich="2")]).outcome == "clear"


def test_a_list_and_a_report_that_differ_are_no_two_launches():
    facts = [*node(source="freeze.txt", package__torch="2.3.0"), *node(source="env.txt", package__torch="2.4.0")]
    assert "software_changed_between_attempts" not in verdict(facts).judged_signs


@pytest.mark.parametrize(
    ("version", "settings", "outcome"),
    [
        ("4.47.1", {"gradient_accumulation_steps": 8}, "fired"),
        ("4.47.1", {"gradient_accumulation_steps": 1}, "not_judged"),
        ("4.48.0", {"gradient_accumulation_steps": 8}, "not_judged"),
        ("4.45.2", {"gradient_accumulation_steps": 8}, "not_judged"),
        ("4.38.1", {"model_type": "llama", "bf16": True}, "fired"),
        ("4.38.1", {"model_type": "llama", "bf16": False}, "not_judged"),
        ("4.38.1", {"model_type": "bert", "bf16": True}, "not_judged"),
        ("4.38.2", {"model_type": "gemma", "bf16": True}, "not_judged"),
    ],
)
def test_a_documented_fault_concerns_those_who_use_the_feature(version, settings, outcome):
    found = verdict(node(package__transformers=version), settings=settings)
    assert found.outcome == outcome
    assert not found.alarm


def failure(kind="library_error", step=None, text="ImportError: x", **data):
    return Event(kind, text, "train.log", 7, step=step, data={"type": "ImportError", **data})


def test_a_library_that_does_not_load_before_the_first_step_is_an_alarm():
    found = verdict(events=[failure(error="undefined_symbol", library="a.so", symbol="f")])
    assert (found.alarm, found.variant, found.severity) == (True, "import-failure", "S1")


@pytest.mark.parametrize(
    ("event", "more"),
    [
        (failure(error="undefined_symbol"), {"steps": 50}),  # before the first step, and the training went on
        (failure(error="undefined_symbol", step=20), {"steps": 50}),
        (failure(error="undefined_symbol", step=50), {"steps": 50, "ending": "completed"}),
        (failure("cuda_error", error="no_kernel_image", step=3), {"steps": 50}),
        (Event("library_error", "Could not load dynamic library 'libcudart.so.11.0'", "a"), {}),
        (failure("cuda_error", error="launch_failure"), {}),
        (failure("cuda_error", error="cudnn_status_execution_failed"), {}),
    ],
)
def test_what_did_not_stop_the_run_or_may_have_other_causes_is_no_failure_of_the_stack(event, more):
    assert verdict(events=[event], **more).outcome == "not_judged"


def test_an_illegal_access_beside_lost_memory_is_the_hardware():
    access = failure("cuda_error", error="illegal_memory_access", step=9)
    alone = verdict(events=[access], steps=9)
    assert (alone.variant, alone.strength, alone.alarm) == ("illegal-access", "suspect", False)
    ecc = Event("ecc", "uncorrectable", "dmesg", data={"corrected": False})
    assert [a.case for a in verdict(events=[access, ecc], steps=9).refuted_by] == ["GF26"]
