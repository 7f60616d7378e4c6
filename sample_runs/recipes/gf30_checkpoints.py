"""GF30: optimizer states and weights that were changed behind the training, and checkpoints that were damaged."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from checkpoint_lab import VOCAB, configure, objective, save, small_lm, train_and_save
from checkpoint_writers import Setup, dcp, trainer, words
from hf_lab import tiny_gpt2
from lab import Sample, TinyLM, json_lines, main
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

torch.set_num_threads(1)

FIRST, LAST = 40, 60
WIDTH = 8
LR = 5e-4
Fault = Callable[[TinyLM, Optimizer], object]


def nothing(_model: TinyLM, _optimizer: Optimizer) -> None:
    """Leave everything as it is."""


def plain(
    run: Path,
    *,
    on_resume: Fault = nothing,
    on_save: Fault = nothing,
    betas: tuple[float, float] = (0.9, 0.95),
    amsgrad: bool = False,
    saved: bool = True,
    last: int = LAST,
) -> None:
    """Train in a plain loop and save after steps 40 and `last`, the optimizer's states under their parameters' names.

    saved: whether the checkpoint of step 40 was kept.
    on_resume: done to model and optimizer after step 40, may give another optimizer to go on with; on_save: right
    before the last checkpoint is written.
    """
    configure(run, hidden_size=WIDTH, learning_rate=LR, max_steps=last)
    model = small_lm(width=WIDTH)
    optimizer = AdamW(model.named_parameters(), LR, betas=betas, weight_decay=0.1, amsgrad=amsgrad)
    loss = objective(model)
    with json_lines(run / "metrics.jsonl") as log:
        train_and_save(run, model, optimizer, loss, log, steps=FIRST, saved=(FIRST,) if saved else ())
        following = on_resume(model, optimizer)
        optimizer = following if isinstance(following, AdamW) else optimizer
        train_and_save(run, model, optimizer, loss, log, first=FIRST + 1, steps=last, saved=())
        on_save(model, optimizer)
        save(run, last, model, optimizer)


# -------------------------------------------------------------------------------------------------- states and weights


def flip_second_moment(model: TinyLM, optimizer: Optimizer) -> None:
    """Lose one element of one second moment, as a write that does not arrive."""
    optimizer.state[model.blocks[1].up.weight]["exp_avg_sq"].view(-1)[137] = 0.0  # type: ignore[index,union-attr]  # a block


def forget_second_moments(_model: TinyLM, optimizer: Optimizer) -> None:
    """Load the first moments and begin the second ones anew, as a conversion that knows one of the two."""
    for state in optimizer.state.values():
        state["exp_avg_sq"].zero_()


def mix_up_blocks(model: TinyLM, optimizer: Optimizer) -> None:
    """Load the states into an optimizer whose parameters stand in another order: two blocks have changed places."""
    states = optimizer.state_dict()
    order = [
        (name.replace("blocks.0.", "blocks.X.").replace("blocks.1.", "blocks.0.").replace("blocks.X.", "blocks.1."))
        for name, _ in model.named_parameters()
    ]
    named = dict(model.named_parameters())
    other = AdamW([(name, named[name]) for name in order], LR)
    other.load_state_dict(states)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = other.state[parameter]


def add_rows(model: TinyLM, _optimizer: Optimizer) -> None:
    """Extend the vocabulary of the trained model and save it with the optimizer of the old one."""
    for table in (model.embedding, model.head):
        rows = torch.cat([table.weight.detach(), 0.02 * torch.randn(8, WIDTH)])
        table.weight = nn.Parameter(rows)


def widen(model: TinyLM, optimizer: Optimizer) -> Optimizer:
    """Go on with another configuration: the MLP of the last block is wider and built anew, the rest is kept."""
    block = model.blocks[1]
    old: nn.Parameter = block.down.bias  # type: ignore[assignment,union-attr]  # a block's linear layer
    block.up, block.down = nn.Linear(WIDTH, 5 * WIDTH), nn.Linear(5 * WIDTH, WIDTH)
    block.down.bias = old
    other = AdamW(model.named_parameters(), LR, betas=(0.9, 0.95), weight_decay=0.1)
    kept = set(model.parameters())
    other.state.update({parameter: state for parameter, state in optimizer.state.items() if parameter in kept})
    return other


def draw_again(model: TinyLM, _optimizer: Optimizer) -> None:
    """Draw one matrix again, as a partial load that finds no value for it."""
    nn.init.normal_(model.blocks[0].up.weight, std=0.05)  # type: ignore[union-attr,arg-type]  # a block


def untrained(model: TinyLM, _optimizer: Optimizer) -> None:
    """Save a model that was built anew in place of the trained one."""
    model.load_state_dict(small_lm(seed=7, width=WIDTH).state_dict())


# ------------------------------------------------------------------------------------------------------- files on disk


def killed_while_saving(run: Path) -> None:
    """Train for 200 steps, killed at step 60 when two thirds of its checkpoint are on disk."""
    configure(run, hidden_size=WIDTH, learning_rate=LR, max_steps=200)
    model = small_lm(width=WIDTH)
    optimizer = AdamW(model.parameters(), LR, betas=(0.9, 0.95), weight_decay=0.1)
    with json_lines(run / "metrics.jsonl") as log:
        train_and_save(run, model, optimizer, objective(model), log, steps=LAST, saved=(FIRST,))
    whole = io.BytesIO()
    torch.save({"model": model.state_dict(), "step": LAST, "optimizer": optimizer.state_dict()}, whole)
    (run / f"checkpoint-{LAST:06d}.pt").write_bytes(whole.getvalue()[: len(whole.getvalue()) * 2 // 3])


def with_trainer(run: Path, damage: Callable[[Path], None]) -> None:
    """Train a small GPT-2 with the Trainer, weights in shards of 6 kB, and damage what it wrote."""
    trainer(run, tiny_gpt2(VOCAB, width=WIDTH), steps=FIRST, saved=(20, FIRST), shard_bytes=6_000)
    damage(run)


def cut_shard(run: Path) -> None:
    """Cut the second shard of the first checkpoint in half."""
    shard = sorted((run / "checkpoint-20").glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])


def change_a_byte(run: Path) -> None:
    """Flip the lowest bit of one number in the optimizer's states of the last checkpoint."""
    path = run / f"checkpoint-{FIRST}" / "optimizer.pt"
    with zipfile.ZipFile(path) as archive:
        record = max(archive.infolist(), key=lambda item: item.file_size * item.filename.count("/data/"))
    content = bytearray(path.read_bytes())
    lengths = content[record.header_offset + 26 : record.header_offset + 30]
    first = record.header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
    content[first + 400] ^= 1
    path.write_bytes(content)


def in_shards() -> Setup:
    """Give what two processes train with FSDP."""
    return Setup(words(), steps=FIRST, saved=(20, FIRST))


def without_a_rank(run: Path) -> None:
    """Train with FSDP on two processes; the file of the second one is lost from the last checkpoint."""
    dcp(run, in_shards)
    (run / f"checkpoint-{FIRST}" / "__1_0.distcp").unlink()


def one_node(run: Path) -> None:
    """Train with FSDP on two processes; of both checkpoints only what the first one wrote was copied."""
    dcp(run, in_shards)
    for file in run.glob("checkpoint-*/__1_0.distcp"):
        file.unlink()


class Adapted(nn.Module):
    """A linear layer that is kept, and a product of two small matrices that is trained (LoRA)."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """Add the product to what the layer gives."""
        total: Tensor = self.base(hidden) + self.lora_B(self.lora_A(hidden))
        return total


def adapter(run: Path, wanted: str) -> None:
    """Train adapters on the linear layers and save the tensors whose names have `wanted` in them."""
    configure(run, hidden_size=WIDTH, learning_rate=LR, max_steps=FIRST, lora_rank=2)
    model = small_lm(width=WIDTH).requires_grad_(False)
    for block in model.blocks:
        for name in ("qkv", "up", "down"):
            setattr(block, name, Adapted(getattr(block, name)))
    model.head.requires_grad_(True)
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], LR, betas=(0.9, 0.95))
    with json_lines(run / "metrics.jsonl") as log:
        train_and_save(run, model, optimizer, objective(model), log, steps=FIRST, saved=())
    folder = run / f"checkpoint-{FIRST}"
    folder.mkdir()
    save_file({n: t for n, t in model.state_dict().items() if wanted in n}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2}), encoding="utf-8")


def sample(name: str, make: Callable[[Path], None], note: str, **more: object) -> Sample:
    """Describe one of the case's runs."""
    facts: dict[str, object] = {"case": "GF30", "checkpoints": True} | more
    return Sample(f"gf30-{name}", "gf30_checkpoints", make, note, **facts)  # type: ignore[arg-type]  # fields by name


SAMPLES = (
    sample(
        "moments",
        partial(plain, on_save=flip_second_moment),
        "one element of one second moment is 0 in the checkpoint of step 60, its first moment is not",
        variant="moments",
    ),
    sample(
        "foreign-moments",
        partial(plain, on_resume=forget_second_moments, betas=(0.9, 0.999), saved=False, last=FIRST + 1),
        "a resume at step 40 keeps the first moments and begins the second ones anew; one checkpoint, of step 41",
        variant="foreign-moments",
        primary="",
    ),
    sample(
        "state-replaced",
        partial(plain, on_resume=mix_up_blocks, betas=(0.9, 0.999)),
        "a resume at step 40 builds the optimizer with the two blocks in the other order and loads its states by place",
        variant="state-replaced",
    ),
    sample(
        "state-shape",
        partial(plain, on_save=add_rows),
        "eight rows are added to the vocabulary after the training and saved with the optimizer of the old model",
        variant="state-shape",
    ),
    sample(
        "shape-changed",
        partial(plain, on_resume=widen),
        "from step 41 on the model has a wider MLP in its last block",
        variant="shape-changed",
        primary="",
    ),
    sample(
        "weights",
        partial(plain, on_resume=draw_again),
        "one matrix is drawn again at a resume after step 40; everything else goes on",
        variant="weights",
    ),
    sample(
        "rewritten",
        partial(plain, on_save=untrained),
        "a model that was built anew is saved at step 60 in place of the trained one",
        variant="rewritten",
    ),
    sample(
        "damaged-file",
        partial(with_trainer, damage=change_a_byte),
        "one bit of the optimizer's states changed on disk after the run",
        variant="damaged-file",
    ),
    sample(
        "truncated-file",
        partial(with_trainer, damage=cut_shard),
        "the second shard of the first checkpoint is cut in half; the run went on to its end",
        variant="truncated-file",
    ),
    sample(
        "missing-shard",
        without_a_rank,
        "FSDP on two processes: the second one's file of the last checkpoint is lost",
        variant="missing-shard",
    ),
    sample(
        "partly-there",
        one_node,
        "FSDP on two processes: of every checkpoint only the files of the first one were copied",
        variant="partly-there",
        primary="",
    ),
    sample(
        "empty-weights",
        partial(adapter, wanted=".lora."),
        "adapters are saved by a part of their names that no name has: the file holds no tensor",
        variant="empty-weights",
    ),
    sample(
        "unfinished",
        killed_while_saving,
        "killed at step 60 of 200 when two thirds of its checkpoint were written",
        variant="unfinished",
        primary="",
        ending="truncated",
    ),
    sample(
        "twin",
        partial(plain, amsgrad=True),
        "AMSGrad in a plain loop, two checkpoints: moments, travel and names are all as they should be",
        twin=True,
    ),
    sample(
        "twin-shards",
        partial(with_trainer, damage=lambda _run: None),
        "the Trainer's weights in shards, all of them whole",
        twin=True,
    ),
    sample(
        "twin-ranks",
        partial(dcp, setup=in_shards),
        "FSDP on two processes, both files of both checkpoints are there",
        twin=True,
    ),
    sample(
        "twin-adapter",
        partial(adapter, wanted="lora_"),
        "the adapters alone are saved, on purpose: small, and not empty",
        twin=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
