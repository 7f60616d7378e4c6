"""A checkpoint as the state of a replay: the same bits as torch loads, the same bits as training goes on with."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gradforensics.checkpoints.refs import Run, TensorRef, strided
from gradforensics.errors import ReplayError
from gradforensics.replay.from_checkpoint import read_state, record, to_tensor
from gradforensics.replay.job import StateOf
from gradforensics.replay.program import Program
from gradforensics.replay.step import StepRunner
from gradforensics.untrusted.files import Memory, RefusedError

SHARED = Path(__file__).parents[2].parent / "shared" / "checkpoints"
DATA = Path(__file__).parents[1] / "checkpoints" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the collection of real checkpoints is not here")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Net(nn.Module):
    """The model of the collection of checkpoints, small; `tied` makes its last layer share the embedding."""

    def __init__(self, *, tied=False):
        super().__init__()
        self.emb = nn.Embedding(30, 8)
        self.l1 = nn.Linear(8, 12)
        self.norm = nn.LayerNorm(12)
        self.l2 = nn.Linear(12, 8 if tied else 30)
        self.out = nn.Linear(8, 30, bias=False) if tied else nn.Identity()
        if tied:
            self.out.weight = self.emb.weight
        self.register_buffer("buf", torch.arange(4))

    def forward(self, x):
        return self.out(self.l2(self.norm(torch.relu(self.l1(self.emb(x))))))


def batches(step):
    generator = torch.Generator().manual_seed(step)
    return [torch.randint(0, 30, (6,), generator=generator) for _ in range(2)]


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch), batch)


def rate(step):
    return 0.01 / step


def make(kind=torch.optim.AdamW, *, tied=False, **options):
    torch.manual_seed(0)
    net = Net(tied=tied)
    decayed = [p for p in net.parameters() if p.ndim >= 2]
    others = [p for p in net.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return net, kind(groups, lr=0.01, **options)


def advance(net, optimizer, steps):
    """Steps of a training with two micro-batches and a falling learning rate; the losses of the last step."""
    losses: list[float] = []
    for step in steps:
        optimizer.zero_grad()
        losses = []
        for batch in batches(step):
            one = loss(net, batch)
            losses.append(one.item())
            (one / 2).backward()
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
    return losses


def save(path, net, optimizer, step):
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
    return path


# -- the same bits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.bool]
)
def test_tensors_have_the_bits_that_torch_saved(tmp_path, dtype):
    torch.manual_seed(0)
    whole = (torch.randn(6, 8) * 3).to(dtype)
    saved = {"plain": whole, "turned": whole.t(), "part": whole[1:5, 2:7:2], "one": whole[0, 0], "none": whole[:0]}

    class Module(nn.Module):
        pass

    model = Module()
    for name, value in saved.items():
        model.register_buffer(name, torch.zeros_like(value))
    torch.save({"model": saved, "step": 3}, tmp_path / "state.pt")
    found = read_state(tmp_path / "state.pt", model)
    assert found.step == 3
    for name, value in saved.items():
        assert found.tensors[name].dtype == dtype
        assert torch.equal(found.tensors[name], value)


def test_an_expanded_tensor_is_spread_and_a_half_expanded_one_refused():
    file = Memory("x", torch.tensor([1.5, 2.5]).numpy().tobytes())
    assert torch.equal(to_tensor(strided(file, 0, "float32", (2, 3), (0, 0))), torch.full((2, 3), 1.5))
    with pytest.raises(RefusedError, match="stand for several"):
        to_tensor(strided(file, 0, "float32", (3, 2), (0, 1)))
    assert to_tensor(TensorRef("float32", (2,), (Run(file, 0, 2),))).tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.AdamW, {}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.RMSprop, {"momentum": 0.5}),
        (torch.optim.NAdam, {}),
    ],
)
@pytest.mark.parametrize("tied", [False, True])
def test_rolling_forward_from_an_earlier_checkpoint_gives_the_bits_of_the_training(tmp_path, kind, options, tied):
    net, optimizer = make(kind, tied=tied, **options)
    advance(net, optimizer, range(1, 4))
    path = save(tmp_path / "checkpoint-3.pt", net, optimizer, 3)
    losses = advance(net, optimizer, range(4, 7))
    fresh = Net(tied=tied)
    program = Program(fresh, loss, batches=batches, learning_rate=rate)
    recording = record(StateOf(checkpoint=str(path), first=4), 6, program)
    assert recording.optimizer_class == f"torch.optim.{kind.__name__}"
    assert StepRunner(recording, program, "cpu").compute().losses == losses


def test_without_the_learning_rates_of_the_steps_the_bits_differ_and_a_notice_says_so(tmp_path):
    net, optimizer = make()
    advance(net, optimizer, range(1, 4))
    path = save(tmp_path / "checkpoint-3.pt", net, optimizer, 3)
    losses = advance(net, optimizer, range(4, 7))
    program = Program(Net(), loss, batches=batches)
    recording = record(StateOf(checkpoint=str(path), first=4), 6, program)
    assert StepRunner(recording, program, "cpu").compute().losses != losses
    assert any("learning rate" in notice for notice in recording.notices)
    direct = record(StateOf(checkpoint=str(path), first=4), 4, program)
    assert not any("learning rate" in notice for notice in direct.notices)


def test_an_optimizer_without_states_is_named_by_the_order_of_the_model(tmp_path):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    advance(net, optimizer, range(1, 4))
    path = save(tmp_path / "checkpoint-3.pt", net, optimizer, 3)
    losses = advance(net, optimizer, range(4, 7))
    program = Program(Net(), loss, batches=batches, learning_rate=rate)
    recording = record(StateOf(checkpoint=str(path), first=4), 6, program)
    assert StepRunner(recording, program, "cpu").compute().losses == losses


def test_a_checkpoint_without_an_optimizer_cannot_be_rolled_forward_but_its_next_step_runs(tmp_path):
    torch.save({"model": Net().state_dict(), "step": 3}, tmp_path / "checkpoint-3.pt")
    source = StateOf(checkpoint=str(tmp_path / "checkpoint-3.pt"), first=4)
    program = Program(Net(), loss, batches=batches)
    assert StepRunner(record(source, 4, program), program, "cpu").compute().failure == ""
    with pytest.raises(ReplayError, match=r"checkpoint-3.pt holds no optimizer: let the program return an `optimizer`"):
        record(source, 5, program)


def test_batches_of_capsules_are_taken_where_the_program_gives_none(tmp_path, capsules):
    module = capsules.program()
    folder = capsules.write(tmp_path / "run", 7)
    made = capsules.build()
    path = capsules.torch_checkpoint(
        tmp_path / "checkpoint-6.pt", 6, made["model"], torch.optim.SGD(made["model"].parameters(), lr=0.1)
    )
    source = StateOf(checkpoint=str(path), first=7, capsules=(str(folder),))
    program = Program(capsules.build()["model"], made["loss"])
    recording = record(source, 7, program)
    assert torch.equal(recording.last.micros[1].batch[0], module.batches(7)[1][0])
    with pytest.raises(ReplayError, match="the batch of step 8 is not known"):
        record(source, 8, program)


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model."])
def test_prefixes_of_wrappers_and_of_holding_modules_are_dropped(tmp_path, prefix):
    net, optimizer = make()
    advance(net, optimizer, range(1, 3))
    named = {prefix + name: value for name, value in net.state_dict().items()}
    torch.save({"state_dict": named, "optimizer_states": [optimizer.state_dict()]}, tmp_path / "step=2.ckpt")
    found = read_state(tmp_path / "step=2.ckpt", Net())
    assert found.tensors.keys() == net.state_dict().keys()
    assert all(torch.equal(found.tensors[name], value) for name, value in net.state_dict().items())
    order = [n for g in optimizer.param_groups for p in g["params"] for n, q in net.named_parameters() if q is p]
    assert [name for group in found.groups for name in group] == order
    assert torch.equal(found.optimizer["l1.bias"]["exp_avg"], optimizer.state[net.l1.bias]["exp_avg"])
    assert found.optimizer["l1.bias"]["step"] == 2


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    net, optimizer = make()
    path = save(tmp_path / "checkpoint-3.pt", net, optimizer, 3)
    program = Program(nn.Sequential(Net()), loss, batches=batches)  # its names have a prefix: the same model
    StepRunner(record(StateOf(checkpoint=str(path), first=4), 4, program), program, "cpu")
    program = Program(nn.Bilinear(2, 3, 4), loss, batches=batches)
    program.model.gate = nn.Linear(2, 2)
    with pytest.raises(ReplayError, match="it is of another model"):
        StepRunner(record(StateOf(checkpoint=str(path), first=4), 4, program), program, "cpu")


# -- real checkpoints of every framework -------------------------------------------------------------------------------


class Collected(nn.Module):
    """The model of the collection of checkpoints."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(50, 16)
        self.l1 = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.l2 = nn.Linear(32, 50)
        self.register_buffer("buf", torch.arange(4))


WHOLE = (
    "plain/zip.pt", "plain/legacy.pt", "plain/named_params.pt", "plain/opt_fused_adamw.pt", "accelerate_bf16",
    "accelerate_unsafe", "dcp_fqn", "dcp_plain", "ds_zero0_fp32", "ds_zero1_bf16", "ds_zero3_fp16", "fsdp1_dcp",
    "fsdp1_full/rank0.pt", "fsdp2_full", "lightning_scaler", "lightning_bf16-mixed/epoch=0-step=4.ckpt",
)  # fmt: skip


@needs_shared
@pytest.mark.parametrize("name", WHOLE)
def test_weights_and_optimizer_of_real_checkpoints_are_read_whole(name):
    model = Collected()
    found = read_state(SHARED / name, model)
    assert found.tensors.keys() == model.state_dict().keys()
    parameters = {n: p.shape for n, p in model.named_parameters()}
    assert {n: v.shape for n, v in found.tensors.items() if n != "buf"} == parameters
    assert found.optimizer_class == "torch.optim.AdamW"
    assert {name for group in found.groups for name in group} == parameters.keys()
    assert {n: s["exp_avg_sq"].shape for n, s in found.optimizer.items()} == parameters
    assert {float(s["step"]) for s in found.optimizer.values()} == {float(next(iter(found.optimizer.values()))["step"])}
    assert all(options["lr"] is not None and options["betas"] for options in found.options)


@needs_shared
def test_what_torch_loads_is_what_is_read():
    loaded = torch.load(SHARED / "plain" / "zip.pt", weights_only=False)
    state = next(value for key, value in loaded.items() if isinstance(value, dict) and "emb.weight" in value)
    found = read_state(SHARED / "plain" / "zip.pt", Collected())
    assert all(torch.equal(found.tensors[name], value) for name, value in state.items())


def test_a_distributed_checkpoint_is_put_together_out_of_its_files():
    truth = np.load(DATA / "fsdp2_dcp.npz")
    model = Collected()
    found = read_state(DATA / "fsdp2_dcp", model)
    for name, value in found.tensors.items():
        assert np.array_equal(value.numpy(), truth[f"model.{name}"])
    for name, states in found.optimizer.items():
        assert np.array_equal(states["exp_avg"].numpy(), truth[f"optim.{name}.exp_avg"])
    assert found.tensors.keys() == model.state_dict().keys()
    assert len(found.optimizer) == 7


@needs_shared
@pytest.mark.parametrize("name", ["fsdp1_sharded/rank0.pt", "fsdp2_rawsave/rank0.pt", "fsdp1_local/rank0.pt"])
def test_a_ranks_part_of_the_weights_is_refused(name):
    with pytest.raises(ReplayError, match="each rank's part of the weights"):
        read_state(SHARED / name, Collected())


@needs_shared
def test_types_are_the_files_and_copies_of_the_optimizer_take_the_models():
    assert read_state(SHARED / "ds_zero1_bf16", Collected()).tensors["l1.weight"].dtype == torch.bfloat16
    found = read_state(SHARED / "ds_zero3_bf16", Collected().bfloat16())
    assert found.tensors["l1.weight"].dtype == torch.bfloat16
    assert any("float32 copies" in notice for notice in found.notices)


@needs_shared
def test_the_scale_of_a_scaler_is_kept_and_used():
    path = SHARED / "plain" / "zip.pt"
    assert read_state(path, Collected()).scale == 1024.0
    program = Program(Collected(), loss, batches=batches)
    assert record(StateOf(checkpoint=str(path), first=4), 4, program).last.scale == 1024.0
