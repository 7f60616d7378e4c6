"""Why a pickle or a zip archive of tensors is not read."""

from collections.abc import Mapping

# English: Chinese
ENTRIES: Mapping[str, str] = {
    "a tensor of {nbytes} bytes is not read whole": "{nbytes} 字节的张量不整体读取",
    "a view of shape {what} whose elements lie in {count:d} separate places": (
        "形状为 {what} 的视图，其元素分散在 {count} 处"
    ),
    "a meta tensor has no bytes": "meta 张量没有字节",
    "an array of Python objects": "Python 对象数组",
    "its bytes are not in the file": "其字节不在文件中",
    "the file became shorter while it was read: it ends at byte {offset:d}": "文件在读取时变短：止于字节 {offset}",
    "the file ends at byte {size:d}": "文件止于字节 {size}",
    "the part ends at byte {size:d}": "该部分止于字节 {size}",
    "{data:d} bytes are there": "有 {data} 字节",
    "{target:d} bytes from {offset:d} on were expected": "应有从 {offset} 起的 {target} 字节",
    "{count:d} from {offset:d} on were expected": "应有从 {offset} 起的 {count} 字节",
    "_codecs.encode with another encoding than latin1": "_codecs.encode 使用了 latin1 以外的编码",
    "a key that cannot be one ({name})": "不能作键的键（{name}）",
    "a key that is a complex number": "键是复数",
    "a key that is a huge integer": "键是极大的整数",
    "a key that is a long or nested tuple": "键是很长或嵌套的元组",
    "a key that is a set": "键是集合",
    "a key that is a tuple of long texts": "键是含长文本的元组",
    "a path that is longer than one can be": "路径长于可能的长度",
    "a tensor of an unknown element type": "张量的元素类型未知",
    "a tensor of shape {what} needs {needed:d} bytes of a storage of {nbytes}": (
        "形状为 {what} 的张量需要 {needed} 字节，而存储只有 {nbytes} 字节"
    ),
    "a tensor of {value:d} dimensions": "张量有 {value} 维",
    "a tensor whose storage is no storage": "张量的存储不是存储",
    "a tensor with an impossible storage offset": "张量的存储偏移不可能",
    "a tensor with more sizes than strides": "张量的尺寸多于步幅",
    "an array of shape {what} with {data:d} bytes": "形状为 {what} 的数组有 {data} 字节",
    "the {what} of a tensor holds an impossible number": "张量的 {what} 含有不可能的数字",
    "the {what} of a tensor is no tuple of integers": "张量的 {what} 不是整数元组",
    "{path} with impossible arguments ({name})": "{path} 的参数不可能（{name}）",
    "a call whose arguments are no tuple": "调用的参数不是元组",
    "a dictionary with a key and no value": "字典中有键而没有值",
    "a key and value for a {name}": "为 {name} 设置键和值",
    "a line in a pickle that is longer than a name can be": "pickle 中有一行比名称可能的长度更长",
    "a member for a {name}": "为 {name} 添加成员",
    "a pickle that imports more than {what} names": "pickle 导入超过 {what} 个名称",
    "a pickle that recalls what it never stored": "pickle 取回它从未存入的内容",
    "a pickle that takes from an empty stack": "pickle 从空栈中取值",
    "a pickle that takes up to a mark where none is": "pickle 取到不存在的标记",
    "a state for a {name}": "为 {name} 设置状态",
    "a text of {size:d} bytes where {left} are left": "{size} 字节的文本，而只剩 {left} 字节",
    "an import whose name is no text": "导入的名称不是文本",
    "an item for a {name}": "为 {name} 添加项",
    "no valid pickle at byte {at:d} ({name})": "字节 {at} 处不是有效的 pickle（{name}）",
    "the pickle takes more than {seconds:d} s of computing time": "pickle 所需的计算时间超过 {seconds} 秒",
    "the pickle would need more than {memory} MB of memory": "pickle 所需的内存会超过 {memory} MB",
    "a frame of {size:d} bytes where {left} are left": "{size} 字节的帧，而只剩 {left} 字节",
    "a memo number out of range": "备忘编号超出范围",
    "a pickle whose buffers are kept outside of it": "pickle 的缓冲区保存在其外",
    "a text of negative length": "文本的长度为负",
    "a text without its quotes": "文本没有引号",
    "an integer of {size:d} bytes": "{size} 字节的整数",
    "an integer of {text:d} digits": "{text} 位数字的整数",
    "an object without a class": "对象没有类",
    "more than {what} marks": "超过 {what} 个标记",
    "pickle protocol {number:d} is unknown": "pickle 协议 {number} 未知",
    "a zip archive of {count:d} records": "zip 归档有 {count} 条记录",
    "a zip record with a name of {name_length} bytes": "zip 记录的名称长达 {name_length} 字节",
    "bytes that belong to no record stand before or inside of the zip archive": (
        "zip 归档之前或之内有不属于任何记录的字节"
    ),
    "the zip archive has no end record: the file is cut": "zip 归档没有结束记录：文件被截断",
    "the zip directory is torn": "zip 目录残缺",
    "the zip directory lies outside of the file": "zip 目录在文件之外",
    "the zip64 end record is not where the archive says": "zip64 结束记录不在归档所说之处",
    "two zip records are called {name}": "两条 zip 记录都叫 {name}",
    "zip record {name} has not the size that the directory states": "zip 记录 {name} 的大小与目录所述不符",
    "zip record {name} is compressed, which torch never does to a storage": (
        "zip 记录 {name} 经过压缩，而 torch 从不压缩存储"
    ),
    "zip record {name} is marked as encrypted": "zip 记录 {name} 标为已加密",
    "zip record {name} reaches into the next one": "zip 记录 {name} 延伸到下一条之中",
    "zip record {name} would be {size:d} bytes from {packed}": "zip 记录 {name} 会从 {packed} 字节变成 {size} 字节",
    "zip record {name}: compression method {method} is not known here": (
        "zip 记录 {name}：此处不认识压缩方法 {method}"
    ),
    "zip record {name}: {error}": "zip 记录 {name}：{error}",
    "zip records overlap, or lie outside of the file": "zip 记录互相重叠，或在文件之外",
    "{code} at byte {position:d} is no pickle opcode": "字节 {position} 处的 {code} 不是 pickle 操作码",
}
