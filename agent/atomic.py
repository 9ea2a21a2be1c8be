"""Files that are whole or absent: written beside, synced, renamed; what can't be read is set aside, not trusted."""

import os
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")
BAD = ".bad"
_READ_MAX = 4 * 1024 * 1024


def write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """On disk when this returns. Raises OSError, and then the old file stands as it was."""
    new = path.with_name(path.name + ".new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        try:
            written = 0
            while written < len(data):
                written += os.write(fd, data[written:])
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(new, path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_value(path: Path, value: object) -> None:
    write(path, msgspec.json.encode(value))


def sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_value(path: Path, kind: type[T]) -> T | None:
    """None when there is no such file, or when it is garbage: then it is renamed, for a person to look at.

    Raises OSError when it is there and can't be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_READ_MAX)
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        set_aside(path)
        return None


def set_aside(path: Path) -> None:
    """One such file is kept; the newest, as it explains what is seen now."""
    try:
        path.rename(path.with_name(path.name + BAD))
    except FileNotFoundError:
        return


def was_set_aside(path: Path) -> bool:
    return path.with_name(path.name + BAD).exists()
