"""What the names of parameters tell: kinds, layers, wrappers, copies beside the weights."""

import pytest

from gradforensics import parameter_names as names


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("model.layers.0.input_layernorm.weight", (64,), "norm"),
        ("transformer.h.0.ln_1.weight", (64,), "norm"),
        ("transformer.ln_f.weight", (64,), "norm"),
        ("blocks.1.norm_mlp.weight", (64,), "norm"),
        ("encoder.layer.0.attention.output.LayerNorm.gamma", (64,), "norm"),
        ("layer1.0.bn1.weight", (64,), "norm"),
        ("transformer.h.0.ln_1.bias", (64,), "bias"),
        ("l1.bias", (8,), "bias"),
        ("model.embed_tokens.weight", (100, 64), "embedding"),
        ("transformer.wte.weight", (100, 64), "embedding"),
        ("embedding.word_embeddings.weight", (100, 64), "embedding"),
        ("bert.embeddings.position_embeddings.weight", (100, 64), "embedding"),
        ("emb.weight", (100, 64), "embedding"),
        ("shared.weight", (100, 64), "embedding"),
        ("gpt_neox.embed_in.weight", (100, 64), "embedding"),
        ("embed_out.weight", (100, 64), "head"),
        ("lm_head.weight", (100, 64), "head"),
        ("classifier.weight", (2, 64), "head"),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", (8, 64), "lora_a"),
        ("model.layers.0.q_proj.lora_B.default.weight", (64, 8), "lora_b"),
        ("model.layers.0.block_sparse_moe.gate.weight", (8, 64), "router"),
        ("model.layers.0.mlp.gate.weight", (8, 64), "router"),
        ("model.layers.0.mlp.gate_proj.weight", (128, 64), "matrix"),
        ("model.layers.0.self_attn.o_proj.weight", (64, 64), "matrix"),
        ("bert.encoder.layer.0.output.dense.weight", (64, 64), "matrix"),
        ("conv1.weight", (64, 3, 7, 7), "matrix"),
        ("alpha", (1,), "other"),
    ],
)
def test_kinds_of_parameters_by_the_names_of_common_models(name, shape, kind):
    assert names.kind_of(name, shape) == kind


def test_layers_are_the_first_number_of_a_name():
    assert names.layer_of("model.layers.3.mlp.experts.7.w1.weight") == ("model.layers", 3)
    assert names.layer_of("0.weight") == ("", 0)
    assert names.layer_of("transformer.wte.weight") is None
    assert names.layer_of("ln1.weight") is None


@pytest.mark.parametrize(
    "name", ["q_target.0.weight", "ema.net.0.weight", "teacher.fc.weight", "encoder_k.conv1.weight"]
)
def test_copies_and_networks_that_nobody_trains_are_known_by_name(name):
    assert names.is_untrained(name)
    assert not names.is_untrained("model.layers.0.k.weight")


def test_every_average_stands_beside_a_model_and_is_not_trained():
    for name in (
        "ema.fc.weight",
        "model_ema.fc.weight",
        "swa_model.fc.weight",
        "shadow_params.0",
        "averaged.fc.weight",
    ):
        assert names.is_average(name)
        assert names.is_beside(name)
        assert names.is_untrained(name)
    assert not names.is_average("teacher.fc.weight")
    assert names.is_beside("teacher.fc.weight")
    assert not names.is_beside("vgg.fc.weight")
    assert not names.is_untrained("schema.fc.weight")


def test_parts_of_wrappers_are_left_out_of_a_name():
    assert names.bare("module._orig_mod.fc.weight") == "fc.weight"
    assert names.bare("fc.lora_A.default.weight") == "fc.lora_A.weight"
    assert names.bare("modules.fc.weight") == "modules.fc.weight"
