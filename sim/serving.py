"""One simulated engine behind a door: in a process of its own, or inside another's loop."""

from collections.abc import Iterable

import trio
from attrs import define, field, frozen

from llmgw.gateway.door import Door, Listener
from llmgw.gateway.limits import DoorLimits
from llmgw.tasks.alarms import Alarms
from sim.connecting import Noticing
from sim.engine_http import EngineHttp
from sim.engine_model import EngineShape
from sim.loading import Loading, LoadingSpec
from sim.simulator import Simulator


@frozen
class EngineSpec:
    shape: EngineShape = field(factory=EngineShape)
    api_key: str | None = None
    chat_only: bool = False
    loading: LoadingSpec = field(factory=LoadingSpec)


@define(eq=False)
class Served:
    """A running engine; ``stop`` ends it as a crash of its host would."""

    simulator: Simulator
    door: Door
    _scope: trio.CancelScope

    def stop(self) -> None:
        self._scope.cancel()
        self.door.close_all()


async def serve_engine(
    spec: EngineSpec,
    listeners: Iterable[Listener],
    task_status: "trio.TaskStatus[Served]" = trio.TASK_STATUS_IGNORED,
) -> None:
    """Until cancelled or stopped; a watcher must be running for listeners on sockets.

    ``served = await nursery.start(serve_engine, spec, [listener])``
    """
    simulator = Simulator(spec.shape, loading=Loading(spec.loading))
    front = EngineHttp(simulator, spec.api_key, spec.chat_only)
    alarms = Alarms()
    door = Door(front.handle, alarms, limits=DoorLimits(idle_keepalive=300.0))
    simulator.connections = lambda: [c.idle_since is None for c in door.connections]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        nursery.start_soon(simulator.engine.run)
        nursery.start_soon(simulator.loading.run)
        nursery.start_soon(door.serve, [Noticing(one) for one in listeners], nursery)
        task_status.started(Served(simulator, door, nursery.cancel_scope))
