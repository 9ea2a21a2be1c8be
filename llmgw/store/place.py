"""Where the store lies, from the config and the environment."""

from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from llmgw.core.secret import Secret
from llmgw.store.errors import StoreUnavailable
from llmgw.store.limits import StoreLimits

SCHEME = "sqlite:///"
POSTGRES = ("postgresql://", "postgres://")
# File systems whose flock or mmap other machines do not see; kinds as /proc/self/mountinfo names them.
NETWORKED = frozenset("nfs nfs4 cifs smb3 smbfs ceph lustre afs fuse.sshfs fuse.glusterfs fuse.s3fs".split())


@frozen
class Place:
    """``url``: PostgreSQL's; then ``database``, SQLite's file, is not touched."""

    data_dir: Path
    database: Path
    url: Secret | None = None

    @property
    def shown(self) -> str:
        """For people: the file, or the URL without its password."""
        return without_password(self.url.reveal()) if self.url else str(self.database)

    @property
    def lock(self) -> Path:
        return self.data_dir / "llmgw.lock"

    @property
    def admin_token(self) -> Path:
        return self.data_dir / "admin.token"


def place(limits: StoreLimits, env: Mapping[str, str]) -> Place:
    """Raises StoreUnavailable for a URL this version can't open."""
    data_dir = Path(limits.data_dir).expanduser() if limits.data_dir else _usual(env)
    url = limits.url.reveal() if limits.url else ""
    if url.startswith(POSTGRES):
        return Place(data_dir, data_dir / "llmgw.db", limits.url)
    if not url:
        return Place(data_dir, data_dir / "llmgw.db")
    if not url.startswith(SCHEME):
        scheme = url.partition(":")[0][:20]
        raise StoreUnavailable(f"store.url: no store is opened by {scheme!r}; write postgresql://… or sqlite:///path")
    return Place(data_dir, Path(url.removeprefix(SCHEME)).expanduser())


def without_password(url: str) -> str:
    """What may be shown of a URL: a password stands before the last @ of the authority, or among the parameters."""
    scheme, separator, rest = url.partition("://")
    where, _, parameters = rest.partition("?")
    authority, slash, name = where.partition("/")
    user, at, hosts = authority.rpartition("@")
    shown = f"{scheme}{separator}{'***@' if at and user else ''}{hosts}{slash}{name}"
    return f"{shown}?…" if parameters else shown


def has_password(url: str) -> bool:
    authority, _, parameters = url.partition("://")[2].partition("?")
    return ":" in authority.rpartition("@")[0] or "password" in parameters


def _usual(env: Mapping[str, str]) -> Path:
    if env.get("STATE_DIRECTORY"):  # systemd's; several are joined by a colon
        return Path(env["STATE_DIRECTORY"].split(":")[0])
    base = env.get("XDG_DATA_HOME") or Path(env.get("HOME", "~")).expanduser() / ".local" / "share"
    return Path(base) / "llmgw"


def prepare(folder: Path) -> None:
    """Make the data directory; refuse one on a network file system, where the lock and WAL do not hold."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        mounts = ""  # no /proc: not Linux
    except OSError as error:
        raise StoreUnavailable(f"{folder}: {error.strerror}; name a writable folder with --data-dir") from error
    kind = file_system(folder.resolve(), mounts)
    if kind in NETWORKED:
        raise StoreUnavailable(f"{folder} is on {kind}: SQLite and its lock need a local disk; choose another folder")


def file_system(folder: Path, mountinfo: str) -> str:
    """The kind of file system a folder lies on. Source: proc(5), /proc/[pid]/mountinfo."""
    longest, kind = -1, ""
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        point = Path(fields.split(" ")[4].replace("\\040", " "))
        if folder.is_relative_to(point) and len(point.parts) >= longest:
            longest, kind = len(point.parts), rest.split(" ")[0]
    return kind
