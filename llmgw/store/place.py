"""Where the store lies, from the config and the environment."""

from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from llmgw.core.secret import Secret
from llmgw.store.errors import StoreUnavailable
from llmgw.store.limits import StoreLimits

URL = "store.url"
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
        """The data directory's."""
        return self.data_dir / "llmgw.lock"

    @property
    def database_lock(self) -> Path:
        """SQLite's file has its own, by whatever way it is named; llmgw.db's is that of the directory it lies in."""
        file = self.database.resolve()
        return file.with_name(f"{file.name.removesuffix('.db')}.lock")

    @property
    def admin_token(self) -> Path:
        return self.data_dir / "admin.token"


def place(limits: StoreLimits, env: Mapping[str, str], field: str = URL) -> Place:
    """``field``: where the URL was written. Raises StoreUnavailable for one that this version can't open."""
    data_dir = Path(limits.data_dir).expanduser() if limits.data_dir else _usual(env)
    url = limits.url.reveal() if limits.url else ""
    if url.startswith(POSTGRES):
        return Place(data_dir, data_dir / "llmgw.db", limits.url)
    if not url:
        return Place(data_dir, data_dir / "llmgw.db")
    if not url.startswith(SCHEME):
        scheme = url.partition(":")[0][:20]
        raise StoreUnavailable(f"{field}: no store is opened by {scheme!r}; write postgresql://… or sqlite:////path")
    file = Path(url.removeprefix(SCHEME)).expanduser()
    if not file.is_absolute():  # to which folder, would depend on who asks
        what = f"{url} is a relative path" if url != SCHEME else "there is no path in it"
        raise StoreUnavailable(f"{field}: {what}; write the whole path behind three slashes, as sqlite:////{file}")
    return Place(data_dir, file)


def without_password(url: str) -> str:
    """What may be shown of a URL: a password stands before the last @ of the authority, or among the parameters."""
    scheme, separator, rest = url.partition("://")
    user, at, where = rest.rpartition("@")  # whatever it has in it, and should not
    if "?" in user:  # in a password, or before parameters that have one: then nothing is sure
        return f"{scheme}{separator}***"
    where, _, parameters = where.partition("?")
    shown = f"{scheme}{separator}{'***@' if at and user else ''}{where}"
    return f"{shown}?…" if parameters else shown


def has_password(url: str) -> bool:
    user, _, where = url.partition("://")[2].rpartition("@")
    return ":" in user or "password" in where.partition("?")[2] or "password" in user.partition("?")[2]


def is_ambiguous(url: str) -> bool:
    """Whether a user or a password in it ends elsewhere than it seems, by a / or an @ that is not percent-encoded."""
    rest = url.partition("://")[2]
    first = min((rest.find(mark) for mark in "@/" if mark in rest), default=-1)
    behind = rest[first + 1 :] if first >= 0 and rest[first] == "@" else rest
    return "@" in behind.partition("?")[0]


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
