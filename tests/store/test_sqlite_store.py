"""The store: what was acknowledged is there, whoever died when."""

import fcntl
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio
from sqlite_utils import Database

from llmgw.core.secret import Secret
from llmgw.store import lock
from llmgw.store.errors import DataLocked, StoreFull, StoreTooNew, StoreUnavailable, translated
from llmgw.store.leader import term_of
from llmgw.store.limits import StoreLimits
from llmgw.store.opening import opened
from llmgw.store.place import Place, file_system, place
from llmgw.store.schema import MIGRATIONS, migrate
from llmgw.store.sqlite import SqliteStore, open_store, version_warning
from llmgw.store.turn import inline


def at(folder: Path) -> Place:
    return Place(folder, folder / "llmgw.db")


def open_inline(folder: Path) -> SqliteStore:
    return open_store(at(folder), lambda: inline)


def child(code: str, folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


async def test_a_cancelled_writer_still_knows_its_outcome(tmp_path):
    """The change has begun when the cancel comes: it is finished and its result returned."""
    async with opened(at(tmp_path)) as store:
        with trio.CancelScope() as scope:

            def change(db: Database) -> str:
                trio.from_thread.run_sync(scope.cancel)
                db.conn.execute("insert into tenants values ('acme', 1.0)")
                return "done"

            assert await store.write(change) == "done"
        assert await store.read(lambda conn: conn.execute("select name from tenants").fetchall()) == [("acme",)]


async def test_the_reader_cannot_write(tmp_path):
    store = open_inline(tmp_path)

    with pytest.raises(StoreUnavailable, match="can't be written"):
        await store.read(lambda conn: conn.execute("delete from keys"))
    store.close()


def test_files_are_for_their_owner_alone(tmp_path):
    folder = tmp_path / "new" / "data"
    store = open_inline(folder)

    modes = {f.name: stat.S_IMODE(f.stat().st_mode) for f in folder.iterdir()}
    store.close()

    assert set(modes.values()) == {0o600}, modes
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_every_change_is_forced_to_disk(tmp_path):
    store = open_inline(tmp_path)

    assert store._db.conn.execute("pragma synchronous").fetchone() == (2,)
    assert store._db.conn.execute("pragma journal_mode").fetchone() == ("wal",)
    store.close()


HOLD = """
import sys, time
from pathlib import Path
from llmgw.store.place import Place
from llmgw.store.sqlite import open_store
folder = Path(sys.argv[1])
store = open_store(Place(folder, folder / "llmgw.db"))
store.advertise("http://127.0.0.1:7")
print("held", flush=True)
time.sleep(60)
"""


def test_of_two_processes_the_second_is_told_who_holds_the_data(tmp_path):
    holder = child(HOLD, tmp_path)
    try:
        assert holder.stdout.readline() == "held\n"
        assert lock.held(at(tmp_path).lock)
        assert lock.holder(at(tmp_path).lock) == {"pid": holder.pid, "admin": "http://127.0.0.1:7"}
        with pytest.raises(DataLocked, match=f"in use by process {holder.pid}"):
            open_inline(tmp_path)

        # A process that only sleeps keeps it; one that was killed does not.
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(DataLocked):
            open_inline(tmp_path)
    finally:
        holder.kill()
        holder.communicate()

    assert not lock.held(at(tmp_path).lock)
    open_inline(tmp_path).close()


@pytest.mark.parametrize("way", ["another data directory", "a link", "its own folder"])
def test_a_database_is_one_processs_by_whatever_way_it_is_named(tmp_path, way):
    there, link = tmp_path / "there" / "llmgw.db", tmp_path / "link.db"
    first = open_store(Place(tmp_path / "a", there), lambda: inline)
    link.symlink_to(there)
    second = {
        "another data directory": Place(tmp_path / "b", there),
        "a link": Place(tmp_path / "b", link),
        "its own folder": Place(there.parent, there),
    }[way]
    with pytest.raises(DataLocked, match=f"there.* is in use by process {os.getpid()}"):
        open_store(second, lambda: inline)
    first.close()
    open_store(second, lambda: inline).close()


def test_two_databases_in_one_folder_are_two_processs(tmp_path):
    stores = [open_store(Place(tmp_path / n, tmp_path / f"{n}.db"), lambda: inline) for n in ("red", "blue")]
    for store in stores:
        store.close()


def test_a_data_directory_is_one_processs_wherever_its_database_lies(tmp_path):
    first = open_store(Place(tmp_path, tmp_path / "there" / "x.db"), lambda: inline)
    with pytest.raises(DataLocked, match=f"{tmp_path} is in use by process"):
        open_inline(tmp_path)
    first.close()


def test_a_look_at_the_lock_does_not_keep_a_daemon_from_starting(tmp_path):
    path = at(tmp_path).lock
    looking = path.open("w")
    fcntl.flock(looking, fcntl.LOCK_SH)
    done = threading.Timer(0.02, looking.close)
    done.start()

    lock.take(path).release()

    done.join()


def test_an_old_sqlite_is_named():
    assert "SQLite 3.40.1 can damage" in version_warning((3, 40, 1))
    assert version_warning((3, 51, 3)) == version_warning((3, 52, 0)) == ""


def test_a_child_process_does_not_inherit_the_lock(tmp_path):
    store = open_inline(tmp_path)
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"], stdout=-1)
    try:
        sleeper.stdout.readline()
        store.close()
        assert not lock.held(at(tmp_path).lock)
    finally:
        sleeper.kill()
        sleeper.communicate()


WRITE = """
import sys
import threading
from pathlib import Path
from llmgw.store.place import Place
from llmgw.store.sqlite import open_store
folder = Path(sys.argv[1])
store = open_store(Place(folder, folder / "llmgw.db"))
from llmgw.store.transaction import transaction
n = 0
while True:
    with transaction(store._db):
        for half in "ab":
            store._db.conn.execute("insert into tenants values (?, 1.0)", (f"{n}{half}",))
    print(n, flush=True)
    n += 1
"""


def test_kill_9_in_the_middle_of_writes_loses_nothing_acknowledged(tmp_path):
    for _ in range(3):
        writer = child(WRITE.replace("n = 0", f"n = {count(tmp_path)}"), tmp_path)
        acknowledged = -1
        for _ in range(40):
            acknowledged = int(writer.stdout.readline())
        writer.kill()
        more, _ = writer.communicate()
        acknowledged = max([acknowledged, *(int(line) for line in more.split("\n")[:-1])])

        names = {name for (name,) in rows(tmp_path, "select name from tenants")}
        assert {f"{n}{half}" for n in range(acknowledged + 1) for half in "ab"} <= names
        assert len(names) % 2 == 0  # both halves of a change or neither
        assert rows(tmp_path, "pragma integrity_check") == [("ok",)]


def count(folder: Path) -> int:
    return len(rows(folder, "select * from tenants")) // 2 if at(folder).database.exists() else 0


def rows(folder: Path, question: str) -> list[tuple[object, ...]]:
    conn = sqlite3.connect(at(folder).database)
    try:
        return conn.execute(question).fetchall()
    finally:
        conn.close()


def add_colour(db: Database) -> None:
    db.table("tenants").add_column("colour", str)


def break_half_way(db: Database) -> None:
    db.table("tenants").add_column("colour", str)
    raise ZeroDivisionError


def test_a_migration_makes_a_copy_of_what_was(tmp_path):
    open_inline(tmp_path).close()
    assert not list(tmp_path.glob("*.before-*"))  # nothing to copy before the first
    db = Database(sqlite3.connect(at(tmp_path).database, isolation_level=None))

    migrate(db, at(tmp_path).database, [*MIGRATIONS, add_colour], version="9.9")

    copy = tmp_path / f"llmgw.db.before-{len(MIGRATIONS) + 1}"
    assert "colour" in db.table("tenants").columns_dict
    before = Database(sqlite3.connect(copy))
    assert "colour" not in before.table("tenants").columns_dict
    assert before.conn.execute("pragma user_version").fetchone() == (len(MIGRATIONS),)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    db.conn.close()
    before.conn.close()


def test_a_migration_that_fails_changes_nothing(tmp_path):
    open_inline(tmp_path).close()
    db = Database(sqlite3.connect(at(tmp_path).database, isolation_level=None))

    with pytest.raises(ZeroDivisionError):
        migrate(db, at(tmp_path).database, [*MIGRATIONS, break_half_way])
    db.conn.close()

    assert rows(tmp_path, "pragma user_version") == [(len(MIGRATIONS),)]
    open_inline(tmp_path).close()


def test_a_newer_schema_is_refused_naming_the_version_to_run(tmp_path):
    open_inline(tmp_path).close()
    db = Database(sqlite3.connect(at(tmp_path).database, isolation_level=None))
    migrate(db, at(tmp_path).database, [*MIGRATIONS, add_colour], version="9.9")
    db.conn.close()

    with pytest.raises(StoreTooNew, match=r"run llmgw 9\.9 or newer"):
        open_inline(tmp_path)

    open_inline_again = at(tmp_path).lock
    assert not lock.held(open_inline_again)  # a refused start holds nothing


def test_a_full_disk_is_said_in_words_and_recovers(tmp_path):
    store = open_inline(tmp_path)
    pages = store._db.conn.execute("pragma page_count").fetchone()[0]
    store._db.conn.execute(f"pragma max_page_count = {pages}")

    def fill(db: Database) -> None:
        db.conn.executemany("insert into tenants values (?, 1.0)", [("x" * 500 + str(n),) for n in range(100)])

    with pytest.raises(StoreFull, match="the disk is full; free space"):
        trio.run(store.write, fill)
    assert rows(tmp_path, "select count(*) from tenants") == [(0,)]

    store._db.conn.execute("pragma max_page_count = 100000")
    trio.run(store.write, fill)
    store.close()


def test_a_folder_that_cannot_be_made_is_said_in_words(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreUnavailable, match="name a writable folder"):
        open_inline(tmp_path / "file" / "data")


def test_a_file_that_is_no_database_is_said_in_words(tmp_path):
    at(tmp_path).database.write_bytes(b"this is no database at all, whatever it is" * 100)

    with pytest.raises(StoreUnavailable, match=r"is damaged .*; put back a backup$"):
        open_inline(tmp_path)


def test_copies_of_a_damaged_store_are_named_if_there_are_any(tmp_path):
    at(tmp_path).database.write_bytes(b"this is no database at all, whatever it is" * 100)
    for name in ("llmgw.db.before-2", "llmgw.db.before-3", "llmgw.db.before-4.part"):
        (tmp_path / name).touch()

    with pytest.raises(StoreUnavailable, match=r"before an upgrade: llmgw\.db\.before-2, llmgw\.db\.before-3$"):
        open_inline(tmp_path)


def test_our_own_mistakes_are_not_blamed_on_the_store(tmp_path):
    with pytest.raises(sqlite3.IntegrityError), translated(tmp_path):
        raise sqlite3.IntegrityError("UNIQUE constraint failed")


def test_a_network_file_system_is_known_by_its_mount():
    mounts = "\n".join(
        [
            "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw",
            "30 22 0:40 / /srv/shared rw - nfs4 host:/x rw",
            "31 22 0:41 / /srv/with\\040space rw - cifs //host/x rw",
        ]
    )

    assert file_system(Path("/var/lib/llmgw"), mounts) == "ext4"
    assert file_system(Path("/srv/shared/llmgw"), mounts) == "nfs4"
    assert file_system(Path("/srv/with space"), mounts) == "cifs"


@pytest.mark.parametrize(
    ("limits", "env", "data_dir", "database"),
    [
        ({}, {"HOME": "/h"}, "/h/.local/share/llmgw", "/h/.local/share/llmgw/llmgw.db"),
        ({}, {"XDG_DATA_HOME": "/x"}, "/x/llmgw", "/x/llmgw/llmgw.db"),
        ({}, {"STATE_DIRECTORY": "/var/lib/llmgw:/b"}, "/var/lib/llmgw", "/var/lib/llmgw/llmgw.db"),
        ({"data_dir": "/d"}, {"STATE_DIRECTORY": "/s"}, "/d", "/d/llmgw.db"),
        ({"data_dir": "/d", "url": "sqlite:////e/f.db"}, {}, "/d", "/e/f.db"),
    ],
)
def test_where_the_store_lies(limits, env, data_dir, database):
    url = Secret(limits.pop("url")) if "url" in limits else None

    assert place(StoreLimits(**limits, url=url), env) == Place(Path(data_dir), Path(database))


def test_a_database_nobody_can_open_is_refused_without_its_password():
    with pytest.raises(StoreUnavailable, match=r"'mysql'; write postgresql://… or sqlite:////path") as caught:
        place(StoreLimits(url=Secret("mysql://u:hunter2@db/llmgw")), {})

    assert "hunter2" not in str(caught.value)


def test_a_store_of_an_earlier_version_keeps_its_term_and_counts_its_starts_on(tmp_path):
    tmp_path.mkdir(exist_ok=True)
    db = Database(sqlite3.connect(at(tmp_path).database, isolation_level=None))
    migrate(db, at(tmp_path).database, MIGRATIONS[:3])
    db.conn.execute("update leader_epoch set epoch = 41")
    db.conn.execute("insert into meta (key, value) values ('term_n', '7')")
    db.conn.close()

    store = open_inline(tmp_path)

    term = trio.run(store.read, term_of)
    assert (term.n, term.epoch, store.start) == (7, 42, 42)
    store.close()
