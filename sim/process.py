"""One simulated engine as a process: its memory, its ports and children, how it starts, obeys signals and ends."""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial

import trio
from attrs import define, field, frozen

from llmgw.tasks.sockets import Watcher, listen
from sim import gpus
from sim.engine_model import EngineShape
from sim.loading import work
from sim.serving import EngineSpec, Served, serve_engine

_BLOCK_MIB = 2  # of a GPU's memory for a KV block, as 16 tokens of a model of middling size take


@frozen
class ProcessSpec:
    """What befalls the process, whatever it serves."""

    gpu_memory: int | None = None  # MiB of each GPU; None: by the shape
    exit_at_start: int | None = None  # ends at once with this code
    exit_after: float | None = None  # seconds, with code 1
    ignore_sigterm: bool = False
    children: int = 0  # processes that outlive it and hold its memory, as an engine's workers may
    also_ports: tuple[int, ...] = ()
    rank: int = 0
    peer: str = ""


def gpu_mib_of(shape: EngineShape) -> int:
    return shape.blocks * _BLOCK_MIB


def run(spec: EngineSpec, process: ProcessSpec, address: str, say: Callable[[str], None]) -> None:
    """Until a signal ends it. Raises OSError for a port or memory that is taken, SystemExit as it is told."""
    if process.exit_at_start is not None:
        say("told to end at its start")
        sys.exit(process.exit_at_start)
    children = Children()
    children.keep(process.children)
    mib = gpu_mib_of(spec.shape) if process.gpu_memory is None else process.gpu_memory
    # Whose children outlive it leaves the memory with them.
    holder = children.pids[0] if children.pids else os.getpid()
    gpus.claim(mib, pid=holder)
    try:
        trio.run(_run, spec, process, address, say, children)
    finally:
        if holder == os.getpid():
            gpus.give_back()


async def _run(
    spec: EngineSpec, process: ProcessSpec, address: str, say: Callable[[str], None], children: "Children"
) -> None:
    with Watcher() as watcher, trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        also = [await listen(watcher, _beside(address, port)) for port in process.also_ports]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            if process.exit_after is not None:
                nursery.start_soon(_end, process.exit_after)
            served: Served | None = None
            if process.rank:
                nursery.start_soon(work, process.rank, process.peer, say)
            else:
                listener = await listen(watcher, address)
                served = await nursery.start(serve_engine, spec, [listener])
                say(f"listening on http://{listener.address}")
                served.simulator.on_faults = partial(_follow, served, process, children)
            async for number in signals:
                if number == signal.SIGINT or not _ignores_sigterm(process, served):
                    if served is not None:
                        served.stop()
                    nursery.cancel_scope.cancel()
        for one in also:
            one.close()


async def _end(after_s: float) -> None:
    await trio.sleep(after_s)
    os._exit(1)  # as a crash: nothing is tidied up


def _follow(served: Served, process: ProcessSpec, children: "Children") -> None:
    children.keep(process.children + served.simulator.faults.children)


def _ignores_sigterm(process: ProcessSpec, served: Served | None) -> bool:
    return process.ignore_sigterm or (served is not None and served.simulator.faults.ignores_sigterm)


def _beside(address: str, port: int) -> str:
    return f"{address.rpartition(':')[0]}:{port}"


@define(eq=False)
class Children:
    """Processes in our group that do not end with us."""

    pids: list[int] = field(factory=list, init=False)

    def keep(self, wanted: int) -> None:
        """So many."""
        while len(self.pids) < wanted:
            self.pids.append(os.posix_spawn("/bin/sleep", ["sleep", "3600"], dict(os.environ)))
        while len(self.pids) > wanted:
            child = self.pids.pop()
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
