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

TIMEOUT = httpx.Timeout(30.0, connect=5.0)
# A refusal may be quicker than the body it refuses, and then the next question on that connection is not answered.
NOTHING_KEPT = httpx.Limits(max_keepalive_connections=0)
BY_STATUS = {400: Exit.USAGE, 404: Exit.NOT_FOUND, 422: Exit.USAGE}
# What OpenSSL, by its version, says of an answer that is no TLS.
NO_TLS_THERE = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
HINTS = {
    401: "give a token: --token, LLMGW_ADMIN_TOKEN, a context, or run as the user who owns <data>/admin.token",
    403: "this token's role may not do that",
    421: "ask the control plane that leads",
}


NOT_LEADING = "not_leading"  # the code of a refusal whose ``leader`` is where to ask instead
LEADER, AGE = "x-llmgw-leader", "x-llmgw-age"  # of a standby's answer: who knows better, and how old the answer is
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
        if not _an_admins(value):
            hint = "check the URL: operators connect to admin.listen (port 7442 unless set), clients and engines do not"
            says = f"{self.url} is not an llmgw admin listener: it answers {answer.status_code} in another form"
            raise Failure(says, Exit.UNREACHABLE, hint)
        raise refused(answer.status_code, value)

    def _away(self, error: httpx.HTTPError) -> Away:
        why = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, httpx.TimeoutException):
            why = "no answer in time"
        hint = "is `llmgw server` running there? `llmgw ctl context list` shows where ctl asks"
        if any(sign in why for sign in NO_TLS_THERE):
            why, hint = "it speaks http, not https", f"use http{self.url.removeprefix('https')}"
        elif isinstance(error, httpx.RemoteProtocolError) and self.url.startswith("http:"):
            hint = f"if it speaks https, use https{self.url.removeprefix('http')}"
        elif "CERTIFICATE" in why or "SSL" in why:
            hint = "give the authority's certificate with --ca, or check the URL"
        unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
        return Away(f"{self.url} is not reachable: {why}", hint, unsent)


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
        value, headers = self._led(lambda url: self._at(url).ask(method, path, params, body), method == "GET")
        leader = headers.get(LEADER)
        if leader is None:
            return value
        return self._better(
            leader, headers.get(AGE, "0"), value, lambda url: self._at(url).ask(method, path, params, None)
        )

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

    def _led(self, ask: Callable[[str], Any], harmless: bool) -> Any:
        """The answer of whoever leads, where only the leader may give it. ``harmless``: it may be asked twice."""
        until, hops = time.monotonic() + PATIENCE_S, 0
        while True:
            try:
                return self._first(ask, harmless)
            except NotLeading as refusal:
                if refusal.leader and hops < HOPS_MAX:
                    hops += 1
                    self._prefer(refusal.leader)
                    continue
            if time.monotonic() > until:
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
        if url.startswith("http:") and all(known.startswith("https:") for known in self._order):
            raise Failure(
                f"the leader calls itself {url}, and the token is not sent in the clear",
                Exit.FAILED,
                "set admin.advertise there to its https address, or give its URL with --url",
            )
        if url in self._order:
            self._order.remove(url)
        self._order.insert(0, url)


def _an_admins(value: Any) -> bool:
    """Whether a refusal is one of ours: clients' listeners and engines name no hint in theirs."""
    error = value.get("error") if isinstance(value, dict) else None
    return isinstance(error, dict) and "hint" in error


def refused(status: int, value: Any) -> Failure:
    said = value.get("error") if isinstance(value, dict) else None
    error: dict[str, Any] = said if isinstance(said, dict) else {"message": str(said or f"refused with {status}")}
    code = str(error.get("code") or "")
    if code == NOT_LEADING and "leader" in error:
        return NotLeading(str(error.get("message")), str(error["leader"] or ""))
    problems = error.get("problems") or (value.get("problems") if isinstance(value, dict) else None) or []
    return Failure(
        str(error.get("message") or f"refused with {status}"),
        BY_CODE.get(code) or BY_STATUS.get(status, Exit.FAILED) if not _plain_refusal(code) else Exit.FAILED,
        str(error.get("hint") or HINTS.get(status, "")),
        code,
        tuple(_problem(p) for p in problems),
    )


def _plain_refusal(code: str) -> bool:
    """Refusals with a reason, whatever status they travel under: 1, not 2 or 4."""
    return code in {"unknown_tenant", "unknown_model", "duplicate", "ambiguous", "last_admin"}


def _problem(problem: Any) -> str:
    if isinstance(problem, dict):
        where, what, todo = (str(problem.get(k) or "") for k in ("where", "what", "hint"))
        return f"{where}: {what}" + (f"; {todo}" if todo else "") if where else what or str(problem)
    return str(problem)
