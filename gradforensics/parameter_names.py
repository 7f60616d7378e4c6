"""What the name of a parameter tells: what it is for, its layer, the parts that wrappers add, copies (a leaf)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, TypeAlias

from gradforensics.patterns import lazy

Kind: TypeAlias = Literal["norm", "bias", "embedding", "head", "lora_a", "lora_b", "router", "matrix", "other"]

# Parts of names that wrappers add: DataParallel and DDP, torch.compile, FSDP, activation checkpoints, Lightning's
# strategies, PEFT's adapter name (which its files leave out).
_WRAPPERS = frozenset({
    "module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "default",
})  # fmt: skip
# Copies of the weights, and networks beside them, by parts of names; each list holds the one before.
# Averages: the keys of timm, torch.optim.swa_utils, torch_ema and Lightning's WeightAveraging as they are read.
_AVERAGES = ("ema", "swa", "shadow", "averaged")
_BESIDE = (*_AVERAGES, "target", "teacher", "reference", "ref")
_UNTRAINED = (
    *_BESIDE, "avg", "targets", "momentum", "old", "rnd", "random", "prior", "fixed", "frozen", "anchor", "lpips",
    "vgg", "perceptual", "inception", "queue", "mask",
)  # fmt: skip
_AVERAGE, _BESIDES, _NOT_TRAINED = (
    lazy(rf"(?:^|[._])(?:{'|'.join(words)})(?:[._]|$)", re.IGNORECASE) for words in (_AVERAGES, _BESIDE, _UNTRAINED)
)
_KEY_ENCODER = lazy(r"(?:^|[._])\w+_k\.\w+\.", re.IGNORECASE)  # of momentum contrast: encoder_k.layer1...
_LORA = lazy(r"lora_(?:embedding_)?([ab])(?:\.|$|_)", re.IGNORECASE)
_NORM = lazy(r"(?:^|[._])(?:\w*norm\w*|ln|ln_?\w{1,2}|layernorm\w*|bn\d*)\.(?:weight|gamma|scale|g)$", re.IGNORECASE)
_BIAS = lazy(r"(?:^|[._])(?:bias|beta)$", re.IGNORECASE)
_EMBEDDING = lazy(
    r"(?:^|[._])(?:wte|wpe|shared|emb|embed\w*|\w*embedding\w*|\w+_embed|pos_emb\w*|position\w*)(?:\.(?:weight|\w*embeddings?\.weight))?$",
    re.IGNORECASE,
)
_HEAD = lazy(
    r"(?:^|\.)(?:lm_head|head|output|output_layer|embed_out|classifier|score|fc_out|unembed\w*|logits?)(?:\.weight)?$",
    re.IGNORECASE,
)
_ROUTER = lazy(r"(?:^|\.)(?:router|gate|wg|gating)(?:\.\w+)?\.weight$", re.IGNORECASE)
_LAYER = lazy(r"^(.*?)\.?(?<![^.])(\d+)(?:\.|$)")
_OF_EXPERTS = lazy(r"router|gating|moe|expert|\.wg\.|\.mlp\.gate\.", re.IGNORECASE)
_MANY = 1 << 16  # names that are kept: those of a large model, which come again in each of its checkpoints


@lru_cache(maxsize=_MANY)
def kind_of(name: str, shape: tuple[int, ...]) -> Kind:
    """What a parameter is for, by its name and shape; the shape decides where a name is taken for two things.

    norm: a gain. router: of a mixture of experts (its `gate` counts only where the name speaks of experts).
    """
    lora = _LORA.search(name)
    if lora:
        return "lora_a" if lora[1].lower() == "a" else "lora_b"
    if _BIAS.search(name):
        return "bias"
    if len(shape) < 2:
        return "norm" if _NORM.search(name) else "other"
    if _ROUTER.search(name) and _OF_EXPERTS.search(name):
        return "router"
    if _HEAD.search(name):
        return "head"
    if _EMBEDDING.search(name):
        return "embedding"
    return "matrix"


@lru_cache(maxsize=_MANY)
def layer_of(name: str) -> tuple[str, int] | None:
    """The stack and the number of the layer that a parameter belongs to: "model.layers.3.mlp.w" -> ("model.layers", 3).

    By the first part of the name that is a number; experts within a layer belong to their layer.
    """
    found = _LAYER.search(name)
    return (found[1], int(found[2])) if found else None


def module_of(name: str) -> str:
    """The module that a parameter belongs to: "blocks.0.up.weight" -> "blocks.0.up"."""
    return name.rpartition(".")[0] or name


@lru_cache(maxsize=_MANY)
def bare(name: str) -> str:
    """A name without the parts that wrappers of a model add: "module.fc.weight" -> "fc.weight"."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def is_average(name: str) -> bool:
    """Whether a name, or a part of one, is that of an averaged copy of weights (EMA, SWA)."""
    return _AVERAGE.search(name) is not None


def is_beside(name: str) -> bool:
    """Whether a name is that of an average, a target network, a teacher or a reference policy beside the model.

    For whole state dicts, which stand beside another one; a single parameter may be called so for other reasons.
    """
    return _BESIDES.search(name) is not None


def is_untrained(name: str) -> bool:
    """Whether a name may be that of a copy or a network that is not meant to be trained: EMA, target, teacher, VGG.

    The widest of the three: it excuses a weight that stands still, and whatever it takes in too much is only excused.
    """
    return _NOT_TRAINED.search(name) is not None or _KEY_ENCODER.search(name) is not None
