"""What follows from the experiments of a replay: whole sentences."""

from collections.abc import Mapping

# English: Chinese
ENTRIES: Mapping[str, str] = {
    "A hard or wrongly labelled sample does that as well as a broken {note}": (
        "难的或标错的样本也会如此，损坏的{note}同样会"
    ),
    "Among so few samples none can stand out": "样本太少，看不出哪个突出",
    "In it token {token} {why}": "其中 token {token} {why}",
    "It cannot be tried without it": "去掉它之后无法尝试",
    "One sample carries the {what}": "一个样本承载了{what}",
    "One sample stands out, but the micro-batch is not at the level of the others without it": (
        "一个样本突出，但去掉它之后该 micro-batch 仍不在其他样本的水平"
    ),
    "The loss does not work with fewer samples": "样本变少时损失无法计算",
    (
        "The loss of a batch is neither the mean nor the sum of that of its samples alone, as where it "
        "compares samples with each other: they cannot be judged one at a time"
    ): "一个 batch 的损失既不是各样本单独损失的平均也不是其和，例如它把样本互相比较：无法逐个判断",
    "Without it the gradient norm is at the level of the others": "去掉它之后梯度范数处于其他样本的水平",
    "Without it the gradient norm is not at the level of the others, or was not above it": (
        "去掉它之后梯度范数不处于其他样本的水平，或原本就不高于它"
    ),
    "Without it the loss is at the level of the others": "去掉它之后损失处于其他样本的水平",
    "Without it the loss is not at the level of the others, or was not above it": (
        "去掉它之后损失不处于其他样本的水平，或原本就不高于它"
    ),
    "It costs up to {cost} steps": "它最多需要 {cost} 步",
    "Do left-padded, right-padded and unpadded samples give the same loss?": (
        "左填充、右填充和不填充的样本给出相同的损失吗？"
    ),
    "Do the ids, labels and masks of the batch fit the model and each other?": (
        "batch 的 id、标签和掩码与模型以及彼此相符吗？"
    ),
    "Does activation checkpointing change the gradient?": "激活检查点会改变梯度吗？",
    "Does the step come out as it was recorded, and the same each time?": "该步的结果与记录的一致吗？每次都相同吗？",
    "In which precision does the step fail, and which module leaves the range?": (
        "该步在哪种精度下失败？哪个模块超出范围？"
    ),
    "Is the accumulated gradient that of the whole batch?": "累积的梯度是整个 batch 的梯度吗？",
    "Is the failure gone with the other program, and there without it?": "换成另一程序后故障消失吗？不换时仍在吗？",
    "Where is the first value made that is NaN or infinite?": "第一个 NaN 或无穷大的值在哪里产生？",
    "Which sample and which token carry the failure, the loss or the gradient?": (
        "哪个样本、哪个 token 承载了故障、损失或梯度？"
    ),
    "Which trainable parameters get no gradient, and where is the graph cut?": (
        "哪些可训练参数没有梯度？计算图在哪里断开？"
    ),
    "Not certain: {doubt}": "不确定：{doubt}",
    "Only a part of the batch is trained on, with more noise": "只训练了 batch 的一部分，噪声更大",
    "The learning rate is in effect as many times too large": "学习率实际上也大了同样的倍数",
    "The step's gradient: {words}": "该步的梯度：{words}",
    "With these weights the step has the gradient of the whole batch": "用这些权重，该步得到整个 batch 的梯度",
    (
        "With {name} a constant factor is nearly harmless: it cancels out, except through clipping, eps and "
        "a weight decay that is added to the gradient"
    ): "用 {name} 时常数倍数几乎无害：它会抵消，只有经过裁剪、eps 和加到梯度上的权重衰减时除外",
    "A scaler that halves its scale then and skips the step works as meant": "缩放器随即减半并跳过该步，属于正常工作",
    "Every value that counts is finite, forward and backward": "所有有影响的值在前向和反向中都是有限的",
    "It is there only with the loss scale: without it the same gradients are finite": (
        "只有带损失缩放时才出现：不带时同样的梯度是有限的"
    ),
    "No parameter got a gradient: the backward could not be looked at": "没有参数得到梯度：无法查看反向",
    "Not finite, but without an effect on this step: {operation}": "非有限，但对该步没有影响：{operation}",
    "Only the loss scale takes the gradient out of range": "只有损失缩放使梯度超出范围",
    "The batch itself is not finite: the fault lies in the data or in how they are prepared": (
        "batch 本身就非有限：故障在数据或其准备方式"
    ),
    "The loss is finite": "损失是有限的",
    "The recorded loss or gradient was not finite, and this replay's is: the failure does not come back": (
        "记录的损失或梯度非有限，而此次重放的是有限的：故障没有重现"
    ),
    "The step ends with this exception each time that it is replayed from this state": (
        "从此状态每次重放该步都以此异常结束"
    ),
    (
        "The sum of their squares leaves the range of their own precision: the gradients are huge, not infinite"
    ): "其平方和超出自身精度的范围：梯度极大，但不是无穷",
    "It is the only sample": "它是唯一的样本",
    "Micro-batch {index:d}: {reason}": "micro-batch {index}：{reason}",
    "No sample is named": "没有指明样本",
    "Sample {bad} fails from token {token} on: its first {token2} tokens are healthy": (
        "样本 {bad} 从 token {token} 起失败：其前 {token2} 个 token 正常"
    ),
    "Sample {bad} is healthy with another first token": "样本 {bad} 换一个首 token 后正常",
    "The batch has no tensor with samples along its first dimension": "batch 中没有第一维是样本的张量",
    "The failure goes with {places}": "故障随{places}出现",
    "The model draws dropout masks, which are others with fewer samples": (
        "模型会抽取 dropout 掩码，样本变少时掩码不同"
    ),
    "The step fails without it, too: not all failing micro-batches could be searched": (
        "去掉之后该步仍失败：未能搜索所有失败的 micro-batch"
    ),
    "The step fails without it, too: there is more to it": "去掉之后该步仍失败：还有别的原因",
    "Without it the step is healthy": "去掉之后该步正常",
    (
        "Activation checkpointing cuts the graph: {missing:d} parameters, {missing2} first, get no gradient with it"
    ): "激活检查点断开了计算图：{missing} 个参数（首先是 {missing2}）用它时没有梯度",
    "Activation checkpointing does not change the gradient": "激活检查点不改变梯度",
    "Activation checkpointing makes the gradient wrong, without an error": "激活检查点使梯度出错，却不报错",
    (
        "Activation checkpointing makes the gradient wrong, without an error, beginning (backwards) at {wrong}"
    ): "激活检查点使梯度出错，却不报错，（按反向）始于 {wrong}",
    (
        "Neither setting of checkpointing helps: the checkpointed function does something else when it runs again"
    ): "检查点的两种设置都无济于事：被检查点的函数再次运行时所做的不同",
    "The difference is below what the precision or repeats of the step explain ({limit:d})": (
        "差异低于精度或该步的重复所能解释的程度（{limit}）"
    ),
    "The gradient is zero without activation checkpointing: nothing to compare": "不用激活检查点时梯度为零：无从比较",
    "The program does not use PyTorch's activation checkpointing (another kind would not be seen)": (
        "程序未使用 PyTorch 的激活检查点（其他种类看不到）"
    ),
    "The re-entrant kind needs an input that requires a gradient": "可重入的那种需要一个要求梯度的输入",
    (
        "The recomputation changes {changed:d} buffers, {changed2} first, a second time (BatchNorm's running "
        "statistics are such): they move faster than without checkpointing"
    ): (
        "重新计算第二次改变了 {changed} 个缓冲区（首先是 {changed2}；BatchNorm 的滑动统计量就是如此）：它们比"
        "不用检查点时变化更快"
    ),
    "The step fails only with activation checkpointing: the recomputation is not what the forward was": (
        "只有用激活检查点时该步才失败：重新计算与前向不同"
    ),
    "The step fails without activation checkpointing too: that is not its cause": (
        "不用激活检查点时该步也失败：它不是原因"
    ),
    "With it the gradient is that without checkpointing": "用它之后，梯度与不用检查点时相同",
    "A few are usual where long prompts are cut off": "在截断长提示之处，少数如此属正常",
    "All {what} fit": "所有{what}都相符",
    "EOS behind a trained text in {in_ids} of {samples} samples, trained itself in {in_labels}": (
        "{samples} 个样本中有 {in_ids} 个在参与训练的文本之后有 EOS，其中 {in_labels} 个 EOS 本身参与训练"
    ),
    "EOS in the labels: not known": "标签中的 EOS：未知",
    (
        "Every position is compared with its own input: the answer is in the question, and the loss falls to nothing"
    ): "每个位置都与自己的输入比较：答案就在问题里，损失会降到零",
    (
        "Every position is compared with the token after the next: the labels are shifted twice, in the data "
        "and in the loss"
    ): "每个位置都与再下一个 token 比较：标签移了两次，数据中一次，损失中一次",
    "Every sample has labels": "每个样本都有标签",
    "It may be padding: neither mask nor pad id is known": "也可能是填充：掩码和填充 id 都不知道",
    "Labels of padding should be the ignored index": "填充处的标签应为被忽略的索引",
    "Micro-batch {whole} has none at all: a mean over its labels is 0/0": (
        "micro-batch {whole} 完全没有：对其标签求平均是 0/0"
    ),
    (
        "Near to a mean over its labels, as with another term beside it or where it is divided by other labels, too"
    ): "接近对其标签的平均，例如另有一项，或除以的还有其他标签",
    (
        "Neither a mean nor the sum over all labels: a sum over tokens with a mean over samples, weights, or "
        "several losses"
    ): "既不是对所有标签的平均也不是其和：对 token 求和再对样本平均、带权重，或有几个损失",
    "No cross-entropy call with labels led to a finite loss": "没有带标签的交叉熵调用得到有限的损失",
    "No label on padding counts in the loss": "填充处没有标签计入损失",
    "No labels were found that belong to samples": "没有找到属于样本的标签",
    "No sample repeats itself unusually": "没有样本异常地重复自身",
    "No trained text ends with it (truncated, packed, or another end token)": (
        "没有参与训练的文本以它结尾（被截断、被打包，或用别的结束 token）"
    ),
    "Nothing is learnt from them: all of their labels are ignored": "从它们学不到任何东西：其标签全被忽略",
    "Shift the labels by one": "把标签移一位",
    "Smaller than the mean, as where it is divided by the labels of the whole step": (
        "小于平均，例如除以的是整步的标签数"
    ),
    "Texts with {what} repeats are left out of OLMo 2's data because they go with spikes": (
        "OLMo 2 的数据剔除了重复 {what} 次的文本，因为它们伴随尖峰"
    ),
    "The batch has no ids": "batch 中没有 id",
    "The end token is trained where a text has one": "文本有结束 token 时它参与训练",
    "The first is {index:d} at {what}: there are {rows} classes, 0 to {rows2}": (
        "第一个是 {index}，位于{what}：共有 {rows} 类，0 至 {rows2}"
    ),
    "The first is {index:d} at {what}: {table} has {rows} rows, 0 to {rows2}": (
        "第一个是 {index}，位于{what}：{table} 有 {rows} 行，0 至 {rows2}"
    ),
    "The labels are no shifted copy of the input": "标签不是移位后的输入",
    "The labels are shifted by one": "标签移了一位",
    "The loss is a mean over its labels": "损失是对其标签的平均",
    "The loss is computed in another way (a fused or own kernel, a regression): its labels were not seen": (
        "损失以别的方式计算（融合或自制的内核、回归）：看不到其标签"
    ),
    "The loss is not over the tokens of an embedded text, or over very few": (
        "损失不是针对嵌入文本的 token，或只针对极少几个"
    ),
    "The loss is the sum over its labels": "损失是其标签上的总和",
    (
        "The loss is the sum over its labels, not the mean: it grows with the batch, and so does the "
        'gradient (reduction="sum", or a division is missing)'
    ): '损失是其标签上的总和，而不是平均：它随 batch 增大，梯度也是（reduction="sum"，或缺少除法）',
    "The loss's labels could not be laid over ids of the batch": "损失的标签无法对应到 batch 的 id 上",
    "The model is trained to write padding": "模型被训练去写填充",
    "The step stops before its loss: {told}": "该步在得到损失之前停止：{told}",
    "The texts end with the EOS and its label is ignored: the model never learns to stop": (
        "文本以 EOS 结尾而其标签被忽略：模型永远学不会停止"
    ),
    "This is the sample that carries the step (experiment `batch`): a text that repeats itself": (
        "这就是承载该步的样本（实验 `batch`）：一段自我重复的文本"
    ),
    "Usual with pad_token = eos_token and labels masked by the pad id": (
        "常见于 pad_token = eos_token 且按填充 id 遮盖标签时"
    ),
    "Whether ids fit their tables cannot be told from this step": "从该步看不出 id 是否与其表相符",
    "Whether {what} fit cannot be told from this step": "从该步看不出{what}是否相符",
    "Which labels stand on padding cannot be told: no label counts in the loss": (
        "看不出哪些标签在填充处：没有标签计入损失"
    ),
    "See --fix": "见 --fix",
    "The failure is there without the other program and gone with it": "不用另一程序时故障存在，用了之后消失",
    "The fault that {name} found is there without the other program and gone with it": (
        "{name} 发现的故障在不用另一程序时存在，用了之后消失"
    ),
    "The other program cannot take the recorded state": "另一程序无法采用所记录的状态",
    (
        "The step does not fail and no experiment found a fault: there is nothing that the other program could cure"
    ): "该步没有失败，也没有实验发现故障：另一程序没有什么可以修复",
    "The step fails only with the other program": "只有用另一程序时该步才失败",
    "The step fails with the other program in the same way": "用另一程序时该步以同样方式失败",
    "The step fails with the other program too, in another way": "用另一程序时该步也失败，但方式不同",
    "Either pads are attended to, or the positions count them, or a row is masked as a whole": (
        "要么填充参与了注意力，要么位置把它们计入，要么某一行被完全遮盖"
    ),
    "No padded sample has a valid label": "没有带填充的样本有有效的标签",
    "No sample of this step has pads: there is nothing to compare": "该步没有样本带填充：无从比较",
    "Padded on the {name} it would: do not change the side": "若填充在{name}则会改变：不要换边",
    "The attention mask has a row per token (3 or 4 dimensions): pads are not all it says": (
        "注意力掩码对每个 token 有一行（3 维或 4 维）：它表示的不只是填充"
    ),
    "The batch has no attention mask, and no pad_token_id is known": "batch 没有注意力掩码，也不知道 pad_token_id",
    "The batch holds no token ids of shape (samples, tokens)": "batch 中没有形状为（样本，token）的 token id",
    (
        "The labels are those of a decoder and as many as the encoder's tokens: they cannot be told from "
        "labels of the tokens"
    ): "标签是解码器的标签，且与编码器的 token 一样多：无法与 token 的标签区分",
    "The loss makes its labels itself, perhaps on pads as well: that alone could explain it": (
        "损失自己生成标签，也许填充处也有：仅此就可能解释它"
    ),
    "The loss of the {side} samples differs by {apart} from that without pads": (
        "{side}样本的损失与没有填充时相差 {apart}"
    ),
    "The loss of the {side} samples is not finite from that without pads": "{side}样本的损失与没有填充时不同，非有限",
    "The mask leaves out tokens between others: it does not only mark pads": (
        "掩码略去了夹在中间的 token：它标记的不只是填充"
    ),
    "The pads do not change the loss (difference {apart} of it, limit {what})": (
        "填充不改变损失（相差 {apart}，界限 {what}）"
    ),
    "The program raises, with one sample at a time ({variation}): {told}": (
        "程序在一次一个样本时抛出异常（{variation}）：{told}"
    ),
    "The unpadded samples have no usable loss, so that there is nothing to compare with": (
        "不填充的样本没有可用的损失，因此无从比较"
    ),
    "With it the padded samples have the loss that they have without pads": (
        "用它之后，带填充的样本的损失与没有填充时相同"
    ),
    "In {in} the gradient does not underflow": "用 {in} 时梯度不下溢",
    "The loss scale of {scaled} takes part in it: see the experiment anomaly": (
        "损失缩放 {scaled} 也有份：见实验 anomaly"
    ),
    "Deterministic: every run gave the same bits": "确定性：每次运行得到相同的比特",
    "Likely {likely}": "可能是{likely}",
    "Every gradient of this step is: a loss that does not change, or a factor of zero in front of it": (
        "该步的每个梯度都如此：损失不变，或前面有为零的系数"
    ),
    "Every trainable parameter that the optimizer has gets a gradient": "优化器中的每个可训练参数都得到梯度",
    "Healthy behind a factor that starts at zero (LoRA, a zero-initialised head) in the first step only": (
        "若位于从零开始的系数之后（LoRA、零初始化的输出头），仅在第一步属正常"
    ),
    "No call that cuts it was seen": "没有看到切断它的调用",
    "No parameter of the model requires a gradient: nothing is trained": "模型没有参数要求梯度：什么都没有训练",
    "Not for {names}: there is another cut that was not found": "{names} 没有恢复：还有未找到的断点",
    "Probably cut at {place}": "可能断在 {place}",
    "The graph is cut at {at}": "计算图断在 {at}",
    "The loss requires no gradient: no parameter is trained": "损失不要求梯度：没有参数得到训练",
    "The step does not get through its backward": "该步未能完成反向",
    "With all of them together undone the gradient comes back": "全部一起还原后，梯度恢复",
    "With each for its part undone the gradient comes back": "各自还原后，各自的梯度恢复",
    "With this cut undone the gradient comes back": "还原此断点后，梯度恢复",
    "A new process could not go on: {text} before it began{ending}": "新进程无法继续：{text}，在开始之前{ending}",
    "It did not come to its end: {how}": "未运行到末尾：{how}",
    "It did not come to its end: {how}, in {place}": "未运行到末尾：{how}，在 {place}",
    "It tells nothing else": "此外它什么也没说明",
    "On the CPU (--device cpu) the same operation says what is wrong with its input": (
        "在 CPU 上（--device cpu），同一运算会说明其输入有何不对"
    ),
    "Valid labels": "有效标签",
    "Nothing is accumulated in this step: one micro-batch": "该步没有累积：只有一个 micro-batch",
    "No finite gradient to compare": "没有可比较的有限梯度",
    "No gradient of the whole batch: {reason}": "没有整个 batch 的梯度：{reason}",
    "A gradient is zero or not finite: nothing to compare": "有梯度为零或非有限：无从比较",
    "NaN is written here as a constant": "此处写入了常数 NaN",
    "No sample stands out": "没有样本突出",
    "No sample stands out beyond what a hard or wrongly labelled one does": "没有样本比难的或标错的样本更突出",
    "A hard or wrongly labelled sample does that as well as a broken one: look at it": (
        "难的或标错的样本会如此，损坏的也会：请查看它"
    ),
    "Searched in evaluation mode, where the failure is, too: dropout draws other masks for fewer samples": (
        "在评估模式下搜索，故障在该模式下也存在：样本变少时 dropout 抽取的掩码不同"
    ),
    "Compared in evaluation mode: dropout draws other masks for fewer samples": (
        "在评估模式下比较：样本变少时 dropout 抽取的掩码不同"
    ),
    "The first is {index:d} at {place}: the classes has {rows:d} rows, 0 to {last:d}": (
        "第一个是 {index}，位于{place}：共有 {rows} 类，0 至 {last}"
    ),
    "Which labels stand on padding cannot be told: {why}": "看不出哪些标签在填充处：{why}",
    "The program chooses its precision itself: the others could not be tried": "程序自行选择精度：无法尝试其他精度",
    "It fails in every precision that was tried: it is not a matter of precision": (
        "在尝试过的每种精度下都失败：与精度无关"
    ),
    "It fails in float32 too, but not in each narrower precision: precision is no cure": (
        "在 float32 下也失败，但并非每种更窄的精度都失败：换精度治不了"
    ),
    "It fails in {dtype}": "在 {dtype} 下失败",
    "It fails in {dtype}, the first module whose values leave the range is {module}": (
        "在 {dtype} 下失败，首个值超出范围的模块是 {module}"
    ),
    "The gradient underflows in float16: {share} of its elements are exactly 0, in float32 {other}": (
        "梯度在 float16 下下溢：其元素的 {share} 恰为 0，在 float32 下为 {other}"
    ),
    "Of {count:d} parameters, such as {name}, nothing is left": "{count} 个参数（例如 {name}）什么都不剩",
    "A larger loss scale, or bfloat16, keeps them": "更大的损失缩放或 bfloat16 能保住它们",
    "The step is finite as recorded": "该步按记录是有限的",
    (
        "The step is finite, but the largest result of a module, in {module}, is {bits:d} bits below the "
        "limit of float16: the next outlier may overflow"
    ): ("该步是有限的，但模块的最大结果（在 {module} 中）比 float16 的上限只低 {bits} 位：下一个离群值可能溢出"),
    "The failure is there in {precision} and gone in {good}": "故障在 {precision} 中出现，在 {good} 中消失",
    "The replay agrees with the recording bit for bit": "重放与记录逐比特一致",
    "The replay agrees with the recording bit for bit ({reasons})": "重放与记录逐比特一致（{reasons}）",
    "The replay agrees with what is known of the step, not bit for bit ({reasons})": (
        "重放与该步的已知情况一致，但并非逐比特（{reasons}）"
    ),
    "The replay does not agree with what is known of the step ({reasons})": "重放与该步的已知情况不一致（{reasons}）",
    "Whether it agrees with the training is not known ({reasons})": "是否与训练一致未知（{reasons}）",
    (
        "The training had {ranks:d} ranks and this is the share of one: the recorded gradient, a mean over "
        "all ranks, was not compared"
    ): "训练有 {ranks} 个 rank，这是其中一个的份额：记录的梯度是所有 rank 的平均，未作比较",
    "Recorded on {device}, replayed on {other}: other kernels round otherwise": (
        "在 {device} 上记录，在 {other} 上重放：不同的内核舍入不同"
    ),
    "No random state was recorded: dropout and other random choices differ from those of the training": (
        "没有记录随机状态：dropout 等随机选择与训练时不同"
    ),
    (
        "This does not show a fault of the hardware: that would take the same step again on the same device "
        "and on another one, with deterministic kernels or a calibration of how far healthy repeats differ"
    ): ("这不能说明硬件有故障：那需要在同一设备和另一设备上再做同一步，并使用确定性内核，或校准正常重复之间的差异"),
    "Recorded with {name} {version}, replayed with {other}": "以 {name} {version} 记录，以 {other} 重放",
    "A new process could not go on: {why}": "新进程无法继续：{why}",
    "Not deterministic: the runs first part in {parted}": "非确定性：各次运行首先在{parted}上分开",
    (
        "Before it, a value was not finite: the first {value} is made by {operation} [{aten}] in the {phase}"
        ", in {module}"
    ): "在此之前已有非有限值：第一个 {value} 由 {operation} [{aten}] 在{phase}中产生，位于 {module}",
    (
        "Before it, a value was not finite: the first {value} comes from {operation} in the {phase}, in {module}"
    ): "在此之前已有非有限值：第一个 {value} 来自{phase}中的 {operation}，位于 {module}",
}
