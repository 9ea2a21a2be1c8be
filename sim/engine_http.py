"""The engine on HTTP: what a door calls, and which routes there are."""

from attrs import define

from llmgw.gateway.exchange import Exchange
from sim.asked import Wrong
from sim.engine_routes import ENGINE_ROUTES
from sim.generation_routes import GENERATION_ROUTES
from sim.pooling_routes import POOLING_ROUTES
from sim.simulator import Simulator

ROUTES = {**GENERATION_ROUTES, **POOLING_ROUTES, **ENGINE_ROUTES}
_CHAT = "/v1/chat/completions"


@define(eq=False)
class EngineHttp:
    sim: Simulator
    api_key: str | None = None
    chat_only: bool = False

    async def handle(self, exchange: Exchange) -> None:
        try:
            await self._route(exchange)
        except Wrong as wrong:
            await exchange.answer(wrong.status, wrong.body)

    async def _route(self, exchange: Exchange) -> None:
        path = exchange.path
        methods = ROUTES.get(path)
        if methods is None or (self.chat_only and path != _CHAT and not path.startswith("/sim/")):
            await exchange.answer(404, b'{"detail":"Not Found"}')
            return
        route = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if route is None:
            allow = ", ".join(methods).encode()
            await exchange.answer(405, b'{"detail":"Method Not Allowed"}', [(b"allow", allow)])
            return
        if path.startswith("/v1") and not self._knows(exchange):
            await exchange.answer(401, b'{"error":"Unauthorized"}')
            return
        if not path.startswith("/sim/") and not await self._loaded(exchange):
            return
        await route(self.sim, exchange)

    async def _loaded(self, exchange: Exchange) -> bool:
        """Waits where a healthy engine is asked for tokens too early; whether to go on."""
        if not self.sim.loading.healthy:
            await exchange.answer(503, b'{"error":"loading"}')
            return False
        if exchange.method == "POST":
            await self.sim.loading.wait_ready()
        return True

    def _knows(self, exchange: Exchange) -> bool:
        return self.api_key is None or exchange.header(b"authorization") == b"Bearer " + self.api_key.encode()
