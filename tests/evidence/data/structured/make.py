"""Makes the logs beside it with the frameworks that write them.

    pip install mmengine==0.10.7 stable-baselines3==2.9 matplotlib opencv-python-headless torch
    python make.py

`metrics.detectron2.json`, `stats.jsonl`, `metric-fid50k_full.jsonl` and `log.baselines.txt` are the beginnings of
public runs: Elbhnasy/Medical_Waste_Detection_Detectron2, Hexanol777/RPG-SpriteGAN and morikatron/GAIL_PPO (all MIT).
`mmcv.log.json` follows what mmcv 1.7's TextLoggerHook writes, which does not run on a current Python.
"""

import importlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def mmengine(folder: Path) -> None:
    """Three epochs of 20 iterations, each followed by a validation."""
    torch: Any = importlib.import_module("torch")
    model: Any = importlib.import_module("mmengine.model")
    runner: Any = importlib.import_module("mmengine.runner")
    evaluator: Any = importlib.import_module("mmengine.evaluator")
    data: Any = importlib.import_module("torch.utils.data")

    class Classifier(model.BaseModel):  # type: ignore[misc]  # the framework is not installed where this is checked
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, x: Any, y: Any, mode: str) -> Any:
            found = self.layer(x)
            if mode == "loss":
                return {"loss_cls": torch.nn.functional.cross_entropy(found, y)}
            return found.argmax(1), y

    class Accuracy(evaluator.BaseMetric):  # type: ignore[misc]  # as above
        def process(self, _: Any, outputs: Any) -> None:
            self.results.append((outputs[0] == outputs[1]).float().mean().item())

        def compute_metrics(self, results: Any) -> dict[str, float]:
            return {"accuracy/top1": 100 * sum(results) / len(results)}

    torch.manual_seed(0)
    samples = [(torch.randn(2), torch.tensor(i % 2)) for i in range(80)]
    runner.Runner(
        model=Classifier(),
        work_dir=str(folder),
        train_dataloader=data.DataLoader(samples, batch_size=4),
        val_dataloader=data.DataLoader(samples[:16], batch_size=4),
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1}},
        train_cfg={"by_epoch": True, "max_epochs": 3, "val_interval": 1},
        val_cfg={},
        val_evaluator={"type": Accuracy},
        default_hooks={"logger": {"type": "LoggerHook", "interval": 5}},
    ).train()
    shutil.copy(next(folder.glob("*/vis_data/scalars.json")), HERE / "scalars.json")


def stable_baselines3(folder: Path) -> None:
    """PPO on a pole for ten rollouts, logged in all three formats."""
    gym: Any = importlib.import_module("gymnasium")
    logger: Any = importlib.import_module("stable_baselines3.common.logger")
    monitor: Any = importlib.import_module("stable_baselines3.common.monitor")
    algorithms: Any = importlib.import_module("stable_baselines3")
    model = algorithms.PPO("MlpPolicy", monitor.Monitor(gym.make("CartPole-v1")), n_steps=128, seed=0, device="cpu")
    model.set_logger(logger.configure(str(folder), ["log", "csv", "json"]))
    model.learn(1280)
    for made, kept in {
        "log.txt": "log.sb3.txt",
        "progress.csv": "progress.csv",
        "progress.json": "progress.json",
    }.items():
        shutil.copy(folder / made, HERE / kept)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        mmengine(Path(name) / "mm")
        stable_baselines3(Path(name) / "sb3")


if __name__ == "__main__":
    main()
