"""Labels of the heatmaps: layers x checkpoints, and modules x steps."""

from collections.abc import Mapping

# key: (English, Chinese)
LABELS: Mapping[str, tuple[str, str]] = {
    "heatmaps": ("Layers × checkpoints", "层 × 检查点"),
    "heatmaps_lead": (
        "Rows: layers in the order of the network. Columns: checkpoints by step. Colours: a log scale for each map.",
        "行：各层，按网络中的顺序。列：各检查点，按步数。颜色：各图独立的对数刻度。",
    ),
    "heat_gradient_rms": ("Gradient RMS: root of the mean of Adam's v", "梯度 RMS：Adam 二阶矩均值的平方根"),
    "heat_update_rms": ("Update RMS: Adam's update before the learning rate", "更新 RMS：乘学习率之前的 Adam 更新量"),
    "heat_travel": (
        "Relative travel: movement since the checkpoint before, in norms of the weights",
        "相对位移：自上一检查点以来的移动，以权重范数为单位",
    ),
    "heat_gradient_norm": ("Gradient norm as logged", "日志中的梯度范数"),
    "heat_nonfinite_counts": (
        "Non-finite values in weights and moments",
        "权重与矩中的非有限值个数",
    ),
    "heat_nonfinite_logged": ("Logged norms that are not finite", "日志中的非有限范数个数"),
    "heatmaps_logged": ("Gradient norms, layer by layer", "逐层梯度范数"),
    "heatmaps_logged_lead": (
        "Rows: layers in the order in which they were logged. Columns: steps. Colours: a log scale.",
        "行：各层，按记录顺序。列：步数。颜色：对数刻度。",
    ),
    "heat_merged_layers": (
        "{n} layers are shown in {rows} rows: neighbours are put together.",
        "{n} 个层合并为 {rows} 行：相邻层并在一起。",
    ),
    "heat_merged_checkpoints": (
        "{n} checkpoints are shown in {columns} columns: neighbours are put together.",
        "{n} 个检查点合并为 {columns} 列：相邻检查点并在一起。",
    ),
    "heat_merged_steps": (
        "{n} logged steps are shown in {columns} columns: neighbours are put together.",
        "{n} 个记录步合并为 {columns} 列：相邻步并在一起。",
    ),
    "heat_merged_how": (
        "A cell then shows the largest of its values; counts are added up.",
        "此时每格显示其中最大值；个数则相加。",
    ),
    "heat_good": ("last good", "最后正常"),
    "heat_bad": ("first bad", "首个异常"),
    "heat_zero": ("zero", "零"),
    "heat_none": ("not measured", "未测量"),
    "heat_nonfinite": ("NaN or inf", "NaN 或无穷"),
    "heat_numbers": ("The numbers as tables", "以表格查看数值"),
    "heat_layer": ("Layer", "层"),
    "heat_more_columns": (
        "{n} more columns; the JSON report has them all.",
        "另有 {n} 列；JSON 报告中有全部数据。",
    ),
}  # fmt: skip
