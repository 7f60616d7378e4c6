"""Settings from configuration files and from the user: flattened names, canonical keys, lines where they are cheap."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import tomli

from gradforensics.errors import UsageError
from gradforensics.evidence import names, numbers
from gradforensics.evidence.files import File
from gradforensics.evidence.located_json import Cursor, TornJsonError, flatten
from gradforensics.evidence.readings import Reading
from gradforensics.tables import Setting

Leaf = tuple[str, Any, int | None]

SIZE_LIMIT = 4 << 20
LEAF_LIMIT = 5000
_TOO_FEW = 2  # a file with another name must hold this many known settings to count as a configuration
_STRONG = re.compile(
    r"^(?:config|configs?[-_.]\w+|\w+[-_]config|hparams|hyper_?params|hyperparameters|params|args|opts?|options|"
    r"training_args|training_arguments|train_args|\w*_args|training_options|train_options|training_contract|adapter_config|"
    r"ds_config\w*|deepspeed\w*|run_config|settings|overrides|\w*train\w*config\w*)\.(?:json|ya?ml|toml|bin)$"
)
_DENIED = re.compile(
    r"^(?:(?:generation|tokenizer|preprocessor|processor|image_processor|feature_extractor|video_preprocessor|chat_template|quantize|quantization)"
    r"(?:_config)?|special_tokens_map|added_tokens|vocab|merges|tokenizer|manifest|package(?:-lock)?|tsconfig|jsconfig|.*\.index|model_index|"
    r"dataset_infos?|dataset_dict|modules|sentence_bert_config|environment|conda|docker-compose.*|mkdocs|\.pre-commit-config|pyproject|"
    r"cargo|poetry|pipfile|wandb-summary|wandb-metadata|profile|trace)\.(?:json|ya?ml|toml)$"
)
_TABLE = re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(r"^\s*([\w.\"'-]+(?:\s*\.\s*[\w\"'-]+)*)\s*=")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?$")
_TRUE_FALSE = {"true": True, "false": False, "yes": True, "no": False, "none": None, "null": None}


def could_be(file: File) -> bool:
    """Whether name and size are those of a configuration file; training_args.bin counts where it is JSON text."""
    if file.size > SIZE_LIMIT or _DENIED.match(file.base):
        return False
    if file.suffix == ".bin":
        return file.base == "training_args.bin" and file.start.lstrip().startswith("{")
    if file.suffix == ".json":
        return file.start.lstrip().startswith("{")
    return file.suffix in (".yaml", ".yml", ".toml")


def read(file: File) -> Reading:
    """The settings of one file; "not mine" where they do not look like those of a training."""
    reading = Reading(settings=[])
    leaves: list[Leaf] = []
    try:
        for leaf in _leaves(file) if "_wandb" not in file.start else _unwrapped(_leaves(file)):
            if len(leaves) >= LEAF_LIMIT:
                reading.notices.append((leaf[2], f"only the first {LEAF_LIMIT} settings were read"))
                break
            leaves.append(leaf)
    except _BrokenError as error:
        reading.notices.append((error.line, str(error)))
    known = {names.setting_key(name) for name, _, _ in leaves if names.is_setting(name)}
    if len(known) < (1 if _STRONG.match(file.base) else _TOO_FEW):
        return Reading(claimed=False)
    reading.settings = [setting for leaf in leaves for setting in _canonical(*leaf, file.name)]
    return reading


def _canonical(name: str, value: Any, line: int | None, source: str) -> Iterator[Setting]:
    key = names.setting_key(name)
    if key == "adam_betas":
        pair = value if isinstance(value, (list, tuple)) else []
        for beta_key, beta in zip(("adam_beta1", "adam_beta2"), pair, strict=False):
            yield Setting(beta_key, name, beta, source, line)
        return
    yield Setting(key, name, None if names.is_unset(key, value) else value, source, line)


class _BrokenError(Exception):
    def __init__(self, line: int | None, text: str) -> None:
        self.line = line
        super().__init__(text)


def _leaves(file: File) -> Iterator[Leaf]:
    text = file.text()
    if file.suffix in (".json", ".bin"):
        return _json(text)
    return _toml(text) if file.suffix == ".toml" else _yaml(text)


def _unwrapped(leaves: Iterator[Leaf]) -> Iterator[Leaf]:
    """Settings as W&B writes them, each as {"desc": ..., "value": ...}."""
    for name, value, line in leaves:
        if not name.startswith("_wandb") and not name.endswith(".desc"):
            yield name.replace(".value.", ".").removesuffix(".value"), value, line


def _json(text: str) -> Iterator[Leaf]:
    cursor = Cursor(text)
    try:
        yield from flatten(cursor)
    except TornJsonError as error:
        raise _BrokenError(error.line, f"not read to its end: {error}") from error
    if cursor.skip():
        raise _BrokenError(cursor.line, "more than one JSON value: the first was read")


def _toml(text: str) -> Iterator[Leaf]:
    try:
        data = tomli.loads(text)
    except (tomli.TOMLDecodeError, RecursionError) as error:
        found = re.search(r"line (\d+)", str(error))
        raise _BrokenError(int(found[1]) if found else None, f"no valid TOML: {error}") from error
    lines: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if table := _TABLE.match(line):
            prefix = table[1].replace('"', "").replace(" ", "") + "."
        elif assigned := _ASSIGNMENT.match(line):
            lines.setdefault(prefix + assigned[1].replace('"', "").replace(" ", ""), number)
    for name, value in _dotted(data):
        yield name, value, lines.get(name)


def _dotted(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _dotted(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


def _yaml(text: str) -> Iterator[Leaf]:
    """YAML nodes, not objects: nothing is constructed, so no tag can run code, and every node has its line."""
    from ruamel.yaml import YAML  # noqa: PLC0415  loaded only where a YAML file is met
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415

    try:
        with warnings.catch_warnings(action="ignore"):  # of anchors that stand there twice: the last one counts
            root = YAML(typ="safe", pure=True).compose(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = " ".join(str(getattr(error, "problem", None) or error).split())[:200]
        raise _BrokenError(mark.line + 1 if mark else None, f"no valid YAML: {problem}") from error
    except (ValueError, RecursionError) as error:
        raise _BrokenError(None, f"no valid YAML: {error}") from error
    yield from _yaml_leaves(root, "", ())


def _yaml_leaves(node: Any, prefix: str, above: tuple[int, ...]) -> Iterator[Leaf]:
    if getattr(node, "id", "") != "mapping" or id(node) in above or len(above) > 20:
        return
    for key, item in node.value:
        name = f"{prefix}{key.value if isinstance(key.value, str) else '?'}"
        line = key.start_mark.line + 1
        if item.id == "mapping":
            yield from _yaml_leaves(item, f"{name}.", (*above, id(node)))
        else:
            yield name, _yaml_value(item), line


def _yaml_value(node: Any, depth: int = 0) -> Any:
    if node.id == "sequence":
        return [_yaml_value(item, depth + 1) for item in node.value[:100]] if depth < 3 else None
    if node.id != "scalar":
        return None
    kind = node.tag.rpartition(":")[2] if str(node.tag).startswith("tag:yaml.org,2002:") else "str"
    text = node.value
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in ("true", "yes", "on")
    if kind == "int" and _NUMBER.match(text):
        return int(text)
    if kind in ("int", "float"):
        try:
            return float(
                text.replace(".inf", "inf").replace(".nan", "nan").replace(".Inf", "inf").replace(".NaN", "nan")
            )
        except ValueError:
            return text
    return text or str(node.tag).rpartition(":")[2]


def from_checkpoint(given: Iterable[tuple[str, Any, str]]) -> list[Setting]:
    """Settings (name, value, file) that the run itself saved in its checkpoints, each once; unset ones are left out."""
    seen: set[tuple[str, str]] = set()
    found: list[Setting] = []
    for name, value, source in given:
        if value is None or (name, repr(value)) in seen:
            continue
        seen.add((name, repr(value)))
        found += [replace(setting, origin="runtime") for setting in _canonical(name, value, None, source)]
    return found


def from_text(text: str, source: str) -> list[Setting]:
    """Settings in a JSON object or a YAML mapping that the run itself logged; none where too few of them are known."""
    given: list[tuple[str, Any, str]] = []
    with suppress(_BrokenError):  # what precedes a torn end counts
        for name, value, _ in _json(text) if text.startswith("{") else _yaml(text):
            given.append((name, value, source))
            if len(given) == LEAF_LIMIT:
                break
    known = {names.setting_key(name) for name, _, _ in given if names.is_setting(name)}
    return from_checkpoint(given) if len(known) >= _TOO_FEW else []


def parse_value(text: Any) -> Any:
    """A --set value: number, true/false or the text itself; values that are no text stay as they are."""
    if not isinstance(text, str):
        return text
    bare = text.strip()
    if bare.lower() in _TRUE_FALSE:
        return _TRUE_FALSE[bare.lower()]
    if _NUMBER.match(bare):
        number = float(bare)
        return int(bare) if numbers.whole(number) is not None and bare.lstrip("+-").isdigit() else number
    return text


def from_user(given: Mapping[str, Any]) -> list[Setting]:
    """The user's --set key=value as settings that beat all others."""
    found = []
    for name, value in given.items():
        if not name.strip():
            raise UsageError(f"--set {name}={value}: a key is needed, such as --set vocab_size=32000")
        found.append(Setting(names.setting_key(name.strip()), name.strip(), parse_value(value), "--set", None, "user"))
    return found
