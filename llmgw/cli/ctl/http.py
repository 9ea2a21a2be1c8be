"""The admin API over HTTP, and what its failures mean to an operator."""

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from llmgw.cli.ctl.contexts import admin_url
from llmgw.cli.failure import BY_CODE, Exit, Failure

TIMEOUT = httpx.Timeout(30.0, connect=5.0)
BY_STATUS = {400: Exit.USAGE, 404: Exit.NOT_FOUND, 422: Exit.USAGE}
# What OpenSSL, by its version, says of an answer that is no TLS.
NO_TLS_THERE = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
HINTS = {
    401: "give a token: --token, LLMGW_ADMIN_TOKEN, a context, or run as the user who owns <data>/admin.token",
    403: "this token's role may not do that",
    421: "ask the control plane that leads",
}


class HttpApi:
    """One operator's session; HTTP proxies of the environment are not used."""

    def __init__(self, url: str, token: str, ca: str | None = None) -> None:
        self.url = admin_url(url)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            verify = ssl.create_default_context(cafile=ca) if ca else True
            self._client = httpx.Client(
                base_url=self.url + "/admin/v1", headers=headers, timeout=TIMEOUT, trust_env=False, verify=verify
            )
        except (httpx.InvalidURL, OSError, UnicodeEncodeError) as error:
            raise Failure(f"{self.url}: {error}", Exit.USAGE, "check --url, --token and --ca") from error

    def ask(self, method: str, path: str, params: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        try:
            answer = self._client.request(method, path, params=params, json=body)
        except (httpx.InvalidURL, httpx.LocalProtocolError) as error:  # a token with a line break in it
            raise Failure(f"{self.url}: {error}", Exit.USAGE, "check --url and --token") from error
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        return self._value(answer)

    @contextmanager
    def stream(self, path: str, params: Mapping[str, Any], headers: Mapping[str, str]) -> Iterator[Iterator[bytes]]:
        """The bytes of an answer as they come. Raises Failure, also where it breaks off later."""
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
            raise self._unreachable(error) from error

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

    def _unreachable(self, error: httpx.HTTPError) -> Failure:
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
        return Failure(f"{self.url} is not reachable: {why}", Exit.UNREACHABLE, hint)


def _an_admins(value: Any) -> bool:
    """Whether a refusal is one of ours: clients' listeners and engines name no hint in theirs."""
    error = value.get("error") if isinstance(value, dict) else None
    return isinstance(error, dict) and "hint" in error


def refused(status: int, value: Any) -> Failure:
    said = value.get("error") if isinstance(value, dict) else None
    error: dict[str, Any] = said if isinstance(said, dict) else {"message": str(said or f"refused with {status}")}
    code = str(error.get("code") or "")
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
