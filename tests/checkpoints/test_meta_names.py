"""Names out of config.json: what is refused before anything is asked, and what transformers answers."""

import json
import runpy
import subprocess
import sys
from importlib.util import find_spec

import pytest

from gradforensics.checkpoints import meta_names
from gradforensics.checkpoints.meta_names import names_from_config

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 13, "hidden_size": 8,
    "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 13, "n_embd": 8, "n_layer": 1,
    "n_head": 2, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": True,
}  # fmt: skip
with_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")


def asked(folder, config, **values):
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "config.json").write_text(text, encoding="utf-8")
    return names_from_config(folder, **values)


@pytest.mark.parametrize(
    "more",
    [
        {"auto_map": {"AutoModelForCausalLM": "modeling_mine.Mine"}},
        {"trust_remote_code": True},
        {"text_config": {"auto_map": {"AutoConfig": "other--code.Mine"}}},
        {"parts": [{"backbone": "/somewhere"}]},
        {"quantization_config": {"quant_method": "bitsandbytes"}},
    ],
)
def test_configurations_that_ask_for_other_code_or_models_are_refused(tmp_path, more):
    found = asked(tmp_path, {**LLAMA, **more}, timeout=0)

    assert found.parameters is None
    assert "its model is not made of transformers' own code alone" in found.why


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("{", "no valid JSON"),
        ("[" * 5000, "no valid JSON"),
        ('{"model_type": "llama", "architectures": ["A"], "x": ' + "[" * 900 + "]" * 900 + "}", "nested too deeply"),
        ("[1]", "no JSON object"),
        ("{}", "names no model_type and architectures"),
        ({"model_type": "llama", "architectures": []}, "names no model_type and architectures"),
        ({"model_type": "llama", "architectures": [1]}, "names no model_type and architectures"),
        ({"model_type": ["llama"], "architectures": ["A"]}, "names no model_type and architectures"),
        (" " * (5 << 20), "larger than any configuration"),
    ],
)
def test_files_that_are_no_configuration_are_refused(tmp_path, config, why):
    found = asked(tmp_path, config, timeout=0)

    assert found.parameters is None
    assert why in found.why


def test_a_folder_without_a_configuration_says_so(tmp_path):
    assert names_from_config(tmp_path) == (None, "config.json is not read: No such file or directory")
    (tmp_path / "config.json").mkdir()
    assert names_from_config(tmp_path).parameters is None


def test_the_child_is_killed_when_its_time_is_over(tmp_path):
    found = asked(tmp_path, LLAMA, timeout=0.01)

    assert found == (None, "transformers did not build the model in 0.01 seconds")


def test_a_child_that_ends_without_an_answer_is_a_reason(tmp_path, monkeypatch):
    for number, text in enumerate(("raise SystemExit(3)", "print('{}')", "print('[]')", "print('no json')")):
        child = tmp_path / f"child{number}.py"
        child.write_text(text, encoding="utf-8")
        monkeypatch.setattr(meta_names, "_CHILD", child)

        found = asked(tmp_path, LLAMA)

        assert found == (None, f"transformers gave no names: its process ended with status {0 if number else 3}")


def test_without_transformers_the_child_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)

    with pytest.raises(ImportError, match="transformers cannot be imported"):
        runpy.run_path(str(meta_names._CHILD))["names"](LLAMA)


def test_the_child_has_no_network_and_starts_no_process():
    script = f"""
import runpy, socket, subprocess
runpy.run_path({str(meta_names._CHILD)!r})["_confine"]()
for attempt in (
    lambda: socket.create_connection(("127.0.0.1", 9)),
    lambda: socket.getaddrinfo("localhost", 9),
    lambda: subprocess.Popen(["true"]),
    lambda: __import__("os").system("true"),
):
    try:
        attempt()
    except PermissionError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.split() == [
        word
        for event in ("socket.getaddrinfo", "socket.getaddrinfo", "subprocess.Popen", "os.system")
        for word in (event, "is", "not", "allowed", "here")
    ]


@with_transformers
def test_parameters_come_in_model_order_and_code_beside_the_configuration_is_not_imported(tmp_path, monkeypatch):
    for name in ("transformers", "torch", "json", "sitecustomize", "usercustomize", "modeling_llama"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))

    found = asked(tmp_path, LLAMA)

    assert found.why == ""
    assert found.parameters is not None
    assert found.parameters[:3] == [
        ("model.embed_tokens.weight", (13, 8), True),
        ("model.layers.0.self_attn.q_proj.weight", (8, 8), True),
        ("model.layers.0.self_attn.k_proj.weight", (4, 8), True),
    ]
    assert [name for name, _, _ in found.parameters[-2:]] == ["model.norm.weight", "lm_head.weight"]
    assert len(found.parameters) == 21
    assert not (tmp_path / "ran").exists()
    assert {path.name for path in tmp_path.iterdir() if path.suffix != ".py"} == {"config.json"}


@with_transformers
def test_tied_weights_come_once_and_names_of_kernels_are_not_followed(tmp_path):
    found = asked(tmp_path, {**GPT2, "_attn_implementation": "someone/kernel"})

    assert found.parameters is not None
    names = [name for name, _, _ in found.parameters]
    assert names[:2] == ["transformer.wte.weight", "transformer.wpe.weight"]
    assert "lm_head.weight" not in names


@with_transformers
@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"architectures": ["Trainer"]}, "'Trainer' is none of transformers' models of type 'llama'"),
        ({"hidden_size": "large"}, "transformers gave no names"),
    ],
)
def test_what_transformers_cannot_build_is_a_reason(tmp_path, more, why):
    found = asked(tmp_path, {**LLAMA, **more})

    assert found.parameters is None
    assert why in found.why
    assert "\n" not in found.why
