"""Checks on the number formats that the settings name: of the computation, of the weights and of the optimizer."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias

from gradforensics import checkpoint_signals as signals
from gradforensics.diagnosis.checks.loss import lasting_bad
from gradforensics.diagnosis.vocabulary import Answer, Check, Fact, Hit, Missing, check, hit_at
from gradforensics.patterns import lazy
from gradforensics.tables import Evidence, Series

Width: TypeAlias = Literal["fp32", "bf16", "fp16"]
Form: TypeAlias = Literal["mixed", "pure", "unknown"]

_NAMES: tuple[tuple[Width, re.Pattern[str]], ...] = (
    ("bf16", lazy(r"b(?:f|float)-?16")),
    ("fp16", lazy(r"(?:^|[^b])f(?:p|loat)?-?16|^16|half")),
    ("fp32", lazy(r"32|64|^no$|full|double")),
)
_PURE = lazy(r"(?:16|bf16)-true|pure_")
# Adam as torch has it, in the formats of its weights; what rounds stochastically, compensates or packs states is not it
_PLAIN_ADAM = lazy(r"(?:torch\.optim\.(?:\w+\.)*)?adam_?w?(?:_torch|_hf|_torch_fused|_fused)?", re.IGNORECASE)
_ADAM = lazy(r"adam", re.IGNORECASE)
# Families whose published weights were trained in bf16 and whose activations leave the range of fp16
_BF16_MODELS = lazy(
    r"(?:^|[^a-z0-9])(?:flan-?|m|um|by|long)?t5(?:$|[^a-z0-9]|for)|switch_?transformers|(?:^|[^a-z])(?:pali|rec)?gemma",
    re.IGNORECASE,
)
_MODEL_KEYS = ("model_type", "architectures", "model_name_or_path", "_name_or_path", "base_model_name_or_path", "model")


class Precision(NamedTuple):
    """What the settings say: the width of the computation, and whether the weights have it too (`pure`)."""

    width: Width
    form: Form
    said: str


def _named(text: str) -> Width | None:
    return next((width for width, pattern in _NAMES if pattern.search(text)), None)


def precision(evidence: Evidence) -> Precision | None:
    """The precision that the settings declare, or None where they do not tell.

    Flags called fp16 and bf16 mean mixed precision. A bare "bf16" or "float16" may mean either; in torchtune's
    configurations, which name their parts `_component_`, it is the format of the weights.
    """
    text = str(evidence.setting("precision") or "").lower()
    width = _named(text)
    if evidence.setting("pure_bf16") is True:
        return Precision("bf16", "pure", "pure_bf16")
    if width in ("bf16", "fp16") and (_PURE.search(text) or evidence.setting("optimizer._component_") is not None):
        return Precision(width, "pure", text)
    if evidence.setting("fp16") is True:
        return Precision("fp16", "mixed", "fp16")
    if evidence.setting("bf16") is True:
        return Precision("bf16", "mixed", "bf16")
    if evidence.setting("fp16") is False and evidence.setting("bf16") is False:
        return Precision("fp32", "unknown" if width in ("bf16", "fp16") else "mixed", "fp32")
    if width is None:
        return None
    return Precision(width, "mixed" if width == "fp32" or "mixed" in text or text == "16" else "unknown", text)


def known_precision(evidence: Evidence) -> bool:
    """Whether the settings tell the precision of the computation."""
    return precision(evidence) is not None


def trains_in_fp16(evidence: Evidence) -> bool:
    """Whether the settings declare fp16, mixed or pure."""
    found = precision(evidence)
    return found is not None and found.width == "fp16"


def trains_in_bf16(evidence: Evidence) -> bool:
    """Whether the settings declare bf16, mixed or pure."""
    found = precision(evidence)
    return found is not None and found.width == "bf16"


def _keeps_masters(evidence: Evidence) -> bool:
    """Whether the framework keeps fp32 copies of 16-bit weights: DeepSpeed, Megatron and accelerate's FSDP do."""
    if evidence.setting("deepspeed") or evidence.setting("fsdp"):
        return True
    keys = [s.name.lower() for s in evidence.settings or []]
    return any(k.startswith(("zero_", "deepspeed_", "tensor_model_parallel")) for k in keys)


def _weights(evidence: Evidence) -> tuple[Width, str] | None:
    """(width, what says so) of the weights that the optimizer updates; None where the settings do not tell.

    Weights of adapters are not those of the configuration: peft keeps them in fp32. Checkpoints that hold all weights
    in float32 say more than settings.
    """
    kept = signals.weights(evidence)
    if kept and all(weight.measured in signals.FULL for weight in kept):
        return "fp32", "checkpoints"
    found = precision(evidence)
    if found is not None and found.form == "pure" and not _keeps_masters(evidence):
        return found.width, found.said
    stored = str(evidence.setting("torch_dtype") or "").lower() or _dtype_of_model(evidence)
    width = _named(stored)
    if width in ("bf16", "fp16"):
        if evidence.setting("peft_type") or _keeps_masters(evidence):
            return "fp32", "master weights"
        return width, stored
    if found is not None and found.form == "mixed":
        return "fp32", found.said
    return (width, stored) if width is not None else None


def _dtype_of_model(evidence: Evidence) -> str:
    """What a Hugging Face configuration says as `dtype`; its `precision` may be the one of the computation."""
    if evidence.setting("architectures") is None:
        return ""
    said = [s for s in evidence.settings or [] if s.key == "precision"]
    named = [s for s in said if s.name.rpartition(".")[2] == "dtype"] or [s for s in said if s.name == s.key]
    return str(named[0].value).lower() if named else ""


def _plain_adam(evidence: Evidence) -> bool | None:
    """Whether the optimizer is Adam without any means against rounding; None where it is not named."""
    name = evidence.setting("optim") or evidence.setting("optimizer._component_")
    return None if name is None else _PLAIN_ADAM.fullmatch(str(name).strip()) is not None


def _peak_lr(evidence: Evidence) -> float | None:
    lr = evidence.series("lr")
    logged = float(lr.good.values.max()) if lr is not None and len(lr.good) else None
    return logged or evidence.number("learning_rate")


@check(needs=[], facts=["precision"])
def pure_half_precision(evidence: Evidence) -> Answer:
    """The settings say fp16 for weights and gradients alike, without a loss scale.

    bf16 and fp32 runs are acquitted: they have no fp16 range to leave. Mixed fp16 is judged by its loss scale only.
    """
    found = precision(evidence)
    if found is None:
        return Missing("settings:precision")
    if found.width != "fp16":
        return []
    if found.form != "pure":
        return Missing("series:loss_scale")
    return [] if evidence.series("loss_scale") else [Hit(None, facts={"precision": found.said})]


@check(needs=[], facts=["model", "precision"])
def bf16_model_in_fp16(evidence: Evidence, *, harm: str) -> Answer:
    """A model whose weights were trained in bf16 (T5 and its kin, Gemma) is trained in fp16.

    harm: "seen" where loss or gradient norm became non-finite for good, or the loss exactly 0; "unseen" where not.
    """
    found = precision(evidence)
    if found is None:
        return Missing("settings:precision")
    name = next((str(v) for k in _MODEL_KEYS if (v := evidence.setting(k)) and _BF16_MODELS.search(str(v))), None)
    if found.width != "fp16" or name is None:
        return []
    facts: dict[str, Fact] = {"model": name[:80], "precision": found.said}
    broken = _broken(evidence)
    if harm == "seen":
        return [hit_at(*broken, facts)] if broken is not None else []
    return [Hit(None, facts=facts)] if broken is None else []


def _broken(evidence: Evidence) -> tuple[Series, int] | None:
    """(series, index) where loss or gradient norm is non-finite for good, or the loss exactly 0 from there on."""
    places = []
    for name in ("loss", "grad_norm"):
        series = evidence.series(name)
        if series is None or len(series) < 3:
            continue
        start = lasting_bad(series)
        if start is None and name == "loss" and bool((series.values[-3:] == 0).all()):
            nonzero = [i for i, value in enumerate(series.values) if value != 0]
            start = nonzero[-1] + 1 if nonzero else 0
        if start is not None:
            places.append((int(series.steps[start]), series, start))
    if not places:
        return None
    _, series, start = min(places, key=lambda place: place[0])
    return series, start


@check(needs=[], facts=["precision", "eps", "optimizer"])
def adam_eps_rounds_to_zero(evidence: Evidence, *, smallest: float, usual: float, within: int, seen: str) -> Answer:
    """Weights in fp16 under a plain Adam whose eps rounds to 0 in fp16: an element whose v is 0 divides 0 by 0.

    smallest: below this an fp16 number is 0; usual: eps where the settings name none. seen: "yes" where the loss or the
    gradient norm is non-finite for good from one of the first `within` points after the first, "no" where not.
    """
    weights, plain = _weights(evidence), _plain_adam(evidence)
    if weights is None:
        return Missing("settings:precision")
    if weights[0] != "fp16":
        return []
    if plain is None:
        return Missing("settings:optim")
    eps = evidence.number("adam_epsilon")
    eps = usual if eps is None else eps
    if not plain or eps >= smallest:
        return []
    facts: dict[str, Fact] = {"precision": weights[1], "eps": eps, "optimizer": str(evidence.setting("optim"))}
    broken = _broken(evidence)
    at_once = broken is not None and 0 < broken[1] <= within
    if seen == "yes":
        return [hit_at(*broken, facts)] if broken is not None and at_once else []
    return [] if at_once else [Hit(None, facts=facts)]


@check(needs=[], facts=["precision", "peak", "optimizer"])
def updates_below_rounding(evidence: Evidence, *, lr: float) -> Answer:
    """Weights in bf16 or fp16 under a plain Adam whose learning rate never exceeds `lr`: most updates are rounded away.

    Optimizers that round stochastically, compensate (Kahan) or keep fp32 copies are acquitted.
    """
    weights, plain, peak = _weights(evidence), _plain_adam(evidence), _peak_lr(evidence)
    if weights is None:
        return Missing("settings:precision")
    if weights[0] == "fp32":
        return []
    if plain is None:
        return Missing("settings:optim")
    if peak is None:
        return Missing("series:lr")
    if not plain or not 0 < peak <= lr:
        return []
    return [Hit(None, facts={"precision": weights[1], "peak": peak, "optimizer": str(evidence.setting("optim"))})]


@check(needs=["settings:adam_epsilon"], facts=["eps", "optimizer"])
def adam_eps_large(evidence: Evidence, *, large: float) -> Answer:
    """Adam's eps is `large` or more: it outweighs the second moment of most elements, and their steps shrink."""
    eps, optimizer = evidence.number("adam_epsilon"), str(evidence.setting("optim") or "adam")
    if eps is None:
        return Missing("settings:adam_epsilon")
    if eps < large or not _ADAM.search(optimizer):
        return []
    return [Hit(None, facts={"eps": eps, "optimizer": optimizer})]


CHECKS: tuple[Check, ...] = (
    pure_half_precision,
    bf16_model_in_fp16,
    adam_eps_rounds_to_zero,
    updates_below_rounding,
    adam_eps_large,
)
