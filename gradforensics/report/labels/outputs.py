"""Labels of findings that are ignored, and of the outputs for other tools: Markdown, SARIF, JUnit."""

from collections.abc import Mapping

# key: (English, Chinese)
LABELS: Mapping[str, tuple[str, str]] = {
    "ignored": ("ignored", "已忽略"),
    "ignored_why": (" [ignored: {reason}]", " [已忽略：{reason}]"),
    "ignored_n": ("{n} findings ignored", "已忽略 {n} 项发现"),
    "ignored_n_one": ("1 finding ignored", "已忽略 1 项发现"),
    "other_fixes": ("Further fixes", "其他修复方法"),
    "other_findings": ("Other findings", "其他发现"),
    "cut_here": (
        "Cut here: the rest did not fit into {limit} characters. The whole report has it.",
        "此处截断：其余内容超出 {limit} 个字符，见完整报告。",
    ),
    "how_to_report": (
        "{tool} wrote this. One self-contained page with everything:",
        "由 {tool} 生成。包含全部内容的单文件页面：",
    ),
    "not_judged_n": ("{n} of {rules} not judged", "{rules}中的 {n} 条未判定"),
    "analysed_folder": ("The folder that was analysed.", "被分析的文件夹。"),
    "table": ("Table", "表"),
    "rows": ("Rows", "行数"),
    "columns": ("Columns", "列数"),
    "tables_n": ("{n} tables", "{n} 个表"),
    "tables_n_one": ("1 table", "1 个表"),
    "t_absent": ("no data", "无数据"),
    "exported": ("{tables} of {runs} written to", "{runs}的 {tables}已写入"),
    "notice_more": ("{n} more notices are in the JSON report.", "其余 {n} 条读取说明见 JSON 报告。"),
}  # fmt: skip
