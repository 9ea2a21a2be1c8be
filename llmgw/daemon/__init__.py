"""The nursery tree: what starts, and in which order it stops. Wiring and nothing else.

store ⊃ services (watcher, alarms, log, keys, probes, flushing, admin, signals) ⊃ requests ⊃ doors.
Indentation is the shutdown order: the balancer's pause, the doors close, requests get their grace, services
end, the store closes; behind it all stands a hard exit, for a task that still runs.
"""

import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import trio
from attrs import define, field

from llmgw.admin.app import make_app
from llmgw.admin.serve import admin_socket, as_admin_socket, serve_admin
from llmgw.config import Config
from llmgw.control.desired import Desired
from llmgw.control.keys import Keys
from llmgw.control.publishing import Routes
from llmgw.control.tokens import Tokens
from llmgw.core.lease_facts import Addresses
from llmgw.daemon.agents import serve_agents
from llmgw.daemon.candidacy import fence_of, leadership_on
from llmgw.daemon.leader_views import where
from llmgw.daemon.leading import Base
from llmgw.daemon.operating import app_settings, services_of
from llmgw.daemon.parts import Parts, account, server_context, with_shadows
from llmgw.daemon.reloading import Reloading, first_config
from llmgw.daemon.terms import Terms
from llmgw.engines.client import retire_idle
from llmgw.engines.live import LiveEndpoint
from llmgw.engines.probe import probe
from llmgw.nodes.identity import ListenerIdentity
from llmgw.store.accounts import save
from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Store
from llmgw.store.fenced import Fenced
from llmgw.store.housekeeping import keep_house
from llmgw.store.opening import opened
from llmgw.store.place import Place
from llmgw.store.usage import UsageWriter
from llmgw.tasks.keep_running import keep_running
from llmgw.tasks.sockets import SocketListener, Watcher, adopt, joined_address, listen
from llmgw.tasks.systemd import Notify
from llmgw.telemetry.log import LogSink, make_log

TELL_BEFORE_S = 1.0  # the end of shutdown_grace
HARD_EXIT_AFTER_S = 10.0  # beyond every grace
LAST_LINE_WITHIN_S = 1.0  # a log whose reader stands still must not hold the end
ACCOUNTS_EVERY_S = 10.0
LAG_EVERY_S = 0.25
MORE_TIME_S = 15.0  # that systemd is asked for at once
CLIENTS, ADMIN, AGENTS = SOCKETS = ("clients", "admin", "agents")  # as systemd may name the ones it holds


@define(eq=False)
class Daemon:
    """One run of the process. ``started`` is set once the doors are open; ``stop`` asks it to end."""

    config: Config
    place: Place
    env: Mapping[str, str]
    config_file: Path | None = None
    say: Callable[[str], None] = print
    systemd: Notify = field(factory=Notify)
    held: Mapping[str, socket.socket] = field(factory=dict)  # listening sockets that are open already, by name
    pause_for_balancer: bool = True
    may_exit_hard: bool = True  # off in tests, which share their process
    started: trio.Event = field(factory=trio.Event, init=False)
    stop: trio.Event = field(factory=trio.Event, init=False)
    client_address: str = field(default="", init=False)
    admin_address: str = field(default="", init=False)
    agent_address: str = field(default="", init=False)  # empty: no agents can connect
    parts: Parts = field(init=False)
    _probes: trio.Nursery = field(init=False)
    terms: Terms = field(init=False)
    _reloading: Reloading = field(init=False)

    async def run(self, signals: bool = True) -> None:
        """Serve until told to stop. Raises OSError (an address in use), DataLocked, StoreUnavailable, …"""
        with ExitStack() as at_end:
            watcher = at_end.enter_context(Watcher())
            sink = LogSink(self.config.log)
            at_end.callback(sink.flush)
            async with opened(self.place) as store:
                await self._tree(store, watcher, sink, signals)

    async def _tree(self, store: Store, watcher: Watcher, sink: LogSink, signals: bool) -> None:
        leadership = await leadership_on(store, self.config.lease)
        fenced = Fenced(store, partial(fence_of, leadership), leadership.look)
        desired = await Desired.load(fenced)
        config = self.config = await first_config(self.config, desired, self.env, alone=not self.place.url)
        keys, tokens = await Keys.load(store), await Tokens.load(store)
        usage = UsageWriter(store, config.store)
        parts = self.parts = Parts(config, keys, tokens, usage, make_log(sink), sink, watcher)
        certificates = partial(ListenerIdentity.load, config.agents, self.place.data_dir, self._told)
        identity = await trio.to_thread.run_sync(certificates)
        base = await Base.load(parts, store, fenced, desired, identity)
        terms = self.terms = await Terms.load(base, leadership, self.env, self.apply, self._route)
        self._reloading = Reloading(
            parts, store, self.config_file, self.env, self.apply, desired, base.events, terms.leads_now
        )  # fmt: skip
        terms.serve_operators(self._reloading, lambda: self.agent_address)
        with naming("server.listen"):
            listeners = [await self._client_listener(watcher)]
        with naming("admin.listen"):
            held = self.held.get(ADMIN)
            admin = admin_socket(config.admin.listen) if held is None else as_admin_socket(held)
        self._say_where(listeners[0], admin, await tokens.first_start(self.place.admin_token))
        if store.warning:
            self.say(f"warning: {store.warning}")
        scheme = "https" if config.admin.tls_cert else "http"
        store.advertise(config.admin.advertise.rstrip("/") or f"{scheme}://{self.admin_address}")
        async with trio.open_nursery() as services:
            await self._services(services, store, admin)
            if signals:  # until requests have ended: a second one cuts them
                await services.start(self._obey_signals)
            async with trio.open_nursery() as requests:
                async with trio.open_nursery() as doors:
                    doors.start_soon(parts.door.serve, listeners, requests)
                    freeze_garbage()
                    self.started.set()
                    self.systemd.ready("serving")
                    await self.stop.wait()
                    self.systemd.stopping("told to stop")
                    services.start_soon(self._ask_for_time)
                    await self._hand_over()
                    await self._leave_the_balancer()
                    doors.cancel_scope.cancel(reason="shutting down")
                parts.door.drain()
                grace_s = parts.config.door.shutdown_grace
                requests.cancel_scope.deadline = trio.current_time() + grace_s
                services.start_soon(self._tell_who_waits, grace_s)
            if parts.gate.cut:
                parts.log.warning("requests were cut off at the end of their grace", count=parts.gate.cut)
            parts.door.close_all()
            await self._flush_accounts(store, everything=True)
            self.terms.leading.registry.refuse_all("this control plane ends")
            services.cancel_scope.cancel(reason="requests have ended")

    async def _services(self, services: trio.Nursery, store: Store, admin: socket.socket) -> None:
        """Each kept running; one that fails takes no other with it."""
        parts = self.parts

        def keep(name: str, service: Callable[[], Awaitable[object]]) -> None:
            services.start_soon(keep_running, service, partial(parts.service_ended, name), name=name)

        keep("watcher", parts.watcher.run)
        keep("alarms", parts.alarms.run)
        keep("log", parts.sink.run)
        keep("keys", parts.keys.follow)
        keep("tokens", parts.tokens.follow)
        keep("usage", parts.usage.run)
        keep("housekeeping", partial(keep_house, store, parts.config.store, parts.config.records.keep))
        keep("accounts", partial(self._keep_accounts, store))
        keep("idle engine connections", partial(retire_idle, parts.live.clients))
        keep("loop lag", self._loop_lag)
        keep("watchdog", self.systemd.watchdog)
        keep("store trouble", self._tell_store_trouble)
        self._probes = services
        self.apply(parts.config)
        with naming("agents.listen"):
            self.agent_address = await services.start(serve_agents, self.terms, self.held.get(AGENTS))
        self.terms.leadership.reached_at(self._here())
        for name, service in self.terms.services():
            keep(name, service)
        if self.agent_address:
            self.say(f"agents:  {self.agent_address}")
        keep("admin", partial(self._admin, store, admin))

    async def _client_listener(self, watcher: Watcher) -> SocketListener:
        settings, held = self.config, self.held.get(CLIENTS)
        if held is not None:
            return adopt(watcher, held, settings.door.write_stall)
        return await listen(watcher, settings.listen.listen, settings.door.write_stall)

    def apply(self, config: Config) -> None:
        self._watch(self.parts.apply(config))
        self.terms.base.desired.take(config.wants)

    def _told(self, line: str) -> None:
        self.parts.log.info(line)

    def _route(self, routes: Routes) -> None:
        self._watch(self.parts.route(routes))

    def _watch(self, added: list[LiveEndpoint]) -> None:
        for live in added:
            self._probes.start_soon(self._probe, live, name=f"probe {live.id}")

    async def _probe(self, live: LiveEndpoint) -> None:
        parts = self.parts
        watch = partial(probe, live, lambda: parts.config.probe, parts.gate.draw, self._health_changed)
        while not live.leaving:
            try:
                await watch()
                return
            except* Exception as errors:
                parts.service_ended(f"probe {live.id}", errors)
            await trio.sleep(1)

    def _health_changed(self, live: LiveEndpoint) -> None:
        self.parts.log.info(
            "endpoint health", endpoint=live.id, model=live.endpoint.model, healthy=live.healthy, why=live.health_why
        )

    async def _admin(self, store: Store, sock: socket.socket) -> None:
        settings = self.config.admin
        terms = self.terms
        services = services_of(self.parts, store, self._reloading.bring, terms.cluster, terms.operators())
        app = make_app(services, app_settings(settings, sock.getsockname()[0], self._here().admin))
        tls = server_context(settings.tls_cert, settings.tls_key)
        await serve_admin(app, sock.dup(), tls, self.parts.report)

    # -- ending -------------------------------------------------------------------------------------

    async def _obey_signals(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as arriving:
            task_status.started()
            async for number in arriving:
                if number == signal.SIGHUP:
                    if not self.stop.is_set():
                        await self._reload()
                elif self.stop.is_set():
                    self._end_now("ended at once: asked to stop a second time")
                else:
                    self.stop.set()

    async def _reload(self) -> None:
        self.systemd.reloading()
        await self._reloading.read_again()
        self.systemd.ready("serving")

    async def _ask_for_time(self) -> None:
        """While requests end in their grace, systemd waits as well; the hard exit bounds both."""
        while True:
            self.systemd.extend(MORE_TIME_S, f"stopping: {len(self.parts.gate.running)} requests run")
            await trio.sleep(MORE_TIME_S / 3)

    def _here(self) -> Addresses:
        agents = self.agent_address
        return where(self.config, self.client_address, self.admin_address, agents, socket.gethostname())

    async def _hand_over(self) -> None:
        """Another control plane leads, and has somewhere to send requests, before we turn any away."""
        door, lease = self.parts.config.door, self.config.lease
        self._hard_exit(lease.ttl + lease.handover + door.balancer_pause + door.shutdown_grace + HARD_EXIT_AFTER_S)
        await self.terms.leadership.stop()
        if self.terms.standbys is not None:
            await self.terms.standbys.leave()
        await self.terms.leadership.wait_handed_over()

    async def _leave_the_balancer(self) -> None:
        """/ready says 503 for a while before the door closes, so that a load balancer sends elsewhere."""
        door = self.parts.config.door
        self.parts.draining = True
        self.parts.log.info("stopping", pause_s=door.balancer_pause, grace_s=door.shutdown_grace)
        if self.pause_for_balancer:
            await trio.sleep(door.balancer_pause)

    async def _tell_who_waits(self, grace_s: float) -> None:
        """Shortly before the grace ends: a request in a queue can still be answered, and be asked elsewhere."""
        await trio.sleep(grace_s - min(TELL_BEFORE_S, grace_s / 4))
        self.parts.admission.end()

    def _hard_exit(self, after_s: float) -> None:
        """A thread, because what it ends may be holding the loop."""
        if self.may_exit_hard:
            _in_a_thread(after_s, partial(self._end_now, "ended at once: stopping took too long"))

    def _end_now(self, why: str) -> None:
        """With a last line in the log, unless nobody takes it."""
        _in_a_thread(LAST_LINE_WITHIN_S, partial(os._exit, 1))
        try:
            self.parts.log.error(why, requests_cut=len(self.parts.gate.running))
            self.parts.sink.flush()
        finally:
            os._exit(1)

    # -- flushing and watching ----------------------------------------------------------------------

    async def _keep_accounts(self, store: Store) -> None:
        while True:
            await trio.sleep(ACCOUNTS_EVERY_S)
            await self._flush_accounts(store)

    async def _flush_accounts(self, store: Store, everything: bool = False) -> None:
        aggregates = self.parts.aggregates
        closed = aggregates.take_all() if everything else aggregates.take_closed(time.time())
        shadows = self.parts.shadow.take() if closed else {}
        groups = with_shadows([account(group) for group in closed], shadows)
        if groups:
            try:
                await store.write(lambda db: save(db, groups, store.start))
            except StoreUnavailable as error:
                self.parts.log.error("accounts of five minutes were not stored", error=str(error), groups=len(groups))

    async def _tell_store_trouble(self) -> None:
        """Once when usage rows stop reaching the store, and once when they do again."""
        parts, before = self.parts, ""
        while True:
            await trio.sleep(1)
            now = parts.usage.failing
            if now != before and now:
                parts.log.error("usage rows wait: the store does not take them", error=now, waiting=parts.usage.waiting)
            elif now != before:
                parts.log.info("usage rows reach the store again", waiting=parts.usage.waiting)
            before = now

    async def _loop_lag(self) -> None:
        while True:
            wanted = trio.current_time() + LAG_EVERY_S
            await trio.sleep_until(wanted)
            self.parts.metrics.loop_lag.observe(max(0.0, trio.current_time() - wanted))

    def _say_where(self, client: SocketListener, admin: socket.socket, token: Path | None) -> None:
        self.client_address, self.admin_address = client.address, joined_address(*admin.getsockname()[:2])
        listen, settings = self.config.listen, self.config.admin
        self.say(f"clients: {'https' if listen.tls_cert else 'http'}://{self.client_address}/v1")
        self.say(f"admin:   {'https' if settings.tls_cert else 'http'}://{self.admin_address}")
        if token is not None:
            self.say(f"a first admin token was written to {token}")
        for warning in self.config.warnings:
            self.say(f"warning: {warning}")


def _in_a_thread(after_s: float, act: Callable[[], None]) -> None:
    timer = threading.Timer(after_s, act)
    timer.daemon = True
    timer.start()


@contextmanager
def naming(setting: str) -> Iterator[None]:
    """An address that can't be listened on is said with the setting that names it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{setting} = {error.strerror}; stop what uses it or set another") from error


def freeze_garbage() -> None:
    """What was made until now lives as long as the process; collections were half of p99 (measured)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
