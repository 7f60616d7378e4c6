"""Files of samples, read in blocks: JSON lines, JSON arrays, CSV, Parquet and Arrow, the texts also as .gz.

Memory is bounded by the blocks and by the longest record that is read. Bad lines are skipped and counted, and what is
said of them names the first.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from gradforensics.audit import columnar
from gradforensics.audit.blocks import Row, UnreadError, frame_of, row_of
from gradforensics.audit.heads import Roles, csv_columns, kinds_of, roles_of
from gradforensics.notices import Notice, Progress
from gradforensics.untrusted.files import open_regular

RECORD_LIMIT = 64 << 20
_BLOCK_BYTES = 8 << 20
_HEAD = 256 << 10
_MOST_HEAD_RECORDS = 200
_GZIP, _PARQUET, _ARROW = b"\x1f\x8b", b"PAR1", b"ARROW1"
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
_SPACE = re.compile(r"[\s,]*")


@dataclass
class DataFile:
    """One file of samples.

    name: how messages call it; limit: bytes of its (uncompressed) content after which reading stops, None for all of
    it; roles: its columns, known once the first block was read; notices: what was remarkable.
    """

    path: Path
    name: str
    size: int
    limit: int | None = None
    progress: Progress | None = None
    roles: Roles = field(default_factory=Roles)
    notices: list[Notice] = field(default_factory=list)
    rows: int = 0
    bad: int = 0
    _bad: dict[str, tuple[int, int]] = field(default_factory=dict)
    _last_line: int = 0

    def blocks(self) -> Iterator[pl.DataFrame]:
        """The samples as frames of the schema BLOCK. Raises UnreadError where the file is of no known format."""
        try:
            with open_regular(self.path) as raw:
                magic = raw.read(8)
                raw.seek(0)
                if magic.startswith((_PARQUET, _ARROW)) or self.path.suffix in (".parquet", ".arrow"):
                    yield from columnar.blocks(self, parquet=self.path.suffix != ".arrow" and magic[:4] == _PARQUET)
                else:
                    gzipped = magic.startswith(_GZIP)
                    stream = gzip.GzipFile(fileobj=raw) if gzipped else raw
                    yield from self._texts(_Counted(stream, raw, self))  # type: ignore[arg-type]  # both can be read
        except OSError as error:
            raise UnreadError(f"not read: {error.strerror or error}") from None
        finally:
            self._tell()

    def tell(self, line: int | None, text: str) -> None:
        """Remark something on the file."""
        self.notices.append(Notice(self.name, line, text))

    def refuse(self, line: int | None, why: str) -> None:
        """Count a record that is not used."""
        count, first = self._bad.get(why, (0, line or 0))
        self._bad[why] = count + 1, first
        self.bad += 1

    def _tell(self) -> None:
        for why, (count, first) in self._bad.items():
            many = f" ({count} in all, this is the first)" if count > 1 else ""
            self.tell(first or None, f"{why}{many}: left out of the audit")
        self._bad.clear()

    # -- texts ---------------------------------------------------------------------------------------------------------

    def _texts(self, stream: _Counted) -> Iterator[pl.DataFrame]:
        head = stream.peek(_HEAD)
        if head.startswith(_WIDE):
            raise UnreadError("not read: encoded as UTF-16 or UTF-32; write it as UTF-8")
        start = head.decode("utf-8", "replace").lstrip("\ufeff")
        bare = start.lstrip()
        if not bare:
            raise UnreadError("not read: an empty file")
        if bare.startswith("["):
            yield from self._framed(self._values(stream, array=True))
        elif bare.startswith("{"):
            lines = _decodes(bare.split("\n", 1)[0]) or "\n" not in bare
            yield from self._framed(self._lines(stream) if lines else self._values(stream, array=False))
        elif b"\0" in head:
            raise UnreadError("not read: binary content that is no Parquet and no Arrow file")
        else:
            separator = "\t" if start.split("\n", 1)[0].count("\t") else ","
            columns = csv_columns(start, separator)
            self.roles = roles_of(columns)
            if not self.roles.any:
                raise UnreadError("not read: no JSON lines, JSON array, CSV with a column of text, Parquet or Arrow")
            yield from self._packed(self._table(stream, separator))

    def _framed(self, records: Iterable[tuple[int, int, Mapping[str, Any]]]) -> Iterator[pl.DataFrame]:
        """Blocks of (line, bytes, record); the first records tell the columns."""
        head: list[tuple[int, int, Mapping[str, Any]]] = []
        source = iter(records)
        for one in source:
            head.append(one)
            if len(head) >= _MOST_HEAD_RECORDS:
                break
        self.roles = roles_of(kinds_of(record for _, _, record in head))
        if not self.roles.any:
            raise UnreadError("not read: no column of text and none of token ids" if head else "not read: no record")

        def rows() -> Iterator[tuple[Row, int]]:
            for part in (head, source):
                for line, size, record in part:
                    self.rows += 1
                    row = row_of(self.rows, line, record, self.roles)
                    if row is None:
                        self.refuse(line, f"a record without any of the columns {', '.join(self._columns())}")
                    else:
                        yield row, size

        yield from self._packed(rows())

    def _columns(self) -> list[str]:
        return [*self.roles.texts, *filter(None, (self.roles.ids,))][:4]

    def _packed(self, rows: Iterable[tuple[Row, int]]) -> Iterator[pl.DataFrame]:
        held: list[Row] = []
        size = 0
        for row, count in rows:
            held.append(row)
            size += count
            if size >= _BLOCK_BYTES:
                yield frame_of(held)
                held, size = [], 0
        if held:
            yield frame_of(held)

    def _lines(self, stream: _Counted) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        for number, line in stream.lines():
            text = self._text(line, number).strip()
            if not text:
                continue
            record = _decode(text)
            if record is None:
                self.refuse(number, "a line that is no JSON object")
            else:
                yield number, len(line), record

    def _text(self, line: bytes, number: int) -> str:
        try:
            return line.decode("utf-8").lstrip("\ufeff")
        except UnicodeDecodeError:
            self._misread(number)
            return line.decode("utf-8", "replace")

    def _misread(self, number: int) -> None:
        why = "not UTF-8: undecodable bytes are read as U+FFFD"
        if not any(why in one.text for one in self.notices):
            self.tell(number, f"{why} (this line is the first)")

    def _values(self, stream: _Counted, *, array: bool) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        """The objects of an array, or those that stand one behind the other over several lines."""
        decoder = json.JSONDecoder()
        text = _Text(stream)
        if array:
            text.skip_to("[")
        while True:
            first = text.next()
            if first in ("", "]"):
                if first == "" and array:
                    self.tell(text.line, "the array is not closed: read up to there")
                return
            line = text.line
            try:
                value, size = text.value(decoder)
            except ValueError as error:
                self.tell(line, f"broken JSON ({error}): read up to there")
                return
            if isinstance(value, dict):
                yield line, size, value
            else:
                self.refuse(line, "an element that is no JSON object")

    def _table(self, stream: _Counted, separator: str) -> Iterator[tuple[Row, int]]:
        """Rows of a CSV, with the line on which each begins."""
        limit = csv.field_size_limit(RECORD_LIMIT)
        try:
            reader = csv.reader((self._text(line, n) for n, line in stream.lines()), delimiter=separator)
            header = next(reader, [])
            line = reader.line_num + 1
            for cells in reader:
                here, line = line, reader.line_num + 1
                if not cells:
                    continue
                self.rows += 1
                if len(cells) != len(header):
                    self.refuse(here, f"a row with {len(cells)} cells instead of {len(header)}")
                    continue
                row = row_of(self.rows, here, dict(zip(header, cells, strict=True)), self.roles)
                if row is not None:
                    yield row, sum(map(len, cells))
        except csv.Error as error:
            self.tell(reader.line_num, f"no valid CSV ({error}): read up to there")
        finally:
            csv.field_size_limit(limit)


class _Counted:
    """A stream of bytes that knows how far it is and stops at the limit of its file."""

    def __init__(self, stream: io.BufferedIOBase, raw: BinaryIO, file: DataFile) -> None:
        self._stream, self._raw, self._file = stream, raw, file
        self._ahead = b""
        self._done = 0
        self._ended = False

    def peek(self, size: int) -> bytes:
        """The first bytes, which are read again."""
        self._ahead = self._read(size)
        return self._ahead

    def _read(self, size: int) -> bytes:
        """Up to `size` bytes; nothing more after damage, which becomes a notice."""
        if self._ended:
            return b""
        parts: list[bytes] = []
        try:
            while size > 0 and (part := self._stream.read1(size)):
                parts.append(part)
                size -= len(part)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self._ended = True
            self._file.tell(None, "the gzip data is damaged or cut: read up to there")
        return b"".join(parts)

    def chunk(self, size: int = 1 << 20) -> bytes:
        """The next bytes, none at the end or behind the limit of the file."""
        limit = self._file.limit
        if limit is not None and self._done >= limit:
            if not self._ended and (self._ahead or self._read(1)):
                self._ended = True
                what = f"the first {limit >> 20} MiB were audited; --data {self._file.path} reads all of it"
                self._file.tell(None, what)
            return b""
        found, self._ahead = (self._ahead, b"") if self._ahead else (self._read(size), b"")
        self._done += len(found)
        if self._file.progress is not None:
            self._file.progress(f"auditing {self._file.name}", min(self._raw.tell(), self._file.size), self._file.size)
        return found

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """(number, line) of all lines; one longer than 64 MiB is left out and counted."""
        number, rest, skipping = 1, b"", False
        while chunk := self.chunk():
            parts = (rest + chunk).split(b"\n")
            rest = parts.pop()
            for part in parts:
                if skipping:
                    skipping = False
                else:
                    yield number, part + b"\n"
                number += 1
            if len(rest) > RECORD_LIMIT:
                if not skipping:
                    self._file.refuse(number, f"a line longer than {RECORD_LIMIT >> 20} MiB")
                rest, skipping = b"", True
        if rest and not skipping:
            limited = self._file.limit is not None and self._done >= self._file.limit
            if not limited:  # the last line of a part is cut
                yield number, rest


class _Text:
    """Text that is decoded value by value."""

    def __init__(self, stream: _Counted) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._text = ""
        self._at = 0
        self._lines = 1
        self._counted = 0  # up to where the line breaks of the text are counted
        self._more()

    def _more(self, size: int = 1 << 20) -> bool:
        chunk = self._stream.chunk(size)
        if not chunk:
            return False
        self._lines += self._text.count("\n", self._counted, self._at)
        self._text = self._text[self._at :] + self._decoder.decode(chunk)
        self._at = self._counted = 0
        return True

    @property
    def line(self) -> int:
        """The line of the place that was reached."""
        self._lines += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._lines

    def skip_to(self, mark: str) -> None:
        """Go behind the first such character."""
        self._at = self._text.index(mark) + 1

    def next(self) -> str:
        """The next character that is neither white space nor a comma, "" at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def value(self, decoder: json.JSONDecoder) -> tuple[Any, int]:
        """(value, characters) of what begins here. Raises ValueError where it is broken or too long."""
        size = 1 << 20
        while True:
            try:
                found, end = decoder.raw_decode(self._text, self._at)
            except RecursionError:
                raise ValueError("nested too deeply") from None
            except ValueError as error:
                if len(self._text) - self._at > RECORD_LIMIT:
                    raise ValueError(f"no value within {RECORD_LIMIT >> 20} MiB") from None
                if not self._more(size):
                    raise ValueError(getattr(error, "msg", str(error))) from None
                size *= 2
            else:
                count, self._at = end - self._at, end
                return found, count


def _decode(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _decodes(text: str) -> bool:
    return _decode(text) is not None
