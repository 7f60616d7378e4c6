"""Checks on the software stack: versions that do not belong together, and libraries that fail to load or to launch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from gradforensics.diagnosis import stacks
from gradforensics.diagnosis.stacks import Snapshot
from gradforensics.diagnosis.vocabulary import Answer, Check, Hit, Missing, check
from gradforensics.diagnosis.vocabulary import Fact as Told
from gradforensics.languages import Text
from gradforensics.patterns import lazy
from gradforensics.tables import Event, Evidence, Fact

_VERSIONS = "the versions that were installed (gradforensics env, pip freeze; a requirements.txt only states wishes)"
_LOADED = {"cudnn": "nvidia-cudnn", "nccl": "nvidia-nccl"}
_OF_CUDA = lazy(r"^(nvidia-[a-z-]+?)-cu(\d{2})$")
_NUMERIC = lazy(
    r"package:(?:torch|torchvision|torchaudio|nvidia-.*|triton|transformers|accelerate|deepspeed|peft|trl|flash-attn|"
    r"xformers|transformer-engine.*|apex|megatron-core|bitsandbytes|lightning|pytorch-lightning|numpy|tokenizers|"
    r"datasets|vllm|verl|tensorflow|keras|jax|jaxlib)$|conda:(?:pytorch|cudatoolkit|cudnn|nccl|numpy)$|"
    r"(?:python|torch_cuda|cudnn|nccl|driver)$"
)
_MISFITS = frozenset(
    {
        "no_kernel_image", "driver_too_old", "driver_mismatch", "unsupported_ptx", "no_driver", "no_cuda_build",
        "cuda_mismatch", "cudnn_versions", "cudnn_status_version_mismatch", "cudnn_status_sublibrary_version_mismatch",
        "cudnn_status_sublibrary_loading_failed", "cudnn_status_arch_mismatch", "cublas_status_arch_mismatch",
    }
)  # fmt: skip


def _at(fact: Fact, **facts: Told) -> Hit:
    return Hit(None, source=fact.source, line=fact.line, facts=facts)


# -- versions --------------------------------------------------------------------------------------------------------


@check(needs=["environment"], facts=["package", "installed", "wanted", "torch", "count"])
def software_pins_differ(evidence: Evidence) -> Answer:
    """nvidia packages are installed in other versions than the wheel of torch from PyPI requires.

    Judged where the wheel is surely that of PyPI: by the CUDA version that it says it was built for, or because at
    least as many of its pins are met as are not.
    """
    judged = False
    hits: list[Hit] = []
    for stack in stacks.completed(evidence):
        found = _pins(stack)
        if found is None:
            continue
        judged = True
        torch, wrong = found
        hits += [
            _at(fact, package=name, installed=fact.value, wanted=wanted, torch=torch, count=len(wrong))
            for name, fact, wanted in wrong
        ]
    if not judged:
        return Missing(f"{_VERSIONS}: torch from PyPI in a release from 2.0 to 2.13, and its nvidia packages")
    return hits


def _pins(stack: Snapshot) -> tuple[str, list[tuple[str, Fact, str]]] | None:
    """(version of torch, the packages that differ with what is wanted); None where that cannot be judged."""
    torch = stack.get("package:torch")
    wheel = stacks.wheels().get(torch.value.partition("+")[0]) if torch else None
    if torch is None or wheel is None:
        return None
    cuda, pins = wheel
    built = stacks.built_for(stack)
    if (built is not None and built != cuda) or ("+" in torch.value and built is None):
        return None
    installed = stack.named("package:")
    pairs = [(name, installed[name], wanted) for name, wanted in pins.items() if name in installed]
    wrong = [(name, fact, wanted) for name, fact, wanted in pairs if not stacks.same(fact.value, wanted)]
    if not pairs or (built is None and len(wrong) > len(pairs) - len(wrong)):
        return None
    return torch.value, sorted(wrong, key=lambda one: ("nccl" not in one[0], "cudnn" not in one[0], one[0]))


@check(needs=["environment"], facts=["package", "version", "other", "how"])
def software_in_two_copies(evidence: Evidence) -> Answer:
    """A library is there twice: two versions of a package, one for two CUDA versions, or another one is loaded."""
    judged = False
    hits: list[Hit] = []
    for stack in stacks.snapshots(evidence):
        installed = stack.named("package:")
        judged = judged or any(name.startswith("nvidia-") for name in installed)
        for name, fact in stack.named("copy:").items():
            if _NUMERIC.match(f"package:{name}"):
                first = installed[name].value if name in installed else "?"
                hits.append(
                    _at(fact, package=name, version=first, other=fact.value, how=Text("installed twice", "安装了两次"))
                )
        hits += _for_two(installed)
        hits += _loaded_elsewhere(stack, installed)
    return hits if judged or hits else Missing(f"{_VERSIONS}: torch and its nvidia packages")


def _for_two(installed: dict[str, Fact]) -> Iterator[Hit]:
    """Libraries for two CUDA versions, whose files lie in one and the same folder of site-packages."""
    families: dict[str, list[str]] = {}
    for name in installed:
        if found := _OF_CUDA.match(name):
            families.setdefault(found[1], []).append(name)
    for family, names in families.items():
        if len(names) > 1 and family in ("nvidia-cudnn", "nvidia-nccl", "nvidia-cublas"):
            first, second = (installed[name] for name in sorted(names)[:2])
            how = Text("installed for two CUDA versions into one folder", "为两个 CUDA 版本安装到同一文件夹")
            yield _at(first, package=family, version=first.value, other=second.value, how=how)


def _loaded_elsewhere(stack: Snapshot, installed: dict[str, Fact]) -> Iterator[Hit]:
    """Libraries that torch loads from another place than from the package beside it."""
    for key, family in _LOADED.items():
        loaded = stack.get(key)
        names = [name for name in installed if name.startswith(f"{family}-cu")]
        if loaded is not None and len(names) == 1 and not stacks.same(installed[names[0]].value, loaded.value):
            how = Text("installed, but torch loads the other one", "已安装，但 torch 加载的是另一份")
            yield _at(loaded, package=names[0], version=installed[names[0]].value, other=loaded.value, how=how)


@check(needs=["environment"], facts=["driver", "cuda", "wanted"])
def driver_below_cuda(evidence: Evidence, *, cuda11: str, cuda12: str, cuda13: str) -> Answer:
    """NVIDIA's driver is older than the major version of CUDA that torch was built for can run on.

    cuda11, cuda12, cuda13: the oldest drivers on Linux; within one major version any driver from there on will do.
    A compatibility package of CUDA (cuda-compat) on the library path lifts the limit: then nothing is said.
    """
    least = {11: cuda11, 12: cuda12, 13: cuda13}
    judged = False
    hits: list[Hit] = []
    for stack in stacks.completed(evidence):
        built = stacks.built_for(stack)
        driver, newest = stack.get("driver"), stack.get("cuda")
        wanted = least.get(stacks.release(built)[0]) if built else None
        if built is None or wanted is None or (driver is None and newest is None):
            continue
        if "compat" in (stack.value("env:LD_LIBRARY_PATH") or ""):
            continue
        judged = True
        if driver is not None and stacks.older(driver.value, wanted):
            hits.append(_at(driver, driver=driver.value, cuda=built, wanted=wanted))
        elif driver is None and newest is not None and stacks.release(newest.value)[:1] < stacks.release(built)[:1]:
            hits.append(
                _at(
                    newest,
                    driver=Text(f"for CUDA {newest.value}", f"面向 CUDA {newest.value}"),
                    cuda=built,
                    wanted=wanted,
                )
            )
    return hits if judged else Missing("the driver and the CUDA version of torch (gradforensics env)")


@check(needs=["environment"], facts=["gpu", "capability", "arches", "torch"])
def gpu_arch_missing(evidence: Evidence) -> Answer:
    """The build of torch has no kernels for the compute capability of a GPU of the node."""
    judged = False
    hits: list[Hit] = []
    for stack in stacks.completed(evidence):
        arches = stack.value("torch_arch_list")
        for fact in stack.facts.get("compute_capability", ()) if arches else ():
            able = stacks.capable(arches or "", fact.value)
            judged = judged or able is not None
            if able is False:
                gpu, torch = stack.value("gpu") or "GPU", stack.value("package:torch") or "?"
                hits.append(_at(fact, gpu=gpu, capability=fact.value, arches=arches, torch=torch))
    return hits if judged else Missing("compute capability and torch's arch list (gradforensics env)")


# -- drift -----------------------------------------------------------------------------------------------------------


@check(needs=["environment"], facts=["what", "here", "there", "first", "second", "count"])
def software_differs_between_nodes(evidence: Evidence) -> Answer:
    """Two hosts of one run, or two ranks of unknown hosts, state different versions of what computes."""
    latest: dict[str, Snapshot] = {}
    for stack in stacks.snapshots(evidence):
        if stack.owner and any(map(_NUMERIC.match, stack.facts)):
            before = latest.get(stack.owner)
            facts = {**before.facts, **stack.facts} if before else stack.facts
            latest[stack.owner] = Snapshot(stack.source, stack.owner, None, facts)
    if len(latest) < 2:
        return Missing("the software of two nodes (gradforensics env on each)")
    nodes = list(latest.values())
    return [hit for node in nodes[1:] for hit in _differences(nodes[0], node, nodes[0].owner, node.owner)]


@check(needs=["environment"], facts=["what", "here", "there", "first", "second", "count"])
def software_changed_between_attempts(evidence: Evidence) -> Answer:
    """Two statements of one process, made in the same way at different launches, name different versions."""
    chains: dict[tuple[str, str], list[Snapshot]] = {}
    for stack in stacks.snapshots(evidence):
        if any(map(_NUMERIC.match, stack.facts)):
            chains.setdefault((stack.owner, stacks.kind_of(stack.source)), []).append(stack)
    chains = {key: chain for key, chain in chains.items() if len(chain) > 1}
    if not chains:
        return Missing("the software of two launches (gradforensics env at each)")
    pairs = [pair for chain in chains.values() for pair in pairwise(chain)]
    return [hit for a, b in pairs for hit in _differences(a, b, _place(a), _place(b))]


def _place(stack: Snapshot) -> Text | str:
    if stack.attempt is None:
        return stack.source
    return Text(f"{stack.source}, launch {stack.attempt + 1}", f"{stack.source}，第 {stack.attempt + 1} 次启动")


def _differences(a: Snapshot, b: Snapshot, first: Text | str, second: Text | str) -> list[Hit]:
    """What two snapshots both state, and differently."""
    found: list[tuple[str, Fact, str]] = []
    for key, facts in b.facts.items():
        before = a.value(key)
        if before is not None and _NUMERIC.match(key) and not stacks.same(before, facts[0].value):
            found.append((key, facts[0], before))
    found.sort(key=lambda one: (one[0] != "package:torch", one[0]))
    return [
        _at(
            fact, what=key.rpartition(":")[2], here=before, there=fact.value, first=first, second=second,
            count=len(found),
        )
        for key, fact, before in found
    ]  # fmt: skip


# -- documented faults -----------------------------------------------------------------------------------------------


@check(needs=["environment"], facts=["package", "version", "fault", "reference", "fixed"])
def known_software_fault(
    evidence: Evidence, *, package: str, since: str, before: str, use: str, fault: str, fault_zh: str, reference: str
) -> Answer:
    """A version with a documented fault is installed, and the run uses the feature that it concerns.

    since, before: the first version with the fault ("0" for all) and the first without; use: accumulation (more than
    one micro-batch per step), half_llama (a Llama or Gemma in half precision) or masked_sdpa (torch's SDPA under
    masks, as the settings say it); fault, fault_zh: what is wrong, in English and in Chinese.
    """
    versions = [fact for stack in stacks.snapshots(evidence) for fact in stack.facts.get(f"package:{package}", ())]
    if not versions:
        return Missing(f"{_VERSIONS}: {package}")
    bad = [f for f in versions if not stacks.older(f.value, since) and stacks.older(f.value, before)]
    if not bad:
        return []
    used = _uses(evidence, use)
    if isinstance(used, Missing) or not used:
        return used if isinstance(used, Missing) else []
    facts: dict[str, Told] = {
        "package": package,
        "fault": Text(fault, fault_zh),
        "reference": reference,
        "fixed": before,
    }
    return [_at(bad[0], version=bad[0].value, **facts)]


def _uses(evidence: Evidence, use: str) -> bool | Missing:
    if use == "accumulation":
        steps = evidence.number("gradient_accumulation_steps")
        return Missing("settings:gradient_accumulation_steps") if steps is None else steps > 1
    if use == "half_llama":
        model = str(evidence.setting("model_type") or "").lower()
        precision = str(evidence.setting("precision") or "").lower()
        half = evidence.setting("bf16") is True or precision.startswith(("bf16", "bfloat16"))
        return Missing("settings:model_type") if not model else model in ("llama", "gemma") and half
    chosen = str(evidence.setting("attn_implementation") or "").lower()
    return chosen == "sdpa" if chosen else Missing("settings:attn_implementation")


# -- failures --------------------------------------------------------------------------------------------------------


def _ended(evidence: Evidence, event: Event) -> bool:
    """Whether nothing was trained after an event: what goes on did not fail."""
    if evidence.ending.kind == "completed":
        return False
    return evidence.steps is None or (event.step is not None and event.step >= evidence.steps[1])


def _failures(evidence: Evidence, events: Sequence[Event]) -> Iterator[Hit]:
    for event in events:
        raised = "type" in event.data or "error while loading shared libraries" in event.text
        if raised and _ended(evidence, event):
            library = event.data.get("library")
            symbol = str(event.data.get("symbol") or event.data.get("error") or "")
            facts = {
                "library": str(library) if library else Text("a library", "某个库"),
                "symbol": symbol,
                "message": str(event.data.get("message") or event.text)[:300],
            }
            yield Hit(event.step, event.step, source=event.source, line=event.line, facts=facts)


@check(needs=["events:console"], facts=["library", "symbol", "message"])
def library_does_not_load(evidence: Evidence) -> Answer:
    """The dynamic linker refused a library (undefined symbol, missing file, old C++ library), and no step followed."""
    return list(_failures(evidence, evidence.events_of("library_error")))


@check(needs=["events:console"], facts=["library", "symbol", "message"])
def kernels_do_not_fit(evidence: Evidence) -> Answer:
    """CUDA or cuDNN said that driver, GPU and build do not belong together, and no step followed."""
    events = [e for e in evidence.events_of("cuda_error", "library_error") if e.data.get("error") in _MISFITS]
    return list(_failures(evidence, events))


@check(needs=["environment"], facts=["library", "symbol", "message"])
def torch_does_not_import(evidence: Evidence) -> Answer:
    """`gradforensics env` could not import torch on the node, and nothing was trained."""
    stated = [fact for stack in stacks.snapshots(evidence) for fact in stack.facts.get("torch_error", ())]
    known = any("package:torch" in stack.facts for stack in stacks.snapshots(evidence))
    if not stated:
        return [] if known else Missing("a look at torch on the node (gradforensics env)")
    if evidence.steps is not None:
        return []
    return [_at(fact, library="torch", symbol="", message=fact.value[:300]) for fact in stated]


@check(needs=["events:console"], facts=["message"])
def illegal_memory_access(evidence: Evidence) -> Answer:
    """A kernel accessed memory out of bounds (CUDA error 700): a bad index, a faulty kernel or faulty hardware."""
    events = [e for e in evidence.events_of("cuda_error") if e.data.get("error") == "illegal_memory_access"]
    return [
        Hit(e.step, source=e.source, line=e.line, facts={"message": e.text[:300]})
        for e in events
        if _ended(evidence, e)
    ]


@check(needs=["events:console"])
def index_named_beside_it(evidence: Evidence) -> Answer:
    """The log names an index that is out of range: an assertion on the device or an IndexError of an embedding."""
    found = evidence.events_of("device_assert", "index_error")
    return [Hit(e.step, source=e.source, line=e.line) for e in found]


@check(needs=["events:kernel"])
def hardware_named_beside_it(evidence: Evidence) -> Answer:
    """The machine reports a fault of a GPU of its own: uncorrectable memory errors, or a GPU that is gone."""
    found = [e for e in evidence.events_of("ecc", "gpu_fallen") if e.data.get("corrected") is not True]
    return [Hit(e.step, source=e.source, line=e.line) for e in found]


CHECKS: tuple[Check, ...] = (
    software_pins_differ,
    software_in_two_copies,
    driver_below_cuda,
    gpu_arch_missing,
    software_differs_between_nodes,
    software_changed_between_attempts,
    known_software_fault,
    library_does_not_load,
    kernels_do_not_fit,
    torch_does_not_import,
    illegal_memory_access,
    index_named_beside_it,
    hardware_named_beside_it,
)
