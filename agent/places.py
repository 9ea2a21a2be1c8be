"""Where the agent writes down what it does, and what stands there.

``<data>/engines/<instance>/`` holds ``spec.json`` (what is to run, with its ports; the key is in no file),
``state.json`` and ``exit.json`` (the shim's), ``intent.json`` (what was asked of it last), ``out.log`` and ``lock``,
which the shim holds while it lives. The directory is the truth; memory is a cache of it.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from attrs import field, frozen

from agent import atomic
from llmgw.core.agent_settings import AgentSettings
from llmgw.core.shards import Exit, Launch
from llmgw.core.term import NO_TERM, Term

SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
USUAL = Path("/var/lib/llmgw-agent")


class InUse(Exception):
    """Another agent works in this folder."""


@frozen
class Spec:
    """A launch, made ready for this node. ``leaf``: its cgroup's folder, or empty."""

    id: str
    hash: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    user: str
    host: str
    ports: Mapping[str, int]
    key_env: str
    leaf: str
    log_max: int
    launch: Launch  # without its key


@frozen
class State:
    """What the shim wrote before the engine ran. ``start``s: kernel ticks since the boot."""

    boot_id: str
    shim_pid: int
    shim_start: int
    pid: int
    start: int
    pgid: int
    ports: Mapping[str, int] = field(factory=dict)
    spec_hash: str = ""
    host: str = ""
    leaf: str = ""
    at: float = 0.0


@frozen
class Intent:
    """``start``, ``stop``, or ``failed``: it could not be started, and ``why``."""

    what: str
    boot_id: str = ""
    why: str = ""


@frozen
class _Unstarted:
    """In ``exit.json``, of an engine whose program never ran."""

    why: str = ""


@frozen
class EnginePlace:
    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def spec(self) -> Path:
        return self.folder / "spec.json"

    @property
    def state(self) -> Path:
        return self.folder / "state.json"

    @property
    def exit(self) -> Path:
        return self.folder / "exit.json"

    @property
    def intent(self) -> Path:
        return self.folder / "intent.json"

    @property
    def log(self) -> Path:
        return self.folder / "out.log"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    def make(self) -> None:
        """Raises OSError."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        atomic.sync(self.folder.parent)

    def write_spec(self, spec: Spec) -> None:
        atomic.write_value(self.spec, spec)

    def write_state(self, state: State) -> None:
        atomic.write_value(self.state, state)

    def write_intent(self, intent: Intent) -> None:
        atomic.write_value(self.intent, intent)

    def read_spec(self) -> Spec | None:
        return atomic.read_value(self.spec, Spec)

    def read_state(self) -> State | None:
        return atomic.read_value(self.state, State)

    def read_exit(self) -> Exit | None:
        return atomic.read_value(self.exit, Exit)

    def read_unstarted(self) -> str:
        """Why its program could not be started, in its shim's words; empty: it ran."""
        found = atomic.read_value(self.exit, _Unstarted)
        return found.why if found is not None else ""

    def read_intent(self) -> Intent | None:
        return atomic.read_value(self.intent, Intent)

    def may_run(self, boot_id: str) -> bool:
        """Whether anything of it may be alive, by what is written down. Raises OSError."""
        if self.has_shim():
            return True
        state, intent = self.read_state(), self.read_intent()
        booted_since = state is not None and state.boot_id != boot_id
        never = intent is not None and intent.what == "failed"
        return not (self.exit.exists() or booted_since or never)

    def set_aside(self) -> tuple[str, ...]:
        """Names of files that could not be read."""
        return tuple(p.name for p in (self.spec, self.state, self.exit, self.intent) if atomic.was_set_aside(p))

    def take_lock(self) -> int | None:
        """A file descriptor that holds the lock, or None while a shim, or one that is being born, has it.

        A shim is born with a copy, so there is no moment in which one exists and the lock is free.
        """
        fd = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def has_shim(self) -> bool:
        try:
            fd = self.take_lock()
        except FileNotFoundError:
            return False
        if fd is None:
            return True
        os.close(fd)
        return False

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@frozen
class Places:
    data: Path

    @property
    def engines(self) -> Path:
        return self.data / "engines"

    @property
    def seen(self) -> Path:
        return self.data / "seen.json"

    @property
    def scope(self) -> str:
        """Tells our engines from those of another agent on this machine."""
        return str(self.data)

    def prepare(self) -> None:
        """Raises OSError."""
        self.engines.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """This folder is ours alone. Raises InUse, OSError."""
        self.prepare()
        fd = os.open(self.data / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
                raise InUse(f"{self.data} is used by another agent, pid {holder or 'unknown'}") from None
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(fd)

    def of(self, id: str) -> EnginePlace:
        assert SAFE.fullmatch(id), id
        return EnginePlace(self.engines / id)

    def all(self) -> tuple[EnginePlace, ...]:
        """Of every instance written down. Raises OSError."""
        found = (p for p in self.engines.iterdir() if SAFE.fullmatch(p.name) and p.is_dir())
        return tuple(EnginePlace(p) for p in sorted(found))

    def read_seen(self) -> Term:
        """The newest term obeyed; of a file that can't be read nothing is known."""
        return atomic.read_value(self.seen, Term) or NO_TERM

    def write_seen(self, term: Term) -> None:
        """Before anything is done under it. Raises OSError."""
        atomic.write_value(self.seen, term)


def places(settings: AgentSettings, env: Mapping[str, str]) -> Places:
    if settings.data_dir:
        return Places(Path(settings.data_dir).expanduser().resolve())
    if env.get("STATE_DIRECTORY"):  # systemd's; several are joined by a colon
        return Places(Path(env["STATE_DIRECTORY"].split(":")[0]).resolve())
    if os.geteuid() == 0:
        return Places(USUAL)
    return Places((Path(env.get("HOME", "~")).expanduser() / ".llmgw-agent").resolve())
