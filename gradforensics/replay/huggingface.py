"""A model of transformers as a program, made from its configuration by transformers' own classes. In the child only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from gradforensics.checkpoints import meta_child, meta_names
from gradforensics.errors import ReplayError, UsageError
from gradforensics.replay.limits import fatal
from gradforensics.replay.program import Program, understood

IGNORED = -100  # the label that transformers' losses leave out
_ATTENTION = ("eager", "sdpa")  # of torch alone; to_dict() of a configuration does not say which one was used
_FACTS = ("pad_token_id", "eos_token_id", "bos_token_id", "vocab_size", "num_labels")
_FILLED = {"attention_mask": 0, "labels": IGNORED, "token_type_ids": 0}


def build(settings: Mapping[str, Any], class_name: str) -> Program:
    """The program of a model class. settings: "config", and "attn_implementation" and options of `Program` if given.

    Raises ReplayError for a configuration that wants other code than transformers' own, and without transformers.
    """
    config = settings.get("config")
    if not isinstance(config, Mapping):
        raise ReplayError("the model's configuration is missing")
    try:
        own = meta_names.own_code_only({**config, "architectures": [class_name]})
        model_class, made = meta_child.model_of(own)
        attention = settings.get("attn_implementation")
        if attention in _ATTENTION:
            made._attn_implementation = attention  # noqa: SLF001  as from_pretrained(attn_implementation=...) sets it
        model = model_class(made)
    except Exception as error:
        if fatal(error):
            raise
        what = " ".join(str(error).split())[:500]  # transformers raises its own, with several lines
        what = f"the configuration has no {what}" if isinstance(error, KeyError) else what
        raise ReplayError(f"{class_name} cannot be built from its configuration: {what}") from None
    options = {key: settings[key] for key in ("autocast", "max_grad_norm") if key in settings}
    facts = {key: config[key] for key in _FACTS if config.get(key) is not None}
    given = {"model": model, "loss": loss_of, "settings": {"ignore_index": IGNORED, **facts}, **options}
    return understood(given, f"the configuration of {class_name}")


def loss_of(model: nn.Module, batch: Mapping[str, Any]) -> torch.Tensor:
    """The loss that the model computes itself. Raises ReplayError where it computes none."""
    loss: Any = model(**batch).loss
    if loss is None:
        raise ReplayError("the model computes no loss: the batch has no labels")
    result: torch.Tensor = loss
    return result


def read_batches(path: Path, settings: Mapping[str, Any]) -> list[dict[str, torch.Tensor]]:
    """The micro-batches of a file: safetensors (one), JSON or JSON lines of objects with input_ids, labels and so on.

    An object whose input_ids are lists of ids is a micro-batch, one whose input_ids are ids is a sample; all samples of
    a file are one micro-batch, padded on the right with pad_token_id. Without labels the ids are taken, as for a
    causal language model, those that the attention mask leaves out ignored. Raises UsageError.
    """
    try:
        if path.suffix == ".safetensors":
            found = [dict(load_file(path))]
        else:
            found = _from_objects(_objects(path), int(settings.get("pad_token_id") or 0))
    except OSError as error:
        raise UsageError(f"--batch {path}: {error.strerror or error}") from None
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"--batch {path}: {what}") from None
    if not found or any("input_ids" not in batch for batch in found):
        raise UsageError(f"--batch {path}: no input_ids")
    return [_with_labels(batch) for batch in found]


def _objects(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    try:
        data = json.loads(text)
    except ValueError:
        data = [json.loads(line) for line in text.splitlines() if line.strip()]
    objects = data if isinstance(data, list) else [data]
    if not all(isinstance(one, dict) for one in objects):
        raise ValueError("JSON objects with input_ids are expected")
    return objects


def _from_objects(objects: Sequence[dict[str, Any]], pad: int) -> list[dict[str, torch.Tensor]]:
    batches = [one for one in objects if one.get("input_ids") and isinstance(one["input_ids"][0], list)]
    samples = [one for one in objects if one not in batches]
    if batches and samples:
        raise ValueError("either samples or micro-batches, not both")
    if batches:
        return [{key: torch.tensor(value) for key, value in one.items()} for one in batches]
    return [_together(samples, pad)] if samples else []


def _together(samples: Sequence[dict[str, Any]], pad: int) -> dict[str, torch.Tensor]:
    """Samples as one micro-batch, each (samples, tokens), padded on the right; one mask for all."""
    ids = [list(one.get("input_ids", ())) for one in samples]
    longest = max(map(len, ids))
    if not longest:
        return {}
    complete = [{"attention_mask": [1] * len(own), **one} for one, own in zip(samples, ids, strict=True)]
    batch: dict[str, torch.Tensor] = {}
    for key in complete[0]:
        rows = [one.get(key) for one in complete]
        if any(row is None for row in rows):
            raise ValueError(f"{key} is not in every sample")
        if all(isinstance(row, list) and len(row) == len(own) for row, own in zip(rows, ids, strict=True)):
            fill = _FILLED.get(key, pad)
            batch[key] = torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows if row is not None])
        else:
            batch[key] = torch.tensor(rows)  # one value per sample, such as a class
    return batch


def _with_labels(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if "labels" in batch:
        return batch
    labels = batch["input_ids"].clone()
    if "attention_mask" in batch and batch["attention_mask"].shape == labels.shape:
        labels[batch["attention_mask"] == 0] = IGNORED
    return {**batch, "labels": labels}
