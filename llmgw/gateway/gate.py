"""What the road leans on: the live fleet, keys, metrics, budgets of retries; and how a request is counted.

The road decides; the gate keeps the counts true. Everything here is synchronous.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import trio
from attrs import define, field

from llmgw.core.fleet import Fleet, Model
from llmgw.core.identity import KeyRecord, KeyRing
from llmgw.core.outcome import Outcome, Refusal
from llmgw.core.retry import RetryBudget, is_health, is_illness
from llmgw.core.scheduling import SCORERS, Ask, Chosen, NoEndpoint, Weights, choose
from llmgw.engines.live import LiveEndpoint, LiveFleet
from llmgw.gateway import verdicts
from llmgw.gateway.admission import Admission
from llmgw.gateway.desk import FrontDesk
from llmgw.gateway.exchange import Exchange
from llmgw.gateway.limits import RelayLimits
from llmgw.gateway.passage import Passage
from llmgw.gateway.prompt import block_hashes, session_hash
from llmgw.gateway.record import Story, Try
from llmgw.gateway.routes import Route
from llmgw.gateway.settle import Settle
from llmgw.gateway.shadow import Shadow
from llmgw.gateway.timers import TIMED_OUT
from llmgw.telemetry.log import clean
from llmgw.telemetry.metrics import Metrics
from llmgw.wire import openai

DEADLINES = {outcome: name for name, outcome in TIMED_OUT.items()}
_LABEL = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


@define(eq=False)
class Counted:
    """A request counts against its endpoint while this is open; gives the breaker's ticket, for its verdict.

    The same object is counted up and down, even if its name belongs to another by then.
    """

    _live: LiveEndpoint
    _passage: Passage
    _entry: Try
    _ticket: int = 0

    def __enter__(self) -> int:
        live, breaker = self._live, self._live.breaker
        ticket = self._ticket = breaker.take(self._entry.began)
        # The one request that a half-open breaker lets through may be a long stream: its first token is enough.
        self._passage.on_first_token = partial(breaker.good, ticket) if breaker.half_open else None
        live.in_flight += 1
        live.served += 1
        if live.watched is not None:
            self._passage.sent_at = self._entry.began
            live.watched.add(self._passage)
        if self._passage.beside is not None:
            self._passage.beside.sent(live, self._entry.began)
        return ticket

    def __exit__(self, *_: object) -> None:
        entry = self._entry
        self._live.in_flight -= 1
        entry.ended = self._passage.ended_at or entry.began
        entry.dial_s = self._passage.dial_s
        if self._live.watched is not None:
            self._live.watched.discard(self._passage)
            if self._passage.reached:
                self._live.progress_at = max(self._live.progress_at, entry.ended)
        if self._passage.beside is not None:
            self._passage.beside.left(self._live, entry.ended)
        if entry.outcome is None:  # cancelled, or the client could not be written to
            self._live.breaker.unknown(self._ticket)


@define(eq=False)
class Gate:
    live: LiveFleet
    fleet: Callable[[], Fleet]
    ring: Callable[[], KeyRing]
    desk: FrontDesk
    settle: Settle
    metrics: Metrics
    limits: RelayLimits
    weights: Weights
    retry_budget: RetryBudget
    admission: Admission
    wall: Callable[[], float]
    draw: Callable[[], float]
    log: Any
    anonymous: KeyRecord | None = None  # --no-auth
    shadow: Shadow | None = None  # in shadow mode
    cut: int = 0  # requests that were cut off as the process ended
    running: dict[str, Story] = field(factory=dict)

    def begin(self, exchange: Exchange, route: Route) -> Story:
        story = Story(exchange.id, route.name, exchange.received_at, self.wall())
        first = exchange.first
        label = first.get(b"x-request-id") or first.get(b"x-client-request-id")
        if label:
            text = label[:128].decode("latin-1")
            story.client_label = text if _LABEL.issuperset(text) else ""
        retry = first.get(b"x-stainless-retry-count")
        if retry and retry != b"0":
            story.retry_count = retry[:4].decode("ascii", "replace")
        self.running[story.id] = story
        self.metrics.began()
        return story

    def end(self, exchange: Exchange, story: Story) -> None:
        """In a ``finally``: after an answer, a refusal, a hang-up or the end of the process."""
        if story.outcome is None:
            story.outcome = Outcome.CLIENT_GONE if exchange.client_gone else Outcome.SHUTTING_DOWN
            story.status = 499 if exchange.client_gone else 503
            self.cut += not exchange.client_gone
        now = trio.current_time()
        if story.outcome is Outcome.CLIENT_STALLED:
            self.metrics.deadlines["write_stall"] += 1
        if exchange.gone_at is not None and story.tries:
            self.metrics.cancellation.observe(now - exchange.gone_at)
        if story.passage is not None and story.passage.beside is not None:
            self._end_shadow(story, story.passage, now)
        del self.running[story.id]
        self.metrics.left()
        self.settle.close(story, now)

    def _end_shadow(self, story: Story, passage: Passage, now: float) -> None:
        first = passage.first_token_at
        sent = story.tries[-1].began if story.tries else now
        first_s = first - sent if first is not None and story.stream else None
        assert passage.beside is not None
        passage.beside.finished(first_s, story.outcome is Outcome.CLIENT_GONE, now)

    def passage(self, exchange: Exchange, route: Route, ask: openai.Ask, story: Story) -> Passage:
        streaming = ask.stream and route.reading is not None
        tenant = story.key.tenant if story.key else "none"
        return Passage(
            exchange=exchange,
            route=route,
            streaming=streaming,
            hide_usage=streaming and route.inject_usage and not ask.asked_for_usage,
            wants_base64=ask.wants_base64 and route.name == "embeddings",
            limits=self.limits,
            total_at=exchange.received_at + self.limits.total,
            gaps=self.metrics.requests(tenant, story.model).gaps,
            tenant=tenant,
        )

    def choose(
        self, model: Model, adapter: str | None, ask: openai.Ask, passage: Passage, tried: set[str], now: float
    ) -> Chosen[LiveEndpoint] | NoEndpoint:
        pool = self.live.pool(model.name)
        if pool is None:
            return NoEndpoint(())
        if len(pool.endpoints) == 1:
            return choose(Ask(adapter, tried=tried), pool.endpoints, self.weights, now, 0.0)
        hashes = self._hashes(model, ask, passage)
        session = session_hash(ask.session, passage.tenant) if ask.session and self.weights.session else None
        wanted = Ask(adapter, pool.prefixes.matches(hashes), session, tried)
        choice = choose(wanted, pool.endpoints, self.weights, now, self.draw())
        if isinstance(choice, Chosen) and hashes:
            pool.prefixes.served(choice.live.id, hashes)
        self._count_choice(choice)
        return choice

    def _hashes(self, model: Model, ask: openai.Ask, passage: Passage) -> list[int]:
        weights = self.weights
        if not weights.prefix or len(ask.prompt) < weights.prefix_block:
            return []
        return block_hashes(ask.prompt, passage.tenant, model.name, weights.prefix_block, weights.prefix_blocks_max)

    def _count_choice(self, choice: Chosen[LiveEndpoint] | NoEndpoint) -> None:
        for _, why, scores in choice.account:
            if why:
                self.metrics.filter_drops[why.partition(":")[0][:64]] += 1
            elif scores:
                self.metrics.scored(SCORERS, scores)

    def counted(self, live: LiveEndpoint, passage: Passage, entry: Try) -> "Counted":
        return Counted(live, passage, entry)

    def verdict(self, live: LiveEndpoint, refusal: Refusal | None, ticket: int) -> None:
        """What an attempt's end says about the endpoint."""
        if refusal is None:
            live.breaker.good(ticket)
            return
        now = trio.current_time()
        if is_illness(refusal.outcome):
            live.breaker.bad(now, refusal.kept[:200], ticket)
        elif refusal.outcome is Outcome.ENGINE_BUSY:
            live.busy_until = now + (refusal.retry_after_s or 1.0)
            live.breaker.unknown(ticket)
        elif is_health(refusal.outcome):
            live.breaker.good(ticket)
        else:
            live.breaker.unknown(ticket)
        deadline = DEADLINES.get(refusal.outcome)
        if deadline:
            self.metrics.deadlines[deadline] += 1

    def nobody(self, model: Model, choice: NoEndpoint) -> Refusal:
        return verdicts.no_endpoint(model.name, (why for _, why, _ in choice.account), model.run_by_agents)

    def refused(self, refusal: Refusal, request_id: str, peer: str) -> None:
        """A refusal off the road, by the door or the front desk."""
        self.metrics.door_refusals[refusal.outcome.value] += 1
        if self.log is not None:
            self.log.info(
                "refused", request_id=request_id, outcome=refusal.outcome.value, status=refusal.status,
                message=clean(refusal.message), peer=peer,
            )  # fmt: skip
