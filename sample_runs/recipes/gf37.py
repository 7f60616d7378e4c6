"""GF37: heads and embeddings that should be one tensor or two, and keys that vanished."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from checkpoint_lab import CHAIN, VOCAB, configure, objective, small_lm
from hf_lab import fit, fresh
from lab import Sample, console, current_lr, main
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel, set_seed

STEPS, WIDTH = 40, 8


def gpt2(*, tied: bool = True) -> GPT2LMHeadModel:
    """Two layers of width 8, no dropout."""
    set_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB, n_positions=64, n_embd=WIDTH, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, tie_word_embeddings=tied, use_cache=False,
        )
    )  # fmt: skip


def llama() -> LlamaForCausalLM:
    """Two layers of width 8 whose configuration says that the head is a tensor of its own."""
    set_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=False, use_cache=False,
            bos_token_id=0, eos_token_id=0, pad_token_id=None, max_position_embeddings=64,
        )
    )  # fmt: skip


def through_trainer(run: Path, model: PreTrainedModel) -> None:
    """Train and keep the checkpoints in the middle and at the end with all states but the random ones."""
    torch.set_num_threads(1)
    fit(run, model, fresh(CHAIN, STEPS), steps=STEPS, stop_at=STEPS, save_steps=STEPS // 2)
    for path in (*run.rglob("rng_state*.pth"), *run.rglob("generation_config.json")):
        path.unlink()


def untied(model: GPT2LMHeadModel) -> GPT2LMHeadModel:
    """Replace the head of a tied model by a copy: a parameter of its own from here on."""
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def tied_by_hand(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Tie the head of a model whose configuration says that it is not tied."""
    model.lm_head.weight = model.model.embed_tokens.weight
    return model


def plain(run: Path, state: Callable[[nn.Module, int], dict[str, torch.Tensor]]) -> None:
    """A loop of its own that saves what `state` makes of the model in the middle and at the end."""
    torch.set_num_threads(1)
    model = small_lm(width=WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = objective(model)
    configure(run, hidden_size=WIDTH, learning_rate=3e-3, max_steps=STEPS)
    with console(run / "train.log") as log:
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            value = loss(step)
            value.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            log({"step": step, "loss": value.item(), "grad_norm": norm, "lr": current_lr(optimizer)})
            if step in (STEPS // 2, STEPS):
                held = {"model": state(model, step), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(held, run / f"checkpoint-{step}.pt")


def without_head(model: nn.Module, step: int) -> dict[str, torch.Tensor]:
    """At the end the state dict that is meant for other tasks: without the head."""
    return {name: value for name, value in model.state_dict().items() if step < STEPS or not name.startswith("head")}


def wrapped(model: nn.Module, step: int) -> dict[str, torch.Tensor]:
    """At the end the model is saved through the wrapper that a later script puts around it."""
    held = model if step < STEPS else nn.DataParallel(model)
    found: dict[str, torch.Tensor] = held.state_dict()
    return found


SAMPLES = (
    Sample(
        "gf37-untied",
        "gf37",
        lambda run: through_trainer(run, untied(gpt2())),
        "the head of a GPT-2 with tied embeddings is replaced by a copy: the Trainer trains and saves two tensors",
        case="GF37",
        variant="untied",
        checkpoints=True,
    ),
    Sample(
        "gf37-head-missing",
        "gf37",
        lambda run: through_trainer(run, tied_by_hand(llama())),
        "a Llama is tied by hand, its configuration says untied: safetensors keeps one of the two names, and no head",
        case="GF37",
        variant="head-missing",
        checkpoints=True,
    ),
    Sample(
        "gf37-keys-vanished",
        "gf37",
        lambda run: plain(run, without_head),
        "the last checkpoint is saved without the head, which the optimizer still trains",
        case="GF37",
        variant="keys-vanished",
        checkpoints=True,
    ),
    Sample(
        "gf37-keys-renamed",
        "gf37",
        lambda run: plain(run, wrapped),
        "the last checkpoint is saved through nn.DataParallel: every name begins with module.",
        case="GF37",
        variant="keys-renamed",
        primary="",
        checkpoints=True,
    ),
    Sample(
        "gf37-twin",
        "gf37",
        lambda run: through_trainer(run, gpt2()),
        "a GPT-2 with tied embeddings: the head is not saved, by design",
        case="GF37",
        twin=True,
        checkpoints=True,
    ),
    Sample(
        "gf37-twin-untied",
        "gf37",
        lambda run: through_trainer(run, llama()),
        "a Llama whose configuration says that the head is its own: both are saved, and differ",
        case="GF37",
        twin=True,
        checkpoints=True,
    ),
)

if __name__ == "__main__":
    main(SAMPLES)
