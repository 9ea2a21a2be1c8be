"""What hangs on the tree: the parts of one process, made from a config and an open store."""

import os
import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import trio
from attrs import define, evolve, field

from llmgw import __version__
from llmgw.config import Config
from llmgw.control.keys import Keys
from llmgw.control.tokens import Tokens
from llmgw.core.bands import Mode
from llmgw.core.fleet import Endpoint, Fleet
from llmgw.core.identity import Band, KeyRecord
from llmgw.core.outcome import Refusal
from llmgw.core.retry import RetryBudget
from llmgw.engines.client import EngineClient
from llmgw.engines.live import LiveFleet
from llmgw.engines.views import endpoint_metrics
from llmgw.gateway.admission import Admission
from llmgw.gateway.admission_views import pool_metrics
from llmgw.gateway.aggregate import Aggregate, Aggregates
from llmgw.gateway.desk import FrontDesk
from llmgw.gateway.door import Door, request_ids
from llmgw.gateway.gate import Gate
from llmgw.gateway.record import Records
from llmgw.gateway.request import Road
from llmgw.gateway.settle import Settle
from llmgw.gateway.shadow import Shadow, Tally
from llmgw.gateway.views import as_json
from llmgw.store.accounts import Account
from llmgw.store.usage import UsageWriter
from llmgw.tasks.alarms import Alarms
from llmgw.tasks.dialing import connect
from llmgw.tasks.sockets import Watcher
from llmgw.tasks.streams import Stream
from llmgw.telemetry.log import LogSink
from llmgw.telemetry.metrics import Metrics
from llmgw.telemetry.request_line import request_log

ANONYMOUS = KeyRecord("none", b"", "no key", "anonymous", Band.GOLD)


@define(eq=False)
class Parts:
    """One process. ``config`` changes with a reload; everything else stays."""

    config: Config
    keys: Keys
    tokens: Tokens
    usage: UsageWriter
    log: Any
    sink: LogSink
    watcher: Watcher
    alarms: Alarms = field(factory=Alarms)
    started_at: float = field(factory=time.time)
    routes: Mapping[str, tuple[Endpoint, ...]] = field(factory=dict)  # replicas that serve, by model
    draining: bool = False  # /ready says no: the process is on its way out
    stands_back: Callable[[], str] = str  # why another control plane should be asked; empty: no other need be
    live: LiveFleet = field(init=False)
    metrics: Metrics = field(init=False)
    admission: Admission = field(init=False)
    shadow: Shadow = field(init=False)
    records: Records = field(init=False)
    aggregates: Aggregates = field(init=False)
    gate: Gate = field(init=False)
    door: Door = field(init=False)

    def __attrs_post_init__(self) -> None:
        config = self.config
        self.live = LiveFleet(self.client, config.breaker, config.weights.prefix_entries_max)
        self.metrics = Metrics(__version__, partial(endpoint_metrics, self.live), self._gauges, self._waiting)
        self.admission = Admission(self.live, config.admission, self.alarms)
        self.shadow = Shadow(self.live, config.admission)
        self.records = Records(config.records.requests_max)
        self.aggregates = Aggregates(config.records.accounts_max)
        desk = FrontDesk(lambda: self.live.fleet, self.ready, int(self.started_at))
        settle = Settle(
            self.records,
            self.aggregates,
            self.usage.record,
            self.metrics,
            request_log(self.sink),
        )
        self.gate = Gate(
            live=self.live,
            fleet=lambda: self.live.fleet,
            ring=lambda: self.keys.ring,
            desk=desk,
            settle=settle,
            metrics=self.metrics,
            limits=config.relay,
            weights=config.weights,
            retry_budget=RetryBudget(config.relay.retry_budget, config.relay.retry_budget_min),
            admission=self.admission,
            wall=time.time,
            draw=random.random,
            log=self.log,
            anonymous=ANONYMOUS if config.listen.no_auth else None,
        )
        self._shadow_as(config)
        self.door = Door(
            Road(self.gate).serve,
            self.alarms,
            config.door,
            request_ids(os.urandom(6)),
            tls=server_context(config.listen.tls_cert, config.listen.tls_key),
            cors_origins=frozenset(config.listen.cors_origins),
            report=self.report,
            refused=self._door_refused,
        )

    def ready(self, model: str | None) -> str | None:
        """Why this process has nowhere to send a request, or should not; None: it is ready."""
        if self.draining:
            return "shutting down"
        return self.stands_back() or self.live.ready(model, trio.current_time()) or None

    def report(self, what: str, request_id: str, error: BaseException | None) -> None:
        self.log.error(what, request_id=request_id, error=repr(error), exc_info=error)

    def service_ended(self, name: str, errors: BaseException | None) -> None:
        self.log.error("service stopped and starts again", service=name, error=repr(errors), exc_info=errors)

    def apply(self, config: Config) -> list[Any]:
        """A reload: models and limits from now on; the endpoints that are new."""
        self.config = config
        self.door.limits_changed(config.door)
        self.gate.limits, self.gate.weights = config.relay, config.weights
        budget = self.gate.retry_budget
        budget.share, budget.least = config.relay.retry_budget, config.relay.retry_budget_min
        added = self.live.apply(self.fleet(), trio.current_time())
        self.admission.apply(config.admission)
        self._shadow_as(config)
        return added

    def _shadow_as(self, config: Config) -> None:
        self.shadow.apply(config.admission)
        self.gate.shadow = self.shadow if config.admission.mode == Mode.SHADOW else None

    def route(self, routes: Mapping[str, tuple[Endpoint, ...]]) -> list[Any]:
        """The replicas that serve from now on, beside the static endpoints; the endpoints that are new."""
        self.routes = routes
        return self.live.apply(self.fleet(), trio.current_time())

    def fleet(self) -> Fleet:
        """The config's models with their replicas."""
        fleet = self.config.fleet
        if not self.routes:
            return fleet
        models = {
            name: evolve(model, endpoints=(*model.endpoints, *self.routes.get(name, ())))
            for name, model in fleet.models.items()
        }
        return Fleet(models, fleet.revision)

    def failed(self, what: str, error: BaseException) -> None:
        self.report(what, "", error)

    def client(self, endpoint: Endpoint) -> EngineClient:
        return EngineClient(endpoint, self._connect, self.config.engines)

    async def _connect(self, host: str, port: int, tls: object | None = None) -> Stream:
        assert tls is None or isinstance(tls, ssl.SSLContext)
        return await connect(self.watcher, host, port, tls)

    def _door_refused(self, refusal: Refusal, request_id: str, peer: str) -> None:
        self.gate.refused(refusal, request_id, peer)

    def _waiting(self) -> Iterator[Mapping[str, Any]]:
        return pool_metrics(self.admission, trio.current_time())

    def _gauges(self) -> dict[str, tuple[str, float]]:
        door = self.door
        return {
            "client_connections": ("open client connections", len(door.connections)),
            "client_connections_refused_total": ("turned away for want of room", door.turned_away),
            "accept_failures_total": ("accepts that failed for want of descriptors or memory", door.accept_failures),
            "bodies_held_bytes": ("request bodies in memory", door.bodies.held),
            "log_lines_dropped_total": ("log lines that found the queue full", self.sink.dropped),
            "usage_rows_dropped_total": ("usage rows that found the queue full", self.usage.dropped),
            "usage_failing": ("1 while the store does not take usage rows", float(bool(self.usage.failing))),
            "usage_rows_waiting": ("usage rows not yet on disk", self.usage.waiting),
            "usage_spool_bytes": ("usage rows that wait on disk while the store is away", self.usage.spooled),
            "keys_stale": ("1 while the store can't be read", float(self.keys.stale)),
            "config_revision": ("of the fleet in use", self.live.fleet.revision),
            "ready": ("1 if some endpoint is usable", float(self.ready(None) is None)),
        }


def server_context(cert: str, key: str) -> ssl.SSLContext | None:
    """TLS 1.2 and up, HTTP/1.1 only; None without a certificate. Raises OSError, ssl.SSLError."""
    if not cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(cert, key or None)
    return context


def with_shadows(accounts: list[Account], shadows: Mapping[tuple[str, str, str], Tally]) -> list[Account]:
    """Each pool's, band's and tenant's shadow beside its latest account, or in one of its own."""
    if not accounts or not shadows:
        return accounts
    latest = max(one.start for one in accounts)
    known = {(one.model, one.band, one.tenant): one for one in accounts if one.start == latest}
    for key, tally in shadows.items():
        one = known.get(key)
        if one is None:
            one = Account(latest, *key, {"requests": 0}, [])
            accounts.append(one)
        one.counts["shadow"] = tally.as_json()
    return accounts


def account(group: Aggregate) -> Account:
    """Five minutes of one pool, band and tenant, as the store keeps them."""
    counts = {
        "requests": group.requests,
        "outcomes": dict(group.outcomes),
        "prompt_tokens": group.prompt_tokens,
        "completion_tokens": group.completion_tokens,
        "total_s": round(group.total_s, 3),
        "wait_s": round(group.wait_s, 3),
        "ttft_s": round(group.ttft_s, 3),
        "streams": group.streams,
        "retried": group.retried,
        "slowest_s": group.slowest_s,
    }
    kept = [as_json(record) for _, _, record in sorted(group.kept, reverse=True)]
    return Account(group.start, group.model, group.band, group.tenant, counts, kept)
