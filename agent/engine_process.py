"""The life of one engine process on this node: prepared, started, watched, ended, its memory seen to come back.

Nothing here starts an engine a second time. Cancelled, it leaves the process as it is: the next agent adopts it.
Every step that matters is written down before it is taken.
"""

import math
import os
import signal
from collections.abc import Callable, Mapping

import trio
from attrs import define, field

from agent import crash, files, proc, spawning
from agent.engine_parts import Parts
from agent.groups import Group
from agent.log_tail import LogTail
from agent.places import EnginePlace, Intent, Spec, State
from agent.ports import NoPorts
from agent.sampling import Measured, Sample
from agent.spawning import NotStarted
from llmgw.core.engine_life import may_become
from llmgw.core.shards import ENDED, Exit, Launch, ShardSeen, ShardState

LOOK_EVERY_S = 0.1
LOOK_SELDOM_S = 1.0  # once it has taken longer than it may
EXIT_WITHIN_S = 5.0  # the shim writes it at once
KILLED_WITHIN_S = 2.0  # then it hangs in the kernel
# As shells have it; an engine's own script may end so.
COULD_NOT_RUN = {126: ": as if a command of its own can't be executed", 127: ": as if a command of its own is missing"}
PIDS_TOLD = 32
PIDS_KEPT = 4096


@define(eq=False)
class EngineProcess:
    """``hash``: of its launch. Where the record of that is lost, the leader tells it again."""

    launch: Launch
    hash: str
    parts: Parts
    place: EnginePlace
    group: Group
    state: ShardState = ShardState.STARTING
    why: str = ""
    ports: Mapping[str, int] = field(factory=dict)
    host: str = ""
    written: State | None = None  # by the shim, about its processes
    pidfd: int | None = None
    exit: Exit | None = None
    unstarted: str = ""  # its program never ran, and why
    adopted: bool = False
    record_lost: bool = False
    note: str = ""  # said beside every state
    log: LogTail = field(init=False)
    sample: Sample = field(factory=Sample, init=False)
    left: tuple[int, ...] = field(default=(), init=False)  # pids that should be gone
    pids_seen: set[int] = field(factory=set, init=False)
    stop_asked: trio.Event = field(factory=trio.Event, init=False)
    ended: trio.Event = field(factory=trio.Event, init=False)
    _since: float = field(factory=trio.current_time, init=False)
    _preparing: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        self.log = LogTail(self.place.log, self.launch.key)

    @property
    def id(self) -> str:
        return self.place.id

    async def live(self) -> None:
        """From where it stands to its end. May be called again after it failed."""
        if self.state is ShardState.STARTING:
            await self._begin()
        if self.pidfd is not None:
            await self._watch()
        if self.state not in ENDED:
            await self._release()

    def stop(self) -> None:
        """From any state to its end; what was asked is on disk when this returns, if the disk takes it."""
        if self.stop_asked.is_set() or self.state in ENDED:
            return
        self._write_intent(Intent("stop", self.parts.boot_id))
        crash.after("stop.recorded")
        self.stop_asked.set()
        self._preparing.cancel()
        if self.pidfd is not None:
            self._enter(ShardState.STOPPING)

    def resume_stop(self) -> None:
        """What an agent before us was asked for, and did not finish."""
        self.stop_asked.set()
        if self.state in ENDED:
            self.state = ShardState.STOPPED

    def went_wrong(self, note: str) -> None:
        """An error that is ours, not the engine's. What runs runs on; what was being started is ended."""
        self.note = note
        if self.state is ShardState.STARTING:
            self._enter(ShardState.RELEASING)

    def let_go(self) -> None:
        """The agent leaves; the process stays."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def seen(self) -> ShardSeen:
        foreign = self.sample.stranger
        return ShardSeen(
            id=self.id,
            state=self.state,
            age_s=trio.current_time() - self._since,
            why="; ".join(filter(None, (self.why, self.note, foreign))),
            pid=self.written.pid if self.written else 0,
            host=self.host,
            ports={} if foreign else self.ports,
            adopted=self.adopted,
            exit=self.exit,
            pids=self.left[:PIDS_TOLD],
            gpu_mib=self.parts.gpus.mib_of(self.id),
            memory_mib=math.ceil(self.sample.rss_bytes / 2**20),
            progress=self.log.written + self.sample.cpu_ms,
            log_age_s=self.log_age_s,
            started_at=self.written.at if self.written else 0.0,
        )

    @property
    def log_age_s(self) -> float | None:
        return None if self.log.changed_at is None else max(0.0, trio.current_time() - self.log.changed_at)

    # -- starting ------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Until it runs, or has ended without."""
        try:
            self._record_start()
            with self._preparing:
                await self._prepare()
            if not self.stop_asked.is_set():
                await self._spawn()
        except (NotStarted, NoPorts, files.NoFiles) as error:
            self._fail(str(error))
        except OSError as error:
            self._fail(f"can't be started: {error.strerror or error}: {error.filename or self.place.folder}")

    def _record_start(self) -> None:
        self.place.make()
        self.place.write_intent(Intent("start", self.parts.boot_id))
        crash.after("start.recorded")

    async def _prepare(self) -> None:
        self.host = self.launch.host or self.parts.address()
        self.ports = self.parts.ports.reserve(self.id, self.launch.ports)
        if self.launch.files is not None:
            env = spawning.fetch_environment(self.launch, self.parts.places.scope)
            await files.ensure(self.launch.files, env, self.place.log, self.launch.user, self._says)
        await self._wait_for_memory()
        self._says("")

    async def _wait_for_memory(self) -> None:
        """Raises NotStarted when it is not free in time: what is free counts, not what somebody gave back."""
        deadline = trio.current_time() + self.launch.memory_within_s
        while why := self._short_of_memory():
            if trio.current_time() >= deadline:
                raise NotStarted(f"{why}, after {self.launch.memory_within_s:g} s")
            self._says(why)
            await trio.sleep(LOOK_EVERY_S)

    def _short_of_memory(self) -> str:
        if not self.launch.need_mib:
            return ""
        need = self.launch.need_mib
        free = {uuid: self.parts.gpus.free_mib(uuid) for uuid in self.launch.gpus}
        short = [
            f"{uuid} has {'an unknown amount' if mib is None else f'{mib / 1024:.1f} GiB'} free"
            for uuid, mib in free.items()
            if mib is None or mib < need
        ]
        return f"needs {need / 1024:.1f} GiB: {', '.join(short)}" if short else ""

    async def _spawn(self) -> None:
        """From here no stop interrupts; it is answered once the process is known. Raises NotStarted, OSError."""
        self._refuse_user()
        self._renew_ports()
        spec = spawning.spec_of(self.launch, self.host, self.ports, self.group.leaf, self.parts.settings.log_max)
        self.place.write_spec(spec)
        crash.after("start.spec")
        self.group.make()
        self.parts.gpus.note_launch(self.id, self.launch.gpus)
        shim, word = await self._start_shim(spec)
        self.written = self.place.read_state()
        if word != "ok" or self.written is None:
            await self._bury(shim)
            raise NotStarted(f"not started: {word or 'its shim ended without a word; its log may say why'}")
        self.group = self.parts.group(self.id, spec.leaf, self.written)
        self.pidfd = proc.pidfd_of(self.written.pid, self.written.start)
        crash.after("start.running")
        self._enter(ShardState.LOADING)

    async def _start_shim(self, spec: Spec) -> tuple[int, str]:
        lock = self.place.take_lock()
        if lock is None:
            raise NotStarted("another process of this instance lives")
        try:
            shim, hear = spawning.start_shim(self.place, lock, spec, self.launch.key, self.parts.places.scope)
        finally:
            os.close(lock)
        crash.after("start.spawned")
        try:
            return shim, await spawning.first_word(hear)
        except trio.TooSlowError:
            os.kill(shim, signal.SIGKILL)  # our child, not reaped: the number is its own; the engine ends with it
            return shim, f"its shim said nothing within {spawning.WORD_WITHIN_S:g} s"

    async def _bury(self, shim: int) -> None:
        await _until(lambda: spawning.reap(shim))
        self.group.kill()

    def _refuse_user(self) -> None:
        if self.launch.user and os.geteuid() != 0:
            raise NotStarted(f"can't run as {self.launch.user}: the agent is not root")

    def _renew_ports(self) -> None:
        self.ports, lost = self.parts.ports.renew(self.id, self.ports)
        if lost:
            said = f"port {', '.join(map(str, lost))} was taken by somebody else, another is used"
            self.note = "; ".join(filter(None, (said, self.parts.ports.advice())))
            self.parts.say(f"{self.id}: {self.note}")

    def _fail(self, why: str) -> None:
        """Nothing runs. A stop that was asked meanwhile has what it wanted."""
        if self.stop_asked.is_set():
            return self._end(ShardState.STOPPED, why)
        self._write_intent(Intent("failed", self.parts.boot_id, why))
        return self._end(ShardState.FAILED, why)

    # -- running, and its end ------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Until its main process is gone, or does not go though it was killed."""
        assert self.pidfd is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_when_asked, self.pidfd, nursery.cancel_scope)
            await trio.lowlevel.wait_readable(self.pidfd)
            nursery.cancel_scope.cancel()
        os.close(self.pidfd)
        self.pidfd = None
        crash.after("stop.exited")

    async def _stop_when_asked(self, pidfd: int, watch: trio.CancelScope) -> None:
        await self.stop_asked.wait()
        self._enter(ShardState.STOPPING)
        proc.send(pidfd, signal.SIGTERM)
        crash.after("stop.signalled")
        await trio.sleep(self.launch.stop_grace_s)
        self._says(f"did not end within {self.launch.stop_grace_s:g} s: killed")
        self.group.kill()
        crash.after("stop.killed")
        await trio.sleep(KILLED_WITHIN_S)
        watch.cancel()

    async def _release(self) -> None:
        """Until no process is left and the memory is back, however long that takes; it says what it waits for."""
        if self.exit is None:
            self.exit = await self._wait_for_exit()
        if self.exit is not None and self.exit.code in COULD_NOT_RUN:
            self.unstarted = self.place.read_unstarted()
        self._enter(ShardState.RELEASING, self._ending())
        started = trio.current_time()
        within = self.parts.settings.release_within
        while reason := await self._still_there():
            late = trio.current_time() - started >= within
            self._says(f"{self._ending()}; {reason}" + (f", for more than {within:g} s" if late else ""))
            await trio.sleep(LOOK_SELDOM_S if late else LOOK_EVERY_S)
        crash.after("stop.released")
        await self._bury_shim()
        stopped = self.stop_asked.is_set()
        ended = ShardState.FAILED if self.exit else ShardState.LOST
        self._end(ShardState.STOPPED if stopped else ended, self._ending())

    async def _still_there(self) -> str:
        """Why its place is not free yet."""
        self.left = await trio.to_thread.run_sync(self.group.pids, abandon_on_cancel=True)
        if self.left:
            self._remember(self.left)
            await trio.to_thread.run_sync(self.group.kill, abandon_on_cancel=True)
            few = ", ".join(map(str, self.left[:PIDS_TOLD]))
            return f"processes {few} are still there"
        return self.parts.gpus.memory_back(self.id, self.pids_seen, self.launch.gpus) or ""

    async def _wait_for_exit(self) -> Exit | None:
        """As the shim wrote it. None: it died before it could, or there was never a process."""
        if self.written is None:
            return None
        await _until(lambda: self.place.exit.exists() or not self.place.has_shim())
        return self.place.read_exit()

    async def _bury_shim(self) -> None:
        """It ends with the last of its children; one of our own children is reaped."""
        if self.written is None:
            return
        if not self.adopted:
            shim = self.written.shim_pid
            await _until(lambda: spawning.reap(shim))
        await _until(lambda: not self.place.has_shim())

    def _ending(self) -> str:
        if self.unstarted:
            return self.unstarted
        if self.exit is not None:
            return str(self.exit) + COULD_NOT_RUN.get(self.exit.code or 0, "")
        return "gone without an exit status" if self.written else "nothing was started"

    def _end(self, state: ShardState, why: str) -> None:
        self.parts.ports.release(self.id)
        self.left = ()
        self.group.remove()
        self._enter(state, why)
        self.ended.set()

    def measured(self, now: Measured) -> None:
        if now.stranger != self.sample.stranger:
            self.parts.changed.ring()
        self.sample.take(now)
        self._remember(now.pids)

    # -- saying so -----------------------------------------------------------------------------------

    def _enter(self, state: ShardState, why: str = "") -> None:
        if state is not self.state:
            assert may_become(self.state, state), f"{self.id}: {self.state} -> {state}"
            self.state = state
            self._since = trio.current_time()
        self._says(why)

    def _says(self, why: str) -> None:
        self.why = why
        self.parts.changed.ring()

    def _remember(self, pids: tuple[int, ...]) -> None:
        if len(self.pids_seen) < PIDS_KEPT:
            self.pids_seen.update(pids)

    def _write_intent(self, intent: Intent) -> None:
        try:
            self.place.write_intent(intent)
        except OSError as error:
            # What is wanted comes again with each frame; an engine runs on less safely than it stops.
            self.parts.say(f"{self.id}: can't write down {intent.what!r}: {error.strerror}")


async def _until(condition: Callable[[], bool]) -> None:
    """Until a shim has done what it does at once, or for a while."""
    with trio.move_on_after(EXIT_WITHIN_S):
        while not condition():  # noqa: ASYNC110 - another process sets no event
            await trio.sleep(LOOK_EVERY_S / 10)
