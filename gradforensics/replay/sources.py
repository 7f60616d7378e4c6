"""Where the state, the batch and the program of a replay come from, and what the user has allowed (no torch).

Most exact first: a capsule of the step; a checkpoint before it and a program that gives the batches; a checkpoint of
Hugging Face with its config.json and a file with the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradforensics import capsule as capsules
from gradforensics.checkpoints import meta_names
from gradforensics.checkpoints.load import Loaded
from gradforensics.errors import CapsuleError, NoEvidenceError, ReplayError, UsageError
from gradforensics.evidence.discover import printable
from gradforensics.evidence.named_checkpoints import open_named, open_one
from gradforensics.experiments import Code
from gradforensics.notices import Progress
from gradforensics.replay.job import ProgramOf, StateOf
from gradforensics.replay.user_code import sha256_of, split_name
from gradforensics.untrusted.files import RefusedError

_LISTED = 8  # steps that a message lists


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for: RUN_DIR and the options that choose state and program."""

    run: Path
    step: int | None = None
    checkpoint: Path | None = None
    program: str | None = None
    fix: str | None = None
    batch: Path | None = None
    trust: bool = False
    rank: int = 0


@dataclass(slots=True)
class Chosen:
    """What a replay starts from.

    run: the run directory, as the user wrote it where they did; None where a capsule lies alone. name: of the run.
    text: the state, in words. codes: the user's code that will run.
    """

    run: Path | None
    name: str
    step: int
    state: StateOf
    program: ProgramOf
    text: str
    fix: ProgramOf | None = None
    codes: list[Code] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def choose(wanted: Wanted, progress: Progress | None = None) -> Chosen:
    """Find state and program. Raises UsageError, CapsuleError, ReplayError, and NoEvidenceError where there is none."""
    if not wanted.run.is_dir():
        what = "is no directory" if wanted.run.exists() else "no such directory"
        raise UsageError(f"{wanted.run}: {what}")
    for path in (wanted.checkpoint, wanted.batch):
        if path is not None and not path.exists():
            raise UsageError(f"{path}: no such file or directory")
    root = wanted.run.resolve()
    found = {folder: numbers for folder in capsules.find(root) if (numbers := capsules.numbers_of(folder))}
    mine = _by_step(wanted, root, found)
    step = wanted.step if wanted.step is not None else _only_step(wanted, mine, found)
    fix = None if wanted.fix is None else _given(wanted.fix, "--fix", {})
    home: Path | None = root
    if step in mine and wanted.checkpoint is None:
        chosen = _from_capsule(wanted, mine[step], step)
        home = _home(mine[step], root)
    else:
        chosen = _from_checkpoint(wanted, root, step, mine, progress)
        home = _home(root, root) if root in found else root
    chosen.run, chosen.name = wanted.run if home == root else home, (home or root).name
    if fix is not None:
        chosen.fix = ProgramOf(fix.kind, fix.file, fix.function, fix.sha256, chosen.program.settings)
        chosen.codes.append(Code(fix.file, fix.function, fix.sha256, "--fix"))
    return chosen


def _by_step(wanted: Wanted, root: Path, found: Mapping[Path, tuple[int, int]]) -> dict[int, Path]:
    """The capsules of the wanted rank. Raises UsageError where the step in question has several: of several runs."""
    mine: dict[int, Path] = {}
    for folder, (step, rank) in found.items():
        if rank != wanted.rank:
            continue
        other = mine.setdefault(step, folder)
        if other != folder and wanted.step in (None, step):
            both = " and ".join(printable(str(one.relative_to(root))) for one in (other, folder))
            raise UsageError(
                f"{wanted.run}: two capsules of step {step}, {both}: name the run directory or the capsule"
            )
    return mine


def _only_step(wanted: Wanted, mine: Mapping[int, Path], found: Mapping[Path, tuple[int, int]]) -> int:
    if len(mine) == 1:
        return next(iter(mine))
    ranks = sorted({rank for _, rank in found.values()})
    if not mine and ranks:
        raise UsageError(f"{wanted.run}: no capsule of rank {wanted.rank}; there are some of ranks {_listed(ranks)}")
    there = f"there are capsules of steps {_listed(mine)}" if mine else "there is no capsule to take it from"
    raise UsageError(f"{wanted.run}: name the step with --step N: {there}")


def _listed(numbers: Any) -> str:
    every = sorted(numbers)
    more = f" and {len(every) - _LISTED} more" if len(every) > _LISTED else ""
    return ", ".join(map(str, every[:_LISTED])) + more


def _home(capsule: Path, root: Path) -> Path | None:
    """The run directory that a capsule was written into; else the one that it lies in, None where it lies alone."""
    if capsule.parent.name == "capsules":
        return capsule.parent.parent
    return None if capsule == root else root


# -- programs ----------------------------------------------------------------------------------------------------------


def _given(text: str, option: str, settings: Mapping[str, Any]) -> ProgramOf:
    """The program that an option names."""
    file, function = split_name(text, option)
    if not file.is_file():
        raise UsageError(f"{option} {text}: {file}: no such file")
    file = file.resolve()
    return ProgramOf("function", str(file), function, sha256_of(file), settings)


def _of_capsule(wanted: Wanted, folder: Path, header: capsules.Header) -> tuple[ProgramOf, list[Code], list[str]]:
    """The program for a capsule: --program, else its own where that needs no trust or has it."""
    own = header.program
    if wanted.program is not None:
        settings = header.settings if own is None else own.settings
        program = _given(wanted.program, "--program", settings)
        return program, [Code(program.file, program.function, program.sha256, "--program")], []
    if own is None:
        raise NoEvidenceError(f"{folder.name} names no program: --program FILE.py:FUNCTION is needed")
    if not own.function.isidentifier():
        raise CapsuleError(f"{folder.name}: {own.function!r} is no name of a function or class")
    if own.kind == "huggingface":
        _check_own_code(own.settings.get("config"), folder / capsules.HEADER)
        text = f"the model is transformers' own class {own.function}, built from the capsule's configuration"
        return ProgramOf("huggingface", "", own.function, "", own.settings), [], [text]
    file = _inside(folder / capsules.CODE, own.file)
    digest = sha256_of(file)
    if not wanted.trust:
        raise UsageError(
            f"{folder.name} brings its own program: {own.function} in {printable(str(file))} (sha256 {digest}). Code "
            "out of the evidence does not run unasked: read it and pass --trust-run-code, or name a program of yours "
            "with --program FILE.py:FUNCTION"
        )
    changed = own.sha256 and own.sha256 != digest
    notices = [f"{file.name} is not what was recorded: its hash was {own.sha256}"] if changed else []
    program = ProgramOf("function", str(file), own.function, digest, own.settings)
    return program, [Code(str(file), own.function, digest, "--trust-run-code")], notices


def _inside(code: Path, name: str) -> Path:
    """A file of a capsule's code/. Raises CapsuleError where it is not there or leads out of it."""
    with suppress(OSError, ValueError, RuntimeError):  # too long, a NUL, links in a circle
        file = (code / name).resolve()
        if file.is_relative_to(code.parent.resolve() / code.name) and file.is_file():
            return file
    raise CapsuleError(f"{code}: the program {name!r} is not there; --program FILE.py:FUNCTION names another")


def _check_own_code(config: Any, where: Path) -> None:
    try:
        if not isinstance(config, Mapping):
            raise RefusedError("the model's configuration is missing")  # noqa: TRY301  told below as the others are
        meta_names.own_code_only(config)
    except (RefusedError, RecursionError) as error:
        raise ReplayError(f"{where}: {error}") from None


# -- states ------------------------------------------------------------------------------------------------------------


def _from_capsule(wanted: Wanted, folder: Path, step: int) -> Chosen:
    if wanted.batch is not None:
        raise UsageError("--batch goes with a checkpoint: a capsule has its own batch (--from names a checkpoint)")
    header = capsules.read_header(folder)
    if (header.step, header.rank) != (step, wanted.rank):
        raise CapsuleError(
            f"{folder / capsules.HEADER}: it is of step {header.step} and rank {header.rank}, its folder is called "
            f"{folder.name}"
        )
    program, codes, notices = _of_capsule(wanted, folder, header)
    why = f"{header.reason}{f': {printable(header.text)}' if header.text else ''}"
    return Chosen(
        None, "", header.step, StateOf(capsule=str(folder)), program, f"{folder.name} ({why})", None, codes, notices
    )


def _from_checkpoint(
    wanted: Wanted, root: Path, step: int, mine: Mapping[int, Path], progress: Progress | None
) -> Chosen:
    loaded, path = _checkpoint(wanted, root, step, mine, progress)
    after, notices = loaded.checkpoint.step, list[str]()
    if after is None:
        after = step - 1
        notices.append(f"{path.name} does not say its step: it is taken for the state before step {step}")
    if after >= step:
        raise UsageError(f"{path} is the state after step {after}: the first step to run from it is {after + 1}")
    between = tuple(str(folder) for number, folder in sorted(mine.items()) if number > after)
    state = StateOf(
        checkpoint=str(path),
        first=after + 1,
        capsules=between,
        batch=str(wanted.batch.resolve()) if wanted.batch else "",
    )
    text = f"{path.name} (the state after step {after})"
    if wanted.program is not None:
        program = _given(wanted.program, "--program", {})
        code = [Code(program.file, program.function, program.sha256, "--program")]
        return Chosen(None, "", step, state, program, text, None, code, notices)
    program = _built_in(wanted, root, loaded, path, step)
    if after + 1 < step:
        raise NoEvidenceError(
            f"{path.name} is the state after step {after}, and the batches of steps {after + 1} to {step - 1} are not "
            "known: --program FILE.py:FUNCTION may give them (`batches`)"
        )
    notices.append(f"the model is transformers' own class {program.function}, built from config.json")
    return Chosen(None, "", step, state, program, text, None, [], notices)


def _checkpoint(
    wanted: Wanted, root: Path, step: int, mine: Mapping[int, Path], progress: Progress | None
) -> tuple[Loaded, Path]:
    """The checkpoint of --from, else the last one before the step."""
    if wanted.checkpoint is not None:
        named = open_one(wanted.checkpoint.resolve(), progress=progress)
        return named.loaded[0], named.path(named.loaded[0].checkpoint)
    steps = f" (there are some of steps {_listed(mine)})" if mine else ""
    lacking = f"{wanted.run}: nothing to replay step {step} from. No capsule of that step{steps}; "
    try:
        named = open_named([root], progress=progress)
    except NoEvidenceError:
        raise NoEvidenceError(f"{lacking}no checkpoint that could be read (--from CHECKPOINT names one)") from None
    before: list[tuple[int, Path, Loaded]] = []
    for one in named.loaded:
        path, after = named.path(one.checkpoint), one.checkpoint.step
        if after is not None and after < step and _has_weights(one) and not _in_capsule(path, root):
            before.append((after, path, one))
    if not before:
        raise NoEvidenceError(f"{lacking}no checkpoint of a step before it (--from CHECKPOINT names one)")
    _, path, last = max(before, key=lambda item: item[0])
    return last, path


def _has_weights(one: Loaded) -> bool:
    return any(tensor.role in ("param", "master") for tensor in one.checkpoint.tensors)


def _in_capsule(path: Path, root: Path) -> bool:
    return any(capsules.numbers_of(folder) for folder in (path, *path.parents) if folder.is_relative_to(root))


def _built_in(wanted: Wanted, root: Path, loaded: Loaded, path: Path, step: int) -> ProgramOf:
    """The program of a Hugging Face checkpoint: config.json beside it, and a batch."""
    places = [place / "config.json" for place in dict.fromkeys((loaded.folder, root))]
    place = next((one for one in places if one.is_file()), None)
    if place is None or wanted.batch is None:
        lacks = [
            *([] if place else ["a config.json of transformers beside it"]),
            *([] if wanted.batch else ["--batch FILE"]),
        ]
        raise NoEvidenceError(
            f"{wanted.run}: no capsule of step {step}. {path.name} could be run with --program FILE.py:FUNCTION, or, "
            f"built in, as a model of transformers: for that {' and '.join(lacks)} is missing"
        )
    try:
        config = meta_names.read_config(place)
    except RefusedError as error:
        raise ReplayError(f"{place}: {error}; --program FILE.py:FUNCTION names a program") from None
    except (OSError, RecursionError) as error:
        raise ReplayError(f"{place}: {error}") from None
    settings: dict[str, Any] = {"config": config}
    arguments = {name.rpartition(".")[2]: value for name, value, _ in loaded.checkpoint.settings}
    dtype = next((d for flag, d in (("bf16", "bfloat16"), ("fp16", "float16")) if arguments.get(flag) is True), None)
    if dtype is not None:
        settings["autocast"] = dtype
    if isinstance(arguments.get("max_grad_norm"), (int, float)) and arguments["max_grad_norm"] > 0:
        settings["max_grad_norm"] = arguments["max_grad_norm"]
    return ProgramOf("huggingface", "", config["architectures"][0], "", settings)
