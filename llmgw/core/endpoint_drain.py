"""Taking a static endpoint out of service: what serves in its place was there before, or it waits.

Nobody starts a replacement for an engine that llmgw does not run. So it leaves the pool at once where another
endpoint of its model serves, and otherwise at the end of the grace, where that was asked. Pure.
"""

from attrs import evolve, frozen

from llmgw.core.drain import AtDeadline, Drain, DrainEnd

CUT_WITHIN_S = 10.0  # after the grace: requests that were cut end


@frozen
class HeldOut:
    """What an operator asked of an endpoint. ``out``: it gets no new request. Times are wall clock."""

    id: str
    by: str
    at: float
    why: str
    drain: Drain
    out: bool = False


@frozen
class EndpointNow:
    """``others``: of its model, that could take a request now; ``known``: it is configured."""

    model: str
    in_flight: int
    oldest_s: float
    others: tuple[str, ...]
    known: bool = True


def step(held: HeldOut, now: EndpointNow, wall: float) -> HeldOut:
    """As it becomes; the same one where nothing changes."""
    drain = held.drain
    if not drain.under_way:
        return held
    over = wall >= drain.ends_at
    stops = over and drain.at_deadline is AtDeadline.STOP
    if not held.out and (now.others or not now.known or stops):
        return evolve(held, out=True)
    took = wall - held.at
    if held.out and not now.in_flight:
        said = f"{held.id} is drained after {took:.0f} s: no request is left there, {drain.cut} were cut"
        return evolve(held, drain=evolve(drain, ended=DrainEnd.DRAINED, ended_at=wall, said=said))
    if over and (not stops or wall >= drain.ends_at + CUT_WITHIN_S):
        stays = "it gets no new requests" if held.out else "it serves on"
        said = f"the drain of {held.id} ends blocked after {took:.0f} s, {stays}: {waits_on(held, now)}"
        return evolve(held, drain=evolve(drain, ended=DrainEnd.BLOCKED, ended_at=wall, said=said))
    return held


def cuts(held: HeldOut, wall: float) -> bool:
    """Whether what is still there ends now."""
    drain = held.drain
    return held.out and drain.under_way and drain.at_deadline is AtDeadline.STOP and wall >= drain.ends_at


def waits_on(held: HeldOut, now: EndpointNow) -> str:
    if not held.out:
        return f"{held.id} is blocked: no other endpoint of {now.model} serves"
    if not now.in_flight:
        return f"{held.id} has no request left"
    what = "request" if now.in_flight == 1 else "requests"
    return f"{held.id} finishes {now.in_flight} {what}, oldest {now.oldest_s:.0f} s"


def is_blocked(held: HeldOut, now: EndpointNow) -> bool:
    return held.drain.under_way and not held.out and not now.others
