"""The agent's nursery tree: what starts on a node, and in which order it stops. Wiring and nothing else.

the folder's lock ⊃ services (log, GPUs, engines, the link). Engines of the last agent are adopted before anything
is said to a leader. When the agent ends, engines go on: nothing here may end them.
"""

import signal
import socket
import textwrap
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio
from attrs import define, field

from agent.dialing import Dial, TlsDial
from agent.engines import Engines, engines
from agent.given_token import wrong_words
from agent.gpus import Gpus
from agent.inventory import Inventory
from agent.link import LeaderLink, node_name, too_many_labels
from agent.membership import Membership
from agent.places import Places
from agent.proc import boot_id
from agent.report import Reporter
from agent.terms import Terms
from llmgw.core.agent_settings import AgentSettings
from llmgw.tasks.keep_running import keep_running
from llmgw.tasks.systemd import Notify
from llmgw.telemetry.log import LogLimits, LogSink, make_log

STATE_PART, STATE_PARTS = 240, 4


class NoServers(Exception):
    """The agent was not told where its control plane is."""


@define(eq=False)
class AgentDaemon:
    """One run of the process. ``inventory`` None: a node without GPUs. ``stop`` asks it to end."""

    settings: AgentSettings
    places: Places
    inventory: Inventory | None
    log_limits: LogLimits = field(factory=LogLimits)
    say: Callable[[str], None] = lambda text: None  # for people, at the start
    dial: Dial | None = None
    systemd: Notify = field(factory=Notify)
    started: trio.Event = field(factory=trio.Event, init=False)  # adopted, and looking for its leader
    stop: trio.Event = field(factory=trio.Event, init=False)
    name: str = field(init=False)
    gpus: Gpus = field(init=False)
    engines: Engines = field(init=False)
    link: LeaderLink = field(init=False)
    log: Any = field(init=False, repr=False)
    _sink: LogSink = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Raises NoServers, ValueError for settings that make no sense."""
        if not self.settings.servers:
            raise NoServers('say where the control plane is: [agent] servers = ["host:7443"]')
        if why := wrong_words(self.settings.join_token) or too_many_labels(self.settings.labels):
            raise ValueError(why)
        self.name = node_name(self.settings, socket.gethostname())
        self._sink = LogSink(self.log_limits)
        self.log = make_log(self._sink).bind(node=self.name)

    async def run(self, signals: bool = True) -> None:
        """Until told to stop. Raises InUse, OSError, ValueError."""
        try:
            with self.places.held():
                self._make()
                await self._tree(signals)
        finally:
            self._sink.flush()

    def _make(self) -> None:
        settings, places = self.settings, self.places
        self.gpus = Gpus(
            settings, self.inventory, self._instance_of, boot_id(), places.data / "gpus.json", say=self._gpus_say
        )
        self.engines = engines(settings, places, self.gpus, self._engines_say)
        dial = self.dial or TlsDial(settings.server_name)
        membership = Membership(settings, places, self.name, dial)
        if stays := membership.keeps_name:
            self.say(
                f"{places.data} joined as {stays} and stays {stays}, not {self.name}: only a new join token renames"
            )
            self.name = stays
            self.log = self.log.bind(node=stays)
        reporter = Reporter(settings, self.engines, self.gpus)
        self.link = LeaderLink(settings, membership, Terms(places), self.engines, reporter, dial, self._link_says)

    def _instance_of(self, pid: int) -> str:
        return self.engines.instance_of(pid)

    async def _tree(self, signals: bool) -> None:
        async with trio.open_nursery() as services:
            services.start_soon(self._sink.run)
            if signals:
                await services.start(self._obey_signals)
            await self.engines.adopt()
            adopted = self.engines.seen()
            self.log.info("agent started", adopted=[shard.id for shard in adopted], data=str(self.places.data))
            self.say(f"{self.name}: {len(adopted)} engines of {self.places.data}, leader at {self._where()}")
            self._keep(services, "gpus", self.gpus.run)
            self._keep(services, "engines", self.engines.run)
            # A first report without GPUs would say that there are none.
            with trio.move_on_after(self.settings.gpu_within):
                await self.gpus.wait_tried()
            self._keep(services, "link", self.link.run)
            self._keep(services, "watchdog", self.systemd.watchdog)
            self.started.set()
            self.systemd.ready(f"{len(adopted)} engines adopted")
            await self.stop.wait()
            self.systemd.stopping("engines go on")
            self.log.info("agent ends, its engines go on", engines=[shard.id for shard in self.engines.seen()])
            services.cancel_scope.cancel(reason="the agent ends")

    def _keep(self, services: trio.Nursery, name: str, service: Callable[[], Awaitable[object]]) -> None:
        services.start_soon(keep_running, service, partial(self._ended, name), name=name)

    async def _obey_signals(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as arriving:
            task_status.started()
            async for _ in arriving:
                self.stop.set()

    def _ended(self, name: str, errors: BaseException | None) -> None:
        self.log.error("service stopped and starts again", service=name, error=repr(errors), exc_info=errors)

    def _where(self) -> str:
        return " or ".join(self.settings.servers)

    def _link_says(self, text: str) -> None:
        """A value has a bound in the log, and what to do stands at the end of this one."""
        first, *more = textwrap.wrap(text, STATE_PART)[:STATE_PARTS] or [""]
        self.log.info("link", state=first, **{f"state_{n}": part for n, part in enumerate(more, 2)})

    def _engines_say(self, text: str) -> None:
        self.log.info("engine", said=text)

    def _gpus_say(self, text: str) -> None:
        self.log.warning("gpu driver", said=text)
