"""Makes the event files in the folders beside it with PyTorch's SummaryWriter and TensorBoard's own writer.

    python make.py

Needs torch and tensorboard. Steps, values and wall times are the same every time; file names hold host and time, so the
files are renamed after what they hold.
"""

import importlib
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
START = 1.7e9
CONFIG = '{\n  "learning_rate": 5e-05,\n  "max_steps": 20,\n  "warmup_steps": 4,\n  "output_dir": "out"\n}'
TABLE = "|param|value|\n|-|-|\n|learning_rate|0.00025|\n|total_timesteps|100000|\n|seed|1|\n|gamma|0.99|"


def torch_run(folder: str) -> None:
    """What SummaryWriter writes: scalars of both styles, texts, histograms, images, a PR curve, subfolders."""
    torch = importlib.import_module("torch")
    writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(folder)
    torch.manual_seed(0)
    writer.add_text("args", CONFIG)
    writer.add_text("sample", "The quick brown fox")
    for step in range(1, 21):
        at = START + step
        loss = 3.0 / step if step not in (7, 8) else (math.nan, math.inf)[step - 7]
        writer.add_scalar("train/loss", loss, step, walltime=at)
        writer.add_scalar("train/grad_norm", 1.0 + step / 8, step, walltime=at, new_style=True)
        writer.add_scalar("train/lr", 1e-4 / step, step, walltime=at, new_style=True, double_precision=True)
        if step % 10 == 0:
            writer.add_scalar("val/loss", 3.5 / step, step, walltime=at)
            writer.add_histogram("layer/weight", torch.arange(-8, 8) * step / 4, step, walltime=at)
            writer.add_image("picture", torch.zeros(3, 2, 2), step, walltime=at)
            writer.add_scalars("both", {"train": 1.0 / step, "val": 2.0 / step}, step, walltime=at)
    writer.add_pr_curve("curve", torch.tensor([1, 0]), torch.tensor([0.75, 0.25]), 20, num_thresholds=5, walltime=START)
    writer.add_hparams({"lr": 0.5, "batch_size": 16, "optimizer": "adam", "bf16": True}, {"hparam/loss": 0.25})
    writer.close()


def tensorflow_run(folder: str) -> None:
    """What TensorFlow 2 writes, from the same protocol buffers: scalars and histograms as tensors, and hparams."""
    numpy = importlib.import_module("numpy")
    event_pb2 = importlib.import_module("tensorboard.compat.proto.event_pb2")
    summary_pb2 = importlib.import_module("tensorboard.compat.proto.summary_pb2")
    plugins = {
        name: importlib.import_module(f"tensorboard.plugins.{name}")
        for name in ("scalar.summary_v2", "histogram.summary_v2", "text.summary_v2", "hparams.summary_v2",
                     "hparams.metadata", "hparams.api_pb2", "hparams.plugin_data_pb2")
    }  # fmt: skip
    make = importlib.import_module("tensorboard.util.tensor_util").make_tensor_proto
    writer = importlib.import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter(folder)

    def add(summary: Any, step: int) -> None:
        writer.add_event(event_pb2.Event(wall_time=START + step, step=step, summary=summary))

    given = {"learning_rate": 0.01, "num_units": 32, "optimizer": "sgd"}
    add(plugins["hparams.summary_v2"].hparams_pb(given, trial_id="trial", start_time_secs=START), 0)
    add(plugins["text.summary_v2"].text_pb("hyperparameters", TABLE), 0)
    for step in range(20):
        add(plugins["scalar.summary_v2"].scalar_pb("epoch_loss", 2.0 - step / 16), step)
        values = numpy.linspace(-1.0, 1.0 + step, 101)
        add(plugins["histogram.summary_v2"].histogram_pb("dense/kernel", values, buckets=10), step)
        numbers = {
            "double": numpy.float64(step) / 3, "half": numpy.float16(step / 4), "int32": numpy.int32(-step),
            "int64": numpy.int64(step) << 40, "uint8": numpy.uint8(step), "bool": numpy.bool_(step % 2),
        }  # fmt: skip
        several = [summary_pb2.Summary.Value(tag=f"typed/{k}", tensor=make(v)) for k, v in numbers.items()]
        add(summary_pb2.Summary(value=several), step)
    # as hp.KerasCallback ends a session
    status = plugins["hparams.api_pb2"].STATUS_SUCCESS
    ended = plugins["hparams.plugin_data_pb2"].SessionEndInfo(status=status, end_time_secs=START + 20)
    content = plugins["hparams.plugin_data_pb2"].HParamsPluginData(session_end_info=ended)
    metadata = plugins["hparams.metadata"].create_summary_metadata(content)
    empty = plugins["hparams.metadata"].NULL_TENSOR
    value = summary_pb2.Summary.Value(tag="_hparams_/session_end_info", metadata=metadata, tensor=empty)
    add(summary_pb2.Summary(value=[value]), 19)
    writer.close()


def main() -> None:
    """Write both into a temporary folder and keep the event files under fixed names."""
    for make in (torch_run, tensorflow_run):
        with tempfile.TemporaryDirectory() as folder:
            make(folder)
            target = HERE / make.__name__
            shutil.rmtree(target, ignore_errors=True)
            for number, path in enumerate(sorted(Path(folder).rglob("*tfevents*"))):
                place = path.parent.relative_to(folder)
                place = Path("hparams") if place.name.replace(".", "").isdigit() else place
                (target / place).mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target / place / f"events.out.tfevents.{int(START)}.host.1.{number}")


if __name__ == "__main__":
    main()
