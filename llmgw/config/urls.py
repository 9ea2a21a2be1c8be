"""What an endpoint's URL may be, and the plain form in which it is kept."""

import re
from urllib.parse import SplitResult, urlsplit

from llmgw.config.problems import Refused
from llmgw.config.units import shown

_LIKE = "write it like http://10.0.0.5:8000"
_SAFE = re.compile(r"[A-Za-z0-9:/._~%\[\]-]{1,2000}", re.ASCII)


def url_of(text: str) -> str:
    """A base URL without a trailing slash or ``/v1``; raises Refused, which never shows a password."""
    if not text.lower().startswith(("http://", "https://")):
        raise Refused("the url has no http:// or https://", _LIKE)
    if "@" in text:
        raise Refused("the url holds a user or a password", "take it out, and use api_key")
    if "?" in text or "#" in text:
        raise Refused(f"{shown(text)} has a query or a fragment", "take it out")
    if not _SAFE.fullmatch(text):
        raise Refused(f"{shown(text)} has characters that no url holds", _LIKE)
    parts = _split(text)
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    if ".." in path.split("/") or "//" in path:
        raise Refused(f"{shown(text)} has an odd path", _LIKE)
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}{path}"


def host_port(url: str) -> str:
    """``host:port`` of a URL that ``url_of`` returned, as an endpoint's name."""
    host, port = host_and_port(url)
    return f"{host}:{port}"


def host_and_port(url: str) -> tuple[str, int]:
    """Where a URL that ``url_of`` returned leads; no host for an empty one."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise Refused(f"{shown(text)}: {error}", _LIKE) from None
    if not parts.hostname or port == 0 or parts.netloc.endswith(":"):
        raise Refused(f"{shown(text)} has no host" if not parts.hostname else f"{shown(text)} has no port", _LIKE)
    return parts
