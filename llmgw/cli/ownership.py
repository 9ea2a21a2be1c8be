"""To whom belongs what root makes where a service of another user works?"""

import os
from collections.abc import Iterable
from pathlib import Path


def as_its_folder(paths: Iterable[Path]) -> None:
    """Each belongs to whoever owns the folder it lies in, or the service could not read it. Raises OSError."""
    if os.geteuid() != 0:
        return
    for path in paths:
        owner, now = path.parent.stat(), path.lstat()
        if (owner.st_uid, owner.st_gid) != (now.st_uid, now.st_gid):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
