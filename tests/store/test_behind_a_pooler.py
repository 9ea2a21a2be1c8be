"""PgBouncer between us and PostgreSQL: fine in session mode, refused where sessions mean nothing."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from llmgw.core.secret import Secret
from llmgw.store import connecting, keys
from llmgw.store.errors import StoreUnavailable
from llmgw.store.opening import opened
from llmgw.store.place import Place
from llmgw.store.postgres import open_postgres
from tests.postgres_server import USER, Server

POOLER = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
STARTS_WITHIN_S = 10


@contextmanager
def pooler(folder: Path, server: Server, mode: str) -> Iterator[str]:
    """The address of one in front of the server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert POOLER is not None
    (folder / "users").write_text(f'"{USER}" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nunix_socket_dir =\n"
        f"listen_port = {port}\nauth_type = trust\nauth_file = {folder}/users\npool_mode = {mode}\n"
    )
    as_nobody = {"user": "nobody", "extra_groups": []} if os.getuid() == 0 else {}
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)
    process = subprocess.Popen([POOLER, "-q", str(folder / "pgbouncer.ini")], **as_nobody, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + STARTS_WITHIN_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.02)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def place(folder: Path, address: str, database: str) -> Place:
    return Place(folder / "d", folder / "d" / "llmgw.db", Secret(f"postgresql://{USER}@{address}/{database}"))


@pytest.mark.skipif(POOLER is None, reason="pgbouncer is not installed")
@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_where_sessions_mean_nothing_the_start_says_so(postgres, tmp_path, mode):
    database = postgres.fresh()
    refused = pytest.raises(StoreUnavailable, match="behind a pooler in transaction mode")
    with pooler(tmp_path, postgres, mode) as address, refused:
        open_postgres(place(tmp_path, address, database))
    postgres.forget(database)


@pytest.mark.skipif(POOLER is None, reason="pgbouncer is not installed")
async def test_a_pooler_that_keeps_sessions_is_fine(postgres, tmp_path):
    database = postgres.fresh()
    with pooler(tmp_path, postgres, "session") as address:
        async with opened(place(tmp_path, address, database)) as store:
            with trio.fail_after(10):
                await store.write(lambda db: keys.add_tenants(db, ["acme"], 1.0))
                assert [name for name, _ in await store.read(keys.tenants)] == ["acme"]
    postgres.forget(database)


def test_a_server_that_is_too_old_is_told_which_is_needed(postgres, tmp_path, monkeypatch):
    monkeypatch.setattr(connecting, "OLDEST", 990000)

    with pytest.raises(StoreUnavailable, match=r"is PostgreSQL \d+; llmgw needs 99 or newer"):
        open_postgres(Place(tmp_path, tmp_path / "llmgw.db", Secret(postgres.url())))
