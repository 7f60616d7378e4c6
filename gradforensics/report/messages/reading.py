"""What the readers of logs, tables, archives and training data remark."""

from collections.abc import Mapping

# English: Chinese
ENTRIES: Mapping[str, str] = {
    "lies beside the evidence and was not used: pass it with --ignore from outside the run directory": (
        "位于证据旁边，未使用：请从运行目录之外用 --ignore 指定"
    ),
    "the entry for {rule} held until {day} and no longer holds: {reason}": (
        "{rule} 的条目有效期至 {day}，已失效：{reason}"
    ),
    "the entry for {rule} names no finding of this analysis: {reason}": (
        "{rule} 的条目与本次分析的任何发现都不对应：{reason}"
    ),
    "grew while it was read: read up to byte {byte:d}": "读取时仍在增长：读到第 {byte} 字节为止",
    "not read: a damaged Arrow file ({first_line})": "未读取：损坏的 Arrow 文件（{first_line}）",
    "not read: a damaged Parquet file ({first_line})": "未读取：损坏的 Parquet 文件（{first_line}）",
    "not read: no column of text and none of token ids": "未读取：既没有文本列，也没有 token id 列",
    "not read: no valid Arrow file ({first_line})": "未读取：不是有效的 Arrow 文件（{first_line}）",
    "not read: no valid Parquet file ({first_line})": "未读取：不是有效的 Parquet 文件（{first_line}）",
    "as row {what:d}": "与第 {what} 行相同",
    "share of samples": "占样本的比例",
    "the most frequent one {counts:d} times": "最频繁的一个出现 {counts} 次",
    "--data {path} reads all of it": "用 --data {path} 可全部读取",
    "broken JSON ({error}): read up to there": "JSON 损坏（{error}）：读到此处为止",
    "no valid CSV ({error}): read up to there": "不是有效的 CSV（{error}）：读到此处为止",
    "not UTF-8: undecodable bytes are read as U+FFFD (this line is the first)": (
        "不是 UTF-8：无法解码的字节读作 U+FFFD（此行是第一处）"
    ),
    "not read: an empty file": "未读取：空文件",
    "not read: binary content that is no Parquet and no Arrow file": (
        "未读取：二进制内容，既不是 Parquet 也不是 Arrow 文件"
    ),
    "not read: encoded as UTF-16 or UTF-32": "未读取：编码为 UTF-16 或 UTF-32",
    "not read: no JSON lines, JSON array, CSV with a column of text, Parquet or Arrow": (
        "未读取：不是 JSON 行、JSON 数组、带文本列的 CSV、Parquet 或 Arrow"
    ),
    "not read: no record": "未读取：没有记录",
    "not read: {error}": "未读取：{error}",
    "the array is not closed: read up to there": "数组没有结束：读到此处为止",
    "the first {limit:d} MiB were audited": "已审查前 {limit} MiB",
    "write it as UTF-8": "请改存为 UTF-8",
    "{why} ({count:d} in all, this is the first): left out of the audit": (
        "{why}（共 {count} 处，这是第一处）：未纳入审查"
    ),
    "{why}: left out of the audit": "{why}：未纳入审查",
    "share of records": "占记录的比例",
    "characters (median)": "字符（中位数）",
    "share of characters": "占字符的比例",
    "times in a row (words)": "连续次数（词）",
    "all labels are ignored": "所有标签都被忽略",
    "and EOS has a label": "且 EOS 有标签",
    "at {longest} tokens": "位于 {longest} 个 token 处",
    "id {what:d}": "id 为 {what}",
    "ids {sorted}": "id 为 {sorted}",
    "labels or mask of another length than the ids": "标签或掩码与 id 的长度不同",
    "of {vocabulary} ids (vocab_size)": "共 {vocabulary} 个 id（vocab_size）",
    "share of the labels that count": "占有效标签的比例",
    "share of uncut samples": "占未截断样本的比例",
    "the labels are the whole text": "标签就是全部文本",
    "the mask has no 1": "掩码中没有 1",
    "the trained text ends with EOS": "参与训练的文本以 EOS 结尾",
    "times in a row (tokens)": "连续次数（token）",
    "tokens (median)": "token（中位数）",
    "with position_ids": "有 position_ids",
    "without position_ids": "没有 position_ids",
    "1 checkpoint file inside of the archive is not read: unpack it": "归档中有 1 个检查点文件未读取：请解包",
    "1 checkpoint file inside of the archive is not read: unpack it ({names:d} such members)": (
        "归档中有 1 个检查点文件未读取：请解包（这样的成员有 {names} 个）"
    ),
    "a link inside of the archive: not followed": "归档中的链接：不跟随",
    "a member of this name is there twice: the last counts": "同名成员出现两次：以最后一个为准",
    "an archive inside of the archive: not read": "归档中的归档：未读取",
    "cut inside of {name}: {size:d} of its {size2:d} bytes are there": (
        "在 {name} 中被截断：其 {size2} 字节中只有 {size} 字节"
    ),
    "damaged at byte {what} of its content": "其内容在字节 {what} 处损坏",
    "damaged: a header in it states an impossible length": "损坏：其中一个头写有不可能的长度",
    "damaged: a length in it leads backwards": "损坏：其中一个长度指向后方",
    "its name leads out of the archive: not read": "其名称指向归档之外：未读取",
    "larger than {what} members": "超过 {what} 个成员",
    "more than {limit:d} MiB when it is unpacked, as no logs are": "解包后超过 {limit} MiB，日志不会如此",
    "no regular file: not read": "不是普通文件：未读取",
    "this version does not read .{kind} files": "此版本不读取 .{kind} 文件",
    "too large for the folder of temporary files ({error})": "超出临时文件夹的容量（{error}）",
    "without the mark of its end, as if it was cut there": "没有结束标记，像是在那里被截断",
    "{checkpoints} checkpoint files inside of the archive are not read: unpack it": (
        "归档中有 {checkpoints} 个检查点文件未读取：请解包"
    ),
    (
        "{checkpoints} checkpoint files inside of the archive are not read: unpack it ({names:d} such members)"
    ): "归档中有 {checkpoints} 个检查点文件未读取：请解包（这样的成员有 {names} 个）",
    "names {what} as the latest checkpoint, which is not there": "指定 {what} 为最新检查点，但它不在那里",
    "no known dialect: read by the names beside its numbers": "没有已知的日志方言：按数字旁的名称读取",
    "the printed rows name no step: they are numbered in their order": "打印的各行没有写明步：按顺序编号",
    '{count:d} more events of the kind "{kind}" were left out': "略去另外 {count} 个“{kind}”类事件",
    "a symbolic link out of the directory: not followed": "指向目录之外的符号链接：不跟随",
    "a symbolic link that leads back to itself: not followed": "指回自身的符号链接：不跟随",
    "a symbolic link that leads nowhere": "指向不存在之处的符号链接",
    "{text} ({names:d} such links)": "{text}（这样的链接有 {names} 个）",
    "1 more minute": "还有 1 分钟",
    "a test was logged after the last training point": "最后一个训练点之后记录了一次测试",
    "step {steps:d} of {planned:d} planned steps is the last": "计划 {planned} 步，最后是步 {steps}",
    "the record ends with epoch {last:d} of {epochs:d} planned epochs": (
        "记录止于 epoch {last}，计划 {epochs} 个 epoch"
    ),
    "the record stops at step {steps:d} of {planned:d} planned steps": "记录停在步 {steps}，计划 {planned} 步",
    "the record stops where the log expected {duration}": "记录停止时，日志预计{duration}",
    "{seconds:d} more hours": "还有 {seconds} 小时",
    "{minutes:d} more minutes": "还有 {minutes} 分钟",
    "{passed} bytes are damaged or missing": "{passed} 字节损坏或缺失",
    "{passed} bytes up to the end of the file are damaged": "直到文件末尾有 {passed} 字节损坏",
    "a JSON file of {size:d} MB": "JSON 文件长达 {size} MB",
    "neither the name nor the groups tell of which rank the dump is: not analysed": (
        "名称和组都不能说明转储属于哪个 rank：未分析"
    ),
    "no dump of the Flight Recorder: neither process groups nor entries that can be read": (
        "不是 Flight Recorder 转储：既没有进程组，也没有可读的条目"
    ),
    "no dump of the Flight Recorder: no dictionary with entries": "不是 Flight Recorder 转储：没有含条目的字典",
    "no version of the dump: only versions 2.x are known": "转储没有版本：只认识 2.x 版",
    "pg_config is no dictionary": "pg_config 不是字典",
    "read by the fields of those": "按那些版本的字段读取",
    "the dump holds no entries": "转储中没有条目",
    "the name says rank {rank:d}, which is no member of all groups of the dump": (
        "名称写 rank {rank}，但它不是转储中所有组的成员"
    ),
    "version {version} of the dump: only versions 2.x are known": "转储为版本 {version}：只认识 2.x 版",
    "{raw:d} entries: only the last {what} are read": "{raw} 个条目：只读取最后 {what} 个",
    "{bad:d} of {raw:d} entries have missing fields or fields of impossible types": (
        "{raw} 个条目中 {bad} 个缺字段或字段类型不可能"
    ),
    "{bad:d} of {config:d} process groups of pg_config cannot be read": (
        "pg_config 的 {config} 个进程组中 {bad} 个无法读取"
    ),
    'no file has a column "{column}" (--map {column2}={series})': (
        "没有文件含有列“{column}”（--map {column2}={series}）"
    ),
    "another launch in the folder of": "同一文件夹中的另一次启动：",
    "rank {rank:d} beside": "rank {rank}，并列于",
    "same values as": "数值同于",
    "same values at 1 common step as": "在 1 个共同步上数值同于",
    "same values at {points:d} common steps as": "在 {points} 个共同步上数值同于",
    "of the writers of this file {what}": "此文件的写入者中，{what}",
    "continues or is continued by {what} and {others:d} more: read as attempts of one run": (
        "与 {what} 及另外 {others} 个首尾相接：读作同一运行的多次启动"
    ),
    "continues or is continued by {what}: read as attempts of one run": "与 {what} 首尾相接：读作同一运行的多次启动",
    "differs from {name} from step {parted:d} on: an earlier attempt": (
        "从步 {parted} 起与 {name} 不同：较早的一次启动"
    ),
    "so are the files of {chains:d} more ranks or loggers": "另外 {chains} 个 rank 或记录器的文件也是如此",
    "the clock of 1 rank is off by up to {worst:d} s: events have the time of rank {what:d}": (
        "1 个 rank 的时钟偏差最大 {worst} 秒：事件采用 rank {what} 的时间"
    ),
    "the clocks of {clear:d} ranks are off by up to {worst:d} s: events have the time of rank {what:d}": (
        "{clear} 个 rank 的时钟偏差最大 {worst} 秒：事件采用 rank {what} 的时间"
    ),
    "the last line is torn: not complete JSON": "最后一行残缺：不是完整的 JSON",
    "{wrong:d} lines are no JSON objects, this is the first": "{wrong} 行不是 JSON 对象，这是第一行",
    'column "{tag}": {count:d} NaN where nothing was measured: read as missing': (
        "列“{tag}”：未测量处有 {count} 个 NaN：读作缺失"
    ),
    "one point repeats a step that was logged before: the last line counts": "一个点重复了已记录的步：以最后一行为准",
    "steps begin anew in every epoch: counted through with {high} steps per epoch": (
        "步在每个 epoch 重新开始：按每个 epoch {high} 步连续计数"
    ),
    "steps go back {starts:d} times: read as out of order": "步倒退 {starts} 次：读作乱序",
    "{worst:d} points repeat a step that was logged before: the last line counts": (
        "{worst} 个点重复了已记录的步：以最后一行为准"
    ),
    "{count:d} times": "{count} 次",
    "{ids:d} writers interleave in this file": "此文件中有 {ids} 个写入者交错",
    "a pickle inside of an archive: not read": "归档中的 pickle：未读取",
    "an archive that cannot be read: damaged, or of another kind": "无法读取的归档：损坏或属于其他种类",
    "binary content under the name of a text": "文本名称下的二进制内容",
    "no reader knows this content": "没有读取器认识此内容",
    "no training data by its columns": "按其列不是训练数据",
    "no valid gzip data": "不是有效的 gzip 数据",
    "nothing could be read": "什么都读不出",
    "the gzip data is damaged or cut: read up to there": "gzip 数据损坏或被截断：读到该处为止",
    'the reader "{name}" failed, which is a defect of this tool: {name2}: {error}': (
        "读取器“{name}”失败，这是本工具的缺陷：{name2}: {error}"
    ),
    "this version does not read other {suffix} files": "此版本不读取其他 {suffix} 文件",
    "this version does not read other {suffix} files ({names:d} such files)": (
        "此版本不读取其他 {suffix} 文件（这样的文件有 {names} 个）"
    ),
    '"{table}" is no table as MLflow makes it: not read': "“{table}”不是 MLflow 所建的表：未读取",
    "a row that cannot be read": "无法读取的一行",
    "damaged: {said}": "损坏：{said}",
    'table "{table}":  {where}': "表“{table}”：{where}",
    'table "{table}": not read to its end: it takes longer than a table of this size can': (
        "表“{table}”：未读到末尾：所需时间超过此大小的表所能用"
    ),
    "the list of tables is damaged: {said}": "表的列表损坏：{said}",
    "{behind:d} rows were read from its end": "从其末尾读取了 {behind} 行",
    "only the first {what} of {params:d} parameters were read": "{params} 个参数中只读取前 {what} 个",
    "a field of the wire type {wire}": "wire 类型为 {wire} 的字段",
    "a field that is longer than its message, or has the number 0": "字段比其消息更长，或编号为 0",
    "a number does not end": "数字没有结束",
    "the last table is torn: it has no end": "最后一个表残缺：没有末尾",
    "a table without rows": "没有行的表",
    "not read as a table: a cell is longer than any number": "未按表读取：有单元格比任何数字都长",
    "the header is repeated {count:d} times: several launches wrote this file": (
        "表头重复 {count} 次：多次启动写入了此文件"
    ),
    "the last line is torn: it has fewer cells than the header": "最后一行残缺：单元格少于表头",
    "{count:d} rows have {what} cells than the header, this is the first": "{count} 行的单元格{what}表头，这是第一行",
    "not read: no JSON object": "未读取：不是 JSON 对象",
    "not read: no valid JSON ({error})": "未读取：不是有效的 JSON（{error}）",
    "{rows:d} rows of log_history were read before": "之前读取了 log_history 的 {rows} 行",
    '"{key}" holds something else than numbers': "“{key}”中不是数字",
    "{records:d} rows were read before": "之前读取了 {records} 行",
    "{tracks:d} series were read before": "之前读取了 {tracks} 个序列",
    'table "metrics": more names than a file of this size can hold: not read on': (
        "表“metrics”：名称多于此大小的文件所能容纳：不再读取"
    ),
    'table "metrics": {bad:d} rows hold no name, number or run: left out': (
        "表“metrics”：{bad} 行没有名称、数字或运行：已略去"
    ),
    'table "{table}": its rows have more bytes than the file: not read on': (
        "表“{table}”：其行的字节多于文件：不再读取"
    ),
    "{count:d} run {what}": "{count} 个运行{what}",
    "{count:d} runs {what}": "{count} 个运行{what}",
    "{kept:d} runs: only the {what} that were started last were read": "{kept} 个运行：只读取最后启动的 {what} 个",
    "no status that MLflow knows": "不是 MLflow 认识的状态",
    "the last line is torn: no time, value and step": "最后一行残缺：没有时间、值和步",
    "this run was deleted in MLflow": "此运行在 MLflow 中已被删除",
    "{bad:d} lines have no time, value and step: the first is this": "{bad} 行没有时间、值和步：这是第一行",
    "{dropped:d} more findings were left out": "略去另外 {dropped} 项发现",
    "versions that a person demanded, not what was installed": "这是人所要求的版本，而非实际安装的版本",
    "the stacks of {dropped:d} more processes were left out": "略去另外 {dropped} 个进程的调用栈",
    "W&B's own log": "W&B 自己的日志",
    "media that the program logged": "程序记录的媒体",
    "not read to its end: {error}": "未读到末尾：{error}",
    "no exit record: the program was killed, or it was still running": "没有退出记录：程序被终止，或仍在运行",
    "of the machine: {text}": "机器的 {text}",
    'column "{name}": {others} values are no numbers (first: "{sample}")': (
        "列“{name}”：{others} 个值不是数字（第一个：“{sample}”）"
    ),
    "code is not as a replay writes it: in part left out": "code 不是重放所写的样子：部分略去",
    "environment: the first {what} of {environment:d} are read": "environment：{environment} 个中读取前 {what} 个",
    "it is used all the same": "仍然采用",
    "larger than {what} MiB: read up to here": "大于 {what} MiB：读到此处为止",
    "more than {what} results: read up to here": "结果超过 {what} 个：读到此处为止",
    "no complete JSON": "不是完整的 JSON",
    "the last line is torn or no result: {what}": "最后一行残缺或不是结果：{what}",
    "the replay did not come to its end: it tells what was found until then": (
        "重放没有运行到末尾：这里是到那时为止的发现"
    ),
    "the replay left no result": "重放没有留下结果",
    "this is a replay of the run {what}, not of {name}": "这是对运行 {what} 的重放，而不是对 {name} 的",
    "{key} is not as a replay writes it: left out": "{key} 不是重放所写的样子：已略去",
    "{wrong:d} lines are no results, this is the first: {what}": "{wrong} 行不是结果，这是第一行：{what}",
    "{quantities:d} quantities: the first {what} are read": "{quantities} 个量：读取前 {what} 个",
    "{key}: the first {what} of {given:d} are read": "{key}：{given} 个中读取前 {what} 个",
    "only the first {what} settings were read": "只读取前 {what} 项设置",
    "--data FILE audits it": "用 --data FILE 审查它",
    "named with --data": "由 --data 指定",
    "not read": "未读取",
    "training data: not audited, because many files are": "训练数据：未审查，因为文件很多",
    "a record has no beginning": "记录没有开头",
    "a record has no end": "记录没有结尾",
    "a record is larger than {what} MiB": "记录大于 {what} MiB",
    "the checksum of a record is wrong": "记录的校验和有误",
    "the file ends inside of a record": "文件在一条记录之内结束",
    "the header of the file is not W&B's": "文件头不是 W&B 的",
    "zeros instead of a record": "本应是记录处全为零",
    "an item is longer than its record": "条目比其记录更长",
    "only the first {what} of {leaves:d} settings were read": "{leaves} 项设置中只读取前 {what} 项",
    "once": "一次",
    "fewer": "少于",
    "more": "多于",
    "deleted in MLflow: not read": "在 MLflow 中已被删除：未读取",
    "without metrics: left out": "没有指标：已略去",
    "one wrote the same values and is left out": "有一个写入了相同的值，已略去",
    "{count:d} wrote the same values and are left out": "有 {count} 个写入了相同的值，已略去",
    "the rows of every other one are a run of their own": "其余每个的行自成一个运行",
    "{count:d} files {pattern} are the rank {rank:d} of one job": "{count} 个文件 {pattern} 是同一作业的 rank {rank}",
    "one of {pattern}": "{pattern} 之一",
    "same values as {other}": "数值同于 {other}",
    "same values at 1 common step as {other}": "在 1 个共同步上数值同于 {other}",
    "same values at {points:d} common steps as {other}": "在 {points} 个共同步上数值同于 {other}",
    "another launch in the folder of {other}": "与 {other} 同一文件夹中的另一次启动",
    "rank {rank:d} beside {other}": "rank {rank}，与 {other} 并列",
    "continues, from step {step:d} on, {other}": "从步 {step} 起接续 {other}",
    "is continued by, from step {step:d} on, {other}": "从步 {step} 起由 {other} 接续",
    "larger than {size:d} MB: no sha256": "大于 {size} MB：无 sha256",
    '{count:d} {kind} summaries: not read (first: tag "{tag}")': (
        "{count} 条 {kind} 摘要：未读取（第一条：标签“{tag}”）"
    ),
    "{failed} behind row {last:d}": "行 {last} 之后{failed}",
    "{failed} at its first row": "在其第一行{failed}",
    (
        "the versions that were installed (gradforensics env, pip freeze; a requirements.txt only states "
        "wishes): {package}"
    ): "实际安装的版本（gradforensics env、pip freeze；requirements.txt 只表示愿望）：{package}",
    "torch and its nvidia packages": "torch 及其 nvidia 包",
    "torch from PyPI in a release from 2.0 to 2.13, and its nvidia packages": (
        "PyPI 上 2.0 至 2.13 版的 torch 及其 nvidia 包"
    ),
    "the closing results of the training were written (train_runtime)": "训练的收尾结果已写出（train_runtime）",
    "the Trainer printed its closing summary (train_runtime)": "Trainer 打印了收尾摘要（train_runtime）",
    "empty": "空",
    "{count:d} files {pattern} are the ranks {ranks} of one job": (
        "{count} 个文件 {pattern} 是同一作业的 rank {ranks}"
    ),
    "{count:d} files {pattern} are the nodes of one job": "{count} 个文件 {pattern} 是同一作业的各节点",
    "{first:d} to {last:d}": "{first} 至 {last}",
    "dialect: {name}": "日志方言：{name}",
    "not closed: {database} ({state}, {size:d} bytes) that was not read": (
        "未关闭：{database}（{state}，{size} 字节）未读取"
    ),
    "steps go back {times}: {attempts:d} attempts in this file": "步倒退{times}：此文件含 {attempts} 次启动",
    "auditing {file}": "审查 {file}",
    "became shorter while it was read: {left:d} of {size:d} bytes are left": (
        "读取时变短：{size} 字节中剩 {left} 字节"
    ),
    "no header: say what the columns are, for example --map {column}=loss": (
        "没有表头：请说明各列是什么，例如 --map {column}=loss"
    ),
}
