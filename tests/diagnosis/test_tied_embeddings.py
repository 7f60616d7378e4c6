"""Heads and embeddings as settings and checkpoints have them, and names that vanish or change between checkpoints."""

import json

import pytest
import torch

from gradforensics.diagnosis.checks.tied_embeddings import (
    keys_renamed,
    keys_vanished,
    keys_vanished_without_optimizer,
    tied_head_differs,
    untied_head_missing,
)
from gradforensics.diagnosis.vocabulary import Missing
from gradforensics.evidence.gather import gather

TABLE = torch.arange(256.0).reshape(32, 8)
OTHER = TABLE + 1
LLAMA = {"architectures": ["LlamaForCausalLM"], "vocab_size": 32, "hidden_size": 8}


def of(folder, *checkpoints, settings=None, optimizers=()):
    """A folder with state dicts saved after steps 10, 20 ..., a configuration, and optimizers of as many parameters."""
    if settings is not None:
        (folder / "config.json").write_text(json.dumps(LLAMA | settings))
    for number, state in enumerate(checkpoints):
        step = 10 * (number + 1)
        held = {"model": state, "step": step}
        if optimizers:
            parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(optimizers[number])]
            held["optimizer"] = torch.optim.AdamW(parameters).state_dict()
        torch.save(held, folder / f"checkpoint-{step}.pt")
    (evidence,) = gather([folder])
    return evidence


def hits_of(answer):
    assert isinstance(answer, list), answer
    return answer


def steps_of(answer):
    return [hit.step for hit in hits_of(answer)]


@pytest.mark.parametrize(
    ("state", "broken"),
    [
        ({"model.embed_tokens.weight": TABLE, "lm_head.weight": OTHER}, True),
        ({"model.embed_tokens.weight": TABLE, "lm_head.weight": TABLE.clone()}, False),
        ({"model.embed_tokens.weight": TABLE}, False),
        ({"transformer.wte.weight": TABLE, "transformer.wpe.weight": OTHER}, False),
        ({"model.embed_tokens.weight": TABLE, "lm_head.weight": TABLE.bfloat16()}, False),
        ({"model.embed_tokens.weight": TABLE, "lm_head.weight": (2 * TABLE).bfloat16()}, True),
        ({"shared.weight": TABLE, "encoder.embed_tokens.weight": OTHER, "lm_head.weight": TABLE.clone()}, False),
        ({"model.embed_tokens.weight": TABLE, "lm_head.weight": torch.ones(4, 8)}, False),
        ({"model.embed_tokens.weight": TABLE, "lm_head.weight": torch.full((32, 8), float("nan"))}, False),
        ({"embedding.word_embeddings.weight": TABLE, "output_layer.weight": OTHER}, True),
        ({"gpt_neox.embed_in.weight": TABLE, "embed_out.weight": OTHER}, True),
    ],
)
def test_tied_by_the_settings(tmp_path, state, broken):
    evidence = of(tmp_path, state, settings={"tie_word_embeddings": True})
    assert steps_of(tied_head_differs(evidence, off=0.01)) == ([10] if broken else [])
    assert untied_head_missing(evidence) == []


def test_the_step_at_which_a_tie_broke(tmp_path):
    tied = {"model.embed_tokens.weight": TABLE, "lm_head.weight": TABLE.clone()}
    evidence = of(tmp_path, tied, tied | {"lm_head.weight": OTHER}, settings={"tie_word_embeddings": True})
    (hit,) = hits_of(tied_head_differs(evidence, off=0.01))
    assert (hit.step, hit.after, hit.tensor) == (20, 10, "lm_head.weight")


@pytest.mark.parametrize(
    "settings", [{}, {"tie_word_embeddings": True, "text_config": {"tie_word_embeddings": False, "vocab_size": 32}}]
)
def test_where_the_settings_do_not_tell_nothing_is_judged(tmp_path, settings):
    evidence = of(tmp_path, {"model.embed_tokens.weight": TABLE, "lm_head.weight": OTHER}, settings=settings)
    assert isinstance(tied_head_differs(evidence, off=0.01), Missing)
    assert isinstance(untied_head_missing(evidence), Missing)


@pytest.mark.parametrize(
    ("state", "missing"),
    [
        ({"model.embed_tokens.weight": TABLE, "model.norm.weight": torch.ones(8)}, True),
        ({"model.embed_tokens.weight": TABLE, "lm_head.weight": OTHER}, False),
        ({"model.embed_tokens.weight": TABLE, "decoder.projection": OTHER}, False),
        ({"model.embed_tokens.weight": TABLE, "lm_head.weight": OTHER.T.contiguous()}, False),
    ],
)
def test_untied_by_the_settings(tmp_path, state, missing):
    evidence = of(tmp_path, state, settings={"tie_word_embeddings": False})
    assert steps_of(untied_head_missing(evidence)) == ([10] if missing else [])
    assert tied_head_differs(evidence, off=0.01) == []


@pytest.mark.parametrize(
    ("state", "settings"),
    [
        ({"embed_tokens.weight": TABLE}, {"architectures": ["LlamaModel"]}),
        ({"embed_tokens.weight": TABLE}, {"architectures": ["LlamaForSequenceClassification"]}),
        ({"embed_tokens.weight": TABLE, "q_proj.lora_A.weight": torch.ones(2, 8)}, {}),
    ],
)
def test_models_without_a_head_and_adapters_need_none(tmp_path, state, settings):
    evidence = of(tmp_path, state, settings={"tie_word_embeddings": False} | settings)
    assert isinstance(untied_head_missing(evidence), Missing)


BODY, HEAD, LORA = torch.ones(8, 8), torch.full((4, 8), 2.0), torch.full((2, 8), 3.0)


@pytest.mark.parametrize(
    ("before", "after", "gone"),
    [
        ({"body.weight": BODY, "head.weight": HEAD}, {"body.weight": BODY}, 1),
        ({"body.weight": BODY, "head.weight": HEAD}, {"weight": BODY}, 1),  # model.body was saved in place of model
        ({"body.weight": BODY, "head.weight": HEAD}, {"body.weight": BODY, "head.weight": HEAD}, 0),
        ({"body.weight": BODY, "head.weight": HEAD}, {"module.body.weight": BODY, "module.head.weight": HEAD}, 0),
        ({"body.weight": BODY, "head.weight": HEAD}, {"body.weight": BODY, "classifier.weight": HEAD}, 0),
        ({"body.weight": BODY, "tied.weight": BODY}, {"body.weight": BODY}, 0),
        ({"body.weight": BODY, "body.lora_A.weight": LORA}, {"body.weight": BODY}, 0),
        ({"body.weight": BODY}, {"body.weight": BODY, "head.weight": HEAD}, 0),
    ],
)
def test_keys_that_vanish_from_one_checkpoint_to_the_next(tmp_path, before, after, gone):
    evidence = of(tmp_path, before, after, optimizers=(2, 2))
    assert [hit.facts["vanished"] for hit in hits_of(keys_vanished(evidence))] == ([gone] if gone else [])
    assert isinstance(keys_vanished_without_optimizer(evidence), Missing)


def test_a_model_that_was_cut_has_a_smaller_optimizer(tmp_path):
    evidence = of(tmp_path, {"a.weight": BODY, "b.weight": HEAD}, {"a.weight": BODY}, optimizers=(2, 1))
    assert keys_vanished(evidence) == []


def test_without_an_optimizer_it_is_the_other_sign(tmp_path):
    evidence = of(tmp_path, {"a.weight": BODY, "b.weight": HEAD}, {"a.weight": BODY})
    assert steps_of(keys_vanished_without_optimizer(evidence)) == [20]
    assert isinstance(keys_vanished(evidence), Missing)


def test_wrappers_change_names(tmp_path):
    evidence = of(
        tmp_path, {"a.weight": BODY, "b.weight": HEAD}, {"_orig_mod.a.weight": BODY, "_orig_mod.b.weight": HEAD}
    )
    (hit,) = hits_of(keys_renamed(evidence))
    assert (hit.step, hit.facts["old"], hit.facts["new"]) == (20, "a.weight", "_orig_mod.a.weight")


def test_files_of_different_kinds_are_not_compared(tmp_path):
    (tmp_path / "train.log").write_text("".join(f"step: {n} loss: {3 - n / 10}\n" for n in range(1, 21)))
    torch.save({"model": {"a.weight": BODY, "b.weight": HEAD}, "step": 10}, tmp_path / "last-10.pt")
    torch.save({"model": {"a.weight": BODY}, "step": 20}, tmp_path / "export-20.pt")
    (evidence,) = gather([tmp_path])
    for answer in (keys_vanished(evidence), keys_vanished_without_optimizer(evidence), keys_renamed(evidence)):
        assert isinstance(answer, Missing)
