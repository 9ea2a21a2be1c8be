"""Which endpoint a request goes to: filter, score, pick; and why not the others.

Pure: the caller brings what is believed of every endpoint and one random number. The account is kept as
plain tuples, because this runs once a request; ``explain_choice`` makes sentences of it when somebody asks.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

from attrs import frozen

from llmgw.core.breaker import Breaker
from llmgw.core.explain import Considered
from llmgw.core.fleet import Endpoint
from llmgw.core.saturation import KV_LIMIT, QUEUE_LIMIT, Sample
from llmgw.core.settings import Unit, setting

SCORERS = ("queue", "kv", "in_flight", "prefix", "lora", "session")
# Affinity yields when an endpoint carries more than this share of the mean, and some: no hot spots.
CROWDED_SHARE = 1.25
CROWDED_MORE = 4
_EQUAL = 1e-9  # totals this close are equal: the order of additions decides nothing
_ALL_BITS = (1 << 64) - 1


@frozen
class Weights:
    """``[scheduling]``: how much each scorer counts; 0 leaves it out."""

    queue: float = setting(2.0, Unit.RATIO, "weight of a short queue in the engine", at_least=0)
    kv: float = setting(1.0, Unit.RATIO, "weight of free KV cache", at_least=0)
    in_flight: float = setting(2.0, Unit.RATIO, "weight of few requests of ours there", at_least=0)
    prefix: float = setting(3.0, Unit.RATIO, "weight of a prompt whose beginning is cached there", at_least=0)
    lora: float = setting(2.0, Unit.RATIO, "weight of an adapter that is loaded there", at_least=0)
    session: float = setting(1.0, Unit.RATIO, "weight of the endpoint a session goes to by itself", at_least=0)
    prefix_block: int = setting(512, Unit.BYTES, "bytes of prompt in one hashed block", at_least=64)
    prefix_blocks_max: int = setting(64, Unit.COUNT, "most blocks of one prompt that are hashed", at_least=1)
    prefix_entries_max: int = setting(
        50_000, Unit.COUNT, "blocks remembered per endpoint, oldest forgotten", at_least=100
    )


class Standing(Protocol):
    """An endpoint as it stands now; read only."""

    @property
    def endpoint(self) -> Endpoint: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def sample(self) -> Sample | None: ...
    @property
    def breaker(self) -> Breaker: ...
    def saturation(self, now: float) -> float: ...
    def unusable(self, now: float) -> str | None: ...


S = TypeVar("S", bound=Standing)
Scores = tuple[float, ...]  # as SCORERS
Account = tuple[tuple[str, str, Scores], ...]  # endpoint, why not ("" = it stood for choice), its scores


@frozen
class Ask:
    """What the choice depends on besides the endpoints."""

    adapter: str | None = None
    prefix: Mapping[str, float] | None = None  # share of the prompt believed cached, by endpoint id
    session: int | None = None
    tried: AbstractSet[str] = frozenset()


@frozen
class Chosen(Generic[S]):
    live: S
    account: Account


@frozen
class NoEndpoint:
    account: Account


def choose(ask: Ask, standing: Sequence[S], weights: Weights, now: float, draw: float) -> Chosen[S] | NoEndpoint:
    """One endpoint of the pool; ``draw`` in [0, 1) picks among equals, and stands for nothing else."""
    if len(standing) == 1 and not ask.tried:
        only = standing[0]
        why = unfit(only, ask, now)
        return NoEndpoint(((only.endpoint.id, why, ()),)) if why else Chosen(only, ((only.endpoint.id, "", ()),))
    fit: list[S] = []
    account: list[tuple[str, str, Scores]] = []
    for one in standing:
        why = unfit(one, ask, now)
        if why:
            account.append((one.endpoint.id, why, ()))
        else:
            fit.append(one)
    if not fit:
        return NoEndpoint(tuple(account))
    if len(fit) > 1:
        fit = _below_full(fit, account, now)
    return _best(ask, fit, weights, draw, account)


def unfit(one: Standing, ask: Ask, now: float) -> str:
    """Why an endpoint can't have this request; empty if it can."""
    if one.endpoint.id in ask.tried:
        return "tried already"
    most = one.endpoint.max_in_flight
    if most is not None and one.in_flight >= most:
        return f"at its max_in_flight: {most}"
    if ask.adapter is not None and ask.adapter not in one.endpoint.adapters:
        return f"does not serve adapter {ask.adapter}"
    why = one.unusable(now)
    if why is None and not one.breaker.may_try(now):
        return f"half open: one request is trying it after: {one.breaker.why}"
    return why or ""


def _below_full(fit: list[S], account: list[tuple[str, str, Scores]], now: float) -> list[S]:
    """A full endpoint is passed over only while another is below 1."""
    below, full = [], []
    for one in fit:
        s = one.saturation(now)
        if s < 1:
            below.append(one)
        else:
            full.append((one.endpoint.id, f"full: saturation {s:.2f}", ()))
    if not below:
        return fit
    account += full
    return below


def _best(
    ask: Ask, fit: Sequence[S], weights: Weights, draw: float, account: list[tuple[str, str, Scores]]
) -> Chosen[S]:
    loads = [one.in_flight for one in fit]
    busiest, crowded = max(loads), CROWDED_SHARE * sum(loads) / len(loads) + CROWDED_MORE
    home = _home(ask.session, fit) if ask.session is not None else None
    totals = []
    for one in fit:
        scores = _scores(one, ask, busiest, crowded, home)
        totals.append(
            weights.queue * scores[0] + weights.kv * scores[1] + weights.in_flight * scores[2]
            + weights.prefix * scores[3] + weights.lora * scores[4] + weights.session * scores[5]
        )  # fmt: skip
        account.append((one.endpoint.id, "", scores))
    enough = max(totals) - _EQUAL
    best = [one for one, total in zip(fit, totals, strict=True) if total >= enough]
    if len(best) == 1:
        return Chosen(best[0], tuple(account))
    # By name, so that the same endpoints in another order give the same answer to the same draw.
    best.sort(key=lambda one: one.endpoint.id)
    return Chosen(best[int(draw * len(best))], tuple(account))


def _scores(one: Standing, ask: Ask, busiest: int, crowded: float, home: str | None) -> Scores:
    sample, load = one.sample, one.in_flight
    queue = kv = 1.0
    if sample is not None:
        queue = 1.0 / (1.0 + sample.held_up / QUEUE_LIMIT)
        kv = 1.0 - min(1.0, (sample.kv or 0.0) / KV_LIMIT)
    near = load <= crowded
    identity = one.endpoint.id
    return (
        queue,
        kv,
        1.0 - load / busiest if busiest else 1.0,
        ask.prefix.get(identity, 0.0) if ask.prefix and near else 0.0,
        1.0 if ask.adapter and sample is not None and ask.adapter in sample.loaded_adapters else 0.0,
        1.0 if near and identity == home else 0.0,
    )


def _home(session: int, fit: Sequence[Standing]) -> str:
    """Rendezvous hashing: an endpoint that comes or goes moves only the sessions that were its own."""
    return max((one.endpoint.id for one in fit), key=lambda identity: (_mixed(session ^ _named(identity)), identity))


@lru_cache(maxsize=4096)
def _named(identity: str) -> int:
    """FNV-1a, 64 bits: the same in every process, as Python's own hash of a string is not."""
    number = 0xCBF29CE484222325
    for byte in identity.encode():
        number = ((number ^ byte) * 0x100000001B3) & _ALL_BITS
    return number


def _mixed(number: int) -> int:
    """The finalizer of splitmix64: numbers that differ in a bit land far apart."""
    number &= _ALL_BITS
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _ALL_BITS
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _ALL_BITS
    return number ^ (number >> 31)


def explain_choice(account: Account, chosen: str) -> tuple[Considered, ...]:
    """The account in words, one entry for every endpoint of the pool."""
    return tuple(
        Considered(
            name,
            name == chosen,
            (why,) if why else () if name == chosen else ("others scored higher or the draw fell elsewhere",),
            dict(zip(SCORERS, (round(score, 3) for score in scores), strict=False)),
        )
        for name, why, scores in account
    )
