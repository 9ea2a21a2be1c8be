"""A whole store goes into another one, or into a file and back: every table, every row, and nothing is used half."""

import contextlib
import json
import stat
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field

from llmgw.core.identity import Band, KeyRecord
from llmgw.core.joining import JoinTokenRecord, NodeRecord
from llmgw.store import (
    accounts,
    audit,
    decisions,
    desired,
    events,
    join_tokens,
    keys,
    leader,
    nodes,
    portable,
    tokens,
    usage,
)
from llmgw.store.ends import LAST, STAYS, TOGETHER, End, Row, Table, sum_of
from llmgw.store.errors import DataLocked, StoreMoved, StoreTooNew, StoreUnavailable
from llmgw.store.face import Database
from llmgw.store.holding import holding, reading
from llmgw.store.moving import Progress, leave, move
from llmgw.store.portable import MANIFEST, Backup, write
from llmgw.store.schema import MIGRATIONS
from tests.stores import KINDS, Kind, a_place

ROADS = [(a, b) for a in KINDS for b in KINDS]
ROWS = 2 * TOGETHER + 7
SCHEMA = len(MIGRATIONS)


@pytest.fixture
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Kind, Kind]]:
    """From where, to where."""
    server: Callable[[], Any] = partial(request.getfixturevalue, "postgres")
    with contextlib.ExitStack() as undo:
        old, new = (
            undo.enter_context(a_place(kind, tmp_path / name, server))
            for kind, name in zip(request.param, ("old", "new"), strict=True)
        )
        yield old, new


def quiet(_: Progress) -> None: ...


def fill(kind: Kind) -> None:
    """Something in every table, with the values that are hard to carry."""
    store = kind.open()

    def change(db: Database) -> None:
        keys.add_tenants(db, ["acme", "Zoë", "_"], 1.0)
        keys.add(
            db,
            [
                KeyRecord(
                    f"key_{n}", bytes([n]) * 32, "sk-…", "acme", Band.GOLD, frozenset({"m"}), 1 / 3, None, 2.5, "ä\n"
                )
                for n in range(9)
            ],
        )
        keys.raise_revision(db.conn)
        tokens.raise_revision(db.conn)
        db.conn.execute("insert into admin_tokens values ('ann', ?, 'admin', 1.5, 'me')", (b"\0\xff" * 16,))
        audit.note(db, audit.Act(1.0, "me", "admin", "keys.create", "a", "x\0y", {"a": "ß"}))
        usage.insert(db, [row(n) for n in range(ROWS)])
        accounts.save(
            db, [accounts.Account(300, m, "gold", "acme", {"n": 1}, []) for m in ("a", "B", "ä")], store.start
        )
        nodes.save(db, NodeRecord("node-1", b"c" * 32, 1e-9, "t", {"a": "b"}, "10.0.0.1", "boot", "0.5"))
        join_tokens.add(db, JoinTokenRecord("t", b"d" * 32, 1.0, "ann", 1e12, None, 1, 0))
        desired.add(db, desired.Revision(1, 1.0, "ann", "", "f", [{"name": "m"}]))
        desired.scale(db, desired.Scale("m", 2, 1.0, "ann"))
        db.conn.execute("insert into replicas values ('m-1', 'm', 'wanted', 7, '{}')")
        db.conn.execute("insert into held_out values ('e', '{}')")
        for n in range(3):
            decisions.add(db, decisions.Decision(float(n), "placed", "m-1", "m", "v", {"n": n}), 100)
        events.add(db, [events.Event(1 << 40, 1.0, "replica.started", "m-1", "it", {})], 100)
        leader.counted(db.conn, "generation", 12)
        leader.secret(db.conn, "engine_secret", "s3cret")

    trio.run(store.write, change)
    store.close()


def row(n: int) -> usage.Row:
    ttft = None if n % 2 else n / 7
    return (f"r{n:06}", n / 3, "acme", "key_1", "gold", "m", "e", "chat", "ok", 200, n, 4, 0, n % 3 == 0, 0.5, ttft, 1)


def everything(kind: Kind) -> dict[str, list[Row]]:
    with reading(kind.place) as end:
        return {table.name: [r for batch in end.rows(table) for r in batch] for table in end.tables()}


def moved(old: Kind, new: Kind, tell: Callable[[Progress], None] = quiet) -> Any:
    with holding(old.place, fill=False) as here, holding(new.place, fill=True) as there:
        return move(here, there, tell)


@pytest.mark.parametrize("places", ROADS, indirect=True, ids="-".join)
def test_every_row_of_every_table_is_there(places):
    old, new = places
    fill(old)

    done = moved(old, new)

    before, after = everything(old), everything(new)
    assert set(before) == set(after) == set(done.sums) | set(LAST)
    assert [name for name, rows in before.items() if not rows] == []  # a new table belongs into ``fill``
    for name in set(before) - set(LAST):
        assert before[name] == after[name], name
    assert len(after["usage"]) == ROWS == done.sums["usage"].rows
    told = [{k: v for k, v in found["meta"] if k != "needs_version"} for found in (before, after)]
    assert told[0] == told[1]


@pytest.mark.parametrize("places", ROADS, indirect=True, ids="-".join)
def test_the_new_store_is_the_same_cluster_in_a_later_term(places):
    old, new = places
    fill(old)
    moved(old, new)

    was, now = old.open(starts=False), new.open()
    before, after = trio.run(was.read, leader.term_of), trio.run(now.read, leader.term_of)
    was.close()

    assert now.cluster_id == was.cluster_id
    assert after.is_newer_than(before)
    assert now.start > was.start
    # What the database counts goes on.
    trio.run(now.write, lambda db: audit.note(db, audit.Act(2.0, "me", "admin", "x", "y")))
    assert trio.run(now.write, lambda db: leader.counted(db.conn, "generation", 1)) == 13
    assert [key.id for key in trio.run(now.read, keys.every)] == [f"key_{n}" for n in range(9)]
    now.close()


@pytest.mark.parametrize("places", [("postgres", "sqlite")], indirect=True, ids="-".join)
def test_a_term_s_first_part_never_falls_on_the_way_back(places):
    """On PostgreSQL it is at least the WAL's timeline, on SQLite it is only what was stored."""
    old, new = places
    fill(old)
    moved(old, new)

    store = new.open()
    assert trio.run(store.read, leader.term_of).n >= 1
    store.close()


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_every_table_of_the_schema_is_copied_or_named_as_staying(kind):
    kind.open().close()
    ask = {
        "sqlite": "select name from sqlite_master where type = 'table'",
        "postgres": "select tablename from pg_tables where schemaname = 'public'",
    }

    with reading(kind.place) as end:
        assert {table.name for table in end.tables()} == {name for (name,) in kind.rows(ask[kind.name])} - STAYS
        assert all(table.key and set(table.kinds) <= {"text", "integer", "real", "blob"} for table in end.tables())


def test_both_dialects_have_the_same_tables_and_columns(postgres, tmp_path):
    shapes = []
    for name in KINDS:
        with a_place(name, tmp_path / name, lambda: postgres) as kind:
            kind.open().close()
            with reading(kind.place) as end:
                assert end.schema == SCHEMA
                shapes.append({(t.name, frozenset(zip(t.columns, t.kinds, strict=True)), t.key) for t in end.tables()})

    assert shapes[0] == shapes[1]


@define
class Interrupted:
    """A source that ends in the middle of a table, as a kill would."""

    end: End
    after: int
    asked: int = field(default=0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.end, name)

    def rows(self, table: Table, after: Row | None = None) -> Iterator[list[Row]]:
        for batch in self.end.rows(table, after):
            self.asked += 1
            if self.asked > self.after:
                raise KeyboardInterrupt
            yield batch


def interrupted(old: Kind, new: Kind, after: int) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        holding(old.place, fill=False) as here,
        holding(new.place, fill=True) as there,
    ):
        move(Interrupted(here, after), there, quiet)


@pytest.mark.parametrize("places", [("sqlite", "postgres"), ("postgres", "sqlite")], indirect=True, ids="-".join)
@pytest.mark.parametrize("after", [0, 3, 9, 14, 17])
def test_an_interrupted_copy_goes_on_and_nobody_starts_on_it_meanwhile(places, after):
    old, new = places
    fill(old)
    interrupted(old, new, after)

    with pytest.raises(StoreUnavailable, match="was interrupted: run that again"):
        new.open()
    told: list[Progress] = []
    moved(old, new, told.append)

    assert everything(old)["usage"] == everything(new)["usage"]
    new.open().close()


@pytest.mark.parametrize("places", ROADS, indirect=True, ids="-".join)
def test_a_store_that_was_left_says_where_everything_went_and_may_be_moved_again(places, tmp_path):
    old, new = places
    fill(old)
    with holding(old.place, fill=False) as here, holding(new.place, fill=True) as there:
        move(here, there, quiet, lambda: leave(here, there, "noon"))

    for starts in (True, False):
        with pytest.raises(StoreMoved, match=r"it was moved to .* at noon\. Set \[store\] url"):
            old.open(starts=starts)
    new.open().close()
    with a_place("sqlite", tmp_path / "again", lambda: None) as again:
        moved(old, again)
        again.open().close()


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_half_a_store_is_worked_on_by_nobody_and_is_no_backup(kind, tmp_path):
    fill(kind)
    store = kind.open()
    trio.run(store.write, lambda db: db.conn.execute("insert into meta values ('copying', 'of 7 from x')"))
    store.close()

    with pytest.raises(StoreUnavailable, match="was interrupted: run that again"):
        kind.open(starts=False)
    with reading(kind.place) as here, pytest.raises(StoreUnavailable, match="is half a store"):
        write(here, tmp_path / "b", quiet)
    assert not (tmp_path / "b").exists()


def test_a_backup_that_was_made_of_half_a_store_fills_nothing(tmp_path, monkeypatch):
    with a_place("sqlite", tmp_path / "old", lambda: None) as old:
        fill(old)
        store = old.open()
        trio.run(store.write, lambda db: db.conn.execute("insert into meta values ('copying', 'of 7 from x')"))
        store.close()
        with reading(old.place) as here, monkeypatch.context() as before:
            before.setattr(portable, "refuse_half", lambda source: None)  # as it was written once
            write(here, tmp_path / "b", quiet)

    with pytest.raises(StoreUnavailable, match=r"is a backup of half a store \(the copy of 7 from x\); take another"):
        Backup.read(tmp_path / "b", SCHEMA)


@pytest.mark.parametrize("places", [("sqlite", "postgres")], indirect=True, ids="-".join)
def test_what_changed_between_two_halves_is_copied_again(places):
    old, new = places
    fill(old)
    interrupted(old, new, 14)
    store = old.open()
    trio.run(store.write, lambda db: keys.revoke(db, "key_3", 9.0))
    trio.run(store.write, lambda db: db.conn.execute("update tenants set created_at = 7.0 where name = 'acme'"))
    store.close()

    moved(old, new)

    before, after = everything(old), everything(new)
    assert before["keys"] == after["keys"]
    assert before["tenants"] == after["tenants"]


@pytest.mark.parametrize("places", [("sqlite", "postgres"), ("sqlite", "sqlite")], indirect=True, ids="-".join)
def test_a_target_with_something_in_it_is_refused(places):
    old, new = places
    fill(old)
    fill(new)
    before = everything(new)

    with pytest.raises(StoreUnavailable, match=r"is not empty \(tenants"):
        moved(old, new)

    assert everything(new) == before


@pytest.mark.parametrize("places", [("sqlite", "postgres")], indirect=True, ids="-".join)
def test_half_a_copy_of_another_store_is_refused(places, tmp_path):
    old, new = places
    fill(old)
    interrupted(old, new, 14)

    with a_place("sqlite", tmp_path / "other", lambda: None) as other:
        fill(other)
        with pytest.raises(StoreUnavailable, match="go on with that"):
            moved(other, new)


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_a_store_in_use_is_not_moved_but_can_be_backed_up(kind, tmp_path):
    fill(kind)
    store = kind.open()

    with pytest.raises(DataLocked, match="in use by"), holding(kind.place, fill=False):
        pass
    with reading(kind.place) as end:
        # Beside a writer, and of one state.
        trio.run(store.write, lambda db: keys.add_tenants(db, ["later"], 1.0))
        write(end, tmp_path / "b", quiet)
    store.close()

    backup = Backup.read(tmp_path / "b", SCHEMA)
    assert backup.sums["tenants"].rows == 3


@pytest.mark.parametrize("places", ROADS, indirect=True, ids="-".join)
def test_a_backup_is_restored_into_either(places, tmp_path):
    old, new = places
    fill(old)
    file = tmp_path / "llmgw.backup"
    with reading(old.place) as here:
        sums = write(here, file, quiet)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    backup = Backup.read(file, SCHEMA)
    with holding(new.place, fill=True) as there:
        move(backup, there, quiet)

    before, after = everything(old), everything(new)
    assert backup.sums == sums
    assert {n: r for n, r in before.items() if n not in LAST} == {n: r for n, r in after.items() if n not in LAST}
    new.open().close()


def test_an_interrupted_restore_goes_on(tmp_path):
    with (
        a_place("sqlite", tmp_path / "old", lambda: None) as old,
        a_place("sqlite", tmp_path / "new", lambda: None) as new,
    ):
        fill(old)
        with reading(old.place) as here:
            write(here, tmp_path / "b", quiet)
        backup = Backup.read(tmp_path / "b", SCHEMA)
        with pytest.raises(KeyboardInterrupt), holding(new.place, fill=True) as there:
            move(Interrupted(backup, 15), there, quiet)
        with holding(new.place, fill=True) as there:
            move(backup, there, quiet)

        assert everything(old)["usage"] == everything(new)["usage"]


def test_a_damaged_backup_fills_nothing(tmp_path):
    with a_place("sqlite", tmp_path / "old", lambda: None) as old:
        fill(old)
        file = tmp_path / "b"
        with reading(old.place) as here:
            write(here, file, quiet)

    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-1], b"", b"no zip", changed(file, tmp_path / "c", "keys.jsonl")):
        file.write_bytes(damaged)
        with pytest.raises(StoreUnavailable, match="is no whole backup of llmgw"):
            Backup.read(file, SCHEMA)


def changed(file: Path, to: Path, member: str) -> bytes:
    """With its checksums right for a zip, and a row that is another."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, content.replace(b"gold", b"iron", 1) if name == member else content)
    return to.read_bytes()


def test_a_backup_of_a_newer_llmgw_is_refused_by_name(tmp_path):
    with a_place("sqlite", tmp_path / "old", lambda: None) as old:
        old.open().close()
        with reading(old.place) as here:
            write(here, tmp_path / "b", quiet)
    with zipfile.ZipFile(tmp_path / "b") as file:
        manifest = json.loads(file.read(MANIFEST))
    with zipfile.ZipFile(tmp_path / "c", "w") as file:
        file.writestr(MANIFEST, json.dumps(manifest | {"schema": 99, "llmgw": "9.9"}))

    with pytest.raises(StoreTooNew, match=r"use llmgw 9\.9"):
        Backup.read(tmp_path / "c", SCHEMA)


def test_a_failed_backup_leaves_the_one_that_was_there(tmp_path):
    with a_place("sqlite", tmp_path / "old", lambda: None) as old:
        fill(old)
        (tmp_path / "b").write_text("the old one")
        with pytest.raises(KeyboardInterrupt), reading(old.place) as here:
            write(Interrupted(here, 9), tmp_path / "b", quiet)

    assert (tmp_path / "b").read_text() == "the old one"
    assert not (tmp_path / "b.part").exists()


def test_a_sum_tells_rows_apart():
    table = Table("t", ("a",), ("text",), ("a",))

    def sums(*batches: Sequence[Row]) -> Any:
        return sum_of(table, iter([list(batch) for batch in batches]))

    assert sums([("a",), ("b",)]) == sums([("a",)], [("b",)])
    assert len({sums([("a",), ("b",)]), sums([("b",), ("a",)]), sums([("a",)]), sums([("ab",)]), sums()}) == 5
