"""How a launch becomes a process: its command made ready for this node, the shim started, its first word heard."""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import trio
from attrs import evolve

from agent import proc, shim
from agent.crash import VARIABLE as CRASH_AT
from agent.orders import fingerprint
from agent.places import EnginePlace, Spec
from llmgw.core.shards import HTTP, Launch

WORD_WITHIN_S = 20.0  # the shim's first; a machine under load starts Python slowly
_WORD_MAX = 4096
# What the agent was told by its own service manager, and is no business of an engine's.
_NOT_PASSED_ON = frozenset(
    "NOTIFY_SOCKET WATCHDOG_PID WATCHDOG_USEC LISTEN_FDS LISTEN_PID LISTEN_FDNAMES INVOCATION_ID JOURNAL_STREAM"
    " CREDENTIALS_DIRECTORY STATE_DIRECTORY RUNTIME_DIRECTORY".split()
)
_PASSED_ON = frozenset({"LLMGW_SIM_GPUS", proc.SIM_BOOT})


class NotStarted(Exception):
    """Nothing runs; the text says why."""


def spec_of(launch: Launch, host: str, ports: Mapping[str, int], leaf: str, log_max: int) -> Spec:
    """Raises NotStarted."""
    words = {"host": host, "gpus": ",".join(launch.gpus)} | {f"port:{name}": str(port) for name, port in ports.items()}
    if HTTP in ports:
        words["port"] = str(ports[HTTP])
    return Spec(
        id=launch.id,
        hash=fingerprint(launch),
        argv=tuple(filled(arg, words) for arg in launch.argv),
        env={name: filled(value, words) for name, value in launch.env.items()},
        cwd=launch.cwd,
        user=launch.user,
        host=host,
        ports=dict(ports),
        key_env=launch.key_env,
        leaf=leaf,
        log_max=log_max,
        launch=evolve(launch, key=""),
    )


def filled(text: str, words: Mapping[str, str]) -> str:
    """Only the words we know: other braces are the engine's, such as JSON on a command line. Raises NotStarted."""
    for word, value in words.items():
        text = text.replace("{" + word + "}", value)
    if "{port:" in text or "{port}" in text:
        raise NotStarted(f"{text!r} asks for a port that this shard does not have")
    return text


def base_environment(scope: str) -> dict[str, str]:
    """Ours without what is ours alone."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED_ON or not (name.startswith("LLMGW_") or name in _NOT_PASSED_ON)
    }
    return kept | {proc.AGENT: scope}


def fetch_environment(launch: Launch, scope: str) -> dict[str, str]:
    """Of the command that fetches its files: found by the mark, if the agent is killed while it runs."""
    return base_environment(scope) | dict(launch.env) | {proc.INSTANCE: launch.id}


def start_shim(place: EnginePlace, lock: int, spec: Spec, key: str, scope: str) -> tuple[int, int]:
    """Its pid, and the pipe on which its first word comes. Raises OSError."""
    told = {"ports": spec.ports, "hash": spec.hash, "host": spec.host, "leaf": spec.leaf}
    record = msgspec.json.encode(told).decode()
    env = base_environment(scope) | {proc.SHIM: place.id, shim.RECORD: record}
    if key:
        env[shim.KEY] = key
    if os.environ.get(CRASH_AT, "").startswith("shim."):
        env[shim.CRASH] = os.environ[CRASH_AT]
    hear, tell = os.pipe()
    try:
        return _spawn(place, lock, tell, env), hear
    except OSError:
        os.close(hear)
        raise
    finally:
        os.close(tell)


def _spawn(place: EnginePlace, lock: int, tell: int, env: Mapping[str, str]) -> int:
    # Copied out of the way first: one of them might sit on a number that another is put on.
    high = [os.dup(fd) if fd < 10 else fd for fd in (lock, tell)]
    log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    pairs = ((null, 0), (null, 1), (log, shim.LOG), (high[0], shim.LOCK), (high[1], shim.TELL))
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", str(Path(shim.__file__)), str(place.folder)],
            env,
            file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for source, target in pairs],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )
    finally:
        for fd in {log, null, *(fd for fd in high if fd not in (lock, tell))}:
            os.close(fd)


async def first_word(hear: int) -> str:
    """Empty: it died without one. Raises TooSlowError."""
    async with trio.lowlevel.FdStream(hear) as pipe:
        with trio.fail_after(WORD_WITHIN_S):
            word = b""
            while len(word) < _WORD_MAX and (part := await pipe.receive_some(_WORD_MAX)):
                word += part
    return word.decode("utf-8", "replace")


def reap(pid: int) -> bool:
    """A shim of ours that has ended leaves the process table; True when it is gone, or was never our child."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
