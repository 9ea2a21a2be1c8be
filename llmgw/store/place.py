"""Where the store lies, from the config and the environment."""

from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from llmgw.store.errors import StoreUnavailable
from llmgw.store.limits import StoreLimits

SCHEME = "sqlite:///"
# File systems whose flock or mmap other machines do not see; kinds as /proc/self/mountinfo names them.
NETWORKED = frozenset("nfs nfs4 cifs smb3 smbfs ceph lustre afs fuse.sshfs fuse.glusterfs fuse.s3fs".split())


@frozen
class Place:
    data_dir: Path
    database: Path

    @property
    def lock(self) -> Path:
        return self.data_dir / "llmgw.lock"

    @property
    def admin_token(self) -> Path:
        return self.data_dir / "admin.token"


def place(limits: StoreLimits, env: Mapping[str, str]) -> Place:
    """Raises StoreUnavailable for a URL this version can't open."""
    data_dir = Path(limits.data_dir).expanduser() if limits.data_dir else _usual(env)
    if not limits.url:
        return Place(data_dir, data_dir / "llmgw.db")
    if not limits.url.startswith(SCHEME):
        raise StoreUnavailable(f"store.url {limits.url!r}: this version opens only sqlite:///path; leave it empty")
    return Place(data_dir, Path(limits.url.removeprefix(SCHEME)).expanduser())


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
