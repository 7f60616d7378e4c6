"""Parquet and Arrow files of samples, read by polars in batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from gradforensics.audit.blocks import BLOCK, UnreadError
from gradforensics.audit.heads import Kind, Roles, roles_of

if TYPE_CHECKING:
    from gradforensics.audit.files import DataFile

_ROWS = 4096  # of one batch
_STREAM_LIMIT = 1 << 30  # an Arrow stream has no index and is read whole


def blocks(file: DataFile, *, parquet: bool) -> Iterator[pl.DataFrame]:
    """The samples of a Parquet or Arrow file. Raises UnreadError where it is none or has no samples."""
    kind = "Parquet" if parquet or file.path.suffix == ".parquet" else "Arrow"
    try:
        lazy = pl.scan_parquet(file.path) if kind == "Parquet" else _arrow(file)
        file.roles = roles_of({name: _kind(dtype) for name, dtype in lazy.collect_schema().items()})
        if not file.roles.any:
            raise UnreadError("not read: no column of text and none of token ids")
        schema = lazy.collect_schema()
        selected = lazy.select(_texts(file.roles, schema, answers=False), _texts(file.roles, schema, answers=True),
                               *_lists(file.roles))  # fmt: skip
        for batch in selected.collect_batches(chunk_size=_ROWS, maintain_order=True):
            yield _numbered(file, batch)
            if file.progress is not None:
                file.progress(f"auditing {file.name}", file.rows, 0)
            if file.limit is not None and file.rows * 1024 > file.limit:  # a text of 1 kB is common
                file.tell(None, f"the first {file.rows} samples were audited; --data {file.path} reads all of them")
                return
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise UnreadError(f"not read: no valid {kind} file ({_first_line(error)})") from None
    except pl.exceptions.PanicException as error:
        raise UnreadError(f"not read: a damaged {kind} file ({_first_line(error)})") from None


def columns_of_table(path: Path) -> dict[str, Kind]:
    """The columns of a Parquet or Arrow file by its schema; empty where it has none that can be read."""
    try:
        schema = pl.read_parquet_schema(path) if path.suffix == ".parquet" else pl.read_ipc_schema(path)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError):
        return {}
    return {name: _kind(dtype) for name, dtype in schema.items()}


def _arrow(file: DataFile) -> pl.LazyFrame:
    try:
        found = pl.scan_ipc(file.path)
        found.collect_schema()
    except pl.exceptions.PolarsError:
        if file.size > _STREAM_LIMIT:
            raise ValueError("an Arrow stream of more than 1 GiB: write it as Parquet") from None
        return pl.read_ipc_stream(file.path.read_bytes()).lazy()
    return found


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0][:200]


def _kind(dtype: Any) -> Kind:
    if dtype == pl.String:
        return "text"
    if isinstance(dtype, (pl.List, pl.Array)):
        inner = dtype.inner
        if isinstance(inner, pl.Struct):
            return "chat" if {"content", "value"} & {f.name for f in inner.fields} else "other"
        return "ints" if inner.is_integer() else "other"
    return "other"


def _texts(roles: Roles, schema: Any, *, answers: bool) -> pl.Expr:
    """The texts of a sample, joined; of a conversation those of all turns, or those of the model."""
    parts = [_text(name, schema[name]) for name in (roles.answers if answers else roles.texts)]
    name = "answer" if answers else "text"
    joined = pl.concat_str(parts, separator="\n", ignore_nulls=True) if parts else pl.lit(None, dtype=pl.String)
    empty = pl.all_horizontal(part.is_null() for part in parts) if parts else pl.lit(value=True)
    return pl.when(empty).then(None).otherwise(joined).alias(name)


def _text(name: str, dtype: Any) -> pl.Expr:
    if dtype == pl.String:
        return pl.col(name)
    fields = [field.name for field in dtype.inner.fields]
    content = "content" if "content" in fields else "value"
    return pl.col(name).list.eval(pl.element().struct.field(content).cast(pl.String, strict=False)).list.join("\n")


def _lists(roles: Roles) -> list[pl.Expr]:
    named = (("ids", roles.ids), ("labels", roles.labels), ("mask", roles.mask))
    return [
        (pl.lit(None) if name is None else pl.col(name)).cast(pl.List(pl.Int64), strict=False).alias(column)
        for column, name in named
    ]


def _numbered(file: DataFile, batch: pl.DataFrame) -> pl.DataFrame:
    first = file.rows + 1
    file.rows += batch.height
    rows = pl.Series("row", range(first, first + batch.height), dtype=pl.UInt32)
    line = pl.lit(None, dtype=pl.UInt32).alias("line")
    positions = pl.lit(file.roles.positions is not None).alias("positions")
    return batch.with_columns(rows, line, positions).select(list(BLOCK))
