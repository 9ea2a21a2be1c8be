"""One admin listener over HTTP: one question, one answer, and what its failures mean."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from attrs import frozen

from console.feed.pieces import NoObject, decoded
from llmgw.wire.admin_answers import AGE, LEADER, Refusal, away, not_an_admins, refusal_in

Json = Mapping[str, Any]

READ_WITHIN_S, CHANGE_WITHIN_S = 15.0, 30.0  # unless said
CONNECT_WITHIN_S = 3.0
SILENT_S = 40.0  # a feed says every 15 s that it lives
ANSWER_MAX = 64 * 1024**2
# A refusal may be quicker than the body it refuses, and then the next question on that connection is not answered:
# changes, which have bodies, keep none. The listener closes idle ones after 75 s, and we do long before.
KEPT = httpx.Limits(max_keepalive_connections=4, keepalive_expiry=5.0)
NOTHING_KEPT = httpx.Limits(max_keepalive_connections=0)
HEADERS = {"accept-encoding": "identity"}
HINTS = {
    401: "give a token: --token, --token-file, LLMGW_ADMIN_TOKEN or a context",
    403: "this token's role may not do that",
}


class Refused(Exception):
    """The API's own refusal. ``leader``: where to ask instead, if that is why; empty: nobody leads."""

    def __init__(
        self, message: str, hint: str = "", code: str = "", status: int = 0, leader: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.hint, self.code, self.status, self.leader = message, hint, code, status, leader


class Away(Exception):
    """Nobody answers. ``unsent``: the question never went out, so that another may be asked even for a change."""

    def __init__(self, why: str, hint: str = "", unsent: bool = True) -> None:
        super().__init__(why)
        self.why, self.hint, self.unsent = why, hint, unsent


@frozen
class Answer:
    """``age_s``: a standby's, and ``leader`` leads; None: of who leads, or what each knows of itself."""

    value: Json
    url: str
    age_s: float | None = None
    leader: str = ""


class Listener:
    """Proxies of the environment are not used."""

    def __init__(self, url: str, token: str, trust: ssl.SSLContext) -> None:
        self.url = url
        headers = HEADERS | ({"authorization": f"Bearer {token}"} if token else {})
        self._reading, self._changing = (
            httpx.AsyncClient(
                base_url=url + "/admin/v1",
                headers=headers,
                timeout=httpx.Timeout(CHANGE_WITHIN_S, connect=CONNECT_WITHIN_S),
                limits=limits,
                trust_env=False,
                verify=trust,
            )
            for limits in (KEPT, NOTHING_KEPT)
        )

    async def ask(
        self, method: str, path: str, params: Mapping[str, Any] | None, body: Any, within_s: float | None = None
    ) -> Answer:
        """Raises Refused or Away."""
        reads = method == "GET"
        within_s = within_s or (READ_WITHIN_S if reads else CHANGE_WITHIN_S)
        client = self._reading if reads else self._changing
        try:
            async with (
                asyncio.timeout(within_s),
                client.stream(method, path, params=params, json=body) as answer,
            ):
                return await self._answer(answer, await _whole(answer))
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise self._away(error) from error

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The bytes of an answer as they come. Raises Refused, or Away, also where it breaks off later."""
        timeout = httpx.Timeout(SILENT_S, connect=CONNECT_WITHIN_S)
        try:
            async with self._changing.stream("GET", path, params=params, headers=headers, timeout=timeout) as answer:
                if answer.headers.get("content-type") != "text/event-stream":
                    await self._answer(answer, await _whole(answer))
                    raise Away(f"{self.url} streams nothing at {path}", "is the console newer than the gateway?")
                yield answer.aiter_raw()
        except httpx.HTTPError as error:
            raise self._away(error) from error

    async def close(self) -> None:
        await self._reading.aclose()
        await self._changing.aclose()

    async def _answer(self, answer: httpx.Response, body: bytes) -> Answer:
        try:
            value = await decoded(body) if body else {}
        except NoObject:
            value = None
        if answer.is_success and value is not None:
            leader = answer.headers.get(LEADER)
            return Answer(value, self.url) if leader is None else Answer(value, self.url, _age(answer), leader)
        refusal = refusal_in(answer.status_code, value)
        if refusal is None:
            raise Away(*not_an_admins(self.url, answer.status_code), unsent=False)
        raise refused(refusal)

    def _away(self, error: Exception) -> Away:
        why = " ".join(str(error).split()).rstrip(": ") or "the connection broke"
        if isinstance(error, httpx.TimeoutException | TimeoutError):
            why = "no answer in time"
        unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.InvalidURL)
        return Away(*away(self.url, why, isinstance(error, httpx.RemoteProtocolError)), unsent)


async def _whole(answer: httpx.Response) -> bytes:
    pieces, size = [], 0
    async for piece in answer.aiter_raw():
        pieces.append(piece)
        size += len(piece)
        if size > ANSWER_MAX:
            raise httpx.RemoteProtocolError(f"an answer of more than {ANSWER_MAX} bytes")
    return b"".join(pieces)


def refused(refusal: Refusal) -> Refused:
    hint = refusal.hint or HINTS.get(refusal.status, "")
    message = "; ".join((refusal.message, *refusal.problems))
    return Refused(message, hint, refusal.code, refusal.status, refusal.leader)


def _age(answer: httpx.Response) -> float:
    try:
        return max(0.0, float(answer.headers.get(AGE, "0")))
    except ValueError:
        return 0.0
