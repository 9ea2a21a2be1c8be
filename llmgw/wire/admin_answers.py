"""What answers of the management API mean to whoever asked: refusals, who leads, and that something else answers."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from attrs import frozen

NOT_LEADING = "not_leading"  # the code of a refusal whose ``leader`` is where to ask instead
RESIGN = "/leader/resign"  # meant for whoever leads now: whoever comes next is not to lose the lead at once
LEADER, AGE = "x-llmgw-leader", "x-llmgw-age"  # of a standby's answer: who knows better, and how old the answer is
# What OpenSSL, by its version, says of an answer that is no TLS.
NO_TLS_THERE = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


@frozen
class Refusal:
    """``leader``: the admin URL of who leads, where that is why; empty: nobody does, as far as is known there."""

    status: int
    message: str
    code: str = ""
    hint: str = ""
    leader: str | None = None
    problems: tuple[str, ...] = ()


def refusal_in(status: int, value: Any) -> Refusal | None:
    """None: no admin listener says so. Clients' listeners and engines name no hint in their refusals."""
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict) or "hint" not in error:
        return None
    code = str(error.get("code") or "")
    return Refusal(
        status,
        str(error.get("message") or f"refused with {status}"),
        code,
        str(error.get("hint") or ""),
        str(error["leader"] or "") if code == NOT_LEADING and "leader" in error else None,
        tuple(_problem(one) for one in error.get("problems") or value.get("problems") or ()),
    )


def _problem(problem: Any) -> str:
    if isinstance(problem, dict):
        where, what, todo = (str(problem.get(k) or "") for k in ("where", "what", "hint"))
        return f"{where}: {what}" + (f"; {todo}" if todo else "") if where else what or str(problem)
    return str(problem)


def base_url(text: str) -> str | None:
    """An admin listener's URL without what we add to it; None: it is none."""
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    return text.rstrip("/").removesuffix("/admin/v1") if good else None


def not_an_admins(url: str, status: int) -> tuple[str, str]:
    """What to say, and a hint."""
    says = f"{url} is not an llmgw admin listener: it answers {status} in another form"
    hint = "check the URL: operators connect to admin.listen (port 7442 unless set), clients and engines do not"
    return says, hint


def away(url: str, why: str, odd: bool) -> tuple[str, str]:
    """What to say of an address that does not answer, and a hint. ``odd``: what came was no HTTP."""
    hint = "is `llmgw server` running there? `llmgw ctl context list` shows where ctl asks"
    if any(sign in why for sign in NO_TLS_THERE):
        why, hint = "it speaks http, not https", f"use http{url.removeprefix('https')}"
    elif odd and url.startswith("http:"):
        hint = f"if it speaks https, use https{url.removeprefix('http')}"
    elif "CERTIFICATE" in why or "SSL" in why:
        hint = "give the authority's certificate with --ca, or check the URL"
    return f"{url} is not reachable: {why}", hint


def in_the_clear(url: str, known: Iterable[str]) -> bool:
    """Whether a token that was meant for TLS alone would be sent without it to who calls itself ``url``."""
    return url.startswith("http:") and all(one.startswith("https:") for one in known)


def clear_refusal(url: str) -> tuple[str, str]:
    hint = "set admin.advertise there to its https address, or give its URL with --url"
    return f"the leader calls itself {url}, and the token is not sent in the clear", hint
