"""What a check needs to see, in words."""

from collections.abc import Mapping

# key: (English, Chinese)
LABELS: Mapping[str, tuple[str, str]] = {
    "need_points": ("{name} over at least {n} points", "至少 {n} 个点的 {name}"),
    "need_ranks": ("{name} of at least {n} ranks", "至少 {n} 个 rank 的 {name}"),
    "need_settings": ("the setting {name}", "设置项 {name}"),
    "need_console": ("the console output of the run", "运行的控制台输出"),
    "need_kernel": ("the kernel log of the machine", "机器的内核日志"),
    "need_experiments": ("a replay with the experiment {name}", "含 {name} 实验的重放"),
    "need_baseline": ("of a healthy run: {need}", "正常运行的{need}"),
    "need_checkpoints": ("a checkpoint", "检查点"),
    "need_checkpoints_n": ("{n} checkpoints", "{n} 个检查点"),
    "need_named": (
        "a checkpoint whose optimizer states have the names of their parameters",
        "优化器状态带有参数名的检查点",
    ),
    "need_tensors": ("the weights in a checkpoint", "检查点中的权重"),
    "need_tensors_ranks": ("the weights of at least {n} ranks in a checkpoint", "检查点中至少 {n} 个 rank 的权重"),
    "need_moments": ("Adam's states in a checkpoint", "检查点中的 Adam 状态"),
    "need_groups": ("the optimizer's groups in a checkpoint", "检查点中的优化器参数组"),
    "need_groups_ranks": (
        "the optimizer's groups of at least {n} ranks in a checkpoint",
        "检查点中至少 {n} 个 rank 的优化器参数组",
    ),
    "need_travels": ("two checkpoints of the run", "本次运行的两个检查点"),
    "need_one_update": (
        "two checkpoints with Adam's states exactly one optimizer step apart",
        "恰好相隔一个优化器步、带 Adam 状态的两个检查点",
    ),
    "need_facts": ("what a checkpoint says about itself", "检查点自身的说明信息"),
    "need_calls": ("a checkpoint that holds a pickle", "含 pickle 的检查点"),
    "need_data": ("the training data", "训练数据"),
    "need_environment": ("a record of the environment", "环境记录"),
    "need_events": ("a log of the run", "运行日志"),
    "need_batch": ("a recorded batch", "录制的批次"),
}  # fmt: skip
