"""The admin API over HTTP: whichever control plane answers or leads, and what its failures mean to an operator."""

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx

from llmgw.cli.ctl.contexts import admin_urls
from llmgw.cli.ctl.show import say
from llmgw.cli.failure import BY_CODE, Exit, Failure
from llmgw.wire.admin_answers import (
    AGE,
    LEADER,
    NOT_LEADING,
    RESIGN,
    Refusal,
    away,
    clear_refusal,
    in_the_clear,
    not_an_admins,
    refusal_in,
)

TIMEOUT = httpx.Timeout(30.0, connect=5.0)
# A refusal may be quicker than the body it refuses: some control planes close that connection without a word of it.
NOTHING_KEPT = httpx.Limits(max_keepalive_connections=0)
BY_STATUS = {400: Exit.USAGE, 404: Exit.NOT_FOUND, 422: Exit.USAGE}
HINTS = {
    401: "give a token: --token, LLMGW_ADMIN_TOKEN, a context, or run as the user who owns <data>/admin.token",
    403: "this token's role may not do that",
    421: "ask the control plane that leads",
}
PATIENCE_S, PAUSE_S = 15.0, 0.5  # while nobody leads; a failover is shorter
HOPS_MAX = 4


class NotLeading(Failure):
    """A standby's refusal. ``leader``: the admin URL of who leads; empty: nobody does, as far as it knows."""

    def __init__(self, message: str, leader: str) -> None:
        super().__init__(message, Exit.LOST_LEADERSHIP, "ask the control plane that leads", NOT_LEADING)
        self.leader = leader


class Away(Failure):
    """An address that does not answer. ``unsent``: it never got the question, so another one may be asked."""

    def __init__(self, message: str, hint: str, unsent: bool) -> None:
        super().__init__(message, Exit.UNREACHABLE, hint)
        self.unsent = unsent


class Address:
    """One admin listener; HTTP proxies of the environment are not used.

    ``ca`` is trusted instead of the system's authorities, ``also_ca`` beside them.
    """

    def __init__(self, url: str, token: str, ca: str | None = None, also_ca: str | None = None) -> None:
        self.url = url
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            verify = ssl.create_default_context(cafile=ca) if ca else httpx.create_ssl_context(trust_env=False)
            if also_ca and not ca:
                verify.load_verify_locations(also_ca)
            self._client = httpx.Client(
                base_url=self.url + "/admin/v1",
                headers=headers,
                timeout=TIMEOUT,
                limits=NOTHING_KEPT,
                trust_env=False,
                verify=verify,
            )
        except (httpx.InvalidURL, OSError, UnicodeEncodeError) as error:
            raise Failure(f"{self.url}: {error}", Exit.USAGE, "check --url, --token and --ca") from error

    def ask(self, method: str, path: str, params: Mapping[str, Any] | None, body: Any) -> tuple[Any, httpx.Headers]:
        """The answer's value and headers. Raises Away, or Failure for a refusal."""
        try:
            answer = self._client.request(method, path, params=params, json=body)
        except (httpx.InvalidURL, httpx.LocalProtocolError) as error:  # a token with a line break in it
            raise Failure(f"{self.url}: {error}", Exit.USAGE, "check --url and --token") from error
        except httpx.HTTPError as error:
            raise self._away(error) from error
        return self._value(answer), answer.headers

    @contextmanager
    def stream(self, path: str, params: Mapping[str, Any], headers: Mapping[str, str]) -> Iterator[Iterator[bytes]]:
        """The bytes of an answer as they come. Raises Away, also where it breaks off later, or Failure."""
        try:
            with self._client.stream("GET", path, params=params, headers=headers) as answer:
                if answer.headers.get("content-type") != "text/event-stream":
                    answer.read()
                    self._value(answer)
                    raise Failure(
                        f"{self.url} streams nothing at {path}", Exit.FAILED, "is ctl newer than the gateway?"
                    )
                yield answer.iter_raw()
        except httpx.HTTPError as error:
            raise self._away(error) from error

    def close(self) -> None:
        self._client.close()

    def _value(self, answer: httpx.Response) -> Any:
        if answer.status_code == 204:
            return {}
        try:
            value = answer.json()
        except ValueError:
            value = None
        if answer.is_success and isinstance(value, dict):
            return value
        refusal = refusal_in(answer.status_code, value)
        if refusal is None:
            says, hint = not_an_admins(self.url, answer.status_code)
            raise Failure(says, Exit.UNREACHABLE, hint)
        raise refused(refusal)

    def _away(self, error: httpx.HTTPError) -> Away:
        why = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, httpx.TimeoutException):
            why = "no answer in time"
        says, hint = away(self.url, why, isinstance(error, httpx.RemoteProtocolError))
        unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
        return Away(says, hint, unsent)


class HttpApi:
    """One operator's session with a cluster: ``urls`` are one or more admin listeners, with commas between.

    They are asked in this order until one answers. One that stands by names the leader, who is asked from then on.
    """

    def __init__(self, urls: str, token: str, ca: str | None = None, also_ca: str | None = None) -> None:
        self._make = partial(Address, token=token, ca=ca, also_ca=also_ca)
        self._known: dict[str, Address] = {}
        self._waiting = False
        self._order = admin_urls(urls)
        for url in self._order:
            self._at(url)

    def ask(self, method: str, path: str, params: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        asked = partial(self._answer, method, path, params, body)
        value, headers = self._led(asked, method == "GET", patient=path != RESIGN)
        leader = headers.get(LEADER)
        if leader is None:
            return value
        return self._better(leader, headers.get(AGE, "0"), value, asked)

    def _answer(
        self, method: str, path: str, params: Mapping[str, Any] | None, body: Any, url: str
    ) -> tuple[Any, httpx.Headers]:
        return self._at(url).ask(method, path, params, body)

    @contextmanager
    def stream(self, path: str, params: Mapping[str, Any], headers: Mapping[str, str]) -> Iterator[Iterator[bytes]]:
        """The bytes of an answer as they come. Raises Failure, also where it breaks off later."""

        def begun(url: str) -> tuple[Any, Iterator[bytes]]:
            streaming = self._at(url).stream(path, params, headers)
            return streaming, streaming.__enter__()

        streaming, chunks = self._led(begun, True)
        try:
            yield chunks
        except BaseException as error:
            if not streaming.__exit__(type(error), error, error.__traceback__):
                raise
        else:
            streaming.__exit__(None, None, None)

    def close(self) -> None:
        for address in self._known.values():
            address.close()

    def _at(self, url: str) -> Address:
        if url not in self._known:
            self._known[url] = self._make(url)
        return self._known[url]

    def _led(self, ask: Callable[[str], Any], harmless: bool, patient: bool = True) -> Any:
        """The answer of whoever leads, where only the leader may give it. ``harmless``: it may be asked twice;
        ``patient``: while nobody leads it is asked again.
        """
        until, hops = time.monotonic() + PATIENCE_S, 0
        while True:
            try:
                return self._first(ask, harmless)
            except NotLeading as refusal:
                if refusal.leader and hops < HOPS_MAX:
                    hops += 1
                    self._prefer(refusal.leader)
                    continue
            if not patient or time.monotonic() > until:
                hint = "`llmgw ctl leader` says why; nothing was changed"
                raise Failure("no control plane leads", Exit.LOST_LEADERSHIP, hint, NOT_LEADING)
            if not self._waiting:
                say("nobody leads at the moment; asking again until somebody does")
            self._waiting = True
            time.sleep(PAUSE_S)

    def _first(self, ask: Callable[[str], Any], harmless: bool) -> Any:
        """Of the first address that answers."""
        away: list[Away] = []
        for url in list(self._order):
            try:
                return ask(url)
            except Away as failure:
                away.append(failure)
                if not (harmless or failure.unsent):
                    raise
        if len(away) == 1:
            raise away[0]
        raise Failure("; ".join(one.message for one in away), Exit.UNREACHABLE, away[0].hint)

    def _better(self, leader: str, age: str, value: Any, ask: Callable[[str], Any]) -> Any:
        """The leader's answer instead of a standby's, if it can be had."""
        why = "nobody leads at the moment"
        if leader:
            self._prefer(leader)
            try:
                return ask(leader)[0]
            except Away as failure:
                why = failure.message
                self._order.remove(leader)
                self._order.append(leader)
        say(f"{why}: this is what the store had {age} s ago")
        return value

    def _prefer(self, leader: str) -> None:
        [url] = admin_urls(leader)
        if in_the_clear(url, self._order):
            says, hint = clear_refusal(url)
            raise Failure(says, Exit.FAILED, hint)
        if url in self._order:
            self._order.remove(url)
        self._order.insert(0, url)


def refused(refusal: Refusal) -> Failure:
    if refusal.leader is not None:
        return NotLeading(refusal.message, refusal.leader)
    code, status = refusal.code, refusal.status
    exit = BY_CODE.get(code) or BY_STATUS.get(status, Exit.FAILED) if not _plain_refusal(code) else Exit.FAILED
    return Failure(refusal.message, exit, refusal.hint or HINTS.get(status, ""), code, refusal.problems)


def _plain_refusal(code: str) -> bool:
    """Refusals with a reason, whatever status they travel under: 1, not 2 or 4."""
    return code in {"unknown_tenant", "unknown_model", "duplicate", "ambiguous", "last_admin"}
