"""A whole store in one file, of no dialect: a zip with a JSON line a row, and what each table must come to.

It holds digests of keys and the store's own secret, so it is for its owner alone. It has its name once it is whole.
"""

import hashlib
import json
import os
import time
import zipfile
from base64 import b64decode
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from attrs import define, field

from llmgw import __version__
from llmgw.store.ends import TOGETHER, End, Row, Sum, Table, line_of, refuse_half
from llmgw.store.errors import StoreTooNew, StoreUnavailable
from llmgw.store.meta import COPYING
from llmgw.store.moving import Progress

FORMAT = 1
MANIFEST = "llmgw.json"


def write(source: End, file: Path, tell: Callable[[Progress], None]) -> dict[str, Sum]:
    """Raises StoreUnavailable, or OSError: then there is no such file, or the one that was there before."""
    refuse_half(source)
    part = file.with_name(f"{file.name}.part")
    part.unlink(missing_ok=True)
    try:
        with open(part, "xb", opener=_private) as out:
            with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
                sums = {table.name: _write_table(archive, source, table, tell) for table in source.tables()}
                archive.writestr(MANIFEST, json.dumps(_manifest(source, sums), indent=1))
            out.flush()
            os.fsync(out.fileno())
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return sums


def _write_table(archive: zipfile.ZipFile, source: End, table: Table, tell: Callable[[Progress], None]) -> Sum:
    digest, rows = hashlib.sha256(), 0
    with archive.open(_member(table.name), "w", force_zip64=True) as out:
        for batch in source.rows(table):
            lines = b"".join(map(line_of, batch))
            digest.update(lines)
            out.write(lines)
            rows += len(batch)
            tell(Progress(table.name, rows))
    tell(Progress(table.name, rows, done=True))
    return Sum(rows, digest.hexdigest())


def _manifest(source: End, sums: dict[str, Sum]) -> dict[str, Any]:
    tables = [
        {"name": t.name, "columns": t.columns, "kinds": t.kinds, "key": t.key, "rows": sums[t.name].rows,
         "sha256": sums[t.name].sha256}
        for t in source.tables()
    ]  # fmt: skip
    return {
        "format": FORMAT,
        "llmgw": __version__,
        "schema": source.schema,
        "made_at": time.time(),
        "cluster_id": source.cluster_id,
        "term": source.term,
        "from": source.shown,
        "tables": tables,
    }


@define
class Backup:
    """A backup file, whose every row has been compared with what it must come to. A ``Source``."""

    file: Path
    shown: str = field(init=False)
    cluster_id: str = field(init=False)
    term: tuple[int, int] = field(init=False)
    half: str = field(default="", init=False)
    made_at: float = field(init=False)
    sums: dict[str, Sum] = field(init=False)
    _tables: list[Table] = field(init=False, repr=False)

    @classmethod
    def read(cls, file: Path, schema: int) -> "Backup":
        """Raises StoreUnavailable for a file that is none, not whole or not as it was; StoreTooNew; OSError."""
        backup = cls(file)
        try:
            backup._take(schema)
            for table in backup._tables:
                backup._check(table)
            backup.half = backup._says(COPYING)
        except (zipfile.BadZipFile, EOFError, KeyError, ValueError, TypeError) as error:
            raise StoreUnavailable(f"{file} is no whole backup of llmgw ({error}); take another one") from error
        if backup.half:
            raise StoreUnavailable(f"{file} is a backup of half a store (the copy {backup.half}); take another one")
        return backup

    def tables(self) -> list[Table]:
        return self._tables

    def rows(self, table: Table, after: Row | None = None) -> Iterator[list[Row]]:
        # They stand there in the order of their keys: what a copy has already is what comes first.
        reached = after is None
        with zipfile.ZipFile(self.file) as archive, archive.open(_member(table.name)) as lines:
            while batch := list(islice(lines, TOGETHER)):
                rows = [_row(table, line) for line in batch]
                if not reached:
                    keys = [table.key_of(row) for row in rows]
                    reached = after in keys
                    rows = rows[keys.index(after) + 1 :] if reached and after is not None else []
                if rows:
                    yield rows

    def _take(self, schema: int) -> None:
        with zipfile.ZipFile(self.file) as archive:
            said = json.loads(archive.read(MANIFEST))
        if said["format"] > FORMAT or said["schema"] > schema:
            raise StoreTooNew(f"{self.file} was made by a newer llmgw: use llmgw {said['llmgw']} or newer")
        self.shown, self.cluster_id, self.made_at = str(self.file), said["cluster_id"], float(said["made_at"])
        self.term = (int(said["term"][0]), int(said["term"][1]))
        self._tables = [
            Table(t["name"], tuple(t["columns"]), tuple(t["kinds"]), tuple(t["key"])) for t in said["tables"]
        ]
        self.sums = {t["name"]: Sum(t["rows"], t["sha256"]) for t in said["tables"]}

    def _says(self, key: str) -> str:
        """Of itself, in ``meta``."""
        (meta,) = (table for table in self._tables if table.name == "meta")
        rows = (dict(zip(meta.columns, row, strict=True)) for batch in self.rows(meta) for row in batch)
        return next((str(row["value"]) for row in rows if row["key"] == key), "")

    def _check(self, table: Table) -> None:
        digest, rows = hashlib.sha256(), 0
        with zipfile.ZipFile(self.file) as archive, archive.open(_member(table.name)) as lines:
            for line in lines:
                digest.update(line)
                rows += 1
        if Sum(rows, digest.hexdigest()) != self.sums[table.name]:
            raise ValueError(f"{table.name} is not what was written")


def _row(table: Table, line: bytes) -> Row:
    pairs = zip(msgspec.json.decode(line), table.kinds, strict=True)
    return table.plain([b64decode(value) if kind == "blob" and value is not None else value for value, kind in pairs])


def _member(table: str) -> str:
    return f"{table}.jsonl"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
