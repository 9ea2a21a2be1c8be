"""Does an engine really answer? Its health, then one request for one token; /health alone proves nothing.

Which route an engine answers is not known beforehand: a chat model may refuse completions, an embedding model both.
"""

from typing import Any

import msgspec
import trio
from attrs import define, field

from llmgw.engines.client import BrokeOff, DialTimeout, EngineClient, NotHttp, Stale, Unreachable
from llmgw.tasks.streams import Broken, Interrupted
from llmgw.wire.engine_errors import read_error

ANSWER_MAX = 1024**2
WORDS_MAX = 200
FAILURES = (Unreachable, BrokeOff, NotHttp, DialTimeout, Interrupted, Broken)
# The engine is there and does not know this route, or not for this model.
ELSEWHERE = frozenset({400, 404, 405, 501})
ROUTES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": "1", "max_tokens": 1, "temperature": 0}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "1"}], "max_tokens": 1, "temperature": 0}),
    ("/v1/embeddings", {"input": "1"}),
    ("/v1/rerank", {"query": "1", "documents": ["1"]}),
)
_JSON = b"content-type: application/json\r\naccept: application/json\r\n"


@define(eq=False)
class Prover:
    """Of one incarnation; remembers the route that worked."""

    client: EngineClient
    route: str = field(default="", init=False)
    well: bool = field(default=False, init=False)  # it said so itself

    async def healthy(self, within_s: float) -> str:
        """Why ``/health`` says no; empty: it says yes, or there is none."""
        with trio.move_on_after(within_s):
            try:
                status, body = await self.client.fetch("/health", ANSWER_MAX)
            except FAILURES as error:
                return f"/health: {error or type(error).__name__}"
            self.well = status < 300
            return "" if self.well or status in (404, 405) else f"/health answered {status} {_words(body)}".rstrip()
        return f"/health did not answer within {within_s:g} s"

    async def answers(self, within_s: float) -> str:
        """Why it does not answer a real request; empty: it does."""
        said = ""
        with trio.move_on_after(within_s):
            for route, asked in ROUTES:
                if self.route in ("", route):
                    said = await self._ask(route, asked)
                    if said != _NOT_HERE:
                        self.route = route if not said else self.route
                        return said
            return "it answers none of the routes that a model may have"
        return f"no answer to a request for one token within {within_s:g} s"

    async def _ask(self, route: str, asked: dict[str, Any]) -> str:
        endpoint = self.client.endpoint
        body = msgspec.json.encode({"model": endpoint.engine_name, **asked})
        call = self.client.post(route, _JSON, body)
        try:
            await call.dial(trio.current_time())
            try:
                await call.head()
            except Stale:
                await call.dial(trio.current_time())
                await call.head()
            status, answer = call.response.status, await call.whole(ANSWER_MAX)
        except FAILURES as error:
            return f"{route}: {error or type(error).__name__}"
        finally:
            call.close(trio.current_time())
        if status < 300:
            return "" if _is_answer(answer) else f"{route} answered what is no answer"
        return _NOT_HERE if status in ELSEWHERE else f"{route} answered {status} {_words(answer)}".rstrip()


_NOT_HERE = "not this route"


def _is_answer(body: bytes) -> bool:
    try:
        said = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return False
    if isinstance(said, dict):
        return any(said.get(member) for member in ("choices", "data", "results"))
    return isinstance(said, list)


def _words(body: bytes) -> str:
    return read_error(body).message[:WORDS_MAX]
