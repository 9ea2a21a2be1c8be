"""The GPUs of this node: asked each period, remembered over restarts, told to the leader with what speaks against them.

The driver may hang; whoever asks here never waits for it.
"""

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import trio
from attrs import define, field, frozen

from agent import atomic
from agent.gpu_memory import unattributed_mib, why_not_back
from agent.inventory import Inventory, NotAnswered
from llmgw.core.agent_settings import AgentSettings
from llmgw.core.gpu_health import Health, cleared, evidence, merged, pruned, silence
from llmgw.core.gpu_reading import Reading, Sample
from llmgw.core.gpus import Evidence, Gpu, GpuProcess

_PROCESSES_MOST = 8  # told of a GPU, the largest
_EVIDENCE_MOST = 16  # told of a GPU; what excludes it is told first
_LAUNCHES_MOST = 256  # whose start is remembered
_SAVE_EVERY_S = 60.0  # what changes with each reading


@frozen
class Remembered:
    """What outlives the agent."""

    boot: str = ""
    gpus: tuple[Health, ...] = ()
    launched: Mapping[str, Mapping[str, int]] = field(factory=dict)  # instance -> UUID -> unattributed MiB before


@define(eq=False)
class Gpus:
    """``inventory`` None: this node is not to look for any."""

    settings: AgentSettings
    inventory: Inventory | None
    instance_of: Callable[[int], str] = lambda pid: ""  # a pid -> the shard whose process it is, or empty
    boot: str = ""
    file: Path | None = None
    wall: Callable[[], float] = time.time
    name_of: Callable[[int], str] = field(default=lambda pid: process_name(pid))
    say: Callable[[str], None] = lambda text: None  # one line when the driver's state changes
    run_blocking: Callable[..., Awaitable[Any]] = trio.to_thread.run_sync
    version: str = field(default="", init=False)  # the driver's
    _samples: dict[str, Sample] = field(factory=dict, init=False)
    _known: tuple[Health, ...] = field(default=(), init=False)
    _launched: dict[str, dict[str, int]] = field(factory=dict, init=False)
    _whose: dict[int, str] = field(factory=dict, init=False)  # pid -> instance, of all that hold memory
    _ended: dict[str, int] = field(factory=dict, init=False)  # instance -> readings begun when it was first said
    _begun: int = field(default=0, init=False)  # readings
    _answered: int = field(default=0, init=False)  # the number of the last one that was
    _read_at: float | None = field(default=None, init=False)  # Trio's clock
    _silent_since: float | None = field(default=None, init=False)  # wall clock
    _silent_why: str = field(default="not asked yet", init=False)
    _trouble: str = field(default="", init=False)  # why it tells of no GPUs, or not of all
    _said: str | None = field(default=None, init=False)
    _tried: trio.Event = field(factory=trio.Event, init=False)
    _saved: tuple[object, ...] = field(default=(), init=False)
    _saved_at: float = field(default=float("-inf"), init=False)

    def __attrs_post_init__(self) -> None:
        remembered = _loaded(self.file)
        self._known = remembered.gpus
        self._launched = {name: dict(mib) for name, mib in remembered.launched.items()}

    # -- asking --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask for ever; nothing the driver does ends it."""
        if self.inventory is None:
            self._tried.set()
            await trio.sleep_forever()
        try:
            while True:
                await self.read()
                await trio.sleep(self.settings.gpu_every)
        finally:
            if self.inventory is not None:
                self.inventory.close()

    async def wait_tried(self) -> None:
        """Until the driver was asked once, whatever came of it."""
        await self._tried.wait()

    async def read(self) -> None:
        """Ask once, within ``gpu_within``."""
        assert self.inventory is not None
        self._begun += 1
        with trio.move_on_after(self.settings.gpu_within) as scope:
            try:
                self._take(await self.inventory.read())
            except NotAnswered as error:
                self._not_answered(str(error))
        if scope.cancelled_caught:
            self._not_answered(f"no answer within {self.settings.gpu_within:g} s")
        self._tried.set()
        self._say_what_changed()
        await self._save()

    def _say_what_changed(self) -> None:
        """Once, not with each reading: whether it answers, and whether anything is wrong with what it says."""
        state = "does not answer" if self._silent_since is not None else self._trouble
        if state != self._said:
            self._said = state
            fine = f"driver {self.version}: {len(self._samples)} GPUs"
            self.say(f"GPUs: {self.driver or fine}")

    def _take(self, reading: Reading) -> None:
        self._answered, self._read_at, self._silent_since = self._begun, trio.current_time(), None
        self._samples = {sample.uuid: sample for sample in reading.gpus}
        self._known = merged(self._known, reading, self.wall(), self.boot)
        pids = {one.pid for sample in reading.gpus for one in sample.holders}
        # Whose it was stays known while the driver lists it, though the kernel may know it no more.
        self._whose = {pid: self._whose.get(pid) or self.instance_of(pid) for pid in pids}
        self.version, self._trouble = reading.driver, reading.trouble

    def _not_answered(self, why: str) -> None:
        self._silent_why = why
        if self._silent_since is None:
            self._silent_since = self.wall()

    # -- telling -------------------------------------------------------------------------------------

    @property
    def driver(self) -> str:
        """Its state in words; empty: fine, or not asked for."""
        if self.inventory is None:
            return ""
        if self._read_at is None:
            return self._silent_why
        return f"it has not answered for {self.age_s:.0f} s: {self._silent_why}" if self.silent else self._trouble

    @property
    def age_s(self) -> float | None:
        """Since the driver last answered; None: it never did."""
        return None if self._read_at is None else trio.current_time() - self._read_at

    @property
    def silent(self) -> bool:
        """Whether what we know is too old to place anything on."""
        age = self.age_s
        late_s = self.settings.gpu_within + self.settings.gpu_every
        return age is None or self._silent_since is not None or age > late_s

    def seen(self) -> tuple[Gpu, ...]:
        """Every GPU that is there or should be."""
        now = self.wall()
        against = evidence(self._known, now, self.boot)
        silent = self._silence(now) if self.silent else ()
        return tuple(
            self._gpu(one, (*silent, *against[one.uuid])[:_EVIDENCE_MOST])
            for one in sorted(self._known, key=lambda one: (one.index, one.slice_of != "", one.uuid))
        )

    def free_mib(self, uuid: str) -> int | None:
        """Free now, whoever has the rest; None: not known."""
        sample = self._samples.get(uuid)
        if self.silent or sample is None or sample.total_mib is None or sample.used_mib is None:
            return None
        return max(0, sample.total_mib - sample.used_mib)

    def mib_of(self, instance: str) -> dict[str, int]:
        """Measured of one shard's processes, by UUID."""
        found: dict[str, int] = {}
        for uuid, sample in self._samples.items():
            for one in () if sample.sliced else sample.holders:  # a card lists its slices' processes too
                if self._whose[one.pid] == instance:
                    found[uuid] = found.get(uuid, 0) + (one.mib or 0)
        return found

    def clear(self, uuid: str, cause: str) -> bool:
        """An operator's word; whether there was anything to clear."""
        kept: list[Health] = []
        for one in self._known:
            after = cleared(one, cause) if one.uuid == uuid else one
            if after is not None:
                kept.append(after)
        changed = tuple(kept) != self._known
        self._known = tuple(kept)
        return changed

    def _gpu(self, health: Health, against: tuple[Evidence, ...]) -> Gpu:
        sample = self._samples.get(health.uuid)
        if sample is None:
            return Gpu(
                health.uuid,
                health.index,
                health.model,
                health.total_mib,
                read_age_s=None,
                evidence=against,
                slice_of=health.slice_of,
            )
        processes = [GpuProcess(one.pid, one.mib or 0, "", self._whose[one.pid]) for one in sample.holders]
        return Gpu(
            sample.uuid,
            sample.index,
            sample.model,
            health.total_mib,
            sample.used_mib or 0,
            sum(one.mib for one in processes if one.instance),
            self._named(processes),
            sample.temperature_c,
            sample.power_w,
            sample.utilisation,
            self.age_s,
            against,
            sample.slice_of,
            sample.sliced,
        )

    def _named(self, processes: Iterable[GpuProcess]) -> tuple[GpuProcess, ...]:
        largest = sorted(processes, key=lambda one: (-one.mib, one.pid))[:_PROCESSES_MOST]
        return tuple(GpuProcess(one.pid, one.mib, self.name_of(one.pid), one.instance) for one in largest)

    def _silence(self, now: float) -> tuple[Evidence, ...]:
        age = self.age_s
        since = self._silent_since if self._silent_since is not None else now - (age or 0.0)
        return (silence(age, since, now),)

    # -- an engine's memory --------------------------------------------------------------------------

    def note_launch(self, instance: str, uuids: Iterable[str]) -> None:
        """Just before it starts: what its memory will be held against when it has ended. The first word stays."""
        if instance in self._launched:
            return
        for old in list(self._launched)[: 1 - _LAUNCHES_MOST]:
            del self._launched[old]
        free_of_it = {uuid: unattributed_mib(self._samples[uuid]) for uuid in uuids if uuid in self._samples}
        self._launched[instance] = {uuid: mib for uuid, mib in free_of_it.items() if mib is not None}

    def memory_back(self, instance: str, pids: Collection[int], uuids: Iterable[str]) -> str | None:
        """Why the memory of an engine that has ended is not back; None: it is, and its launch is forgotten."""
        before = self._launched.get(instance, {})
        for old in list(self._ended)[:-_LAUNCHES_MOST]:
            del self._ended[old]
        since = self._ended.setdefault(instance, self._begun)
        for uuid in uuids:
            if self.silent:
                return f"not known: {self.driver}"
            sample = self._samples.get(uuid)
            if sample is None:
                continue  # the card has gone, and its memory with it
            if self._answered <= since:
                return "its GPU memory is read anew"
            theirs = {one.pid for one in sample.holders if self._whose[one.pid] == instance}
            if why := why_not_back(sample, theirs | set(pids), before.get(uuid)):
                return why
        self._launched.pop(instance, None)
        self._ended.pop(instance, None)
        return None

    # -- remembering ---------------------------------------------------------------------------------

    async def _save(self) -> None:
        """At once what happened, each minute what changes all the time."""
        now = self.wall()
        self._known = tuple(pruned(one, now, self.boot) for one in self._known)
        happened = tuple((one.uuid, one.incidents, one.missing_since) for one in self._known)
        state = (happened, {name: dict(mib) for name, mib in self._launched.items()})
        if self.file is None or (state == self._saved and trio.current_time() < self._saved_at + _SAVE_EVERY_S):
            return
        whole = msgspec.json.encode(Remembered(self.boot, self._known, self._launched))
        try:
            await self.run_blocking(atomic.write, self.file, whole)
        except OSError as error:
            self.say(f"{self.file}: {error.strerror}")
        self._saved, self._saved_at = state, trio.current_time()


def process_name(pid: int) -> str:
    """What its kernel calls it, in letters that a terminal may be shown."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            name = file.read(64).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return "".join(letter for letter in name if letter.isprintable())


def _loaded(file: Path | None) -> Remembered:
    """Raises OSError when it is there and can't be read: what excluded a GPU must not be lost unseen."""
    found = None if file is None else atomic.read_value(file, Remembered)
    return Remembered() if found is None else found
