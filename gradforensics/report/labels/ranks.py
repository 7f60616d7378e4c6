"""Labels of the section on ranks, and of the list of nodes to drain."""

from collections.abc import Mapping

# key: (English, Chinese)
LABELS: Mapping[str, tuple[str, str]] = {
    "drain": ("Nodes to drain", "应隔离的节点"),
    "drain_look": ("Ranks to look at first", "应先查看的 rank"),
    "drain_lead_ranks": (
        "Named by findings of this report only. Look at what they do there; drain a node if its hardware is at fault.",
        "仅列出本报告的发现所指明的 rank。先查看它们当时在做什么；若是硬件故障，再将节点移出作业。",
    ),
    "drain_lead": (
        "Named by findings of this report only. Take them out of the job, then test them.",
        "仅列出本报告的发现所指明的节点。请先将其移出作业，再做检测。",
    ),
    "drain_no_hosts": (
        "The record does not name all hosts: the scheduler knows where these ranks ran, or where the file comes from.",
        "记录中未写明全部主机：请在调度系统中查找这些 rank 所在的主机，或该文件来自哪台主机。",
    ),
    "drain_host": ("Host", "主机"),
    "drain_unknown": ("not in the record", "记录中没有"),
    "drain_ranks": ("Ranks", "Rank"),
    "drain_why": ("Why", "原因"),
    "drain_finding": ("Finding", "发现"),
    "drain_evidence": ("Evidence", "证据"),
    "drain_hardware": ("hardware error", "硬件错误"),
    "drain_outlived": (
        "hardware error that did not end the run: have it checked before the next one",
        "未使训练终止的硬件错误：下次训练前请检查",
    ),
    "drain_silent": ("silent first: the others waited for it", "最先沉默：其他 rank 在等它"),
    "drain_slow": ("slower than the others by {excess}", "比其他 rank 慢 {excess}"),
    "t_drain": ("drain", "隔离节点"),
    "t_drain_ranks": ("ranks {ranks} (host not in the record)", "rank {ranks}（记录中没有主机名）"),
    "t_drain_file": ("the host of {source}", "{source} 所属的主机"),
    "ranks": ("Ranks over the steps", "各 rank 随步数的变化"),
    "ranks_named": ("Ranks", "各 rank"),
    "ranks_lead_times": (
        "One row per rank; colours are the median of {series} in each stretch of steps, on a log scale.",
        "每个 rank 一行；颜色为每段步数内 {series} 的中位数（对数刻度）。",
    ),
    "ranks_lead_logged": (
        "One row per rank; no times were logged rank by rank, so that a row shows only where it wrote something.",
        "每个 rank 一行；未按 rank 记录时间，因此每行只显示何处有记录。",
    ),
    "ranks_lead_named": (
        "The ranks that the record names; nothing was logged rank by rank.",
        "记录中提到的 rank；未按 rank 记录任何数据。",
    ),
    "ranks_of_world": ("{known} of {world} ranks are in the record.", "记录中有 {world} 个 rank 中的 {known} 个。"),
    "ranks_cut": (
        "{deviating} of {known} ranks deviate, {shown} have a row; the last row holds the medians of the others.",
        "{known} 个 rank 中有 {deviating} 个偏离，{shown} 个各占一行；最后一行为其余 rank 的中位数。",
    ),
    "ranks_no_hosts": ("The hosts of the ranks are not in the record.", "记录中没有各 rank 的主机名。"),
    "ranks_rest": ("{n} others", "其余 {n} 个"),
    "ranks_logged": ("logged", "有记录"),
    "ranks_absent": ("nothing logged", "无记录"),
    "ranks_errors": ("errors", "错误"),
    "ranks_numbers": ("The ranks as a table", "以表格查看各 rank"),
    "rank": ("Rank", "Rank"),
    "ranks_host": ("Host", "主机"),
    "rank_state": ("State", "状态"),
    "rank_last_step": ("Last step", "最后一步"),
    "rank_last_time": ("Last written (UTC)", "最后写入（UTC）"),
    "rank_collective": ("Collective", "集合操作"),
    "rank_step_time": ("Median time", "时间中位数"),
    "rank_errors": ("Errors", "错误"),
    "rank_missed": ("never reached {call}", "未到达 {call}"),
    "rank_silent": ("silent first", "最先沉默"),
    "rank_parted": ("calls something else", "调用不同操作"),
    "rank_failed": ("failed first", "最先失败"),
    "rank_slow": ("slower", "较慢"),
    "rank_waiting": ("waits", "等待中"),
}  # fmt: skip
