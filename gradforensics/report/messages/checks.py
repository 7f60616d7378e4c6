"""What a check lacked, in words: what would have to be there."""

from collections.abc import Mapping

# English: Chinese
ENTRIES: Mapping[str, str] = {
    "a logged rate at the step between the two checkpoints": "两个检查点之间那一步记录的学习率",
    "a logged rate that moves: a constant may be no more than a setting": (
        "会变化的已记录学习率：常数可能只是一项设置"
    ),
    "a rate above 0 in a single step of the run": "运行中单独一步里大于 0 的学习率",
    "a schedule of a known shape (this one is {name})": "形状已知的调度（此处是 {name}）",
    "a weight decay that a single step shows: larger than what rounding hides": (
        "单独一步就能显出的权重衰减：大于舍入所能掩盖的量"
    ),
    "series:lr over optimizer steps (this log counts {step_unit}s)": (
        "series:lr，按优化器步计（此日志的计数单位是 {step_unit}）"
    ),
    "a checkpoint with an averaged copy in the later part of the run": "运行后段带平均副本的检查点",
    "an averaged copy in a 16-bit type": "16 位类型的平均副本",
    "an averaged copy of the weights (EMA, SWA) beside them in a checkpoint": (
        "检查点中与权重并存的平均副本（EMA、SWA）"
    ),
    "two checkpoints with an averaged copy between which the weights moved": "带平均副本且其间权重有移动的两个检查点",
    "a batch that stays the same (this run declares a ramp)": "保持不变的 batch（此运行声明了递增）",
    "data-parallel ranks ({world:d} ranks do not divide by {model} of model parallelism)": (
        "数据并行的 rank（{world} 个 rank 不能被 {model} 路模型并行整除）"
    ),
    "epochs as fractions beside every loss, in both attempts": "两次启动中每个损失旁的小数形式的 epoch",
    "series:micro_grad_norm (of one micro-batch)": "series:micro_grad_norm（单个 micro-batch 的）",
    "frequencies of rotary embeddings (inv_freq) in a checkpoint: few models save them": (
        "检查点中旋转位置编码的频率（inv_freq）：保存它的模型很少"
    ),
    "running statistics of a normalisation (running_var) in a checkpoint": (
        "检查点中归一化层的滑动统计量（running_var）"
    ),
    "clipping by norm (this run clips by value)": "按范数裁剪（此运行按值裁剪）",
    "series:grad_norm before clipping, unscaled and over all ranks": (
        "裁剪之前、已去缩放且跨全部 rank 的 series:grad_norm"
    ),
    "how the run ended (its record stops without a message)": "运行如何结束（其记录在没有消息的情况下停止）",
    "Adam's moments in a checkpoint after more updates": "更多次更新之后的检查点中的 Adam 矩",
    "an adapter after more updates": "更多次更新之后的适配器",
    "tensors of a low-rank adapter": "低秩适配器的张量",
    "series:grad_norm of every step": "每一步的 series:grad_norm",
    "Adam's states of a token embedding": "token 嵌入的 Adam 状态",
    "a checkpoint late enough that many tokens should have been read": "足够晚、应已读过许多 token 的检查点",
    "a token embedding in a checkpoint": "检查点中的 token 嵌入",
    "a token embedding in a checkpoint of a known step": "步已知的检查点中的 token 嵌入",
    "two checkpoints with Adam's states of a token embedding that decays": (
        "带有会衰减的 token 嵌入之 Adam 状态的两个检查点"
    ),
    "two checkpoints with a token embedding": "带 token 嵌入的两个检查点",
    "one step evaluated twice (call evaluate() two times in a row)": "同一步评估两次（连续调用两次 evaluate()）",
    "series:loss at every step around the first evaluation": "首次评估前后每一步的 series:loss",
    "series of an old and of a new task (eval_old_loss and eval_new_loss)": (
        "旧任务与新任务的序列（eval_old_loss 与 eval_new_loss）"
    ),
    "series:loss at eight points of each epoch": "每个 epoch 中八处的 series:loss",
    "the epoch beside every loss": "每个损失旁的 epoch",
    "Adam states of experts": "专家的 Adam 状态",
    "a checkpoint late enough that every expert should have had tokens": "足够晚、每个专家都应已分到 token 的检查点",
    "experts of a mixture with one tensor each (experts.0, experts.1 ...)": (
        "每个专家各有一个张量的混合专家（experts.0、experts.1 ...）"
    ),
    "the experts of a layer are one tensor: no statistics of each": "一层的专家合为一个张量：没有各自的统计量",
    "a log of the Hugging Face Trainer": "Hugging Face Trainer 的日志",
    "series:loss with more digits": "位数更多的 series:loss",
    "Adam's moments after more updates": "更多次更新之后的 Adam 矩",
    "step counters per parameter in two checkpoints, of more updates": "两个检查点中更多次更新的逐参数步计数器",
    "two checkpoints over which weight decay alone would show": "能单独显出权重衰减的两个检查点",
    "two checkpoints with weights in float32 and a running optimizer": "权重为 float32 且优化器在运行的两个检查点",
    "two checkpoints with weights that differ, {steps:d} optimizer steps or more apart": (
        "权重不同、相隔至少 {steps} 个优化器步的两个检查点"
    ),
    "weights that are finite": "有限的权重",
    "whether rounding keeps these low-precision weights where they are (see GF13)": (
        "舍入是否使这些低精度权重停在原处（见 GF13）"
    ),
    "a complete checkpoint with the names of its states": "带有状态名称的完整检查点",
    "a decay of those parameters that a single step shows": "单独一步就能显出的那些参数的衰减",
    "groups of Adam or AdamW": "Adam 或 AdamW 的参数组",
    "groups of two checkpoints of one optimizer": "同一优化器两个检查点的参数组",
    "which Adam it is": "是哪种 Adam",
    "an error of the program that shows that the disk or the file system failed it": (
        "能表明磁盘或文件系统出错的程序错误"
    ),
    "a baseline that learned": "学到了东西的基线",
    "a bound for the optimizer {optimizer}": "优化器 {optimizer} 的界限",
    "a record that goes beyond the warm-up of the learning rate": "超出学习率预热阶段的记录",
    "baseline:series:loss over the same steps": "同样各步的 baseline:series:loss",
    "series:lr after the first step (the log shows 0 in place of a rate that is not known yet)": (
        "第一步之后的 series:lr（日志用 0 代替尚不知道的学习率）"
    ),
    "series:lr with more digits (it is printed as 0 to the last digit)": (
        "位数更多的 series:lr（打印出的每一位都是 0）"
    ),
    "settings of both runs": "两个运行的设置",
    "two checkpoints {steps:d} steps and {share} of the run apart at the full learning rate": (
        "在满学习率下相隔 {steps} 步、占运行 {share} 的两个检查点"
    ),
    "weights in float32: in a shorter type it is rounding that holds them": (
        "float32 的权重：更短的类型中是舍入使其不动"
    ),
    "a loss that is meant to fall (this run logs rewards, a policy or an adversary)": (
        "本应下降的损失（此运行记录的是奖励、策略或对抗）"
    ),
    "a loss that is one mean over tokens (this one has parts: {what})": (
        "对 token 求单一平均的损失（此处由几部分组成：{what}）"
    ),
    "series:grad_norm at the steps of the loss": "与损失同步的 series:grad_norm",
    "series:loss with finite values": "含有限值的 series:loss",
    "a run without a replay buffer (this one logs rewards)": "没有回放缓冲区的运行（此运行记录奖励）",
    "how the run ended": "运行如何结束",
    "first moments of an optimizer in a checkpoint": "检查点中优化器的一阶矩",
    "a resumed run (two launches)": "恢复过的运行（两次启动）",
    "series:loss at every step around a resume": "恢复前后每一步的 series:loss",
    "series:loss at every step of three whole epochs": "三个完整 epoch 中每一步的 series:loss",
    "the optimizer of two launches or checkpoints": "两次启动或两个检查点的优化器",
    "which Adam {optimizer} is": "{optimizer} 是哪种 Adam",
    (
        "a logged grad_norm that is that of an update (step {step:d}: the checkpoints hold {norm}, the log {logged})"
    ): "属于某次更新的已记录 grad_norm（步 {step}：检查点得 {norm}，日志为 {logged}）",
    (
        "first moments of Adam in float32 in two checkpoints one update apart, and no decay within the gradient"
    ): "相隔一次更新的两个检查点中 float32 的 Adam 一阶矩，且梯度中不含衰减",
    "series:grad_norm at the step between two checkpoints one update apart": (
        "相隔一次更新的两个检查点之间那一步的 series:grad_norm"
    ),
    "states of every parameter of the optimizer that are one update apart": "优化器每个参数相隔一次更新的状态",
    "a norm or hash of the weights on every rank": "每个 rank 上权重的范数或哈希",
    "settings that say whether weights are replicated or sharded": "说明权重是复制还是分片的设置",
    "times of ranks that do the same work (this run is a pipeline of stages)": (
        "工作相同的各 rank 的用时（此运行是多段流水线）"
    ),
    "{name} after the reduction over ranks": "跨 rank 归约之后的 {name}",
    "{name} after the reduction over ranks (these differ from the first step on, as local ones do)": (
        "跨 rank 归约之后的 {name}（这些从第一步起就不同，如局部量那样）"
    ),
    "a resume in the record": "记录中的一次恢复",
    "a schedule that does not restart regularly": "不定期重启的调度",
    "optimizer states of several ranks that train one model": "训练同一模型的多个 rank 的优化器状态",
    "settings that say whether the ranks hold replicas (strategy, such as ddp)": (
        "说明各 rank 是否持有副本的设置（strategy，如 ddp）"
    ),
    "tensors of several ranks that each of them holds whole": "每个 rank 都完整持有的多个 rank 的张量",
    "a norm from clip_grad_norm_ (DeepSpeed unscales and clips in one step)": (
        "clip_grad_norm_ 给出的范数（DeepSpeed 一步完成去缩放和裁剪）"
    ),
    "series:loss_scale over optimizer steps (this log counts {step_unit}s)": (
        "series:loss_scale，按优化器步计（此日志的计数单位是 {step_unit}）"
    ),
    "series:loss_scale that changes": "会变化的 series:loss_scale",
    "series:skipped_steps over optimizer steps": "按优化器步计的 series:skipped_steps",
    "a run that ends near max_steps (the log may count steps in another unit)": (
        "在 max_steps 附近结束的运行（日志的计步单位可能不同）"
    ),
    "a schedule without restarts (this one is {scheduler})": "不重启的调度（此处是 {scheduler}）",
    "steps beyond {speed} (max_steps may count micro-batches)": (
        "步 {speed} 之后的记录（max_steps 可能按 micro-batch 计）"
    ),
    "a checkpoint with the counters of the run, of its optimizer and of its scheduler": (
        "带有运行、优化器和调度器计数器的检查点"
    ),
    "two checkpoints with the step of the run and the optimizer's step counter": (
        "带有运行步数和优化器步计数器的两个检查点"
    ),
    "what the scheduler was built for: optimizer steps or something else": "调度器按什么而建：优化器步或其他",
    "Adam states of {what} matrices in two checkpoints one update apart": (
        "相隔一次更新的两个检查点中 {what} 个矩阵的 Adam 状态"
    ),
    "Adam's second moments of a stack of layers": "一叠层的 Adam 二阶矩",
    "{checkpoints} checkpoints with Adam states after {least} updates": (
        "经过 {least} 次更新、带 Adam 状态的 {checkpoints} 个检查点"
    ),
    "{checkpoints} checkpoints with Adam states of the same parameters": (
        "带有相同参数之 Adam 状态的 {checkpoints} 个检查点"
    ),
    "a look at torch on the node (gradforensics env)": "查看节点上的 torch（gradforensics env）",
    "compute capability and torch's arch list (gradforensics env)": (
        "计算能力与 torch 的架构列表（gradforensics env）"
    ),
    "the driver and the CUDA version of torch (gradforensics env)": "驱动与 torch 的 CUDA 版本（gradforensics env）",
    "the software of two launches (gradforensics env at each)": "两次启动的软件（每次启动时 gradforensics env）",
    "the software of two nodes (gradforensics env on each)": "两个节点的软件（每个节点上 gradforensics env）",
    "moments of Adam in float32 or bfloat16, with betas that never changed": (
        "betas 从未改变、以 float32 或 bfloat16 存储的 Adam 矩"
    ),
    "moments of an optimizer that is Adam for certain": "确定是 Adam 的优化器的矩",
    "states of Adam that stand under the names of their parameters": "以参数名称存放的 Adam 状态",
    "two checkpoints of one training with Adam states in float32": "同一训练中带 float32 Adam 状态的两个检查点",
    "a checkpoint of a trainer that counts optimizer steps, with the optimizer's step counter": (
        "计优化器步的训练器的检查点，且带有优化器的步计数器"
    ),
    "a checkpoint with a loss scaler": "带损失缩放器的检查点",
    "a checkpoint with a loss scaler after {span} steps or more": "至少 {span} 步之后带损失缩放器的检查点",
    "a checkpoint with a loss scaler, the optimizer's step counter and the step of the run": (
        "带有损失缩放器、优化器步计数器和运行步数的检查点"
    ),
    "skips that explain how far the optimizer is behind (its loss scale stands too high for them)": (
        "能解释优化器落后多少的跳步（其损失缩放太高，不符合）"
    ),
    "the length of the schedule that began anew": "重新开始的调度的长度",
    "the steps that the loss scaler skipped": "损失缩放器跳过的步",
    "two checkpoints of one optimizer with its step counter and the step of the run": (
        "同一优化器、带步计数器和运行步数的两个检查点"
    ),
    "two checkpoints with a scheduler that is stepped with the optimizer": "调度器随优化器步进的两个检查点",
    "whether the step of the checkpoints counts optimizer steps or micro-batches": (
        "检查点的步计的是优化器步还是 micro-batch"
    ),
    "an optimizer whose rounding is known: Adam or AdamW": "舍入方式已知的优化器：Adam 或 AdamW",
    "moments of Adam in one format": "同一格式的 Adam 矩",
    "the state of the optimizer beside weights in 16 bits": "与 16 位权重并存的优化器状态",
    "the step and eps of the optimizer's states": "优化器状态的步和 eps",
    "whether the 16-bit weights are those of the training: moments in float32 suggest a copy": (
        "16 位权重是否就是训练所用：float32 的矩表明它可能是副本"
    ),
    "which weights a group with a learning rate of 0 keeps as they are": "学习率为 0 的组使哪些权重保持原样",
    "a baseline with the same batch size, sequence length and number of ranks": (
        "batch 大小、序列长度和 rank 数都相同的基线"
    ),
    "a whole checkpoint with a token embedding": "带 token 嵌入的完整检查点",
    "settings that agree on whether head and embedding are tied": "就输出头与嵌入是否绑定而言彼此一致的设置",
    "two whole checkpoints of one kind": "同类的两个完整检查点",
    "two whole checkpoints of one kind with their optimizer": "同类且带优化器的两个完整检查点",
    "two whole checkpoints of one kind without their optimizer": "同类且不带优化器的两个完整检查点",
    "data of training and of evaluation": "训练和评估的数据",
    "data with answers": "带答案的数据",
    "data with texts": "带文本的数据",
    "data with texts or token ids": "带文本或 token id 的数据",
    "data with token ids": "带 token id 的数据",
    "data with token ids and attention masks": "带 token id 和注意力掩码的数据",
    "data with token ids and labels": "带 token id 和标签的数据",
    "data with token {what}": "带 token {what} 的数据",
    "series:loss of one attempt": "单次启动的 series:loss",
    "series:loss with its epochs": "带 epoch 的 series:loss",
    "series:loss with three epochs of eight points": "含三个 epoch、每个八点的 series:loss",
    "series:pad_share at the steps of the loss": "与损失同步的 series:pad_share",
    "series:pad_share that varies": "有变化的 series:pad_share",
    "series:lr with {points:d} points in the first half of the warm-up": "预热前半段有 {points} 个点的 series:lr",
    "a checkpoint of the first tenth of the run, and a later one": "运行前十分之一的一个检查点，以及更晚的一个",
    "a learning rate logged between two checkpoints with Adam states": "带 Adam 状态的两个检查点之间记录的学习率",
    "matrices among the weights": "权重中的矩阵",
    "two checkpoints with their steps": "带步的两个检查点",
    "the run {name} raises alarms itself ({what}): nothing is compared with it": (
        "运行 {name} 自身也触发警报（{what}）：不与它比较"
    ),
    "this is the run that --baseline names: it is not compared with itself": (
        "这就是 --baseline 指定的运行：不与自己比较"
    ),
    "the check {name} failed, which is a defect of this tool: {error}": "检查 {name} 失败，这是本工具的缺陷：{error}",
    "torch cannot be imported: {error}": "无法导入 torch：{error}",
    "torch cannot use the GPUs: {error}": "torch 无法使用 GPU：{error}",
    "torch is not installed": "未安装 torch",
    "torch sees no GPU": "torch 看不到 GPU",
    "Adam or AdamW (for other optimizers no formula is known here that tells the rate)": (
        "Adam 或 AdamW（对其他优化器，此处没有已知公式能得出学习率）"
    ),
    "Adam with its bias corrected": "做偏差校正的 Adam",
    "a rate large enough to stand out from rounding in a single step": "大到在单独一步里能从舍入中显出的学习率",
    "an optimizer that minimizes": "做最小化的优化器",
    "one rate for all parameters of a group (here they moved at several)": (
        "一组的所有参数用同一学习率（此处以几种学习率移动）"
    ),
    "states of the group's parameters that are one update apart": "该组参数相隔一次更新的状态",
    "the same betas and eps in both checkpoints": "两个检查点中相同的 betas 和 eps",
    "the same parameter groups in both checkpoints": "两个检查点中相同的参数组",
    "weights that moved as their Adam states say": "按其 Adam 状态移动的权重",
    "a log and an optimizer that count the rate in one unit": "以同一单位计学习率的日志和优化器",
    "a logged rate at the steps of two checkpoints": "两个检查点所在步上记录的学习率",
    "an optimizer of a known kind": "种类已知的优化器",
    "one rate for all groups in both checkpoints": "两个检查点中所有组都用同一学习率",
    "the optimizer of every weight that moved": "每个有移动的权重的优化器",
    "an optimizer whose formula is known: Adam or AdamW": "公式已知的优化器：Adam 或 AdamW",
    "matrices with moments in float32": "矩为 float32 的矩阵",
    "one eps for all parameters, and states of at least {steps:d} updates": (
        "所有参数用同一 eps，且状态至少经过 {steps} 次更新"
    ),
    "matrices in two checkpoints": "两个检查点中的矩阵",
    "more updates between the two checkpoints: so few may also be rounded stochastically": (
        "两个检查点之间更多的更新：这么少也可能是随机舍入"
    ),
    "states that had a gradient: the first moments of many elements are 0": "有过梯度的状态：许多元素的一阶矩为 0",
    "two checkpoints with updates at a known learning rate between them": "其间以已知学习率更新的两个检查点",
}
