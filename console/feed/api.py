"""The management API, whichever control plane answers or leads: the rules of ``llmgw ctl``, in asyncio."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from attrs import field, frozen

from console.feed.addresses import Addresses
from console.feed.listener import Answer, Away, Listener, Refused
from llmgw.wire.admin_answers import RESIGN, clear_refusal

__all__ = ["AdminApi", "Answer", "Away", "Refused", "Where"]

Json = Mapping[str, Any]
PATIENCE_S, PAUSE_S = 15.0, 0.5  # of a change while nobody leads; a failover is shorter
HOPS_MAX = 4
NOBODY_LEADS, LOOK_AGAIN = "no control plane that leads has answered; nothing was changed", ":leader says who leads"


@frozen
class Where:
    """A cluster's admin listeners. ``ca``: trusted instead of the system's authorities, ``also_ca`` beside them."""

    urls: tuple[str, ...]
    token: str = field(default="", repr=False)
    ca: str | None = None
    also_ca: str | None = None


class AdminApi:
    """Raises OSError where a CA can't be read."""

    def __init__(
        self,
        urls: Sequence[str],
        token: str,
        ca: str | None = None,
        also_ca: str | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._token, self._trust = token, _trust(ca, also_ca)
        self.addresses = Addresses(tuple(urls), clock or _loop_time)
        self._listeners: dict[str, Listener] = {}

    async def ask(self, method: str, path: str, params: Mapping[str, Any] | None = None, body: Any = None) -> Json:
        """Raises Refused, or Away. A change is never sent twice, unless it was never sent at all."""
        return (await self.answer(method, path, params, body)).value

    async def answer(self, method: str, path: str, params: Mapping[str, Any] | None = None, body: Any = None) -> Answer:
        """The same, with who gave it and how old it is."""

        def of(url: str) -> Coroutine[Any, Any, Answer]:
            return self._at(url).ask(method, path, params, body)

        if method != "GET":
            return await self._decided(of, patient=path != RESIGN)
        found: Answer = await self._led(of, True)
        return found if found.age_s is None else await self._better(found, of)

    async def ask_at(self, url: str, path: str, params: Mapping[str, Any] | None, within_s: float) -> Json:
        """A reading of that control plane, and of no other. Raises Refused, or Away."""
        return (await self._at(url).ask("GET", path, params, None, within_s)).value

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The bytes of an answer as they come. Raises Refused, or Away, also where it breaks off later."""

        async def begun(url: str) -> tuple[Any, AsyncIterator[bytes]]:
            streaming = self._at(url).stream(path, params, headers)
            return streaming, await streaming.__aenter__()

        streaming, chunks = await self._led(begun, True)
        try:
            yield chunks
        except BaseException as error:
            if not await streaming.__aexit__(type(error), error, error.__traceback__):
                raise
        else:
            await streaming.__aexit__(None, None, None)

    async def close(self) -> None:
        for listener in self._listeners.values():
            await listener.close()
        self._listeners.clear()

    def _at(self, url: str) -> Listener:
        if url not in self._listeners:
            self._listeners[url] = Listener(url, self._token, self._trust)
        return self._listeners[url]

    async def _decided(self, of: Callable[[str], Coroutine[Any, Any, Answer]], patient: bool) -> Answer:
        """What only the leader may answer. While nobody leads it is asked for again, also where somebody is still
        named who can't be reached: one that died leads until its lease has run out."""
        until = asyncio.get_running_loop().time() + (PATIENCE_S if patient else 0)
        while True:
            try:
                decided: Answer = await self._led(of, False)
                return decided
            except Refused as refusal:
                if refusal.leader is None:
                    raise
                if asyncio.get_running_loop().time() >= until:
                    raise Refused(NOBODY_LEADS, LOOK_AGAIN, refusal.code, refusal.status) from refusal
            await asyncio.sleep(PAUSE_S)

    async def _led(self, of: Callable[[str], Coroutine[Any, Any, Any]], harmless: bool) -> Any:
        """Of whoever leads, where the one that is asked names them."""
        for hop in range(HOPS_MAX + 1):
            try:
                return await self._first(of, harmless)
            except Refused as refusal:
                if not refusal.leader or hop == HOPS_MAX:
                    raise
                url = self.addresses.learn(refusal.leader)
                if url is None:
                    raise Refused(*clear_refusal(refusal.leader), refusal.code, refusal.status) from refusal
                self.addresses.prefer(url)
        raise AssertionError("unreachable")

    async def _first(self, of: Callable[[str], Coroutine[Any, Any, Any]], harmless: bool) -> Any:
        """Of the first address that answers."""
        away: list[Away] = []
        for url in self.addresses.order:
            try:
                found = await of(url)
            except Away as failure:
                away.append(failure)
                self.addresses.failed(url)
                if not (harmless or failure.unsent):
                    raise Away(f"{failure.why}; it may have been done", failure.hint, False) from failure
            except Refused as refusal:
                if not self._is_mistaken(url, refusal):
                    raise
                away.append(Away(f"{url}: {refusal}", refusal.hint))
            else:
                self.addresses.answered(url)
                return found
        raise Away("; ".join(one.why for one in away), away[0].hint, all(one.unsent for one in away))

    def _is_mistaken(self, url: str, refusal: Refused) -> bool:
        """An address that was learnt may be somebody else's here: ours know this token, or none does."""
        mistaken = refusal.status == 401 and self.addresses.is_strange(url)
        if mistaken:
            self.addresses.forget(url)
        return mistaken

    async def _better(self, found: Answer, of: Callable[[str], Coroutine[Any, Any, Answer]]) -> Answer:
        """The leader's answer instead of a standby's, if it can be had."""
        url = self.addresses.learn(found.leader) if found.leader else None
        if url is None or self.addresses.is_aside(url):
            return found
        try:
            better = await of(url)
        except Away:
            self.addresses.failed(url)
            return found
        except Refused as refusal:
            if self._is_mistaken(url, refusal):
                return found
            raise
        self.addresses.answered(url)
        return better


def _trust(ca: str | None, also_ca: str | None) -> ssl.SSLContext:
    if ca:
        return ssl.create_default_context(cafile=ca)
    trust = httpx.create_ssl_context(trust_env=False)
    if also_ca:
        trust.load_verify_locations(also_ca)
    return trust


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
