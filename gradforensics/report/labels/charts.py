"""Labels of the charts and their keys."""

from collections.abc import Mapping

# key: (English, Chinese)
LABELS: Mapping[str, tuple[str, str]] = {
    "chart_whole": ("Whole run ({unit} {first} to {last})", "整个运行（{unit} {first} 至 {last}）"),
    "chart_two_runs": ("Both runs ({unit} {first} to {last})", "两次运行（{unit} {first} 至 {last}）"),
    "chart_onset": ("Around the onset ({unit} {first} to {last})", "起始附近（{unit} {first} 至 {last}）"),
    "chart_empty": ("No finite point", "没有有限值的点"),
    "chart_decimated": (
        "{shown} of {total} points are drawn: the lowest and the highest of each stretch. Zooming in adds none.",
        "共 {total} 个点，绘出其中 {shown} 个：每一段的最低点和最高点。放大不会增加点。",
    ),
    "chart_table": ("This chart as a table", "以表格查看此图"),
    "chart_table_at": ("Values, each with the {unit} at which it was logged.", "各值及其记录时的{unit}。"),
    "chart_nonfinite": ("NaN or infinite", "NaN 或无穷"),
    "chart_first": ("First", "首值"),
    "chart_last": ("Last", "末值"),
    "chart_at_onset": ("At the onset", "起始处"),
    "log_scale": ("log scale", "对数坐标"),
    "attempt_n": ("attempt {n}", "第 {n} 次启动"),
    "attempt": ("attempt", "启动"),
    "lane_checkpoints": ("checkpoints", "检查点"),
    "lane_evaluations": ("evaluations", "评估"),
    "key_onset": ("onset of {rule}: after {first}, by {last}", "{rule} 的起始：{first} 之后，不晚于 {last}"),
    "key_onset_at": ("onset of {rule}: {last}", "{rule} 的起始：{last}"),
    "key_onset_open": ("onset of {rule}: by {last}", "{rule} 的起始：不晚于 {last}"),
    "key_parting": ("where the two runs part", "两次运行开始不同之处"),
    "key_other": ("onsets of other alarms", "其他警报的起始"),
    "key_attempt": ("a new attempt begins", "新的一次启动"),
    "key_redone": ("points that a later attempt replaced", "被后续启动取代的点"),
    "key_bad": ("NaN or infinite values", "NaN 或无穷值"),
    "key_ring": ("values that the finding names", "该发现所指的值"),
    "key_checkpoint": ("checkpoints: {n}", "检查点：{n} 个"),
    "key_good": ("last good checkpoint: step {step}", "最后一个完好的检查点：第 {step} 步"),
    "key_evaluation": ("evaluations: {n}", "评估：{n} 次"),
    "key_evaluation_some": ("evaluations: {n}, {shown} of them drawn", "评估：{n} 次，绘出 {shown} 次"),
    "key_checkpoint_some": ("checkpoints: {n}, {shown} of them drawn", "检查点：{n} 个，绘出 {shown} 个"),
    "zoom_in": ("Zoom in", "放大"),
    "zoom_out": ("Zoom out", "缩小"),
    "zoom_reset": ("Whole chart", "整图"),
    "zoom_hint": (
        "Drag: zoom. Double-click or Esc: whole chart. Arrow keys: values.",
        "拖动：放大。双击或 Esc：整图。方向键：读数。",
    ),
}  # fmt: skip
