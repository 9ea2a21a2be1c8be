"""The bounds of the client listener and of the relay; each has this name in the config."""

from attrs import frozen

from llmgw.core.settings import Unit, setting


@frozen
class DoorLimits:
    """``[server]``: what one client connection may hold and how long it may take."""

    head_max: int = setting(32 * 1024, Unit.BYTES, "longest request head; longer is 431", at_least=1024)
    target_max: int = setting(8 * 1024, Unit.BYTES, "longest request target; longer is 414", at_least=256)
    headers_max: int = setting(100, Unit.COUNT, "most header fields in one request; more is 431", at_least=10)
    body_max: int = setting(64 * 1024**2, Unit.BYTES, "largest body, counted decoded; larger is 413", at_least=1024)
    bodies_total_max: int = setting(1024**3, Unit.BYTES, "bodies held at once, all together; beyond it 503")
    head_within: float = setting(10.0, Unit.SECONDS, "a request head must be whole within this; also the TLS handshake")
    body_within: float = setting(30.0, Unit.SECONDS, "time any body may take, before its size counts")
    body_rate_min: int = setting(1024, Unit.BYTES, "a body's least rate per second beyond body_within; slower is 408")
    idle_keepalive: float = setting(75.0, Unit.SECONDS, "an idle connection is closed after this")
    # Twice this is the kernel's TCP_USER_TIMEOUT, which holds 24 days.
    write_stall: float = setting(
        30.0, Unit.SECONDS, "a client that takes no byte for this long is cut off", at_most=86400
    )
    drain_max: int = setting(8 * 1024**2, Unit.BYTES, "after an early answer, unread bytes taken before closing")
    drain_within: float = setting(1.0, Unit.SECONDS, "and the time for it")
    connections_max: int = setting(10_000, Unit.COUNT, "open client connections; beyond it the oldest idle one goes")
    per_ip_max: int = setting(0, Unit.COUNT, "open connections of one address; 0: no limit", at_least=0)
    balancer_pause: float = setting(
        10.0, Unit.SECONDS,
        "/ready is 503 for this long before the door closes at SIGTERM, or before who leads no more refuses",
    )  # fmt: skip
    shutdown_grace: float = setting(60.0, Unit.SECONDS, "then running requests may take this long to end")


@frozen
class RelayLimits:
    """``[relay]``: the five deadlines and what surrounds them."""

    dial: float = setting(2.0, Unit.SECONDS, "connecting to an engine")
    headers: float = setting(30.0, Unit.SECONDS, "response headers of a stream, on engines that send them early")
    first_token: float = setting(120.0, Unit.SECONDS, "from dispatch to the first token of a stream")
    idle: float = setting(60.0, Unit.SECONDS, "between two tokens, or two pieces of a plain body")
    total: float = setting(1800.0, Unit.SECONDS, "a whole request, waiting and retries included")
    keepalive_after: float = setting(15.0, Unit.SECONDS, "a silent stream gets a `: keep-alive` comment; 0: never")
    preamble_hold: float = setting(0.25, Unit.SECONDS, "how long a role-only first delta may be held back")
    attempts_max: int = setting(3, Unit.COUNT, "endpoints tried for one request, in one pool", at_least=1)
    retry_budget: float = setting(0.2, Unit.RATIO, "retries, as a share of recent requests", at_least=0, at_most=1)
    retry_budget_min: int = setting(100, Unit.COUNT, "retries always allowed in ten seconds, however few requests")
    event_max: int = setting(8 * 1024**2, Unit.BYTES, "largest server-sent event from an engine", at_least=1024)
    answer_max: int = setting(256 * 1024**2, Unit.BYTES, "largest plain answer from an engine", at_least=1024)


@frozen
class RecordLimits:
    """``[records]``: what is remembered of requests."""

    requests_max: int = setting(100_000, Unit.COUNT, "request records kept in memory", at_least=100)
    accounts_max: int = setting(50, Unit.COUNT, "full accounts stored per pool, band, tenant and five minutes")
    keep: float = setting(7 * 86400.0, Unit.SECONDS, "how long the five-minute aggregates are stored")
