"""The request road, from top to bottom: identify, read, charge, admit, choose, relay, settle.

One outcome closes every request exactly once, whatever happened. The steps refuse by raising ``Refused``;
``serve`` is the only place where a refusal meets a client, and ``settle`` the only end.
"""

import trio
from attrs import define

from llmgw.core.fleet import Asked, FallbackOn, Model
from llmgw.core.identity import KeyRecord
from llmgw.core.outcome import Outcome, Refusal
from llmgw.core.retry import fallback_reason, may_retry
from llmgw.core.scheduling import Chosen, NoEndpoint
from llmgw.engines.live import LiveEndpoint
from llmgw.gateway import upstream
from llmgw.gateway.admission import Asking
from llmgw.gateway.desk import may_use, no_such_model, preflight, too_long
from llmgw.gateway.exchange import Exchange, Refused
from llmgw.gateway.gate import Gate
from llmgw.gateway.identify import identify
from llmgw.gateway.passage import Passage, tell
from llmgw.gateway.record import Story, Try
from llmgw.gateway.refusing import answer_refusal, refuse
from llmgw.gateway.relay import Attempt
from llmgw.gateway.routes import Desk, DeskRoute, Found, Route, find, name_and_family
from llmgw.tasks.streams import Broken, Stalled
from llmgw.wire import openai

HOPS_MAX = 5  # gateways one behind the other


@define(eq=False)
class Road:
    gate: Gate

    async def serve(self, exchange: Exchange) -> None:
        """Whoever connects: a preflight, the front desk, or a request on its way to an engine."""
        if exchange.method == "OPTIONS":
            await preflight(exchange)
            return
        found = _found(exchange)
        if isinstance(found, Refusal):
            await self._refuse(exchange, found)
        elif isinstance(found.route, Route):
            await self._request(exchange, found.route)
        else:
            await self._desk(exchange, found.route, found)

    async def _request(self, exchange: Exchange, route: Route) -> None:
        gate = self.gate
        story = gate.begin(exchange, route)
        try:
            await self._travel(exchange, route, story)
        except Refused as refused:
            story.outcome, story.message = refused.refusal.outcome, refused.refusal.kept
            story.status = refused.refusal.status
            await refuse(exchange, route.family, refused.refusal)
        except Broken as error:
            if story.outcome is None:
                gone = Outcome.CLIENT_STALLED if isinstance(error, Stalled) else Outcome.CLIENT_GONE
                story.outcome, story.status, story.message = gone, gone.end.status, str(error)
            raise
        except Exception:
            story.outcome, story.status = Outcome.INTERNAL, Outcome.INTERNAL.end.status
            raise
        finally:
            gate.end(exchange, story)

    async def _travel(self, exchange: Exchange, route: Route, story: Story) -> None:
        """The road itself."""
        gate = self.gate
        key = story.key = self._identify(exchange)
        if upstream.hops(exchange) >= HOPS_MAX:
            raise Refused(Refusal(Outcome.LOOP, f"it came through {HOPS_MAX} gateways: an endpoint leads back to one"))
        ask = await self._read(exchange, route, story)
        asked = self._model(ask, key, story)
        # charge: limits and budgets (the seam: nothing is charged yet)
        passage = story.passage = gate.passage(exchange, route, ask, story)
        queue = [asked]
        refusal: Refusal | None = None
        tried: set[str] = {asked.model.name}
        while queue:
            asked = queue.pop(0)
            story.model, story.adapter = asked.model.name, asked.adapter
            refusal = await self._admit(asked, key, ask, passage, story, tried)
            refusal = refusal or await self._pool(asked, ask, passage, story)
            if refusal is None or passage.reached:
                break
            queue = self._fallbacks(asked.model, refusal, key, tried, story)
        self._close(story, passage, refusal)
        if refusal is not None and not exchange.done:
            await tell(passage, refusal)

    def _identify(self, exchange: Exchange) -> KeyRecord:
        gate = self.gate
        if gate.anonymous is not None:
            return gate.anonymous
        key = identify(exchange.headers, gate.ring(), gate.wall())
        if isinstance(key, Refusal):
            raise Refused(key)
        return key

    async def _read(self, exchange: Exchange, route: Route, story: Story) -> openai.Ask:
        body = await exchange.body()
        story.bytes_in = len(body)
        try:
            ask = openai.read(body, route.model_needed)
        except openai.Invalid as error:
            raise Refused(Refusal(Outcome.BAD_REQUEST, error.message, error.param, error.code)) from None
        story.asked, story.stream = ask.model, ask.stream and route.reading is not None
        story.read_at = trio.current_time()
        return ask

    def _model(self, ask: openai.Ask, key: KeyRecord, story: Story) -> Asked:
        asked = self.gate.fleet().resolve(ask.model)
        if asked is None or not may_use(key, ask.model, asked):
            raise Refused(no_such_model(ask.model))
        story.model, story.adapter = asked.model.name, asked.adapter
        most = asked.model.context_max
        if most is not None and ask.max_tokens is not None and ask.max_tokens > most:
            raise Refused(too_long(ask.max_tokens, most))
        return asked

    async def _admit(
        self, asked: Asked, key: KeyRecord, ask: openai.Ask, passage: Passage, story: Story, tried: set[str]
    ) -> Refusal | None:
        """May it proceed? At once where there is room and nobody waits, else when its turn comes."""
        admission, model = self.gate.admission, asked.model.name
        story.admitted_at = began = trio.current_time() if story.tries or story.wait_s else story.read_at
        if self.gate.shadow is not None:
            if passage.beside is not None:
                passage.beside.finished(None, True, began)  # in the pool it leaves
            passage.beside = self.gate.shadow.arrived(model, key, len(ask.body), began)
        if admission.at_once(model, key.band, began, asked.adapter):
            return None
        asking = Asking(
            key.tenant, key.band, len(ask.body), story.read_at, story.wait_s, passage.total_at,
            self._next_pool(asked.model, FallbackOn.SATURATED, key, tried) is not None, passage.exchange.alarm,
        )  # fmt: skip
        story.asking = asking
        try:
            return await admission.wait(model, asking)
        finally:
            story.asking = None
            story.admitted_at = trio.current_time()
            story.wait_s += story.admitted_at - began
            story.waited_behind, story.let_through = asking.behind, asking.let_through

    async def _pool(self, asked: Asked, ask: openai.Ask, passage: Passage, story: Story) -> Refusal | None:
        """Inside one pool, which has room for somebody else afterwards. None: the client has its answer."""
        try:
            return await self._attempts(asked, ask, passage, story)
        finally:
            self.gate.admission.left(asked.model.name)

    async def _attempts(self, asked: Asked, ask: openai.Ask, passage: Passage, story: Story) -> Refusal | None:
        """Choose and relay, again where that may help; the grant is kept from one endpoint to the next."""
        gate, limits = self.gate, passage.limits
        tried: set[str] = set()
        refusal: Refusal | None = None
        attempts = 0
        now = story.admitted_at
        gate.retry_budget.request(now)
        while True:
            choice = gate.choose(asked.model, asked.adapter, ask, passage, tried, now)
            if isinstance(choice, NoEndpoint):
                return refusal or gate.nobody(asked.model, choice)
            if refusal is not None:  # it is a retry, and there is somebody to ask
                if not gate.retry_budget.take(now):
                    return refusal
                gate.metrics.retried(refusal.outcome.value)
            refusal = await self._attempt(choice, asked, ask, passage, story, now)
            attempts += 1
            if refusal is None:
                return None
            tried.add(choice.live.id)
            if not may_retry(refusal.outcome, passage.reached, attempts, limits.attempts_max):
                return refusal
            now = trio.current_time()
            gate.admission.retrying(asked.model.name, now)

    async def _attempt(
        self, choice: Chosen[LiveEndpoint], asked: Asked, ask: openai.Ask, passage: Passage, story: Story, now: float
    ) -> Refusal | None:
        # No checkpoint lies between choosing this endpoint and counting the request against it.
        gate, live = self.gate, choice.live
        call = upstream.call(live, passage, ask, asked, f"{story.id}-{len(story.tries) + 1}")
        entry = Try(live.endpoint.id, now, account=choice.account)
        story.tries.append(entry)
        with gate.counted(live, passage, entry) as ticket:
            early = upstream.early_headers(live.endpoint.engine)
            refusal = await Attempt(passage, call, early, now, live.endpoint.inject_usage).run()
            entry.outcome = refusal.outcome if refusal else Outcome.OK
            entry.why = refusal.kept[:256] if refusal else ""
            gate.verdict(live, refusal, ticket)
        return refusal

    def _fallbacks(self, model: Model, refusal: Refusal, key: KeyRecord, tried: set[str], story: Story) -> list[Asked]:
        """The next pool this failure may go to: at most one."""
        reason = fallback_reason(refusal)
        other = self._next_pool(model, reason, key, tried) if reason is not None else None
        if other is None or reason is None:
            return []
        story.fell_back_on.append(f"{reason.value}: {refusal.kept}")
        tried.add(other.model.name)
        story.fallbacks.append(other.model.name)
        self.gate.metrics.fell_back(model.name, other.model.name)
        return [other]

    def _next_pool(self, model: Model, reason: FallbackOn, key: KeyRecord, tried: set[str]) -> Asked | None:
        """The first fallback whose rule names the reason, that this key may use and that was not tried yet."""
        for rule in model.fallback:
            other = self.gate.fleet().resolve(rule.model)
            if other is None or other.model.name in tried or not may_use(key, rule.model, other):
                continue
            if reason in rule.on:
                return other
        return None

    def _close(self, story: Story, passage: Passage, refusal: Refusal | None) -> None:
        story.outcome = refusal.outcome if refusal else Outcome.OK
        story.message = refusal.kept if refusal else ""
        answered = passage.exchange.answered
        story.status = refusal.status if refusal and not answered else 200

    async def _desk(self, exchange: Exchange, route: DeskRoute, found: Found) -> None:
        desk = self.gate.desk
        match route.desk:
            case Desk.ROOT:
                await desk.root(exchange)
            case Desk.HEALTH:
                await desk.health(exchange)
            case Desk.READY:
                await desk.readiness(exchange)
            case Desk.MODELS | Desk.MODEL:
                await self._models(exchange, found)

    async def _models(self, exchange: Exchange, found: Found) -> None:
        try:
            key = self._identify(exchange)
        except Refused as refused:
            await self._refuse(exchange, refused.refusal)
            return
        if found.rest:
            answer = await self.gate.desk.model(exchange, key, found.rest)
            if isinstance(answer, Refusal):
                await self._refuse(exchange, answer)
        else:
            await self.gate.desk.models(exchange, key)

    async def _refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        """Off the road: no story, but counted."""
        _, family = name_and_family(exchange.path)
        self.gate.refused(refusal, exchange.id, exchange.peer)
        await answer_refusal(exchange, family, refusal)


def _found(exchange: Exchange) -> Found | Refusal:
    if exchange.method == "GET" and exchange.first.get(b"upgrade", b"").lower() == b"websocket":
        return Refusal(Outcome.UPGRADE_REFUSED, "WebSocket is not spoken here; use plain HTTP requests")
    return find(exchange.method, exchange.path)
