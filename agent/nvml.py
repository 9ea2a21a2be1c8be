"""What NVIDIA's driver says of this node's GPUs, through NVML. Runs in the child process: a call may hang.

A driver may know nothing of a question (older driver, smaller card): then the answer is None. A question it
knows and fails to answer is ``untold``, which speaks against the GPU where its health or memory is asked for.
"""

import ctypes
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pynvml as nv
from attrs import define, evolve, field

from llmgw.core.gpu_reading import RECOVERY_NONE, Holder, Reading, Sample, Xid

MIB = 1024**2
_EVENTS_MOST = 256  # taken in one reading
_ANEW_S = 60.0  # the library is opened anew at most so often while a GPU can't be read
_SLOWED = {0x20: "thermal", 0x40: "thermal", 0x80: "power brake"}  # the driver's, the hardware's, the mains'
_RECOVERY = {
    0: RECOVERY_NONE,
    1: "GPU reset",
    2: "node reboot",
    3: "drain P2P",
    4: "drain and reset",
    5: "recover the IMEX domain",
    6: "bus reset",
    7: "system reboot",
}
_UNKNOWING = frozenset({nv.NVML_ERROR_NOT_SUPPORTED, nv.NVML_ERROR_FUNCTION_NOT_FOUND, nv.NVML_ERROR_NO_PERMISSION})
_ABSENT = {
    nv.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver: libnvidia-ml.so.1 is not there",
    nv.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver's kernel module is not loaded",
}
# By their versions: without one the binding raises something else when the library is older than itself.
_LISTS = (
    (nv.nvmlDeviceGetComputeRunningProcesses_v3, nv.nvmlDeviceGetComputeRunningProcesses_v2),
    (nv.nvmlDeviceGetGraphicsRunningProcesses_v3, nv.nvmlDeviceGetGraphicsRunningProcesses_v2),
)
T = TypeVar("T")


def _named(name: str) -> Callable[..., Any]:
    """A function that other versions of the binding lack is one the driver does not know."""

    def missing(*_: Any) -> Any:
        raise nv.NVMLError(nv.NVML_ERROR_FUNCTION_NOT_FOUND)

    found: Callable[..., Any] = getattr(nv, name, missing)
    return found


_ecc_errors = _named("nvmlDeviceGetTotalEccErrors")  # both to be removed, says NVIDIA
_throttle_reasons = _named("nvmlDeviceGetCurrentClocksThrottleReasons")
_RECOVERY_FIELD = getattr(nv, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", 230)


def words(error: nv.NVMLError) -> str:
    return _ABSENT.get(error.value) or str(error)


@define(eq=False)
class Nvml:
    """The library, opened at the first reading."""

    wall: Callable[[], float] = time.time
    _open: bool = field(default=False, init=False)
    _anew_at: float = field(default=0.0, init=False)
    _events: Any = field(default=None, init=False)
    _uuids: dict[int, str] = field(factory=dict, init=False)  # by handle: a lost GPU does not say its own
    _listening: set[str] = field(factory=set, init=False)

    def read(self) -> Reading:
        try:
            self._opened()
            count = nv.nvmlDeviceGetCount()
        except nv.NVMLError as error:
            self.close()  # so that the next reading begins anew: the driver may have been loaded meanwhile
            return Reading(trouble=words(error))
        gpus: list[Sample] = []
        trouble: list[str] = []
        for index in range(count):
            try:
                gpus += self._card(index)
            except nv.NVMLError as error:
                trouble.append(f"GPU {index}: {words(error)}")
        xids = tuple(self._xids())
        if trouble and self.wall() >= self._anew_at:
            self.close()  # the library goes on with what it saw at its start; a card may have come back
        return Reading(tuple(gpus), xids, _known(nv.nvmlSystemGetDriverVersion) or "", "; ".join(trouble))

    def close(self) -> None:
        if self._open:
            self._open, self._events = False, None
            self._uuids.clear()
            self._listening.clear()
            _known(nv.nvmlShutdown)

    def _opened(self) -> None:
        if not self._open:
            nv.nvmlInit()
            self._open = True
            self._events = _known(nv.nvmlEventSetCreate)
            self._anew_at = self.wall() + _ANEW_S

    def _card(self, index: int) -> Iterator[Sample]:
        handle = nv.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(nv.nvmlDeviceGetUUID(handle))
        self._uuids[_address(handle)] = uuid
        self._listen(uuid, handle)
        mig = _known(nv.nvmlDeviceGetMigMode, handle)
        sliced = bool(mig and mig[0] == nv.NVML_DEVICE_MIG_ENABLE)
        card = evolve(sample_of(handle, uuid, index), sliced=sliced)
        yield card
        if sliced:
            yield from self._slices(handle, card)

    def _slices(self, handle: Any, card: Sample) -> Iterator[Sample]:
        for n in range(_known(nv.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            one = _known(nv.nvmlDeviceGetMigDeviceHandleByIndex, handle, n)
            if one is None:
                continue  # no slice at this place
            uuid = _text(nv.nvmlDeviceGetUUID(one))
            untold: dict[str, str] = {}
            total, used = _memory(one, untold)  # its own: the card's would promise what it does not have
            yield Sample(
                uuid,
                card.index,
                f"{card.model} slice {n}",
                total,
                used,
                _holders(one),
                card.temperature_c,
                slice_of=card.uuid,
                untold=untold,
            )

    def _listen(self, uuid: str, handle: Any) -> None:
        if self._events is not None and uuid not in self._listening:
            _known(nv.nvmlDeviceRegisterEvents, handle, nv.nvmlEventTypeXidCriticalError, self._events)
            self._listening.add(uuid)

    def _xids(self) -> Iterator[Xid]:
        """What has come since; waits for nothing. An error ends it: a lost GPU shows in its own reading."""
        for _ in range(_EVENTS_MOST if self._events is not None else 0):
            event = _known(nv.nvmlEventSetWait_v2, self._events, 0)
            if event is None:
                return
            uuid = self._uuids.get(_address(event.device))
            if uuid is not None and event.eventType == nv.nvmlEventTypeXidCriticalError:
                yield Xid(uuid, int(event.eventData), self.wall())


def sample_of(handle: Any, uuid: str, index: int) -> Sample:
    untold: dict[str, str] = {}
    total, used = _memory(handle, untold)
    rows = _told(untold, "remapped rows", nv.nvmlDeviceGetRemappedRows, handle)
    pages = None if rows else _known(nv.nvmlDeviceGetRetiredPagesPendingStatus, handle)
    power = _known(nv.nvmlDeviceGetPowerUsage, handle)
    load = _known(nv.nvmlDeviceGetUtilizationRates, handle)
    uncorrected = (handle, nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nv.NVML_VOLATILE_ECC)
    return Sample(
        uuid,
        index,
        _text(_known(nv.nvmlDeviceGetName, handle) or ""),
        total,
        used,
        _holders(handle),
        _known(nv.nvmlDeviceGetTemperature, handle, nv.NVML_TEMPERATURE_GPU),
        None if power is None else power / 1000,
        None if load is None else load.gpu / 100,
        ecc_uncorrected=_told(untold, "ecc", _ecc_errors, *uncorrected),
        remap_pending=bool(rows[2]) if rows else None if pages is None else bool(pages),
        remap_failed=bool(rows[3]) if rows else None,
        slowed=_slowed(handle),
        recovery=_recovery(handle, untold),
        energy_mj=_known(nv.nvmlDeviceGetTotalEnergyConsumption, handle),
        untold=untold,
    )


def _memory(handle: Any, untold: dict[str, str]) -> tuple[int | None, int | None]:
    """Total and used, the driver's own part included: what is left is what can be had."""
    memory = _told(untold, "memory", nv.nvmlDeviceGetMemoryInfo, handle)
    return (None, None) if memory is None else (memory.total // MIB, -(-(memory.total - memory.free) // MIB))


def _holders(handle: Any) -> tuple[Holder, ...]:
    """A process that computes and draws is in both lists."""
    found: dict[int, int | None] = {}
    for ask, ask_older in _LISTS:
        listed = _known(ask, handle)
        for one in (_known(ask_older, handle) if listed is None else listed) or ():
            mib = None if one.usedGpuMemory is None else one.usedGpuMemory // MIB
            had = found.get(one.pid)
            found[one.pid] = mib if had is None else max(had, mib or 0)
    return tuple(Holder(pid, mib) for pid, mib in sorted(found.items()))


def _slowed(handle: Any) -> str:
    reasons = _known(nv.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if reasons is None:  # by the name that older drivers have for it
        reasons = _known(_throttle_reasons, handle)
    return ", ".join(dict.fromkeys(word for bit, word in _SLOWED.items() if (reasons or 0) & bit))


def _recovery(handle: Any, untold: dict[str, str]) -> str | None:
    values = _told(untold, "recovery", nv.nvmlDeviceGetFieldValues, handle, [_RECOVERY_FIELD])
    if values is None or values[0].nvmlReturn != nv.NVML_SUCCESS or values[0].valueType == nv.NVML_VALUE_TYPE_DOUBLE:
        return None
    action = int(values[0].value.uiVal)
    return _RECOVERY.get(action, f"action {action}")


def _known(ask: Callable[..., T], *of: Any) -> T | None:
    """None when there is no answer, for whatever reason."""
    try:
        return ask(*of)
    except nv.NVMLError:
        return None


def _told(untold: dict[str, str], what: str, ask: Callable[..., T], *of: Any) -> T | None:
    """None when the driver knows nothing of it; when it fails to tell, that is noted."""
    try:
        return ask(*of)
    except nv.NVMLError as error:
        if error.value not in _UNKNOWING:
            untold[what] = words(error)
        return None


def _text(said: str | bytes) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
