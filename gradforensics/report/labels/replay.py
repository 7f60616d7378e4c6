"""Labels of the section on replays."""

from collections.abc import Mapping

# key: (English, Chinese)
LABELS: Mapping[str, tuple[str, str]] = {
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
}  # fmt: skip
