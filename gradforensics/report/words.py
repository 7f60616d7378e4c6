"""The words of a report in both languages, and how numbers, places and onsets are written. Nothing here judges."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradforensics.report.model import RunReport, VerdictRow

# key: (English, Chinese)
_WORDS: dict[str, tuple[str, str]] = {
    "report": ("Training run report", "训练运行诊断报告"),
    "runs": ("Runs", "运行总览"),
    "run": ("Run", "运行"),
    "verdict": ("Verdict", "结论"),
    "proven": ("proven", "已证实"),
    "probable": ("probable", "很可能"),
    "suspect": ("suspect", "可疑"),
    "fired": ("fired", "触发"),
    "clear": ("clear", "未见异常"),
    "not_judged": ("not judged", "未判定"),
    "S1": ("S1 run invalid or dead", "S1 运行无效或已终止"),
    "S2": ("S2 result materially worse", "S2 结果明显变差"),
    "S3": ("S3 waste", "S3 浪费"),
    "S4": ("S4 note", "S4 提示"),
    "headline": ("{Strength}: {title}", "{Strength}：{title}"),
    "healthy": (
        "No alarm: {clear} judged clear on this evidence, {not_judged} not judged.",
        "无警报：依据现有证据，{clear}未见异常，{not_judged}条未判定。",
    ),
    "nothing_judged": (
        "No verdict: none of the {rules} could be judged on this evidence.",
        "无结论：{rules}均无法依据现有证据判定。",
    ),
    "weaker": (
        "{findings} below alarm level: see the findings.",
        "{findings}低于警报级别，见“发现”。",
    ),
    "rules": ("{n} rules", "{n} 条规则"),
    "rules_one": ("1 rule", "1 条规则"),
    "findings_n": ("{n} findings", "{n} 项发现"),
    "findings_n_one": ("1 finding", "1 项发现"),
    "alarms_n": ("{n} alarms", "{n} 个警报"),
    "alarms_n_one": ("1 alarm", "1 个警报"),
    "onset": ("Onset", "起始"),
    "onset_between": (
        "between step {after} (last good) and step {onset}",
        "第 {after} 步（最后正常）与第 {onset} 步之间",
    ),
    "onset_at": ("at step {onset}", "第 {onset} 步"),
    "onset_by": ("by step {onset} (no good step logged before it)", "不晚于第 {onset} 步（此前没有正常的记录）"),
    "onset_none": ("not tied to a step", "与具体步数无关"),
    "ending": ("How it ended", "如何结束"),
    "completed": ("reached its planned end", "按计划完成"),
    "exception": ("stopped by an exception", "因异常而终止"),
    "oom": ("ran out of memory", "内存耗尽"),
    "killed": ("killed from outside", "被外部终止"),
    "timeout": ("hit a time limit", "超时"),
    "truncated": ("stops before its planned end, no reason given", "在计划结束前中断，原因不明"),
    "unknown": ("the record does not say", "记录未说明"),
    "record": ("Record", "记录"),
    "steps": ("steps {first} to {last}", "第 {first} 至 {last} 步"),
    "no_steps": ("no steps logged", "没有步数记录"),
    "attempts": ("{n} attempts", "{n} 次启动"),
    "attempts_one": ("1 attempt", "1 次启动"),
    "last_good": ("Last good checkpoint", "最后正常的检查点"),
    "next": ("Do next", "下一步"),
    "next_time": ("Log next time", "下次请记录"),
    "then_verify": ("Then verify", "然后验证"),
    "timeline": ("Timeline", "时间线"),
    "no_series": ("No series was logged that could be drawn.", "没有可绘制的数据序列。"),
    "chain": ("Chain of consequences", "因果链"),
    "leads_to": ("leads to", "导致"),
    "side_by_side": (
        "No rule links these alarms: they stand side by side.",
        "没有规则将这些警报相互关联：它们彼此独立。",
    ),
    "bracket": ("From the log to the checkpoints", "从日志到检查点"),
    "bracket_lead": (
        "Around the onset of {rule}, layer by layer, before → after. Gradients are the root of the mean of Adam's v.",
        "围绕 {rule} 的起始，逐层对照：之前 → 之后。梯度取 Adam 二阶矩均值的平方根。",
    ),
    "logged": ("log:", "日志："),
    "nonfinite_n": ("{n} non-finite", "{n} 个非有限值"),
    "layer": ("Layer", "层"),
    "weight_rms": ("Weight RMS", "权重 RMS"),
    "gradient_rms": ("Gradient RMS", "梯度 RMS"),
    "travel": ("Relative travel", "相对位移"),
    "changed_share": ("Changed", "已变"),
    "pair": (
        "A checkpoint one optimizer step after {checkpoint} would prove more ({rules}): {advice}",
        "在 {checkpoint} 之后再有一个相隔一步的检查点，可以证明更多（{rules}）：{advice}",
    ),
    "findings": ("Findings", "发现"),
    "no_findings": ("No rule fired.", "没有规则触发。"),
    "primary": ("primary case", "主因"),
    "below_alarm": ("below alarm level", "低于警报级别"),
    "why": ("Why", "原因"),
    "evidence": ("Evidence", "证据"),
    "sign": ("Sign", "迹象"),
    "series": ("Series", "序列"),
    "step_head": ("Step", "步"),
    "step": ("step", "步"),
    "step_n": ("step {n}", "第 {n} 步"),
    "value": ("Value", "数值"),
    "where": ("Where", "位置"),
    "more_hits": ("{n} more hits are in the JSON report.", "其余 {n} 条证据见 JSON 报告。"),
    "fix": ("Fix", "修复"),
    "verify": ("How to verify", "如何验证"),
    "false_alarms": ("When this is a false alarm", "何时属于误报"),
    "look_alikes": ("Look-alikes", "相似情形"),
    "refuted": ("refuted", "已排除"),
    "refuted_by": ("refuted by", "被排除："),
    "not_excluded": ("not excluded", "未能排除"),
    "references": ("References", "参考"),
    "also_missing": ("Signs that could not be judged lacked", "未能判定的迹象缺少"),
    "catalogue": ("Catalogue", "规则目录"),
    "catalogue_lead": (
        "“Clear” means: these tests, on this evidence. “Not judged” acquits nobody.",
        "“未见异常”仅指这些检验在现有证据下的结果；“未判定”不代表没有问题。",
    ),
    "not_judged_why": ("Not judged, and what was missing", "未判定的规则及所缺证据"),
    "clear_list": ("Judged clear", "判定为未见异常"),
    "judged_by": ("tests that looked", "已执行的检验"),
    "missing": ("Missing", "缺少"),
    "advice": ("How to have it next time", "下次如何获得"),
    "would_judge": ("would help to judge", "有助于判定"),
    "no_test": ("not judged: this version has no test for it", "未判定：此版本尚无对应检验"),
    "no_test_short": ("no test", "无检验"),
    "untested": ("{n} of them have no test in this version", "其中 {n} 条在此版本中尚无检验"),
    "untested_one": ("1 of them has no test in this version", "其中 1 条在此版本中尚无检验"),
    "t_chain": ("chain", "因果链"),
    "t_ended": ("ended", "结束"),
    "t_last_good": ("last good", "最后正常"),
    "t_fix": ("fix", "修复"),
    "t_verify": ("verify", "验证"),
    "t_blind": ("not judged", "未判定"),
    "t_of": ("{n} of {rules}", "{rules}中的 {n} 条"),
    "all_series": ("All series", "全部序列"),
    "tag": ("Logged as", "原名"),
    "points": ("Points", "点数"),
    "first": ("First", "首值"),
    "last": ("Last", "末值"),
    "min": ("Min", "最小"),
    "max": ("Max", "最大"),
    "nonfinite": ("Non-finite", "非有限"),
    "step_range": ("Steps", "步数范围"),
    "read": ("Settings and notices", "设置与读取说明"),
    "settings": ("Settings", "设置"),
    "key": ("Key", "键"),
    "overridden": ("overridden", "被覆盖"),
    "no_settings": ("No settings were found beside the logs.", "日志旁未找到设置。"),
    "environment": ("Environment", "环境"),
    "events": ("Events", "事件"),
    "event": ("Event", "事件"),
    "text": ("What was written", "原文"),
    "rank_host": ("Rank, host", "进程与主机"),
    "no_alarm": ("no alarm", "无警报"),
    "no_verdict": ("no verdict", "无结论"),
    "baselines": ("Compare with", "可对照"),
    "baselines_why": (
        "no alarm on the same series in this analysis",
        "本次分析中序列相同且无警报",
    ),
    "baselines_how": ("pass one with --baseline", "用 --baseline 指定其一"),
    "t_baselines": ("compare", "对照"),
    "compared": ("Compared with", "对照运行"),
    "t_compared": ("compared with", "对照"),
    "sibling": ("a sibling run; --baseline names another", "同批运行；可用 --baseline 另行指定"),
    "differs": ("{n} settings differ", "{n} 项设置不同"),
    "differs_one": ("1 setting differs", "1 项设置不同"),
    "differing": ("Settings that differ from the compared run", "与对照运行不同的设置"),
    "here": ("This run", "本次运行"),
    "there": ("Compared run", "对照运行"),
    "inventory": ("Inventory of evidence", "证据清单"),
    "rule": ("Rule", "规则"),
    "title": ("Title", "名称"),
    "sha256": ("SHA-256", "SHA-256"),
    "path": ("File", "文件"),
    "bytes": ("Bytes", "字节"),
    "reader": ("Read as", "读取方式"),
    "not_hashed": ("not hashed", "未计算"),
    "unread": ("not read", "未读取"),
    "notices": ("Notices", "读取说明"),
    "no_notices": ("The readers had nothing to remark.", "读取过程无异常。"),
    "more_rows": ("{n} more are in the JSON report.", "其余 {n} 项见 JSON 报告。"),
    "checkpoints": ("Checkpoints and optimizer", "检查点与优化器"),
    "checkpoint": ("Checkpoint", "检查点"),
    "format": ("Format", "格式"),
    "complete": ("Complete", "完整"),
    "yes": ("yes", "是"),
    "no": ("no", "否"),
    "not_known": ("unknown", "未知"),
    "not_measured": ("not measured", "未测量"),
    "size": ("Size", "大小"),
    "parameters": ("Parameters", "参数量"),
    "naming": ("How optimizer states got their names", "优化器状态如何得名"),
    "named": ("States named", "状态命名"),
    "names_exact": ("exactly", "文件写明"),
    "names_confirmed": ("confirmed", "已确认"),
    "names_likely": ("likely", "很可能"),
    "names_none": ("no", "否"),
    "last_good_chip": ("last good", "最后正常"),
    "worst": (
        "Tensors that are not finite in {checkpoint}, the first with any",
        "{checkpoint}（首个含非有限值者）中的非有限张量",
    ),
    "tensor": ("Tensor", "张量"),
    "role": ("Role", "角色"),
    "type": ("Type and shape", "类型与形状"),
    "nan": ("NaN", "NaN"),
    "inf": ("Inf", "Inf"),
    "elements": ("Elements", "元素数"),
    "groups": ("Optimizer of {checkpoint}", "{checkpoint} 的优化器"),
    "group": ("Group", "组"),
    "group_size": ("Tensors", "张量数"),
    "optimizer": ("Optimizer", "优化器"),
    "lr": ("lr", "学习率"),
    "betas": ("betas", "betas"),
    "eps": ("eps", "eps"),
    "weight_decay": ("Weight decay", "权重衰减"),
    "momentum": ("Momentum", "动量"),
    "replay": ("Replay", "重放"),
    "replay_lead": (
        "“Verified”: the failure is there without the change and gone with it. Samples and tokens count from 0.",
        "“已验证”：不作改变时故障出现，作了改变后故障消失。样本和 token 从 0 计数。",
    ),
    "replay_of": ("Step {n}", "第 {n} 步"),
    "unfinished": ("did not come to its end", "未运行到结束"),
    "no_results": ("The replay left no result.", "重放没有留下结果。"),
    "state": ("Started from", "起始状态"),
    "device": ("Device", "设备"),
    "folder": ("Replay directory", "重放目录"),
    "code_ran": ("Code that ran", "运行的代码"),
    "no_code": ("none of the user's", "未运行用户代码"),
    "question": ("Question", "问题"),
    "changed": ("What was changed", "改变了什么"),
    "result": ("Result", "结果"),
    "conclusion": ("Conclusion", "结论"),
    "left_out": ("Not run, or broken off, and why", "未运行或中断的实验及原因"),
    "out_fault": ("fault", "故障"),
    "out_clean": ("clean", "正常"),
    "out_verified": ("verified", "已验证"),
    "out_unverified": ("not verified", "未得到验证"),
    "out_inconclusive": ("inconclusive", "无定论"),
    "out_not-run": ("not run", "未运行"),
    "out_failed": ("failed", "失败"),
    "verified_fix": ("Verified by replay", "经重放验证"),
    "clear_at": (
        "clear at the replayed step {steps}; other steps were not looked at",
        "在重放的第 {steps} 步未见异常；未检查其他步",
    ),
    "clean_at": (
        "the replay of step {steps} found nothing, which acquits no other step",
        "第 {steps} 步的重放未发现问题，但不能说明其他步",
    ),
    "t_replay": ("replay", "重放"),
    "t_verified": ("verified", "已验证"),
    "t_no_answer": ("no experiment gave an answer ({rest} tried)", "没有实验得出结论（共 {rest} 项）"),
    "t_no_fault": (
        "no fault found ({clean} clean, {rest} without an answer)",
        "未发现故障（{clean} 项正常，{rest} 项无结论）",
    ),
    "dangerous": ("dangerous", "危险"),
    "would_run": (
        "Pickles that would run this when they are loaded; nothing was run here.",
        "加载这些 pickle 时会执行以下内容；此处未执行任何内容。",
    ),
    "imports": ("What the pickles would import besides", "pickle 还会导入的其他内容"),
    "t_danger": ("danger", "危险"),
    "t_would_run": (
        "{call} would run when {source} is unpickled; nothing was run here",
        "反序列化 {source} 时会执行 {call}；此处未执行任何内容",
    ),
    "and_more": ("and {n} more", "另有 {n} 项"),
    "more": ("And {n} more.", "另有 {n} 项。"),
    "log_scale": ("log scale", "对数坐标"),
    "row": ("row", "行"),
    "epoch": ("epoch", "轮"),
    "micro_step": ("micro-step", "微批步"),
    "tokens": ("tokens", "词元"),
    "samples": ("samples", "样本"),
    "attempt_n": ("attempt {n}", "第 {n} 次启动"),
    "written_by": (
        "Written by {tool}. Nothing in the evidence was executed or changed.",
        "由 {tool} 生成；未执行或修改任何证据。",
    ),
    "report_at": ("Report: {path}", "报告：{path}"),
    "runs_n": ("{n} runs", "{n} 个运行"),
    "runs_n_one": ("1 run", "1 个运行"),
    "chart_of": ("{series} over {unit}", "{series} 随 {unit} 变化"),
    "fault": ("onset", "起始"),
    "data": ("Training data", "训练数据"),
    "data_lead": (
        "What the audit measured. Shares and counts are facts; which of them matter, the findings say.",
        "审计所测得的数值。比例和计数只是事实；哪些重要，见“发现”。",
    ),
    "quantity": ("Quantity", "量"),
    "unit": ("Unit", "单位"),
    "count": ("Count", "计数"),
    "sample": ("Sample", "样本"),
    "note": ("Note", "说明"),
    "data_samples": ("samples", "样本数"),
    "data_unread": ("records that could not be used", "无法使用的记录"),
    "data_length": ("length", "长度"),
    "data_longest": ("longest", "最长"),
    "data_empty": ("empty", "空样本"),
    "data_empty_answer": ("empty answers", "空回答"),
    "data_zero_width": ("zero-width and format characters", "零宽与格式字符"),
    "data_control": ("control characters", "控制字符"),
    "data_replacement": ("replacement characters", "替换字符"),
    "data_repeats": ("longest repeat; samples with 32 or more", "最长重复；重复 32 次以上的样本"),
    "data_duplicates": ("exact copies", "完全重复"),
    "data_overlap": ("samples that the training data hold, too", "同时出现在训练数据中的样本"),
    "data_tokens": ("length", "长度"),
    "data_max_id": ("largest id", "最大编号"),
    "data_min_id": ("smallest id", "最小编号"),
    "data_tokenizer_size": ("ids of the tokenizer", "分词器编号数"),
    "data_ids_outside": ("ids outside of the vocabulary", "超出词表的编号"),
    "data_cut_off": ("cut at the maximum length", "在最大长度处截断"),
    "data_uneven": ("lists of different lengths", "长度不一的列表"),
    "data_full": ("at the longest length", "达到最长长度"),
    "data_eos_held": ("with an end-of-sequence token", "含序列结束符"),
    "data_eos_last": ("end with the end-of-sequence token", "以序列结束符结尾"),
    "data_common_end": ("end with the most frequent last token", "以最常见的末尾 token 结尾"),
    "data_pad_is_eos": ("pad is the end-of-sequence token", "填充符即序列结束符"),
    "data_left_padded": ("padded on the left", "左填充"),
    "data_unmasked": ("mask without a token", "掩码中没有 token"),
    "data_max_label": ("largest label", "最大标签"),
    "data_labels_outside": ("labels outside of the vocabulary", "超出词表的标签"),
    "data_unlabelled": ("without a label that counts", "没有有效标签"),
    "data_whole_text": ("labels of the whole text", "全文作标签"),
    "data_pads_trained": ("labels on padding", "位于填充处的标签"),
    "data_eos_behind": ("trained text with an end-of-sequence token", "所训练文本带序列结束符"),
    "data_eos_trained": ("end-of-sequence token with a label", "序列结束符有标签"),
}  # fmt: skip

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ud800-\udfff\ufeff]"
)


def printable(text: str) -> str:
    """The text with control, bidirectional and surrogate characters spelled out: log text is hostile input."""
    return _UNPRINTABLE.sub(lambda m: f"\\x{ord(m[0]):02x}" if ord(m[0]) < 256 else f"\\u{ord(m[0]):04x}", text)


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters, the end marked when some were cut."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def columns(text: str) -> int:
    """Width of a text in letters: CJK characters take two."""
    return sum(2 if ord(c) >= 0x2E80 else 1 for c in text)


def number(value: Any) -> str:
    """A number as tables show it: six significant digits, NaN and inf spelled out, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    return f"{value:.6g}"


def compact(value: float | None, digits: int = 3) -> str:
    """A number with few significant digits, NaN spelled out, nothing for None."""
    if value is None:
        return ""
    return "NaN" if math.isnan(value) else f"{value:.{digits}g}"


def share(part: int, whole: int) -> str:
    """A share in percent; 0% and 100% are said only where they are exact."""
    if not part or not whole:
        return "0%"
    if part == whole:
        return "100%"
    return "<0.1%" if part < 0.001 * whole else (">99.9%" if part > 0.999 * whole else f"{part / whole:.1%}")


def magnitude(value: int) -> str:
    """A count with the prefix of its size and a space: "4.2 G", to be followed by its unit."""
    for factor, prefix in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value} "


def counted(n: int, what: str) -> str:
    """An English count: "1 tensor", "1,200 tensors"."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def is_command(text: str) -> bool:
    """Whether a rule's `verify` is a command line of ours rather than prose."""
    return text.startswith("gradforensics ")


def place(source: str | None, line: int | None) -> str:
    """`source:line`, or what of it is known."""
    if source is None:
        return ""
    return f"{source}:{line}" if line else source


class Words:
    """The label table in one language: `words("onset")`, `words("steps", first=5, last=300)`."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._index = 1 if language == "zh" else 0

    def __call__(self, key: str, **facts: Any) -> str:
        """The label `key`, its placeholders filled in."""
        text = _WORDS[key][self._index]
        return text.format(**facts) if facts else text

    def count(self, key: str, n: int) -> str:
        """`{n} rules` with the singular where English has one."""
        return self(f"{key}_one") if n == 1 else self(key, n=n)

    def onset(self, verdict: VerdictRow) -> str:
        """The onset interval of a verdict in words."""
        if verdict.onset is None:
            return self("onset_none")
        if verdict.onset_after is None:
            return self("onset_by", onset=verdict.onset)
        if verdict.onset - verdict.onset_after <= 1:
            return self("onset_at", onset=verdict.onset)
        return self("onset_between", after=verdict.onset_after, onset=verdict.onset)

    def headline(self, run: RunReport) -> str:
        """The verdict on a run in one sentence, with its strength in words."""
        if run.primary is not None:
            strength = self(run.primary.strength or "suspect")
            title = self.sentence(run.primary.title)
            return self("headline", Strength=strength[:1].upper() + strength[1:], title=title)
        clear, blind = len(run.having("clear")), len(run.having("not_judged"))
        if not clear and not run.findings:
            return self("nothing_judged", rules=self.count("rules", len(run.verdicts)))
        return self("healthy", clear=self.count("rules", clear), not_judged=blind)

    def weaker(self, run: RunReport) -> str:
        """What to add where there is no alarm: findings below alarm level, and how many rules have no test at all."""
        told = [self("weaker", findings=self.count("findings_n", len(run.findings)))] if run.findings else []
        untested = sum(not v.testable for v in run.having("not_judged"))
        if untested:
            told.append(self.sentence(self.count("untested", untested)))
        return ("" if self.language == "zh" else " ").join(told)

    def sentence(self, title: str) -> str:
        """A title as a sentence: titles carry no full stop of their own."""
        if title.endswith((".", "。", "!", "?")):
            return title
        return title + ("。" if self.language == "zh" else ".")

    def steps(self, run: RunReport) -> str:
        """The steps that the record covers."""
        return self("no_steps") if run.steps is None else self("steps", first=run.steps[0], last=run.steps[1])


def ordered_chain(chain: Sequence[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """The edges grouped by cause, causes in the order of the edges: [("GF05", ["GF11", "GF12"]), ...]."""
    grouped: dict[str, list[str]] = {}
    for cause, effect in chain:
        grouped.setdefault(cause, []).append(effect)
    return list(grouped.items())
