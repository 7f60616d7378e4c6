"""What the readers of checkpoints remark, and how states of optimizers got their names."""

from collections.abc import Mapping

# English: Chinese
ENTRIES: Mapping[str, str] = {
    "'no weight decay for biases'": "“偏置不做权重衰减”",
    "'no weight decay for biases and LayerNorms'": "“偏置和 LayerNorm 不做权重衰减”",
    "'no weight decay for biases and norms, by name'": "“偏置和归一化层不做权重衰减（按名称）”",
    "'no weight decay for parameters of less than two dimensions'": "“少于两维的参数不做权重衰减”",
    "'no weight decay for biases and parameters of one dimension'": "“偏置和一维参数不做权重衰减”",
    "No names: {error}": "没有名称：{error}",
    "its elements lie in another order": "其元素的排列顺序不同",
    "a .metadata file that describes no state": ".metadata 文件没有描述任何状态",
    "a chunk that is no contiguous tensor": "数据块不是连续张量",
    "a chunk that reaches beyond its tensor": "数据块超出其张量的范围",
    "a chunk whose rows lie in too many separate places": "数据块的行分散在过多处",
    "a chunk with another number of dimensions than its tensor": "数据块的维数与其张量不同",
    "chunk {name}: {error}": "数据块 {name}：{error}",
    "chunks whose rows lie in too many separate places": "数据块的行分散在过多处",
    "elements {at:d} to {prod} are in no chunk": "元素 {at} 至 {prod} 不在任何数据块中",
    "elements {at:d} to {first:d} of {prod} are in no chunk": (
        "共 {prod} 个元素，其中 {at} 至 {first} 不在任何数据块中"
    ),
    "it holds no tensor of the element type that the metadata states": "其中没有元数据所述元素类型的张量",
    "its data file is missing or damaged": "其数据文件缺失或损坏",
    "its element type is not known": "其元素类型未知",
    "{damaged:d} chunks cannot be read, such as {damaged2}": "{damaged} 个数据块无法读取，例如 {damaged2}",
    "{torn:d} entries of its storage table are torn": "其存储表有 {torn} 个条目残缺",
    "{absent:d} of {files:d} data files are missing, such as {absent2}": (
        "{files} 个数据文件中缺 {absent} 个，例如 {absent2}"
    ),
    "a rank's file holds no optimizer state": "某个 rank 的文件没有优化器状态",
    "a rank's file is cut": "某个 rank 的文件被截断",
    "its partitions cannot be joined: {error}": "其分区无法拼合：{error}",
    "its ranks saved different steps: {steps:d}": "其各 rank 保存的步不同：{steps}",
    "the model states of model-parallel rank {rank:d} are missing": "缺少模型并行 rank {rank} 的模型状态",
    "the model's file does not name the parameters (param_shapes)": "模型文件没有写明参数名称（param_shapes）",
    "the parameters need more elements than the partitions hold": "参数所需的元素多于各分区所有",
    "{ranks:d} of {world:d} ranks have saved their partition": "{world} 个 rank 中有 {ranks} 个保存了自己的分区",
    "a safetensors header of {length} bytes": "safetensors 文件头长达 {length} 字节",
    "a safetensors header of {raw:d} bytes, not all of them ASCII": "safetensors 文件头长 {raw} 字节，且不全是 ASCII",
    "a safetensors header that names a key twice": "safetensors 文件头中同一个键出现两次",
    "a safetensors header with more tensors than can be": "safetensors 文件头中的张量多于可能的数目",
    "tensor {shown}: element type {what} is not known": "张量 {shown}：元素类型 {what} 未知",
    "tensor {shown}: its shape or its offsets are no list of integers": "张量 {shown}：其形状或偏移不是整数列表",
    "tensor {shown}: no name, or no entry": "张量 {shown}：没有名称，或没有条目",
    "the file is cut: {size:d} of {last:d} bytes of data are there": "文件被截断：数据 {last} 字节中只有 {size} 字节",
    "the safetensors header is no JSON object": "safetensors 文件头不是 JSON 对象",
    "the safetensors header is no valid JSON ({name})": "safetensors 文件头不是有效的 JSON（{name}）",
    "{last:d} bytes behind the last tensor belong to none": "最后一个张量之后的 {last} 字节不属于任何张量",
    "{cut:d} of {spans:d} tensors are lost, such as {shown}": "{spans} 个张量中丢失 {cut} 个，例如 {shown}",
    "a data.pkl of {size:d} bytes": "data.pkl 长达 {size} 字节",
    "a persistent id that is none of torch's": "持久 id 不是 torch 的",
    "a storage of an unknown class, or whose size is none": "存储的类未知，或其大小无效",
    "a storage whose key is none": "存储的键无效",
    "a storage without its class, key and size": "存储缺少类、键和大小",
    "a torch file of a protocol that is not known": "torch 文件的协议未知",
    "a torch file whose system record is none, or that is big-endian": "torch 文件的系统记录无效，或为大端序",
    "a view that reaches beyond its storage": "视图超出其存储的范围",
    "a zip archive without a data.pkl: not written by torch.save": "zip 归档中没有 data.pkl：不是由 torch.save 写出",
    "big-endian tensors are not read": "不读取大端序张量",
    "bytes inside of a pickle that hold no storage": "pickle 中的字节没有存储",
    "its storages are cut or torn: {error}": "其存储被截断或残缺：{error}",
    "storage {key} has {elements} elements, its tensors say otherwise": (
        "存储 {key} 有 {elements} 个元素，与其张量所说不符"
    ),
    "storage {key} should hold {nbytes} bytes, its record has {size:d}": (
        "存储 {key} 应有 {nbytes} 字节，其记录有 {size} 字节"
    ),
    "the list of storages names others than the tensors use": "存储列表与张量所用的存储不一致",
    "{end} bytes behind the end of the pickle are not read": "pickle 末尾之后的 {end} 字节未读取",
    "{known:d} of {known2:d} storages are whole": "{known2} 个存储中 {known} 个完整",
    "{missing:d} storages have no record, such as {missing2}": "{missing} 个存储没有记录，例如 {missing2}",
    "a file of weights that holds no element of any parameter": "权重文件中没有任何参数的元素",
    "an index of {size:d} bytes": "索引文件长达 {size} 字节",
    "an index without a weight_map": "索引没有 weight_map",
    "empty file": "空文件",
    "its files are of different steps: {listed}": "其各文件的步不同：{listed}",
    "its first {head:d} bytes are zeros: the content was lost": "其前 {head} 字节全为零：内容已丢失",
    "its optimizer state is not read: {error}": "其优化器状态未读取：{error}",
    "its parts are of different steps: it says {step:d}, its optimizer and scheduler {own}": (
        "其各部分的步不同：文件写 {step}，优化器和调度器写 {own}"
    ),
    "neither a zip archive nor a pickle: not written by torch.save": (
        "既不是 zip 归档也不是 pickle：不是由 torch.save 写出"
    ),
    "no valid JSON ({name})": "不是有效的 JSON（{name}）",
    "no weights: only the state beside them was saved": "没有权重：只保存了其余状态",
    "not read: no checkpoint by its content": "未读取：按内容不是检查点",
    "only a git-LFS pointer: the content was not fetched (git lfs pull)": (
        "只是 git-LFS 指针：内容尚未取回（git lfs pull）"
    ),
    "the .metadata file that describes these data files is missing": "缺少描述这些数据文件的 .metadata 文件",
    "the folder has the name of one that was still being written": "文件夹的名称表明它当时仍在写入",
    "{absent:d} of {wanted:d} shards are missing, such as {absent2}": (
        "{wanted} 个分片中缺 {absent} 个，例如 {absent2}"
    ),
    "{lost:d} tensors are lost, such as {key}: {lost2}": "丢失 {lost} 个张量，例如 {key}：{lost2}",
    "tensor {key} was not measured: {result}": "张量 {key} 未测量：{result}",
    "the CRC-32 of 1 record is wrong, such as tensor {hurt}: bytes were changed or damaged": (
        "1 条记录的 CRC-32 有误，例如张量 {hurt}：字节被改动或损坏"
    ),
    "the CRC-32 of 1 record is wrong, such as the one at byte {offset:d}: bytes were changed or damaged": (
        "1 条记录的 CRC-32 有误，例如字节 {offset} 处的记录：字节被改动或损坏"
    ),
    "the CRC-32 of {checks:d} records is wrong, such as tensor {hurt}: bytes were changed or damaged": (
        "{checks} 条记录的 CRC-32 有误，例如张量 {hurt}：字节被改动或损坏"
    ),
    (
        "the CRC-32 of {checks:d} records is wrong, such as the one at byte {offset:d}: bytes were changed or damaged"
    ): "{checks} 条记录的 CRC-32 有误，例如字节 {offset} 处的记录：字节被改动或损坏",
    "{text} ({others:d} such files)": "{text}（这样的文件有 {others} 个）",
    "{name}: moments or travel not measured: {reason}": "{name}：未测量矩或位移：{reason}",
    "config.json has {key}: its model is not made of transformers' own code alone": (
        "config.json 中有 {key}：其模型并非全由 transformers 自己的代码构成"
    ),
    "config.json is larger than any configuration": "config.json 比任何配置都大",
    "config.json is nested too deeply": "config.json 嵌套过深",
    "config.json is no JSON object": "config.json 不是 JSON 对象",
    "config.json is no valid JSON ({name})": "config.json 不是有效的 JSON（{name}）",
    "config.json is not read: {error}": "config.json 未读取：{error}",
    "config.json names no model_type and architectures of transformers": (
        "config.json 没有写明 transformers 的 model_type 和 architectures"
    ),
    "no config.json beside it: transformers was not asked for names": (
        "旁边没有 config.json：未向 transformers 询问名称"
    ),
    "no process could be started for transformers: {error}": "无法为 transformers 启动进程：{error}",
    "transformers did not build the model in {timeout:d} seconds": "transformers 在 {timeout} 秒内没有建好模型",
    "transformers gave no names: its process ended with status {returncode}": (
        "transformers 没有给出名称：其进程以状态 {returncode} 结束"
    ),
    "transformers gave no names: {answer}": "transformers 没有给出名称：{answer}",
    "The optimizer holds no parameters": "优化器没有参数",
    "The optimizer keeps no state that tells a shape: nothing could confirm a name": (
        "优化器没有能表明形状的状态：无法确认任何名称"
    ),
    "The optimizer's groups hold the names of their parameters": "优化器的参数组记有参数的名称",
    "The optimizer's states stand under the names of their parameters": "优化器的状态以参数的名称存放",
    "The states keep their ids: {why}": "状态保留其 id：{why}",
    "only {known} of {ids:d} parameters have a state that tells their shape": (
        "{ids} 个参数中只有 {known} 个的状态能表明形状"
    ),
    "{missing:d} have none": "{missing} 个没有名称",
    "{named:d} keep their ids": "{named} 个保留其 id",
    "{agreeing:d} of them moved between two checkpoints as their states say": (
        "其中 {agreeing} 个在两个检查点之间的移动与其状态相符"
    ),
    "{names:d} of {ids:d} states have a name: {parts}": "{ids} 个状态中 {names} 个有名称：{parts}",
    (
        "{named:d} of {count:d} states have a name: {proven} by the one update between two checkpoints, "
        "which moved their parameters as they say"
    ): "{count} 个状态中 {named} 个有名称：{proven} 个凭两个检查点之间的一次更新，其参数的移动与状态相符",
    (
        "{named:d} of {count:d} states have a name: {proven} by the one update between two checkpoints, "
        "which moved their parameters as they say, {proven2} as the only one of a shape that is left"
    ): (
        "{count} 个状态中 {named} 个有名称：{proven} 个凭两个检查点之间的一次更新，其参数的移动与状态相符，"
        "{proven2} 个是某一形状中仅剩的一个"
    ),
    "an optimizer of {raw:d} groups": "优化器有 {raw} 个组",
    "an optimizer's groups of more than {what} parameters": "优化器的组含有超过 {what} 个参数",
    "an optimizer's state of more than {what} tensors": "优化器状态含有超过 {what} 个张量",
    "an optimizer's state of {raw:d} parameters": "优化器状态有 {raw} 个参数",
    "no optimizer's state: it has neither 'state' nor 'param_groups'": (
        "不是优化器状态：既没有 'state' 也没有 'param_groups'"
    ),
    "parameter group {number:d} is no dictionary and was left out": "参数组 {number} 不是字典，已略去",
    "parameter group {number:d} lists {listed:d} parameters twice, or that are none": (
        "参数组 {number} 中有 {listed} 个参数重复列出或不是参数"
    ),
    "{dropped:d} entries of the optimizer's state are no parameter's and were left out": (
        "优化器状态中有 {dropped} 个条目不属于任何参数，已略去"
    ),
    "{strangers:d} entries of the optimizer's state belong to no parameter group": (
        "优化器状态中有 {strangers} 个条目不属于任何参数组"
    ),
    "it is not in the earlier checkpoint": "不在较早的检查点中",
    "it is not in the later checkpoint": "不在较晚的检查点中",
    "its moments": "其矩",
    "its weights": "其权重",
    "the betas of its moments are not known": "其矩的 betas 未知",
    "{what} are stored as {dtype}, which holds no plain numbers": "{what}以 {dtype} 存储，其中不是普通数字",
    "{what} differ in shape: {what2} and {what3}": "{what}的形状不同：{what2} 与 {what3}",
    "{what} differ in the order in which their elements lie": "{what}的元素排列顺序不同",
    "{what} have no elements": "{what}没有元素",
    "elements of type {dtype} are not read as numbers": "类型为 {dtype} 的元素不按数字读取",
    "{names:d} of {count:d} states have a name, by what all checkpoints with these groups tell": (
        "{count} 个状态中 {names} 个有名称，依据是含有这些组的所有检查点"
    ),
    "{proven:d} by the one update between two checkpoints, which moved their parameters as they say": (
        "{proven} 个凭两个检查点之间的一次更新，其参数的移动与状态相符"
    ),
    "{count:d} as the only one of a shape that is left": "{count} 个是某一形状中仅剩的一个",
    "{count:d} by how the weights moved between two checkpoints": "{count} 个凭权重在两个检查点之间的移动",
    "{count:d} by a shape that occurs once": "{count} 个凭只出现一次的形状",
    "{count:d} as the only one left in the order of the layers": "{count} 个按层的顺序仅剩一个",
    "no file keeps the order of the parameters": "没有文件保留参数的顺序",
    "several state dicts fit, with different names": "有几个状态字典相符，但名称不同",
    "the model of {file} has other parameters than the files with weights": "{file} 的模型与权重文件的参数不同",
    "the order of {file} fits the shapes of the states in several ways": "{file} 的顺序以几种方式与状态的形状相符",
    "the order of {file} fits the shapes of the states in no way": "{file} 的顺序与状态的形状不相符",
    "--names-from-config asks transformers, which may know more": (
        "用 --names-from-config 询问 transformers，它也许知道更多"
    ),
    "The order of {file} names the states, in the only way in which all shapes fit": (
        "状态由 {file} 的顺序命名，这是所有形状都相符的唯一方式"
    ),
    (
        "The order of {file} names the states, dealt to {groups:d} groups in the only way in which all shapes fit"
    ): "状态由 {file} 的顺序命名，分到 {groups} 个组，这是所有形状都相符的唯一方式",
    (
        "The order of {file} names the states, dealt to {groups:d} groups by the rule {rule}, and all shapes fit"
    ): "状态由 {file} 的顺序命名，按规则 {rule} 分到 {groups} 个组，所有形状都相符",
    "The order of {file} names the states, by the rule {rule}, and all shapes fit": (
        "状态由 {file} 的顺序按规则 {rule} 命名，所有形状都相符"
    ),
    "The model that {file} describes names the states, in the only way in which all shapes fit": (
        "状态由 {file} 所描述的模型命名，这是所有形状都相符的唯一方式"
    ),
    (
        "The model that {file} describes names the states, dealt to {groups:d} groups in the only way in "
        "which all shapes fit"
    ): "状态由 {file} 所描述的模型命名，分到 {groups} 个组，这是所有形状都相符的唯一方式",
    (
        "The model that {file} describes names the states, dealt to {groups:d} groups by the rule {rule}, "
        "and all shapes fit"
    ): "状态由 {file} 所描述的模型命名，按规则 {rule} 分到 {groups} 个组，所有形状都相符",
    "The model that {file} describes names the states, by the rule {rule}, and all shapes fit": (
        "状态由 {file} 所描述的模型按规则 {rule} 命名，所有形状都相符"
    ),
    "{count:d} tensors are not the optimizer's": "{count} 个张量不属于优化器",
    "{why}, but {count:d} of them moved between two checkpoints as others say": (
        "{why}，但其中 {count} 个在两个检查点之间的移动与其他状态相符"
    ),
    "samples": "样本",
    "tokens": "token",
    "characters": "字符",
    "id": "id",
    "length": "长度",
    "training": "训练",
    "evaluation": "评估",
    "opening checkpoints": "打开检查点",
    "measuring tensors": "测量张量",
    "comparing checkpoints": "比较检查点",
    "comparing parameters": "比较参数",
    "comparing other tensors": "比较其他张量",
}
