"""Where a secret's value comes from: a file, a credential of the service manager, or the config itself."""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from llmgw.config.problems import Refused
from llmgw.core.secret import Secret

_SECRET_MAX = 16 * 1024
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", re.ASCII)


def secret_of(raw: object, environ: Mapping[str, str]) -> Secret | None:
    """``"@/path"``, ``"@name"`` in $CREDENTIALS_DIRECTORY, or the value itself; empty is none. Raises Refused."""
    if not isinstance(raw, str):
        raise Refused("a secret is text", 'write "@/path/of/file", "@credential" or the value in quotes')
    if raw.startswith("@"):
        name = raw[1:]
        # A credential's folder is the service manager's own: it may show group bits there that stand for an ACL.
        value = _read(Path(name), private=True) if name.startswith("/") else _read(_credential(name, environ), False)
    else:
        value = raw
    if not value:
        return None
    if not value.isascii() or not value.isprintable():
        raise Refused("the secret has characters that no header can carry", "check that it is one line of ASCII")
    return Secret(value)


def _credential(name: str, environ: Mapping[str, str]) -> Path:
    if not _NAME.fullmatch(name):
        raise Refused("no credential has such a name", 'write "@" and an absolute path, or "@" and a plain name')
    if folder := environ.get("CREDENTIALS_DIRECTORY"):
        return Path(folder) / name
    raise Refused(
        f"there is no $CREDENTIALS_DIRECTORY to read @{name} from",
        f"add LoadCredential={name}:/path to the service; by hand, name the folder of a file {name} in that variable",
    )


def _read(path: Path, private: bool) -> str:
    try:
        # Not blocking: a FIFO in the secret's place must not hold the start.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise Refused(f"{path} can't be read ({_why(error)})", "check the path and its owner") from None
    with os.fdopen(fd, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise Refused(f"{path} is no plain file", "name the file that holds the secret")
        if private:
            _check_private(path, about.st_mode)
        content = file.read(_SECRET_MAX + 1)
    if len(content) > _SECRET_MAX:
        raise Refused(f"{path} is longer than {_SECRET_MAX} bytes", "name the file that holds the secret alone")
    text = content.decode("ascii", "replace").strip()
    if not text:
        raise Refused(f"{path} is empty", "put the secret into it")
    return text


def check_key_file(path: Path, environ: Mapping[str, str]) -> None:
    """Raises Refused for a private key that others can read; a credential's folder is as above."""
    folder = environ.get("CREDENTIALS_DIRECTORY")
    if folder and path.is_relative_to(folder):
        return
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise Refused(f"{path} can't be read ({_why(error)})", "check the path and its owner") from None
    _check_private(path, mode)


def _check_private(path: Path, mode: int) -> None:
    if mode & 0o077:
        raise Refused(f"{path} can be read by others (mode {mode & 0o777:04o})", f"run chmod 600 {path}")


def _why(error: Exception) -> str:
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)
