"""A file with a secret in it: written whole or not at all, readable by its owner alone."""

import os
import secrets
from pathlib import Path


def write_secret(file: Path, text: str) -> None:
    """Raises OSError; then whatever was there before is still there."""
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(fd)
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
