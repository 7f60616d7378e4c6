"""The fixes of the rules as code: it runs, and every option that it names exists."""

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest

from gradforensics.diagnosis import frameworks
from gradforensics.diagnosis.frameworks import Code, code_for, code_languages
from gradforensics.diagnosis.rules import load_rules

RULES = load_rules(examples=False)
# Each piece once: variants share some.
PIECES = {
    (framework, text): f"{rule.id}-{variant or 'rule'}-{framework}"
    for rule in reversed(RULES)
    for variant, codes in reversed(tuple(rule.codes.items()))
    for framework, text in codes.items()
}
PROCESSES = re.compile(r"torch\.distributed|DistributedDataParallel")  # what needs several processes
# What the code of a plain PyTorch loop may take for granted.
LOOP = """
import copy, functools, gc, hashlib, itertools, math, os, unicodedata
import numpy as np, torch, torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(16, 8), nn.LayerNorm(8), nn.Linear(8, 16)
        self.lora_A = nn.Linear(8, 2)
    def forward(self, input_ids, attention_mask=None, labels=None, position_ids=None):
        return self.head(self.norm(self.embedding(input_ids)))
    def get_input_embeddings(self):
        return self.embedding

class Tokenizer:
    eos_token_id = 2
    def __call__(self, text):
        return {"input_ids": [5, 6, 7]}

device, path, text, step, steps, epochs, accumulation = "cpu", FOLDER + "/a.pt", "a\\u200bb", 3, 900, 2, 2
ids = torch.randint(3, 16, (2, 6))
batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
loader = micro_batches = [batch, batch]
model, tokenizer = Model(), Tokenizer()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
named = torch.optim.AdamW(model.named_parameters(), lr=3e-4)
scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
scaler = torch.amp.GradScaler("cpu")
def loss_of(batch):
    return F.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
def train(batch):
    loss_of(batch).backward()
def evaluate(model):
    return loss_of(batch).item()
def log(name, value):
    assert name and value is not None
state = {"module." + name: value for name, value in model.state_dict().items()}
loss, logits, labels = loss_of(batch), model(ids), ids.clone()
torch.save({"model": model.state_dict(), "optimizer": named.state_dict()}, path)
train_data = [{"text": "a"}, {"text": "a "}, {"text": "b"}]
eval_data = [{"text": "b"}]
samples = [{"labels": [-100, 3], "attention_mask": [0, 1]}, {"labels": [-100], "attention_mask": [0]}]
dataset = [{"input_ids": ids[0], "labels": ids[0]}] * 4
block = layer = nn.Linear(8, 8)
block.up, block.down = nn.Linear(8, 8), nn.Linear(8, 8)
x, y, h, hidden, output = torch.ones(4, 8), torch.ones(4, 8), torch.ones(4, 8), torch.ones(4, 8), torch.ones(4, 8)
table, unused_module, layers, head = nn.Embedding(4, 8), nn.Linear(2, 2), [nn.Linear(2, 2)] * 1, nn.Linear(2, 2)
table.weight.data[0] = 0
num_classes = vocab_size = 16
router_logits, bits, length, width = torch.randn(4, 3), 2.0, 6, 8
history, used, ranks, rank, planned_batch, micro_batch, best = [], 1, 2, 0, 16, 4, 100.0
new = old = ids
sample_ids, prompt_length = ids[0], 2
"""


def test_most_rules_have_code_for_a_plain_loop_and_many_for_the_trainer():
    assert sum(any("general" in codes for codes in rule.codes.values()) for rule in RULES) >= 38
    assert sum(any("hf-trainer" in codes for codes in rule.codes.values()) for rule in RULES) >= 25


@pytest.mark.parametrize(
    ("framework", "text"),
    [
        pytest.param(framework, text, id=name)
        for (framework, text), name in PIECES.items()
        if framework == "general" and not PROCESSES.search(text)
    ],
)
def test_the_code_for_a_plain_loop_runs(framework, text, tmp_path):
    names = {"FOLDER": str(tmp_path)}
    exec(compile(LOOP, "loop", "exec"), names)
    exec(compile(text, "rule", "exec"), names)


def source(package, *parts):
    """The source of a library, read instead of imported: importing takes seconds."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return ast.parse(Path(spec.origin).parent.joinpath(*parts).read_text(encoding="utf-8"))


def arguments(tree, name):
    """What the constructor of a class takes: its arguments, or the fields of a dataclass."""
    (found,) = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    made = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    if made:
        return {one.arg for one in (*made[0].args.args, *made[0].args.kwonlyargs)}
    fields = [node.target for node in found.body if isinstance(node, ast.AnnAssign)]
    return {target.id for target in fields if isinstance(target, ast.Name)}


def codes_for(framework):
    """All code for a framework, each piece once."""
    return [text for name, text in PIECES if name == framework]


def named(framework, call):
    """The keywords of all calls of this name in the code for a framework."""
    found = set()
    for text in codes_for(framework):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == call:
                found |= {keyword.arg for keyword in node.keywords}
    return found


@pytest.mark.parametrize(
    ("framework", "call", "place", "least"),
    [
        ("hf-trainer", "TrainingArguments", ("transformers", "training_args.py"), 25),
        ("hf-trainer", "Trainer", ("transformers", "trainer.py"), 4),
        ("hf-trainer", "EarlyStoppingCallback", ("transformers", "trainer_callback.py"), 1),
        ("lightning", "Trainer", ("lightning", "pytorch", "trainer", "trainer.py"), 8),
        ("lightning", "EarlyStopping", ("lightning", "pytorch", "callbacks", "early_stopping.py"), 1),
        ("lightning", "ModelCheckpoint", ("lightning", "pytorch", "callbacks", "model_checkpoint.py"), 2),
        ("accelerate", "Accelerator", ("accelerate", "accelerator.py"), 2),
    ],
)
def test_every_option_exists_in_the_library(framework, call, place, least):
    options = named(framework, call)
    assert len(options) >= least
    assert options <= arguments(source(*place), call)


def test_methods_of_the_accelerator_exist():
    (found,) = (
        node
        for node in ast.walk(source("accelerate", "accelerator.py"))
        if isinstance(node, ast.ClassDef) and node.name == "Accelerator"
    )
    methods = {node.name for node in found.body if isinstance(node, ast.FunctionDef)}
    text = " ".join(codes_for("accelerate"))
    used = set(re.findall(r"accelerator\.(\w+)", text))
    assert len(used) > 5
    assert used <= methods


def test_llama_factory_takes_the_arguments_of_the_trainer_and_few_of_its_own():
    own = {"flash_attn", "pure_bf16", "disable_gradient_checkpointing"}  # its hparams/*.py
    fields = arguments(source("transformers", "training_args.py"), "TrainingArguments")
    for text in codes_for("llamafactory"):
        for line in text.splitlines():
            found = re.fullmatch(r"(\w+): [\w./-]+(?:  # .*)?", line)
            assert found, line
            assert found[1] in fields | own


def test_configurations_of_deepspeed_name_known_keys():
    known = {
        "optimizer", "scheduler", "gradient_clipping", "gradient_accumulation_steps", "train_batch_size",
        "train_micro_batch_size_per_gpu", "bf16", "fp16", "zero_optimization",
    }  # fmt: skip
    found = set()
    for text in codes_for("deepspeed"):
        found |= set(json.loads(text))
    assert len(found) > 6
    assert found <= known


def test_the_code_of_the_users_framework_comes_first_and_that_of_a_plain_loop_after_it():
    codes = {"general": "a", "hf-trainer": "b", "lightning": "c"}
    assert code_for("hf-trainer", codes) == (
        Code("hf-trainer", "Hugging Face Trainer", "b"),
        Code("general", "PyTorch", "a"),
    )
    assert [one.framework for one in code_for("deepspeed", codes)] == ["general"]
    assert [one.framework for one in code_for("general", codes)] == ["general"]
    assert code_for("keras", codes) == ()
    assert code_for("lightning", {}) == ()


def test_every_framework_has_a_title_and_a_language():
    assert set(code_languages().values()) <= {"python", "json", "yaml", "toml", "options"}
    assert all(frameworks.title(name) for name in code_languages())


def test_a_variant_with_a_table_of_its_own_has_no_code_of_the_rule():
    rule = next(rule for rule in RULES if rule.id == "GF08")
    assert rule.code("fast") == {}
    assert rule.code("recurring") == rule.code(None)
    assert "general" in rule.code(None)
