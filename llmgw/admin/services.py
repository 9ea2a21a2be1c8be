"""What the admin app is given by the daemon; each may be asked from any request."""

from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address
from typing import Any

from attrs import frozen

from llmgw.control.keys import Keys
from llmgw.control.tokens import Tokens
from llmgw.core.explain import Explanation
from llmgw.core.identity import Operator
from llmgw.core.secret import Secret
from llmgw.store.sqlite import SqliteStore

LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


@frozen
class Applied:
    """What ``apply`` did. ``problems``: nothing was changed, and these are why."""

    revision: int = 0
    changes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@frozen
class AdminServices:
    keys: Keys
    tokens: Tokens
    store: SqliteStore
    metrics_text: Callable[[], bytes]
    ready: Callable[[str | None], str | None]
    model_names: Callable[[], frozenset[str]]
    models: Callable[[], list[dict[str, Any]]]
    endpoints: Callable[[], list[dict[str, Any]]]
    requests: Callable[[Mapping[str, Any]], list[dict[str, Any]]]
    request: Callable[[str], dict[str, Any] | None]
    explain_request: Callable[[str], Explanation | None]
    status: Callable[[], dict[str, Any]]
    config: Callable[[], dict[str, Any]]
    apply: Callable[[str, Operator], Awaitable[Applied]]
    now: Callable[[], float]


@frozen
class AppSettings:
    """``host`` is what the listener is bound to."""

    host: str
    allowed_hosts: frozenset[str] = frozenset()
    allowed_origins: frozenset[str] = frozenset()
    metrics_token: Secret | None = None
    profile_seconds_max: float = 60.0

    @property
    def on_loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def hosts(self) -> frozenset[str]:
        return LOCAL | self.allowed_hosts | {self.host, f"[{self.host}]"}


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
