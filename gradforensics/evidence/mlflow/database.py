"""An MLflow database (SQLite): opened so that it can neither run, write nor hang, its tables read in whole batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from gradforensics.evidence.files import File

if TYPE_CHECKING:
    import sqlite3

MAGIC = b"SQLite format 3\0"
MEMORY_LIMIT = 512 << 20
_COLUMNS = {
    "metrics": ("run_uuid", "key", "value", "timestamp", "step", "is_nan"),
    "params": ("run_uuid", "key", "value"),
    "tags": ("run_uuid", "key", "value"),
    "runs": ("run_uuid", "name", "status", "start_time", "end_time", "lifecycle_stage"),
}
_NEEDED = {"metrics": 4, "params": 3, "tags": 3, "runs": 1}  # columns without which a table tells nothing
_ROW_BYTES = 40_000  # the longest texts that MLflow keeps have 8000 characters
_BATCH = 1024
_OPERATIONS = 20_000  # of SQLite's machine between two looks at the clock
_SECONDS = 3.0  # of processor time for the smallest file
_SPEED = 8 << 20  # bytes per second that a file may take longer; an undamaged one is read ten times as fast


class NotMlflowError(Exception):
    """The database has none of MLflow's tables."""


class Budget:
    """Processor time by the size of the file, so that a table without an end comes to one."""

    def __init__(self, size: int) -> None:
        self._end = time.thread_time() + _SECONDS + size / _SPEED

    def spent(self) -> bool:
        """Whether the time is over; SQLite stops where it is told so."""
        return time.thread_time() > self._end


class Database:
    """The tables of one file.

    notices: what could not be read; columns: of each of MLflow's tables that can be read, in the order of `rows()`;
    size: bytes of the database.
    """

    def __init__(self, file: File) -> None:
        import sqlite3  # noqa: PLC0415  loaded only where there is a database

        self.notices: list[str] = []
        self.columns: dict[str, tuple[str, ...]] = {}
        # ValueError: a message that is no UTF-8; MemoryError: a damaged row that says it is longer than all memory
        self._errors = (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError)
        self._connection, self.size = _connect(file)
        self._budget = Budget(self.size)
        try:
            _guard(self._connection, self._budget)
            self._survey()
        except self._errors as error:
            self.notices.append(f"damaged: {_said(error)}")
            self._survey_damaged()

    def _survey_damaged(self) -> None:
        """A file that was cut is refused as a whole unless its schema may be written, which nothing here does."""
        try:
            self._connection.set_authorizer(None)
            self._connection.execute("PRAGMA writable_schema=ON")
            _guard(self._connection, self._budget)
            self._survey()
        except self._errors as error:
            self.columns = {}
            self.notices.append(f"not read: {_said(error)}")

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def _survey(self) -> None:
        """Which tables there are: a view, a virtual table or a computed column of their names is not MLflow's."""
        found: dict[str, tuple[str, str]] = {}
        try:
            for kind, name, sql in self._connection.execute("SELECT type, name, sql FROM sqlite_master"):
                found[text(name).lower()] = (text(kind), text(sql))
        except self._errors as error:
            if "metrics" not in found:
                raise
            self.notices.append(f"the list of tables is damaged: {_said(error)}")
        else:
            if not {"metrics", "runs"} <= found.keys():
                raise NotMlflowError
        self.columns = {}
        for table, wanted in _COLUMNS.items():
            if table not in found:
                continue
            kind, sql = found[table]
            made = kind == "table" and sql.lstrip().upper().startswith("CREATE TABLE")
            # asking a virtual table for its columns would start it
            info = self._connection.execute(f"PRAGMA table_xinfo({table})").fetchall() if made else []
            plain = {text(row[1]).lower() for row in info if row[6] == 0}
            there = tuple(column for column in wanted if column in plain)
            if "_rowid_" in plain or not set(wanted[: _NEEDED[table]]) <= set(there):
                self.notices.append(f'"{table}" is no table as MLflow makes it: not read')
            else:
                self.columns[table] = there

    def rows(self, table: str, where: str = "") -> Iterator[list[tuple[Any, ...]]]:
        """The rows in batches, in the order in which they were written; texts are bytes, the last cell is the id.

        Where the table is damaged it is read from its start and from its end up to the damage.
        """
        last, failed = None, ""
        for batch, failure in self._scan(table, where, "ASC"):
            if batch:
                last = batch[-1][-1]
                yield batch
            failed = failure
        if not failed:
            return
        behind = 0
        stopped = self._budget.spent()
        kept: list[list[tuple[Any, ...]]] = []
        for batch, _ in () if stopped else self._scan(table, where, "DESC"):
            rest = [row for row in batch if last is None or row[-1] > last]
            behind += len(rest)
            if rest:
                kept.append(rest[::-1])
            if len(rest) < len(batch):
                break
        yield from reversed(kept)
        where_ = f"behind row {last}" if last is not None else "at its first row"
        said = "not read to its end: it takes longer than a table of this size can" if stopped else f"{failed} {where_}"
        self.notices.append(f'table "{table}": {said}' + (f"; {behind} rows were read from its end" if behind else ""))

    def _scan(self, table: str, where: str, order: str) -> Iterator[tuple[list[tuple[Any, ...]], str]]:
        """(rows, "") and at last (what is left, the error) where reading fails."""
        names = ", ".join(f'"{column}"' for column in self.columns[table])
        # without an index: those of a damaged file need not agree with the table
        query = f"SELECT {names}, _rowid_ FROM {table} NOT INDEXED {where} ORDER BY _rowid_ {order}"  # noqa: S608  fixed names
        batch: list[tuple[Any, ...]] = []
        try:
            cursor = self._connection.execute(query)
            while True:
                batch = []
                batch.extend(islice(cursor, _BATCH))  # what came before an error stays in the list
                if not batch:
                    return
                yield batch, ""
        except self._errors as error:
            yield batch, _said(error)


def _connect(file: File) -> tuple[sqlite3.Connection, int]:
    """A connection, and how many bytes the database has.

    A file on disk is opened as one that nobody changes: SQLite then takes no lock and makes no file beside it. What is
    compressed or lies in an archive is read into memory, up to 512 MiB.
    """
    import sqlite3  # noqa: PLC0415  loaded only where there is a database

    if file.opener is None and not file.gzipped:
        uri = f"{file.path.absolute().as_uri()}?mode=ro&immutable=1"
        return sqlite3.connect(uri, uri=True, isolation_level=None), file.size
    data = bytearray()
    for chunk in file.chunks():
        data += chunk
        if len(data) > MEMORY_LIMIT:
            raise OSError(f"a compressed database of more than {MEMORY_LIMIT >> 20} MiB")
    data[18:20] = b"\1\1"  # a database in memory has no write-ahead log
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(data)
    return connection, len(data)


def _guard(connection: sqlite3.Connection, budget: Budget) -> None:
    """Nothing of the schema is run, no text is longer than MLflow's, nothing but SELECT on the known tables is done."""
    import sqlite3  # noqa: PLC0415  loaded only where there is a database

    for limit, value in (
        (sqlite3.SQLITE_LIMIT_LENGTH, _ROW_BYTES),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
    ):
        connection.setlimit(limit, value)
    connection.set_progress_handler(budget.spent, _OPERATIONS)
    for pragma in ("trusted_schema=OFF", "query_only=ON", "mmap_size=0", "cell_size_check=ON", "temp_store=MEMORY"):
        connection.execute(f"PRAGMA {pragma}")
    connection.text_factory = bytes
    connection.set_authorizer(_authorizer())


def _authorizer() -> Callable[..., int]:
    import sqlite3  # noqa: PLC0415  loaded only where there is a database

    def allow(action: int, first: str | None, _second: str | None, _database: str | None, inside: str | None) -> int:
        known = (first or "").lower() in {*_COLUMNS, "sqlite_master"}
        allowed = (
            action == sqlite3.SQLITE_SELECT
            or (action == sqlite3.SQLITE_READ and known)
            or (action == sqlite3.SQLITE_PRAGMA and first == "table_xinfo")
        )
        return sqlite3.SQLITE_OK if allowed and inside is None else sqlite3.SQLITE_DENY

    return allow


def _said(error: Exception) -> str:
    """What SQLite says, which may quote the file."""
    return "".join(c if c.isprintable() else " " for c in str(error)[:200]) or "a row that cannot be read"


def text(value: Any) -> str:
    """A cell as text; "" for what is none."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
