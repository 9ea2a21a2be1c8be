"""All engines of this node: what is wanted of them, what is said of them, and who they are after a restart.

``await adopt()`` once, then ``run()`` in a nursery; ending that leaves the engines as they are.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

import trio
from attrs import define, evolve, field

from agent import adoption, cgroups, files, sampling
from agent.adopted import engine_of
from agent.engine_parts import Bell, GpuMemory, NoGpus, Parts
from agent.engine_process import EngineProcess
from agent.groups import MarkedGroup
from agent.orders import Forget, Have, Prepare, Recall, Refuse, Stop, fingerprint, orders
from agent.places import EnginePlace, Places
from agent.ports import Ports
from agent.proc import Table
from llmgw.core.agent_settings import AgentSettings
from llmgw.core.shards import ENDED, Launch, Orphan, ShardSeen, ShardState
from llmgw.wire.agent_frames import Tail, Wanted

A = TypeVar("A")
R = TypeVar("R")
SAMPLE_EVERY_S = 1.0
SAMPLE_WITHIN_S = 10.0
STRANGERS_EVERY_S = 10.0
LOOK_AGAIN_S = 5.0
AFTER_ERROR_S = 1.0
LOG_MOST = 96 * 1024  # a frame has an end
WITHHELD = "(withheld until the leader names this engine's key, which may be in it)"


class NoLog(Exception):
    """No such engine here."""


@define(eq=False)
class Engines:
    """``address``: where this node is reached, for launches that name no host; the link may learn it late."""

    parts: Parts
    address: str = "127.0.0.1"
    _engines: dict[str, EngineProcess] = field(factory=dict, init=False)
    _unseen: dict[str, EnginePlace] = field(factory=dict, init=False)  # not looked at yet
    _refused: dict[str, str] = field(factory=dict, init=False)
    _strangers: dict[str, tuple[int, ...]] = field(factory=dict, init=False)
    _ending: set[str] = field(factory=set, init=False)  # of the strangers
    _told: set[str] = field(factory=set, init=False)  # whose end was in a report
    _paths: tuple[str, ...] = field(default=(), init=False)
    _has: frozenset[str] = field(default=frozenset(), init=False)
    _limiters: dict[str, trio.CapacityLimiter] = field(factory=dict, init=False)
    _nursery: trio.Nursery | None = field(default=None, init=False)

    @property
    def changed(self) -> Bell:
        """Rung at each change of a state, so that the report goes at once."""
        return self.parts.changed

    # -- at the start --------------------------------------------------------------------------------

    async def adopt(self) -> None:
        """Every engine of the last agent, as far as the time goes; the others are ``unknown`` and looked at again.

        Raises OSError when the folder can't be read: then nothing may be started.
        """
        self._unseen = {place.id: place for place in self.parts.places.all()}
        with trio.move_on_after(self.parts.settings.adopt_within):
            table = await trio.to_thread.run_sync(Table.read, abandon_on_cancel=True)
            async with trio.open_nursery() as nursery:
                limiter = trio.CapacityLimiter(8)
                for place in list(self._unseen.values()):
                    nursery.start_soon(self._adopt_one, place, table, limiter)
                nursery.start_soon(self._look_for_strangers)
            await self._sample()  # whose ports are whose, before anybody is told of them

    async def _adopt_one(self, place: EnginePlace, table: Table, limiter: trio.CapacityLimiter) -> None:
        try:
            found, stopping = await trio.to_thread.run_sync(
                adoption.look, place, self.parts, table, abandon_on_cancel=True, limiter=limiter
            )
        except OSError as error:
            self.parts.say(f"{place.id}: can't be looked at: {error}")
            return
        del self._unseen[place.id]
        engine = engine_of(place, found, self.parts)
        if engine is None:
            leftover = MarkedGroup(place.id, self.parts.places.scope)
            await trio.to_thread.run_sync(leftover.kill, abandon_on_cancel=True)
            place.remove()
            return
        if stopping:
            engine.resume_stop()
        self._add(engine)
        self.parts.say(f"{place.id}: {type(found).__name__.lower()}: {engine.why or engine.note or 'as it was'}")

    # -- what is wanted ------------------------------------------------------------------------------

    def obey(self, wanted: Wanted) -> None:
        """Everything it says is begun, and stops are written down, when this returns. Its term was judged before."""
        self._paths = wanted.paths
        ids = {launch.id for launch in wanted.shards}
        refused: dict[str, str] = {}
        for act in orders(wanted.shards, self._have(), self._told, self._why_strange()):
            match act:
                case Stop(id):
                    self._stop(id)
                case Forget(id):
                    self._forget(id)
                case Prepare(launch):
                    self._add(self._new(launch))
                case Recall(launch):
                    self._recall(self._engines[launch.id], launch)
                case Refuse(id, why):
                    refused[id] = why
        self._refuse(refused)
        self._learn_keys(wanted.shards)
        self._end_strangers(frozenset(ids))

    def _have(self) -> dict[str, Have]:
        have = {
            id: Have(one.state, one.hash, one.stop_asked.is_set(), one.record_lost) for id, one in self._engines.items()
        }
        return have | {id: Have(ShardState.UNKNOWN) for id in self._unseen}

    def _why_strange(self) -> dict[str, str]:
        return {
            id: f"processes {', '.join(map(str, pids[:8]))} of it run here without a record"
            for id, pids in self._strangers.items()
        }

    def _new(self, launch: Launch) -> EngineProcess:
        return EngineProcess(
            launch, fingerprint(launch), self.parts, self.parts.places.of(launch.id), self.parts.group(launch.id)
        )

    def _add(self, engine: EngineProcess) -> None:
        self._engines[engine.id] = engine
        if self._nursery is not None:
            self._nursery.start_soon(self._keep, engine)
        self.changed.ring()

    def _stop(self, id: str) -> None:
        self._engines[id].stop()

    def _forget(self, id: str) -> None:
        engine = self._engines.pop(id)
        engine.place.remove()
        self._told.discard(id)
        self.changed.ring()

    def _recall(self, engine: EngineProcess, launch: Launch) -> None:
        """Its record was lost, and the leader tells it again."""
        engine.hash, engine.launch, engine.record_lost = fingerprint(launch), evolve(launch, key=""), False

    def _refuse(self, refused: dict[str, str]) -> None:
        if refused != self._refused:
            for id, why in refused.items():
                self.parts.say(f"{id[:128]!r} is refused: {why}")
            self._refused = refused
            self.changed.ring()

    def _learn_keys(self, launches: Iterable[Launch]) -> None:
        for launch in launches:
            engine = self._engines.get(launch.id)
            if engine is not None and launch.key:
                engine.log.key = launch.key

    def _end_strangers(self, wanted: frozenset[str]) -> None:
        if self._nursery is None:
            return
        for id in self._strangers.keys() - wanted - self._ending:
            self._ending.add(id)
            self.parts.say(f"{id}: nobody wants it and no folder tells of it: {self._strangers[id]} are killed")
            self._nursery.start_soon(self._end_stranger, id)

    async def _end_stranger(self, id: str) -> None:
        """Until nothing of it is left."""
        while id in self._strangers:
            for group in (self.parts.group(id), MarkedGroup(id, self.parts.places.scope)):
                await trio.to_thread.run_sync(group.kill, abandon_on_cancel=True)
                group.remove()
            await self._look_for_strangers()
            await trio.sleep(AFTER_ERROR_S / 4)
        self._ending.discard(id)

    # -- what is said --------------------------------------------------------------------------------

    def seen(self) -> tuple[ShardSeen, ...]:
        shards = [one.seen() for one in self._engines.values()]
        shards += [ShardSeen(id, ShardState.UNKNOWN, why="not looked at yet") for id in self._unseen]
        shards = [evolve(s, why=self._with_refusal(s)) if s.id in self._refused else s for s in shards]
        there = {shard.id for shard in shards}
        shards += [
            ShardSeen(id[:128], ShardState.FAILED, why=f"refused: {why}")
            for id, why in self._refused.items()
            if id not in there
        ]
        return tuple(shards)

    def _with_refusal(self, shard: ShardSeen) -> str:
        return "; ".join(filter(None, (shard.why, f"refused: {self._refused[shard.id]}")))

    def reported(self, shards: Iterable[ShardSeen]) -> None:
        """A report with these was sent: those that ended may be forgotten once they are not wanted."""
        self._told |= {one.id for one in shards if one.state in ENDED and one.id in self._engines}

    def orphans(self) -> tuple[Orphan, ...]:
        why = "processes with our mark, and no folder that tells of them"
        return tuple(Orphan(id, pids[:64], why) for id, pids in self._strangers.items())

    def has(self, paths: Iterable[str] | None = None) -> tuple[str, ...]:
        """Of these, or of those that ``wanted`` asks for, the ones that are here, as last looked."""
        return tuple(path for path in (self._paths if paths is None else paths) if path in self._has)

    def instance_of(self, pid: int) -> str:
        """Whose process this is, or was until its memory is back; empty: nobody's of ours."""
        for id, one in self._engines.items():
            if pid in one.sample.pids or (one.state is ShardState.RELEASING and pid in one.pids_seen):
                return id
        return ""

    def tail(self, id: str) -> Tail | None:
        """Its last lines; None: no such engine, or nothing in its log."""
        engine = self._engines.get(id)
        if engine is None:
            return None
        engine.log.look(trio.current_time())
        engine.log.told = engine.log.written
        age_s = engine.log_age_s
        return None if age_s is None else Tail(id, _text(engine, self.parts.settings.tail_max), int(age_s * 1000))

    def new_tails(self) -> tuple[Tail, ...]:
        """Of every engine that wrote something since its tail was told."""
        for one in self._engines.values():
            one.log.look(trio.current_time())
        new = [id for id, one in self._engines.items() if one.log.written != one.log.told]
        return tuple(tail for id in new if (tail := self.tail(id)) is not None)

    def logs(self, id: str, most: int) -> tuple[str, int | None]:
        """The end of its log, and the age of its last line in ms. Raises NoLog."""
        engine = self._engines.get(id)
        if engine is None:
            raise NoLog(f"no engine {id[:128]!r} on this node")
        engine.log.look(trio.current_time())
        age_s = engine.log_age_s
        return _text(engine, max(0, min(most, LOG_MOST))), None if age_s is None else int(age_s * 1000)

    # -- tasks ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch over all of them, for ever."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for engine in self._engines.values():
                    nursery.start_soon(self._keep, engine)
                nursery.start_soon(self._sample_for_ever)
                nursery.start_soon(self._look_at_paths_for_ever)
                nursery.start_soon(self._look_for_ever)
        finally:
            self._nursery = None
            for engine in self._engines.values():
                engine.let_go()

    async def _keep(self, engine: EngineProcess) -> None:
        """One engine's trouble is no other's."""
        while engine.state not in ENDED:
            try:
                await engine.live()
            except* Exception as errors:
                engine.went_wrong(f"the agent's own trouble: {errors.exceptions[0]!r}")
                self.parts.say(f"{engine.id}: {engine.note}")
                await trio.sleep(AFTER_ERROR_S)

    async def _sample_for_ever(self) -> None:
        while True:
            with trio.move_on_after(SAMPLE_WITHIN_S):
                await self._sample()
            await trio.sleep(SAMPLE_EVERY_S)

    async def _sample(self) -> None:
        asked = [
            sampling.Asked(one.id, one.group, one.ports, one.sample.own_sockets)
            for one in self._engines.values()
            if one.written is not None and one.state not in ENDED
        ]
        for one in self._engines.values():
            one.log.look(trio.current_time())
        measured = await self._in_thread(sampling.measure, asked)
        for id, now in measured.items():
            if (engine := self._engines.get(id)) is not None:
                engine.measured(now)

    async def _look_at_paths_for_ever(self) -> None:
        while True:
            with trio.move_on_after(SAMPLE_WITHIN_S):
                self._has = frozenset(await self._in_thread(files.present, self._paths))
            await trio.sleep(SAMPLE_EVERY_S)

    async def _in_thread(self, work: Callable[[A], R], on: A) -> R:
        """Given up when it hangs; of those that hang for good two are kept, then no more are begun."""
        limiter = self._limiters.setdefault(work.__name__, trio.CapacityLimiter(2))
        return await trio.to_thread.run_sync(work, on, abandon_on_cancel=True, limiter=limiter)

    async def _look_for_ever(self) -> None:
        """At what could not be adopted in time, and for what should not be there."""
        limiter = trio.CapacityLimiter(1)
        while True:
            await trio.sleep(LOOK_AGAIN_S if self._unseen else STRANGERS_EVERY_S)
            with trio.move_on_after(self.parts.settings.adopt_within):
                await self._look_for_strangers()
                for place in list(self._unseen.values()):
                    table = await trio.to_thread.run_sync(Table.read, abandon_on_cancel=True)
                    await self._adopt_one(place, table, limiter)

    async def _look_for_strangers(self) -> None:
        known = frozenset(self._engines) | frozenset(self._unseen)
        found = await trio.to_thread.run_sync(adoption.strangers, self.parts, known, abandon_on_cancel=True)
        # Some may have become known while we looked.
        self._strangers = {id: pids for id, pids in found.items() if id not in self._engines}


def _text(engine: EngineProcess, most: int) -> str:
    if engine.launch.key_env and not engine.log.key:
        return WITHHELD
    return engine.log.text(most)


def engines(
    settings: AgentSettings,
    places: Places,
    gpus: GpuMemory | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Engines:
    """Raises ValueError for settings that make no sense, OSError when the folder can't be made."""
    places.prepare()
    made = Engines(
        Parts(
            settings=settings,
            places=places,
            ports=Ports.parse(settings.ports),
            gpus=gpus or NoGpus(),
            leaves=cgroups.base(settings.cgroup, places.scope),
            address=lambda: made.address,
            say=say,
        )
    )
    return made
