"""Whether a model's files are on this node, and how they come: one fetch at a time for each path.

Beside the path lies ``<path>.llmgw-fetch``. Who fetches holds a lock on it, and so does the command itself, so the
lock is free exactly when nobody works there any more. What is written in it says that a fetch has begun and not
ended: files that are there all the same are not all of them.
"""

import errno
import fcntl
import os
import pwd
import signal
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from subprocess import DEVNULL

import trio

from llmgw.core.shards import Fetch

MARK = ".llmgw-fetch"
LOOK_EVERY_S = 0.25
END_WITHIN_S = 5.0


class NoFiles(Exception):
    """They are not there and did not come; the text says why."""


def mark_of(path: str) -> Path:
    whole = Path(os.path.abspath(path))
    return whole.with_name(whole.name + MARK)


def is_there(path: str) -> bool:
    """All of it. May wait for a network file system."""
    try:
        return os.path.exists(path) and not _begun(mark_of(path))
    except OSError:
        return False


def present(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(path for path in paths if is_there(path))


def _begun(mark: Path) -> bool:
    try:
        return mark.stat().st_size > 0
    except FileNotFoundError:
        return False


async def ensure(fetch: Fetch, env: Mapping[str, str], log: Path, user: str, says: Callable[[str], None]) -> None:
    """Returns when the files are there. Raises NoFiles. ``says`` hears what it waits for."""
    with trio.move_on_after(fetch.within_s) as limit:
        if await _look(fetch.path):
            return
        if not fetch.argv:
            raise NoFiles(f"{fetch.path} is not on this node, and no command to fetch it was given")
        await _fetch_alone(fetch, env, log, user, says)
    if limit.cancelled_caught:
        raise NoFiles(f"{fetch.path} did not come within {fetch.within_s:g} s")


async def _look(path: str) -> bool:
    return await trio.to_thread.run_sync(is_there, path, abandon_on_cancel=True)


async def _fetch_alone(fetch: Fetch, env: Mapping[str, str], log: Path, user: str, says: Callable[[str], None]) -> None:
    lock = await _locked(mark_of(fetch.path), partial(says, f"somebody else fetches {fetch.path}"))
    try:
        if await _look(fetch.path):
            return  # who had the lock before us did it
        says(f"fetching {fetch.path}")
        _write(lock, f"begun by pid {os.getpid()}\n")
        code = await _run(fetch.argv, env, log, user, lock)
        if code != 0:
            raise NoFiles(f"{fetch.argv[0]} ended with {code}; its last lines are in the log")
        _write(lock, "")
        if not await _look(fetch.path):
            raise NoFiles(f"{fetch.argv[0]} ended with 0, yet {fetch.path} is not there")
    finally:
        os.close(lock)


async def _locked(mark: Path, waits: Callable[[], None]) -> int:
    """A descriptor with the lock. Raises NoFiles where none can be made."""
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise NoFiles(f"{mark}: {error.strerror}") from error
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise NoFiles(f"{mark}: {error.strerror}") from error
            waits()
            await trio.sleep(LOOK_EVERY_S)
    except BaseException:
        os.close(fd)
        raise


def _write(fd: int, text: str) -> None:
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, text.encode(), 0)
        os.fsync(fd)
    except OSError as error:
        raise NoFiles(f"can't note the fetch: {error.strerror}") from error


async def _run(argv: tuple[str, ...], env: Mapping[str, str], log: Path, user: str, lock: int) -> int:
    """Its exit code. Ended with all it started when we are cancelled."""
    with log.open("ab") as out:
        try:
            process = await trio.lowlevel.open_process(
                list(argv),
                stdin=DEVNULL,
                stdout=out,
                stderr=out,
                env=dict(env),
                pass_fds=(lock,),
                start_new_session=True,
                user=user or None,
                group=pwd.getpwnam(user).pw_gid if user else None,
                extra_groups=() if user else None,
            )
        except (OSError, LookupError) as error:
            raise NoFiles(f"{argv[0]}: {error}") from error
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            await _end(process)


async def _end(process: trio.Process) -> None:
    with trio.move_on_after(END_WITHIN_S, shield=True):
        os.killpg(process.pid, signal.SIGTERM)
        await process.wait()
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        with trio.move_on_after(END_WITHIN_S, shield=True):
            await process.wait()
