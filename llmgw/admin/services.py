"""What the admin app is given by the daemon; each may be asked from any request."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from attrs import define, frozen

from llmgw.control.acting import Acting
from llmgw.control.cluster import Cluster
from llmgw.control.desired import Desired
from llmgw.control.endpoint_targets import EndpointTargets
from llmgw.control.events import Events
from llmgw.control.explaining import Explaining
from llmgw.control.explaining_drains import ExplainingDrains
from llmgw.control.joining import Joining
from llmgw.control.keys import Keys
from llmgw.control.targets import Targets
from llmgw.control.tokens import Tokens
from llmgw.core.explain import Explanation
from llmgw.core.identity import Declined, Operator
from llmgw.core.lease_facts import Addresses
from llmgw.core.secret import Secret
from llmgw.gateway.shadow_report import Row as ShadowRow
from llmgw.store.desired import Revision
from llmgw.store.face import Store

LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
Report = Callable[[str, str, BaseException | None], None]  # what went wrong, in which request ("": none), how


def to_logging(what: str, request_id: str, error: BaseException | None) -> None:
    logging.getLogger("llmgw.admin").error("%s %s", what, request_id, exc_info=error)


@frozen
class Applied:
    """What ``apply`` did. ``problems``: nothing was changed, and these are why.

    ``revision`` is the one in force; without ``changes`` it is the one before. ``replaces``: models whose
    engines are started anew; ``may_stop``: models whose replacements, if some wait for room, stop running replicas
    first from now on; ``stays``: what operators scaled, which no config changes; ``warnings``: what will undo it.
    """

    revision: int = 0
    changes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()
    may_stop: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        told = ("changes", "replaces", "may_stop", "stays", "warnings")
        return {"revision": self.revision, **{name: list(getattr(self, name)) for name in told}}


@define(eq=False)
class ClusterServices:
    """The control plane; ``agent_address`` is where agents connect, empty while they can't.

    What belongs to a term of leadership is another one in the next term: it is asked for here each time.
    """

    cluster: Cluster
    joining: Joining
    desired: Desired
    events: Events
    explaining: Explaining
    explaining_drains: ExplainingDrains
    acting: Acting
    targets: Targets
    endpoint_targets: EndpointTargets
    store: Store
    roll_back: Callable[[Revision, Operator, str], Awaitable[Applied]]
    revision_json: Callable[[Revision], dict[str, Any]]
    agent_address: Callable[[], str]


@frozen
class LeaderServices:
    """Leadership, as operators see it. ``standby_of``: who leads instead of us, as far as it is known; None: we do.

    ``refresh`` reads the store again where we stand by; how old what is shown is then, in seconds.
    """

    standby_of: Callable[[], Addresses | None]
    refresh: Callable[[], Awaitable[float]]
    told: Callable[[], dict[str, Any]]
    explain: Callable[[], Explanation]
    resign: Callable[[Operator, str], Awaitable[dict[str, Any] | Declined]]


@frozen
class AdminServices:
    """``metrics_text`` comes in pieces between which the loop may run."""

    keys: Keys
    tokens: Tokens
    store: Store
    metrics_text: Callable[[], Iterable[bytes]]
    ready: Callable[[str | None], str | None]
    model_names: Callable[[], frozenset[str]]
    models: Callable[..., list[dict[str, Any]]]  # as the cluster was ``seen``, or anew
    endpoints: Callable[[], list[dict[str, Any]]]
    pools: Callable[[str], Iterator[dict[str, Any]] | None]  # of a model, or of all (""); None: there is none
    queues: Callable[[str], Iterator[list[dict[str, Any]]] | None]  # the same, a pool at a time
    seats: Callable[[], list[dict[str, Any]]]  # what each band's queues hold of what they may
    shadow: Callable[
        [], tuple[str, Sequence[ShadowRow]]
    ]  # admission's mode, and what was reckoned and is not stored yet
    requests: Callable[[Mapping[str, Any]], list[dict[str, Any]]]
    request: Callable[[str], dict[str, Any] | None]
    traffic: Callable[[], tuple[float, Iterator[dict[str, Any]]]]  # since when it is counted, and each model's
    running: Callable[[str, str, int], list[dict[str, Any]]]  # by model and endpoint, at most so many
    cancel: Callable[[str, Operator, str], bool]  # whether there was such a request to end
    explain_request: Callable[[str], Explanation | None]
    explain_queue: Callable[[str], Explanation | None]
    status: Callable[[], dict[str, Any]]
    config: Callable[[], dict[str, Any]]
    apply: Callable[..., Awaitable[Applied]]  # a config's text, who brings it, its file's name, why, whether it is dry
    now: Callable[[], float]
    cluster: ClusterServices
    leadership: LeaderServices
    report: Report = to_logging


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
        return LOCAL | {name.lower() for name in self.allowed_hosts} | {self.host, f"[{self.host}]"}


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
