"""GPUs that are a folder: ``gpus.json`` says what there is and what is wrong with it, one file an engine what it holds.

An engine process writes ``proc-PID`` with its MiB by UUID (``claim``). When the process has died its memory stays
taken, held by nobody who is listed, for ``returns_after_s``, as a driver's may.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import trio
from attrs import define, evolve, field, frozen

from agent import atomic
from agent.inventory import NotAnswered
from llmgw.core.gpu_reading import Holder, Reading, Sample, Xid

FOLDER = "LLMGW_SIM_GPUS"
_STATE, _CLAIM = "gpus.json", "proc-"
_GIB = 1024


@frozen
class SimGpu:
    """``foreign``: pid -> MiB of programs that are not ours; ``xids``: every error it had, in order."""

    uuid: str
    total_mib: int
    model: str = "Simulated"
    reserved_mib: int = 0  # the driver's own
    foreign: Mapping[str, int] = field(factory=dict)
    xids: tuple[int, ...] = ()
    ecc_uncorrected: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    slowed: str = ""
    recovery: str = "none"
    temperature_c: float = 40.0
    energy_mj: int = 1_000_000
    slices: Mapping[str, int] = field(factory=dict)  # UUID -> MiB; some: the card is in MIG mode
    lost: bool = False  # fallen off the bus: counted and not readable


@frozen
class SimState:
    gpus: tuple[SimGpu, ...] = ()  # in the order of their indices
    returns_after_s: float = 0.0
    hang_s: float = 0.0  # how long a reading takes
    fails: str = ""  # a reading fails so
    trouble: str = ""  # there is no driver, and why
    driver: str = "simulated"


def gpus_of(count: int, total_mib: int = 24 * _GIB, prefix: str = "sim") -> SimState:
    return SimState(tuple(SimGpu(f"GPU-{prefix}-{n}", total_mib) for n in range(count)))


@define(eq=False)
class SimFolder:
    """For whoever plays the hardware: makes the folder, breaks a card, mends it."""

    path: Path

    def make(self, state: SimState) -> None:
        """Unless it is there already."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / _STATE).exists():
            self.set(state)

    @property
    def state(self) -> SimState:
        found = atomic.read_value(self.path / _STATE, SimState)
        return SimState() if found is None else found

    def set(self, state: SimState) -> None:
        atomic.write_value(self.path / _STATE, state)

    def change(self, uuid: str, **new: Any) -> None:
        """Fields of one card."""
        state = self.state
        gpus = tuple(evolve(gpu, **new) if gpu.uuid == uuid else gpu for gpu in state.gpus)
        self.set(evolve(state, gpus=gpus))

    def xid(self, uuid: str, code: int) -> None:
        self.change(uuid, xids=(*self._of(uuid).xids, code))

    def foreign(self, uuid: str, mib: int, pid: int = 1) -> None:
        """A program of somebody else has so much; 0: it has left."""
        self.change(uuid, foreign={**self._of(uuid).foreign, str(pid): mib} if mib else {})

    def hang(self, seconds: float) -> None:
        self.set(evolve(self.state, hang_s=seconds))

    def hold_back(self, seconds: float) -> None:
        """How long memory of the dead stays taken."""
        self.set(evolve(self.state, returns_after_s=seconds))

    def remove(self, uuid: str) -> None:
        state = self.state
        self.set(evolve(state, gpus=tuple(gpu for gpu in state.gpus if gpu.uuid != uuid)))

    def reorder(self) -> None:
        state = self.state
        self.set(evolve(state, gpus=tuple(reversed(state.gpus))))

    def reset(self, uuid: str) -> None:
        """What a reset of the card mends."""
        self.change(uuid, ecc_uncorrected=0, remap_pending=False, recovery="none", energy_mj=0, lost=False)

    def _of(self, uuid: str) -> SimGpu:
        return next(gpu for gpu in self.state.gpus if gpu.uuid == uuid)


def is_alive(pid: int) -> bool:
    """A zombie has given its memory back."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


@define(eq=False)
class SimInventory:
    """What an agent asks; errors that were there before it looked first are not heard, as with a real driver."""

    path: Path
    alive: Callable[[int], bool] = is_alive
    wall: Callable[[], float] = time.time
    _heard: dict[str, int] = field(factory=dict, init=False)  # of each card's errors, how many
    _died_at: dict[int, float] = field(factory=dict, init=False)  # Trio's clock
    _first: bool = field(default=True, init=False)

    async def read(self) -> Reading:
        await trio.sleep(SimFolder(self.path).state.hang_s)
        state = SimFolder(self.path).state  # as it is now: what is done to it in between counts
        if state.fails:
            raise NotAnswered(state.fails)
        if state.trouble:
            return Reading(trouble=state.trouble)
        living, dead = self._claims(state.returns_after_s)
        samples = [s for n, gpu in enumerate(state.gpus) if not gpu.lost for s in _samples(gpu, n, living, dead)]
        lost = [f"GPU {n}: GPU is lost" for n, gpu in enumerate(state.gpus) if gpu.lost]
        xids = tuple(xid for gpu in state.gpus for xid in self._new(gpu))
        self._first = False
        return Reading(tuple(samples), xids, state.driver, "; ".join(lost))

    def close(self) -> None:
        return

    def _new(self, gpu: SimGpu) -> list[Xid]:
        heard = self._heard.get(gpu.uuid, len(gpu.xids) if self._first else 0)
        self._heard[gpu.uuid] = len(gpu.xids)
        return [Xid(gpu.uuid, code, self.wall()) for code in gpu.xids[heard:]]

    def _claims(self, returns_after_s: float) -> tuple[dict[str, dict[int, int]], dict[str, int]]:
        """By UUID: MiB of each living process, and MiB of all that died so shortly ago that it is not back."""
        living: dict[str, dict[int, int]] = {}
        dead: dict[str, int] = {}
        now = trio.current_time()
        for file in sorted(self.path.glob(f"{_CLAIM}*[0-9]")):
            pid = int(file.name.removeprefix(_CLAIM))
            mib_of = atomic.read_value(file, dict[str, int]) or {}
            if self.alive(pid):
                for uuid, mib in mib_of.items():
                    living.setdefault(uuid, {})[pid] = mib
            elif now < self._died_at.setdefault(pid, now) + returns_after_s:
                for uuid, mib in mib_of.items():
                    dead[uuid] = dead.get(uuid, 0) + mib
            else:
                file.unlink(missing_ok=True)
                del self._died_at[pid]
        return living, dead


def _samples(gpu: SimGpu, index: int, living: dict[str, dict[int, int]], dead: dict[str, int]) -> list[Sample]:
    claims = dict(living.get(gpu.uuid, {})) | {int(pid): mib for pid, mib in gpu.foreign.items()}
    used = gpu.reserved_mib + sum(claims.values()) + dead.get(gpu.uuid, 0)
    card = Sample(
        gpu.uuid,
        index,
        gpu.model,
        gpu.total_mib,
        min(used, gpu.total_mib),
        _holders(claims),
        gpu.temperature_c,
        200.0 if claims else 60.0,
        0.5 if claims else 0.0,
        gpu.ecc_uncorrected,
        gpu.remap_pending,
        gpu.remap_failed,
        gpu.slowed,
        gpu.recovery,
        gpu.energy_mj,
        sliced=bool(gpu.slices),
    )
    return [card, *(_slice(card, n, uuid, mib, living, dead) for n, (uuid, mib) in enumerate(gpu.slices.items()))]


def _slice(
    card: Sample, n: int, uuid: str, total_mib: int, living: dict[str, dict[int, int]], dead: dict[str, int]
) -> Sample:
    claims = living.get(uuid, {})
    used = min(total_mib, sum(claims.values()) + dead.get(uuid, 0))
    name = f"{card.model} slice {n}"
    return Sample(uuid, card.index, name, total_mib, used, _holders(claims), card.temperature_c, slice_of=card.uuid)


def _holders(claims: Mapping[int, int]) -> tuple[Holder, ...]:
    return tuple(Holder(pid, mib) for pid, mib in sorted(claims.items()))


def claim(mib: int, environ: Mapping[str, str] = os.environ, pid: int | None = None) -> None:
    """An engine takes so much of each GPU it was given; nothing where GPUs are not simulated. Raises MemoryError."""
    folder, uuids = environ.get(FOLDER), environ.get("CUDA_VISIBLE_DEVICES")
    if not (folder and uuids and mib):
        return
    for uuid in uuids.split(","):
        free = _free_mib(Path(folder), uuid)
        if mib > free:
            raise MemoryError(f"CUDA out of memory: {uuid} has {free} MiB free, {mib} MiB are needed")
    taken = dict.fromkeys(uuids.split(","), mib)
    atomic.write(Path(folder) / f"{_CLAIM}{pid or os.getpid()}", msgspec.json.encode(taken))


def _free_mib(folder: Path, uuid: str) -> int:
    """By what is written down: memory of the dead is taken until the inventory has cleared it away."""
    room = 0
    for gpu in SimFolder(folder).state.gpus:
        if gpu.uuid == uuid:
            room = gpu.total_mib - gpu.reserved_mib - sum(gpu.foreign.values())
        room = gpu.slices.get(uuid, room)
    for file in folder.glob(f"{_CLAIM}*[0-9]"):
        room -= (atomic.read_value(file, dict[str, int]) or {}).get(uuid, 0)
    return room


def give_back(environ: Mapping[str, str] = os.environ, pid: int | None = None) -> None:
    """Before it exits."""
    if folder := environ.get(FOLDER):
        (Path(folder) / f"{_CLAIM}{pid or os.getpid()}").unlink(missing_ok=True)
