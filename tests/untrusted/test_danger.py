"""Which names run code, which only hold data, and what of a pickle is shown."""

import pytest

from gradforensics.untrusted.danger import Executable, executable, is_dangerous
from gradforensics.untrusted.inert import CALLS
from gradforensics.untrusted.pickles import Use
from tests.untrusted.gadgets import GADGETS


@pytest.mark.parametrize("path", sorted({f"{module}.{attribute}" for module, attribute, *_ in GADGETS}))
def test_a_name_that_an_advisory_tells_of_is_dangerous(path):
    assert is_dangerous(path)


@pytest.mark.parametrize(
    "path",
    [
        "os.path.os.system",
        "logging.os.system",
        "numpy.lib.sys.modules",
        "anything.at.all.__globals__",
        "package.__class__.__mro__",
        "os\r.system\r",
        "copyreg.extension.5",
        "torch.UntypedStorage.from_file",
        "somebody.else.subprocess.Popen",
    ],
)
def test_a_name_that_leads_to_a_dangerous_one_is_dangerous(path):
    assert is_dangerous(path)


@pytest.mark.parametrize(
    "path",
    [
        "argparse.Namespace",
        "transformers.training_args.TrainingArguments",
        "transformers.trainer_utils.IntervalStrategy",
        "accelerate.state.PartialState",
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "megatron.core.enums.ModelType",
        "torch.nn.modules.linear.Linear",
        "torch.distributed.tensor._dtensor_spec.DTensorSpec",
        "torch.distributed.checkpoint.metadata.Metadata",
        "__main__.Net",
        "__torch__.torch.nn.modules.linear.___torch_mangle_0.Linear",
        "torch.float32",
        "uuid.UUID",
        "types.SimpleNamespace",
        "datetime.datetime",
        "builtins.ValueError",
        "builtins.set",
        "numpy.random._pickle.__randomstate_ctor",
        "copyreg.__newobj__",
        "osmium.Handler",
        "codecs_of_ours.Codec",
        "torchvision.models.resnet.ResNet",
        "numpy.float64",
    ],
)
def test_a_class_that_only_holds_data_is_not_dangerous(path):
    assert not is_dangerous(path)


def test_a_name_of_many_parts_is_looked_up_quickly():
    assert not is_dangerous(".".join(["a"] * 2000))
    assert is_dangerous("os." + ".".join(["a"] * 2000))


def test_no_builder_that_is_carried_out_is_called_dangerous():
    assert [path for path in CALLS if is_dangerous(path)] == []


def test_executable_content_is_all_but_plain_data_the_dangerous_names_first():
    uses = {name: Use(1, "'x'") for name in CALLS}
    uses |= {
        "torch.float32": Use(),
        "torch.FloatStorage": Use(),
        "torch.cuda.HalfStorage": Use(),
        "torch.storage.TypedStorage": Use(),
        "torch.per_tensor_affine": Use(),
        "torch._utils._rebuild_sparse_tensor": Use(1),
        "numpy.ndarray": Use(),
        "argparse.Namespace": Use(1, ""),
        "posix.system": Use(1, "'true'"),
        "a.Class": Use(),
    }
    assert executable(uses) == [
        Executable("posix.system", True, "'true'"),
        Executable("a.Class", False),
        Executable("argparse.Namespace", False),
    ]


def test_what_the_machine_took_apart_is_not_shown_unless_it_was_also_called_otherwise():
    taken = {"builtins.getattr": Use(), "torch.storage._load_from_bytes": Use()}
    assert executable(taken) == []
    assert [item.name for item in executable({"builtins.getattr": Use(1)})] == ["builtins.getattr"]


def test_a_flood_of_names_is_cut_and_the_dangerous_ones_stay():
    uses = {f"m.f{i}": Use(1) for i in range(5000)} | {"os.system": Use(1)}
    shown = executable(uses)
    assert len(shown) == 1000
    assert shown[0].name == "os.system"
