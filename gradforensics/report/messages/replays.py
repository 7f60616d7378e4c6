"""What the experiments of a replay changed and found, and what a replay remarks."""

from collections.abc import Mapping

# English: Chinese
ENTRIES: Mapping[str, str] = {
    "no program: {problem}": "没有程序：{problem}",
    "the exception came from within optimizer.step(): weights may have changed": (
        "异常来自 optimizer.step() 之内：权重可能已改变"
    ),
    "{build} is no function at the top level of a Python file": "{build} 不是 Python 文件顶层的函数",
    "{key}: a tensor of layout {layout} cannot be recorded": "{key}：布局为 {layout} 的张量无法记录",
    "a capsule of {needed:d} GB does not fit into the {what:d} GB left": (
        "{needed} GB 的 capsule 放不进剩余的 {what} GB"
    ),
    "a checkpoint of {needed:d} GB does not fit into {what:d} GB": "{needed} GB 的检查点放不进 {what} GB",
    "alone a sample gives {failure_of}": "单独一个样本得到 {failure_of}",
    "gradient norm of the micro-batch {old} -> {new}": "micro-batch 的梯度范数 {old} -> {new}",
    "loss of the batch {fmean}, of single samples {fmean2} (mean)": (
        "batch 的损失 {fmean}，各单独样本的损失 {fmean2}（平均）"
    ),
    "loss of the micro-batch {old} -> {new}": "micro-batch 的损失 {old} -> {new}",
    "micro-batch {index:d}, sample {sample} has {shares} of the {what} of {total:d} samples": (
        "micro-batch {index} 的样本 {sample} 占 {total} 个样本{what}的 {shares}"
    ),
    "nothing is left of the micro-batch": "micro-batch 什么都不剩",
    "of {total:d} samples the largest has {shares} of the loss": "{total} 个样本中最大的一个占损失的 {shares}",
    "one sample at a time": "一次一个样本",
    "the other samples alone give {level} (mean)": "其他样本单独得到 {level}（平均）",
    "the other samples alone give {level} (sum)": "其他样本单独得到 {level}（求和）",
    "the step is finite": "该步是有限的",
    "they cannot be compared": "无法比较它们",
    "{sorted} of micro-batch {index:d} left out": "去掉 micro-batch {index} 的{sorted}",
    "{total:d} samples": "{total} 个样本",
    "{found:d} samples stand out": "{found} 个样本突出",
    "not run": "未运行",
    "every backward started from {get}, nothing cleared in between": "每次反向都从{get}开始，中间不清零",
    "every micro-batch counts the same, whatever number of {what} it has": (
        "每个 micro-batch 的分量相同，不论它有多少{what}"
    ),
    (
        "gradient norm of the step {norm} ({source}), of the whole batch {norm2}: ratio {ratio}, cosine {cosine}"
    ): "该步的梯度范数 {norm}（{source}），整个 batch 的 {norm2}：比值 {ratio}，余弦 {cosine}",
    "it has the right direction and {ratio} times the norm": "方向正确，范数是其 {ratio} 倍",
    "it is the gradient of the last micro-batch alone": "它只是最后一个 micro-batch 的梯度",
    "it is the gradient of the whole batch": "它是整个 batch 的梯度",
    "it is {ratio} times too large: the losses were not divided by their number ({count:d})": (
        "它大了 {ratio} 倍：损失没有除以 micro-batch 的数目（{count}）"
    ),
    "it was clipped, so that only its direction is known": "它已被裁剪，因此只知道方向",
    "neither a missing division nor a clearing between the micro-batches explains it": (
        "既不能用缺少除法，也不能用 micro-batch 之间的清零来解释"
    ),
    "relative difference to the gradient of the whole batch {relative} without, 0 with it": (
        "与整个 batch 梯度的相对差异：不用时 {relative}，用时为 0"
    ),
    "the gradients were cleared again before micro-batch {which}": "在 micro-batch {which} 之前梯度又被清零",
    "the loss is a sum over samples, and the step's gradient {ratio} times its gradient": (
        "损失是对样本求和，该步的梯度是其梯度的 {ratio} 倍"
    ),
    (
        "the recorded gradient is not made of these micro-batches by one factor each: gradients of an "
        "earlier step that were never cleared would do that, and so would a change of the gradients before "
        "the optimizer"
    ): (
        "记录的梯度不是由这些 micro-batch 各乘一个系数构成：从未清零的较早一步的梯度会如此，优化器之前对梯度"
        "的改动也会如此"
    ),
    "the replayed losses are not the recorded ones": "重放的损失不是记录的损失",
    "up to the number of ranks ({ranks}), which averaging over them undoes": (
        "只差 rank 数（{ranks}）这一倍数，跨 rank 求平均会消除它"
    ),
    "{counts} labels or samples each": "每个 {counts} 个标签或样本",
    "{micros:d} micro-batches weighted with their share of the labels or samples": (
        "{micros} 个 micro-batch，按各自占标签或样本的份额加权"
    ),
    "{micros:d} micro-batches weighted with their share of the samples": (
        "{micros} 个 micro-batch，按各自占样本的份额加权"
    ),
    "{micros:d} micro-batches weighted with their share of the valid labels": (
        "{micros} 个 micro-batch，按各自占有效标签的份额加权"
    ),
    "{capitalize} of small micro-batches count more than others": "小 micro-batch 的{capitalize}分量更大",
    "{counts} samples each": "每个 {counts} 个样本",
    "{what:d} to {what2:d} labels or samples each": "每个 {what} 至 {what2} 个标签或样本",
    "{what:d} to {what2:d} samples each": "每个 {what} 至 {what2} 个样本",
    "{what:d} to {what2:d} valid labels each": "每个 {what} 至 {what2} 个有效标签",
    "{counts} valid labels each": "每个 {counts} 个有效标签",
    "a scale that is fixed, or that falls again and again, does not fit this model": (
        "固定不变或一再下降的缩放不适合此模型"
    ),
    "loss scale {scale} -> 1": "损失缩放 {scale} -> 1",
    "loss {loss} and every gradient are finite, but the norm over all gradients is {norm}": (
        "损失 {loss} 和每个梯度都是有限的，但全部梯度的范数是 {norm}"
    ),
    "loss {loss}, gradient norm {norm}: no NaN and no Inf reaches them": (
        "损失 {loss}，梯度范数 {norm}：没有 NaN 或 Inf 到达它们"
    ),
    "micro-batch {micro}: {what}, raised in the backward of {node}, made in {module}": (
        "micro-batch {micro}：{what}，在 {node} 的反向中抛出，产生于 {module}"
    ),
    "micro-batch {micro}: {what}, raised in {module}": "micro-batch {micro}：{what}，在 {module} 中抛出",
    "micro-batch {micro}: {what}, raised in {module} ({source_line})": (
        "micro-batch {micro}：{what}，在 {module} 中抛出（{source_line}）"
    ),
    "with the loss scale a gradient is not finite": "带损失缩放时有梯度非有限",
    "without it all are, their norm is {norm}": "不带时全部有限，其范数为 {norm}",
    "{masked:d} operations made some that were masked again": "{masked} 个运算产生过又被掩去的非有限值",
    "as in every other one, its sample fails: the cause is no single sample": (
        "与其他每个 micro-batch 一样，其样本失败：原因不在单个样本"
    ),
    "every one of its samples fails alone: the cause is no single sample": "其每个样本单独都失败：原因不在单个样本",
    "it has no label that counts: every sample of it fails alike": "没有有效的标签：其每个样本都同样失败",
    "loss {loss}, gradient norm {norm}": "损失 {loss}，梯度范数 {norm}",
    "micro-batches {what}": "micro-batch {what}",
    "no samples found in the batch": "batch 中没有找到样本",
    "only all of its samples together fail, no part of them": "只有全部样本一起才失败，任何一部分都不失败",
    "parts of the samples": "样本的一部分",
    "parts of the samples, beginnings of the sample": "样本的一部分，样本的开头",
    "the gradient is not finite": "梯度非有限",
    "the gradient is not finite in {micros}": "{micros} 中梯度非有限",
    "the loss is not finite": "损失非有限",
    "the loss is not finite in {micros}": "{micros} 中损失非有限",
    "the others fail as well without those that fail alone ({listed})": (
        "去掉单独失败的（{listed}）之后其余样本仍失败"
    ),
    "the step is finite in {micros}": "{micros} 中该步是有限的",
    "with fewer samples it raises {odd}": "样本变少时抛出 {odd}",
    "{listed} fail alone, but not among the others": "{listed} 单独失败，但在其余样本之中不失败",
    "{changed} left out": "去掉{changed}",
    "{unsearched} more failing micro-batches were not searched": "另外 {unsearched} 个失败的 micro-batch 未搜索",
    "{listed} of micro-batch {index:d}": "micro-batch {index} 的{listed}",
    "{bad:d} of {total:d} samples fail: {places}": "{total} 个样本中 {bad} 个失败：{places}",
    "fails as well: {told}": "同样失败：{told}",
    "no call of torch.utils.checkpoint.checkpoint in this step": "该步没有调用 torch.utils.checkpoint.checkpoint",
    "random state preserved the gradient is not finite": "保留随机状态时梯度非有限",
    "random state preserved the loss is not finite": "保留随机状态时损失非有限",
    "random state preserved {relative}": "保留随机状态时为 {relative}",
    "relative difference {relative}": "相对差异 {relative}",
    "relative difference {relative} and {missing:d} parameters without gradient": (
        "相对差异 {relative}，且 {missing} 个参数没有梯度"
    ),
    "with it relative difference {relative}": "用它时相对差异 {relative}",
    "with it the gradient is not finite": "用它时梯度非有限",
    "with it the loss is not finite": "用它时损失非有限",
    "with it {apart}": "用它时{apart}",
    "without activation checkpointing": "不用激活检查点",
    "without activation checkpointing, and with the random state preserved": "不用激活检查点，以及保留随机状态",
    "without it a finite gradient": "不用它时梯度有限",
    "without it relative difference {relative}": "不用它时相对差异 {relative}",
    "without it the gradient is not finite": "不用它时梯度非有限",
    "without it the loss is not finite": "不用它时损失非有限",
    "{what} and {names:d} more": "{what} 及另外 {names} 个",
    "{calls} checkpointed calls ({shortened}): relative difference {relative}": (
        "{calls} 次检查点调用（{shortened}）：相对差异 {relative}"
    ),
    "{calls} checkpointed calls ({shortened}): the gradient is not finite": (
        "{calls} 次检查点调用（{shortened}）：梯度非有限"
    ),
    "{calls} checkpointed calls ({shortened}): the loss is not finite": (
        "{calls} 次检查点调用（{shortened}）：损失非有限"
    ),
    "clipping hides whether the gradients were divided after the backward": "裁剪掩盖了反向之后梯度是否被除",
    "eos_token_id is not among the settings": "eos_token_id 不在设置之中",
    "labels against the input of their position: not known": "标签与其位置的输入：未知",
    "labels against the input of their position: {get} equal it, {get2} the next token,": (
        "标签与其位置的输入：{get} 等于它，{get2} 等于下一个 token"
    ),
    "longest repeat: {worst} (micro-batch {worst2:d}, sample {worst3:d})": (
        "最长的重复：{worst}（micro-batch {worst2}，样本 {worst3}）"
    ),
    "loss by mean over its labels: not known": "损失与对其标签平均之比：未知",
    "loss by mean over its labels: {factor} with {tokens} labels": (
        "损失与对其标签平均之比：{factor}，有 {tokens} 个标签"
    ),
    "no cross-entropy call with labels was seen": "没有看到带标签的交叉熵调用",
    "no embedding was looked up": "没有查找嵌入",
    "no fault by itself": "这本身不是故障",
    "pads in the labels: none of {total:d} (pads by {ways})": "标签中的填充：{total} 个中没有（填充依据 {ways}）",
    "pads in the labels: not known": "标签中的填充：未知",
    "repetition: not known": "重复：未知",
    "samples without labels: not known": "没有标签的样本：未知",
    "the first is at micro-batch {where}, sample {where2}, token {where3}": (
        "第一处在 micro-batch {where}，样本 {where2}，token {where3}"
    ),
    "training multiplies it by {seed} before the backward": "训练在反向之前把它乘以 {seed}",
    "training multiplies its gradient by {later}": "训练把它的梯度乘以 {later}",
    "{empty} of {samples} samples have no label that counts": "{samples} 个样本中 {empty} 个没有有效的标签",
    "no other program was given": "没有给出另一程序",
    "the other program": "另一程序",
    "the other program instead of the recorded one": "用另一程序代替所记录的程序",
    "with: loss {loss}, gradient norm {norm}": "用时：损失 {loss}，梯度范数 {norm}",
    "with: {result}": "用时：{result}",
    "without: loss {loss}, gradient norm {norm}": "不用时：损失 {loss}，梯度范数 {norm}",
    "without: {told}": "不用时：{told}",
    "{name} cannot tell with the other program: {conclusion}": "{name} 用另一程序时无法判断：{conclusion}",
    "{name} finds a fault with the other program too": "{name} 用另一程序时也发现故障",
    "{name} without: {result}": "{name} 不用时：{result}",
    (
        "mean loss of {samples:d} padded samples: recorded (padded on either side) {means}, right {means2}, "
        "left {means3}, unpadded {means4}"
    ): (
        "{samples} 个带填充样本的平均损失：按记录（两侧都有填充）{means}，右填充 {means2}，左填充 {means3}，"
        "不填充 {means4}"
    ),
    (
        "mean loss of {samples:d} padded samples: recorded ({sides}-padded) {means}, right {means2}, left "
        "{means3}, unpadded {means4}"
    ): (
        "{samples} 个带填充样本的平均损失：按记录（{sides}）{means}，右填充 {means2}，左填充 {means3}，不填充 {means4}"
    ),
    "mean loss {before} without, {after} with it, {reference} without pads": (
        "平均损失：不用时 {before}，用时 {after}，没有填充时 {reference}"
    ),
    "nothing to compare": "无从比较",
    "one sample at a time, evaluation mode": "一次一个样本，评估模式",
    "padded on either side": "两侧都有填充",
    "pads moved to the right, to the left and left out": "填充移到右侧、移到左侧及去掉",
    "recorded ({precision}): {recorded}": "按记录（{precision}）：{recorded}",
    "share of the gradient that is 0: {lost} -> {lost2}": "梯度中为 0 的比例：{lost} -> {lost2}",
    "it raises {told}": "抛出 {told}",
    "{what:d} runs: loss {loss}, gradient norm {clipped_norm}": "{what} 次运行：损失 {loss}，梯度范数 {clipped_norm}",
    "{what:d} runs: loss {loss}, gradient norm {clipped_norm} ({norm} before clipping)": (
        "{what} 次运行：损失 {loss}，梯度范数 {clipped_norm}（裁剪前 {norm}）"
    ),
    "between {before} and the loss": "在 {before} 与损失之间",
    "between {before} and {after}": "在 {before} 与 {after} 之间",
    "history kept at {cuts}": "在 {cuts} 保留历史",
    "it is not updated unless another optimizer does": "除非有别的优化器，否则它不会更新",
    "no run could keep the history there": "没有一次运行能在那里保留历史",
    "nothing can be said about its gradients": "对其梯度不能下结论",
    "the cut lies {between}": "断点{between}",
    "the step raises {told}": "该步抛出 {told}",
    "{names} are themselves zero: two zero factors in a row never leave zero": (
        "{names} 本身为零：两个相连的零系数永远离不开零"
    ),
    "{back:d} of {severed:d} severed parameters get a gradient": "{severed} 个断开的参数中 {back} 个得到梯度",
    "{names}: connected, its gradient is exactly zero": "{names}：相连，但其梯度恰为零",
    "{names}: gets a gradient, but is in none of the optimizer's groups": (
        "{names}：有梯度，但不在优化器的任何参数组中"
    ),
    "{names}: no gradient, and left out of the optimizer, as one that is frozen on purpose": (
        "{names}：没有梯度，也不在优化器中，像是有意冻结的"
    ),
    (
        "{names}: not used in this forward, which is no fault by itself (an expert that no token was sent "
        "to, a branch that was not taken)"
    ): "{names}：此次前向未用到，这本身不是故障（没有 token 分到的专家、未走的分支）",
    "{names}: used in the forward, but the loss does not depend on it (an output left aside)": (
        "{names}：前向中用到，但损失不依赖它（被搁置的输出）"
    ),
    "{names}: used in the forward, without gradient after the backward": "{names}：前向中用到，反向之后没有梯度",
    "a view whose elements stand for several others": "一个元素代表多个元素的视图",
    "steps {first:d} to {step:d} are run with the checkpoint's learning rate ({unknown})": (
        "步 {first} 至 {step} 以检查点的学习率运行（{unknown}）"
    ),
    "the weights are the optimizer's float32 copies: the model's own were not saved": (
        "权重是优化器的 float32 副本：模型自己的没有保存"
    ),
    "where a schedule changes it, the program has to say so (`learning_rate`)": (
        "若有调度改变学习率，须由程序说明（`learning_rate`）"
    ),
    "{left:d} tensors of {name}, such as {left2}, are not in the program's model": (
        "{name} 的 {left} 个张量（例如 {left2}）不在程序的模型中"
    ),
    "the run's log says grad_norm {values} at step {step:d} ({where})": (
        "运行的日志写明步 {step} 的 grad_norm 为 {values}（{where}）"
    ),
    "the run's log says loss {values} at step {step:d} ({where})": (
        "运行的日志写明步 {step} 的损失为 {values}（{where}）"
    ),
    "{known:d} runs log a grad_norm at step {step:d}: none is compared": (
        "{known} 个运行记录了步 {step} 的 grad_norm：都不比较"
    ),
    "{known:d} runs log a loss at step {step:d}: none is compared": "{known} 个运行记录了步 {step} 的损失：都不比较",
    "--memory-limit GB gives it more": "用 --memory-limit GB 给它更多",
    "--time-limit S gives it longer": "用 --time-limit S 给它更长时间",
    "it ran out of memory (memory limit {limits} GB): {text}": "内存不足（内存限制 {limits} GB）：{text}",
    "it ran out of memory: {text}": "内存不足：{text}",
    "its last words: {tail}": "其最后的话：{tail}",
    "the device failed: {text}": "设备出错：{text}",
    "the experiments after it do not depend on it": "其后的实验不依赖它",
    "the process ended with exit code {code:d}": "进程以退出码 {code} 结束",
    "the process was killed by signal {code:d}": "进程被信号 {code} 终止",
    "the process was killed by signal {code:d}, perhaps by the kernel for want of memory": (
        "进程被信号 {code} 终止，也许是内核因内存不足所为"
    ),
    "the process was killed by {name}": "进程被 {name} 终止",
    "the program ended the process: {text}": "程序结束了进程：{text}",
    "the model is transformers' own class {function}, built from config.json": (
        "模型是 transformers 自己的类 {function}，由 config.json 建成"
    ),
    "the model's configuration is missing": "缺少模型的配置",
    "{name} does not say its step: it is taken for the state before step {step:d}": (
        "{name} 没有写明其步：视为步 {step} 之前的状态"
    ),
    "{unknown:d} recorded tensors, such as {unknown2}, are not in the model": (
        "{unknown} 个已记录的张量（例如 {unknown2}）不在模型中"
    ),
    "a micro-batch has no valid label, or no samples that could be counted": (
        "某个 micro-batch 没有有效的标签，或没有可计数的样本"
    ),
    (
        "the loss is a mean neither over labels nor over samples, as where samples or classes weigh differently"
    ): "损失既不是对标签也不是对样本的平均，例如样本或类别的权重不同",
    (
        "the loss of the first micro-batch with every sample twice changes by a factor of {factor}: it is "
        "neither a mean nor a sum over samples"
    ): "把第一个 micro-batch 的每个样本都放两次，损失变为 {factor} 倍：它既不是对样本的平均也不是其和",
    (
        "the loss of the first micro-batch with every sample twice could not be computed: it is neither a "
        "mean nor a sum over samples"
    ): "把第一个 micro-batch 的每个样本都放两次，损失无法计算：它既不是对样本的平均也不是其和",
    "{key}: a key of type {name}": "{key}：键的类型为 {name}",
    "{key}: a {module}.{qualname} cannot be recorded": "{key}：{module}.{qualname} 无法记录",
    "{key}: nested more than {what} deep": "{key}：嵌套超过 {what} 层",
    "nothing": "未改变",
    "gradient": "梯度",
    "loss": "损失",
    "tokens of small micro-batches count more than others": "小 micro-batch 的 token 分量更大",
    "valid labels": "有效标签",
    "labels or samples": "标签或样本",
    "labels": "标签",
    "ids": "id",
    "recorded": "按记录",
    "replayed": "重放",
    "replayed, divided as the program says": "重放，按程序所说相除",
    "norm from the logs": "范数取自日志",
    "its weight": "其权重",
    "n_i/N, n_i valid labels of N": "n_i/N（N 个有效标签中的 n_i 个）",
    "n_i/N, n_i samples of N": "n_i/N（N 个样本中的 n_i 个）",
    (
        "clipping hides by which factor the gradients were divided after the backward, if at all, and gives "
        "the optimizer the same gradient in this step"
    ): "裁剪掩盖了反向之后梯度是否被除、除以多少，而在该步给优化器的梯度相同",
    "the logs say a gradient norm of {norm:d}: the gradients may be divided after the backward": (
        "日志写明梯度范数为 {norm}：梯度可能在反向之后被除"
    ),
    "its loss or gradient is not finite": "其损失或梯度非有限",
    "{count:d} micro-batch": "{count} 个 micro-batch",
    "{count:d} micro-batches": "{count} 个 micro-batch",
    "the first {value} is made by {operation} [{aten}] in the {phase}, in {module}": (
        "第一个 {value} 由 {operation} [{aten}] 在{phase}中产生，位于 {module}"
    ),
    "the first {value} comes from {operation} in the {phase}, in {module}": (
        "第一个 {value} 来自{phase}中的 {operation}，位于 {module}"
    ),
    "the first {value} is in {operation} before the step begins": "第一个 {value} 在该步开始之前就在 {operation} 中",
    "the first {value} is in the batch, part {module}": "第一个 {value} 在 batch 的 {module} 部分",
    "the first is made by {operation} [{aten}] in the {phase}, in {module}": (
        "第一个由 {operation} [{aten}] 在{phase}中产生，位于 {module}"
    ),
    "the first comes from {operation} in the {phase}, in {module}": (
        "第一个来自{phase}中的 {operation}，位于 {module}"
    ),
    "forward": "前向",
    "backward": "反向",
    "inputs: {inputs}": "输入：{inputs}",
    "all of it: {inputs}": "其全部：{inputs}",
    "{name} {dtype} {shape}: {low:d} to {high:d}": "{name} {dtype} {shape}：{low} 至 {high}",
    "{name} {dtype} {shape}: no finite value": "{name} {dtype} {shape}：没有有限的值",
    "not finite: {count:d}": "非有限：{count} 个",
    "exactly 0: {count:d}": "恰为 0：{count} 个",
    "it became NaN in {operation}, in {module}": "它在 {operation} 中变为 NaN，位于 {module}",
    "it met an {value} that {operation} had made": "它遇到 {operation} 产生的 {value}",
    "it met an {value} that {operation} had made ({place})": "它遇到 {operation} 产生的 {value}（{place}）",
    "gradients that it reaches: {count:d} ({names})": "它到达的梯度：{count} 个（{names}）",
    "{count:d} operations could not be looked at": "{count} 个运算无法查看",
    "sample {number:d}": "样本 {number}",
    "token {number:d}": "token {number}",
    "micro-batch {number:d}": "micro-batch {number}",
    "element {index}": "元素 {index}",
    "elements like it: {count:d}": "同类元素：{count} 个",
    "samples hit: {count:d}": "受影响的样本：{count} 个",
    (
        "no label of the micro-batch is valid (all are {ignored:d}), so that there is nothing to take a mean over"
    ): "micro-batch 没有有效的标签（全为 {ignored}），因此没有可求平均的内容",
    "no label of the micro-batch is valid (all are {ignored:d}): the mean over them is 0/0": (
        "micro-batch 没有有效的标签（全为 {ignored}）：对其求平均是 0/0"
    ),
    "no label of the micro-batch is valid": "micro-batch 没有有效的标签",
    "the weights of its labels sum to 0": "其标签的权重之和为 0",
    "the loss scale is not the reason: it is there without it, too": "损失缩放不是原因：不带它时也存在",
    "{operation} makes it of finite inputs": "{operation} 由有限的输入产生它",
    "it is a constant of the program's, or was made outside PyTorch": "它是程序中的常数，或在 PyTorch 之外产生",
    "its result is beyond the largest number of {dtype}, {largest:d}": "其结果超过 {dtype} 的最大数 {largest}",
    "the derivative of sqrt at 0 is infinite": "sqrt 在 0 处的导数为无穷",
    "the derivative of rsqrt at 0 is infinite": "rsqrt 在 0 处的导数为无穷",
    "the derivative of log at 0 is infinite": "log 在 0 处的导数为无穷",
    "the derivative of a quotient is not finite where the divisor is 0": "除数为 0 时商的导数非有限",
    "the derivative of 1/x is not finite at 0": "1/x 在 0 处的导数非有限",
    "the derivative of this power at 0 is infinite": "此幂在 0 处的导数为无穷",
    "the derivative of acos at -1 and 1 is infinite": "acos 在 -1 和 1 处的导数为无穷",
    "the derivative of asin at -1 and 1 is infinite": "asin 在 -1 和 1 处的导数为无穷",
    "the derivative of atan2 at (0, 0) is not finite": "atan2 在 (0, 0) 处的导数非有限",
    "atanh is infinite at -1 and 1": "atanh 在 -1 和 1 处为无穷",
    "erfinv is infinite at -1 and 1": "erfinv 在 -1 和 1 处为无穷",
    "logit is infinite at 0 and 1": "logit 在 0 和 1 处为无穷",
    "lgamma is infinite at 0 and at negative whole numbers": "lgamma 在 0 和负整数处为无穷",
    "digamma is infinite at 0": "digamma 在 0 处为无穷",
    "a target does not fit into the length of its input": "目标放不进其输入的长度",
    "a row of its input holds nothing but -inf: it is masked completely": "其输入有一行全是 -inf：被完全遮盖",
    "the logarithm of a number below its domain": "对定义域之下的数取对数",
    "the logarithm of 0": "对 0 取对数",
    "a root of a negative number": "对负数开方",
    "it is the mean of no elements": "它是零个元素的平均",
    "0 times infinity": "0 乘以无穷",
    "0 is divided by 0": "0 除以 0",
    "the divisor is 0": "除数为 0",
    "{reason}, and the gradient that comes there is 0 (as from the branch that a torch.where left out)": (
        "{reason}，而到达该处的梯度为 0（例如来自 torch.where 未选的分支）"
    ),
    "{reason}, unless the gradient itself leaves the range of {dtype}": "{reason}，除非梯度本身超出 {dtype} 的范围",
    (
        "{operation} is not finite before this step: the fault lies in an earlier step, or in the checkpoint "
        "that was loaded"
    ): "{operation} 在该步之前就非有限：故障在更早的一步，或在所加载的检查点中",
    "has {share} of the loss": "占损失的 {share}",
    "has {share} of the gradient that reaches {module}": "占到达 {module} 的梯度的 {share}",
    "the embedding": "嵌入",
    "samples {numbers}": "样本 {numbers}",
    "{count:d} {what} looked up in {tables}: none to check": "在 {tables} 中查找的 {count} 个{what}：没有可检查的",
    "{count:d} {what} looked up in {tables}: none out of range": "在 {tables} 中查找的 {count} 个{what}：都未越界",
    "{count:d} {what} looked up in {tables}: {bad:d} out of range": (
        "在 {tables} 中查找的 {count} 个{what}：{bad} 个越界"
    ),
    "{count:d} {what} against {classes} classes: none to check": "{count} 个{what}对 {classes} 类：没有可检查的",
    "{count:d} {what} against {classes} classes: none out of range": "{count} 个{what}对 {classes} 类：都未越界",
    "{count:d} {what} against {classes} classes: {bad:d} out of range": (
        "{count} 个{what}对 {classes} 类：{bad} 个越界"
    ),
    "{name} ({rows:d} rows)": "{name}（{rows} 行）",
    "pads in the labels: {count:d} of {total:d} ({share}; pads by {way})": (
        "标签中的填充：{total} 个中 {count} 个（{share}；填充依据 {way}）"
    ),
    "pads in the labels: {count:d} of {total:d} ({share}, {part} of the loss; pads by {way})": (
        "标签中的填充：{total} 个中 {count} 个（{share}，占损失的 {part}；填充依据 {way}）"
    ),
    "no label counts in the loss": "没有标签计入损失",
    "the labels of the loss could not be laid over the samples": "损失的标签无法对应到样本上",
    "the labels are of another sequence than the mask, and no pad_token_id of its own is known": (
        "标签与掩码属于不同的序列，也不知道其自身的 pad_token_id"
    ),
    "the labels belong to no tokens of the batch": "标签不属于 batch 的任何 token",
    "most frequent token of a sample: {share} of it": "样本中最频繁的 token：占其 {share}",
    "{times:d} times {what} from token {start:d} on": "从 token {start} 起 {times} 次 {what}",
    "{share} the one after": "{share} 等于再下一个",
    "left-padded": "左填充",
    "right-padded": "右填充",
    "right": "右侧",
    "left": "左侧",
    "pads on the right": "填充在右侧",
    "position_ids = cumsum(attention_mask) - 1 given to the model": (
        "把 position_ids = cumsum(attention_mask) - 1 给予模型"
    ),
    "finite ({numbers})": "有限（{numbers}）",
    "the loss is not finite ({numbers})": "损失非有限（{numbers}）",
    "the gradient is not finite ({numbers})": "梯度非有限（{numbers}）",
    "largest activation {value:d}": "最大激活 {value}",
    "loss {value:d}": "损失 {value}",
    "gradient norm {value:d}": "梯度范数 {value}",
    "{dtype}: finite ({numbers})": "{dtype}：有限（{numbers}）",
    "{dtype}: the loss is not finite ({numbers})": "{dtype}：损失非有限（{numbers}）",
    "{dtype}: the gradient is not finite ({numbers})": "{dtype}：梯度非有限（{numbers}）",
    "in {good} loss and gradient are finite": "在 {good} 下损失和梯度有限",
    "in which range is not known: no module gave a number but 0": "其范围未知：没有模块给出 0 以外的数",
    "the largest result of a module, in {module}, is {bits:d} bits below the limit of float16": (
        "模块的最大结果（在 {module} 中）比 float16 的上限低 {bits} 位"
    ),
    "activation checkpointing with preserve_rng_state=True": "激活检查点，preserve_rng_state=True",
    "activation checkpointing with use_reentrant=False": "激活检查点，use_reentrant=False",
    "the exception ({one} / {other})": "异常（{one} / {other}）",
    "the loss of micro-batch {index:d} ({one} / {other})": "micro-batch {index} 的损失（{one} / {other}）",
    "the gradient of {name}": "{name} 的梯度",
    (
        "a random generator of the program's own, or state that the model keeps outside its parameters and buffers"
    ): "程序自己的随机数生成器，或模型在参数和缓冲区之外保留的状态",
    (
        "kernels with atomic additions (torch.use_deterministic_algorithms(True) names them) or chosen by timing"
    ): "带原子加法的内核（torch.use_deterministic_algorithms(True) 会指出它们），或按计时选择的内核",
    "judged by {names}": "依据 {names}",
    "{what} differs by {difference} (relative), up to {limit} is called close": (
        "{what}相差 {difference}（相对），不超过 {limit} 视为接近"
    ),
    "the loss": "损失",
    "the gradient norm": "梯度范数",
    "every gradient": "每个梯度",
    "neither the recording nor the logs hold the loss or the gradient norm of this step": (
        "记录和日志都没有该步的损失或梯度范数"
    ),
    "the logs say {name} {logged:d}, the replay {value:d} (a log may hold a mean of steps)": (
        "日志写 {name} {logged}，重放为 {value}（日志可能是若干步的平均）"
    ),
    "the logged {names} agree to the digits that were logged": "日志中的 {names} 在所记录的位数上一致",
    "not used by the loss": "损失未用到",
    "{count:d} not used by the loss": "{count} 个损失未用到",
    "{count:d} with a gradient of exactly zero": "{count} 个梯度恰为零",
    "{count:d} not in the optimizer": "{count} 个不在优化器中",
    "{count:d} neither with gradient nor in the optimizer": "{count} 个既无梯度也不在优化器中",
    "{count:d} trainable parameters: {severed:d} severed": "{count} 个可训练参数：{severed} 个断开",
    "the time limit of {limit:d} s was reached": "达到时间限制 {limit} 秒",
    "the memory limit of {limit:d} GB was reached": "达到内存限制 {limit} GB",
    "{ending} before it began": "{ending}，在开始之前",
    "--budget leaves {left:d}": "--budget 只剩 {left}",
    "rolling forward": "向前推进",
    "step {step:d} of {name}, from {state}": "{name} 的步 {step}，起始于 {state}",
    "runs {function} of {file} (sha256 {digest}), allowed by {option}": (
        "运行 {file} 的 {function}（sha256 {digest}），由 {option} 允许"
    ),
    "limits: {limit:d} s per experiment, no memory limit": "限制：每个实验 {limit} 秒，不限内存",
    "limits: {limit:d} s per experiment, {memory:d} GB": "限制：每个实验 {limit} 秒，{memory} GB",
    "costs at most {steps:d} steps on {device}: {listed}": "最多需要 {steps} 步，在 {device} 上：{listed}",
}
