"""What is wrong now, in order of importance: each line says what, why, and where to look."""

from collections.abc import Callable, Iterator
from itertools import islice

from attrs import frozen

from console.model import Picture
from console.shown import Cell, Line, Place, Tone, counted, line, spanned
from console.views.nodes import stands
from console.views.read import Json, amount, count, flag, moment, part, rows, text, words

SHOWN_MAX = 5  # of one kind
ERRORS_SHARE = 0.01
REPLICAS = "replicas"
NOTHING_WRONG = line(Cell("✓ ", Tone.GOOD), Cell("nothing is wrong", Tone.GOOD))
NOT_KNOWN = line(Cell("… ", Tone.BUSY), Cell("nothing is known yet", Tone.BUSY))


@frozen
class Look:
    """One kind of trouble. ``more``: what those beyond SHOWN_MAX are called, one and several; ``at``: where."""

    finds: Callable[[Picture, float], Iterator[Line]]
    more: tuple[str, str] = ("", "")
    at: Place | None = None


def wrong(picture: Picture, now: float) -> tuple[Line, ...]:
    """``now``: the console's clock. Never empty. Last what is no fault, and may have been forgotten."""
    if not picture.known:
        return tuple(_no_link(picture, now)) or (NOT_KNOWN,)
    found = tuple(told for look in LOOKS for told in _summed(look, look.finds(picture, now))) or (NOTHING_WRONG,)
    return (*found, *_summed(SET_ASIDE, SET_ASIDE.finds(picture, now)))


def _summed(look: Look, found: Iterator[Line]) -> Iterator[Line]:
    yield from islice(found, SHOWN_MAX)
    rest = list(found)
    if rest:
        what = f"{len(rest):,} more {look.more[0] if len(rest) == 1 else look.more[1]}"
        yield line(Cell("  and ", Tone.DIM), Cell(what, rest[0].cells[0].tone), leads_to=look.at)


def _bad(what: str, why: str, at: Place) -> Line:
    return _told("✗ ", Tone.BAD, what, why, at)


def _warn(what: str, why: str, at: Place) -> Line:
    return _told("! ", Tone.WARN, what, why, at)


def _told(mark: str, tone: Tone, what: str, why: str, at: Place) -> Line:
    return line(Cell(mark, tone), f"{what}:" if why else what, *((" ", why) if why else ()), leads_to=at)


# -- the control plane ------------------------------------------------------------------------------------

LEADER = Place("leader")


def _nobody_leads(picture: Picture, _now: float) -> Iterator[Line]:
    leader = part(picture.leader, "leader")
    state, who = text(leader, "state"), text(leader, "who", "somebody")
    if state == "suspended":
        yield _bad(f"{who} leads, but does nothing until it has renewed its lease", "", LEADER)
    elif state != "leading":
        yield _bad("nobody leads", f"the lease of {who} is {_lease(state)}" if leader else "", LEADER)


def _lease(state: str) -> str:
    return {"released": "given back", "run out": "run out"}.get(state, "in a state that is not known")


def _no_link(picture: Picture, now: float) -> Iterator[Line]:
    link = picture.link
    if link.down_since is not None:
        since = spanned(now - link.down_since)
        stale = "; what is shown is from before" if picture.known else ""
        yield _bad(f"{link.url or 'the control plane'} has not answered for {since}{stale}", link.why, LEADER)


def _doubts(picture: Picture, _now: float) -> Iterator[Line]:
    if picture.hold:
        yield _bad("the leader doubts itself and stops nothing", picture.hold, LEADER)


def _store_away(picture: Picture, _now: float) -> Iterator[Line]:
    away = max(amount(picture.status, "store_away_s") or 0.0, amount(picture.leader, "store_away_s") or 0.0)
    if away > 0:
        yield _bad(f"the store has not answered for {spanned(away)}", "the gateway goes on with what it knows", LEADER)


def _not_ready(picture: Picture, _now: float) -> Iterator[Line]:
    if flag(picture.status, "leads", True) and not flag(picture.status, "ready", True):  # a standby need not be
        yield _bad("balancers send nothing here", text(picture.status, "not_ready_because"), LEADER)


def _dropped(picture: Picture, _now: float) -> Iterator[Line]:
    rows_dropped, lines_dropped = (
        count(picture.status, "usage_rows_dropped"),
        count(picture.status, "log_lines_dropped"),
    )
    if rows_dropped:
        yield _warn(f"{counted(rows_dropped, 'usage row')} dropped", "the store took them too slowly", LEADER)
    if lines_dropped:
        yield _warn(f"{counted(lines_dropped, 'log line')} dropped", "they were not read fast enough", LEADER)


def _silent_standbys(picture: Picture, _now: float) -> Iterator[Line]:
    for one in rows(picture.leader, "standbys"):
        if flag(one, "silent"):
            heard = amount(one, "heard_s")
            since = "" if heard is None else f" for {spanned(heard)}"
            told = f"control plane {text(one, 'name', '?')} has not been heard{since}"
            yield _warn(told, "it takes over nothing", LEADER)


# -- models and their replicas ----------------------------------------------------------------------------


def serves(model: Json) -> tuple[int, int]:
    """How many replicas serve, or endpoints where nobody runs replicas of it; and how many should."""
    run = part(model, "replicas")
    if run:
        return count(run, "serving"), count(run, "desired")
    return count(model, "usable"), count(model, "endpoints")


def _is_down(model: Json) -> bool:
    serving, wanted = serves(model)
    return wanted > 0 and serving == 0


def _without_replica(picture: Picture, _now: float) -> Iterator[Line]:
    for name, model in picture.models.items():
        if _is_down(model):
            told = f"no replica of {name} serves" if part(model, "replicas") else f"no endpoint of {name} is usable"
            yield _bad(told, why_short(model), place_of_model(name, model))


def _short_of(picture: Picture, _now: float) -> Iterator[Line]:
    for name, model in picture.models.items():
        serving, wanted = serves(model)
        if 0 < serving < wanted:
            what = "replicas serve" if part(model, "replicas") else "endpoints are usable"
            yield _warn(f"{serving} of {wanted} {what} for {name}", why_short(model), place_of_model(name, model))


def why_short(model: Json) -> str:
    """What keeps a model's replicas from serving, or what they do instead."""
    run = part(model, "replicas")
    blocked = list(dict.fromkeys(words(run, "blocked")))
    if blocked:
        return "; ".join(blocked[:2])
    states = part(run, "states")
    return ", ".join(f"{count(states, state)} {state}" for state in states if state != "ready")


def place_of_model(name: str, model: Json) -> Place:
    """Where it is told why it has too few."""
    run = part(model, "replicas")
    if not run:
        return Place("queues", name)
    return Place("placement", name) if words(run, "blocked") else Place(REPLICAS, name)


def _crash_loops(picture: Picture, _now: float) -> Iterator[Line]:
    for name, replica in picture.replicas.items():
        if text(replica, "state") == "crash loop":
            why, times = text(replica, "last_end") or text(replica, "why"), count(replica, "crashes")
            told = f"replica {name} is in a crash loop" + (f", crashed {counted(times, 'time')}" if times else "")
            yield _bad(told, why, Place("replica", name))


def _failed(picture: Picture, _now: float) -> Iterator[Line]:
    for name, replica in picture.replicas.items():
        if text(replica, "state") == "failed":
            yield _bad(f"replica {name} has failed", text(replica, "why"), Place("replica", name))


# -- nodes and GPUs ---------------------------------------------------------------------------------------


def _nodes(picture: Picture, _now: float) -> Iterator[Line]:
    for name, node in picture.nodes.items():
        state, place = text(node, "state"), Place("node", name)
        if state in ("unreachable", "lost"):
            yield _bad(f"node {name} is {state}", text(node, "trouble").removeprefix(f"{state}: "), place)
        elif text(node, "driver"):
            yield _bad(f"the GPU driver of node {name} is in trouble", text(node, "driver"), place)
        elif text(node, "trouble"):
            yield _warn(f"node {name}", text(node, "trouble"), place)


def _gpus(picture: Picture, _now: float) -> Iterator[Line]:
    for name, node in picture.nodes.items():
        for gpu in rows(node, "gpus"):
            causes = [one for one in rows(gpu, "evidence") if text(one, "severity") == "excluded"]
            if causes:
                what = f"GPU {text(gpu, 'index', '?')} of {name} is excluded"
                place = Place("gpu", f"{name}/{text(gpu, 'uuid')}")
                yield _bad(what, "; ".join(text(one, "says") or text(one, "cause") for one in causes), place)


def _set_aside(picture: Picture, _now: float) -> Iterator[Line]:
    """By an operator: no fault, and easily forgotten."""
    for name, node in picture.nodes.items():
        if stands(node) in ("cordoned", "draining", "drained"):
            target = part(node, "target")
            by, since = text(target, "by"), moment(target, "at")
            told = f"{name} is {stands(node)}{f' by {by}' if by else ''}{f' since {since}' if since else ''}"
            yield _told("· ", Tone.WARN, told, text(target, "why"), Place("node", name))


SET_ASIDE = Look(_set_aside, ("node that is set aside", "nodes that are set aside"), Place("nodes"))


# -- traffic ----------------------------------------------------------------------------------------------


def _full(picture: Picture, _now: float) -> Iterator[Line]:
    for name, pool in picture.pools.items():
        if _is_down(picture.models.get(name, {})) or not rows(pool, "bands"):
            continue  # it is told above, or has left the configuration
        saturation, place = amount(pool, "saturation"), Place("queues", name)
        if saturation is None:
            yield _bad(f"the pool of {name} refuses everybody", text(pool, "why", "no endpoint is usable"), place)
        elif saturation >= 1:
            waiting = count(pool, "waiting")
            yield _warn(
                f"the pool of {name} is full, {saturation:.2f} of 1", f"{waiting:,} wait" * bool(waiting), place
            )


def _no_seats(picture: Picture, _now: float) -> Iterator[Line]:
    for band in picture.seats:
        for held, most, what in (("waiting", "seats_max", "seat"), ("bytes", "bytes_max", "byte")):
            if (full := amount(band, most)) is not None and (amount(band, held) or 0) >= full:
                told = f"the queues of {text(band, 'band', '?')} take nobody"
                yield _bad(told, f"all {int(full):,} {what}s are taken", Place("queues"))


def overdue(picture: Picture, queue: Json) -> tuple[float, float] | None:
    """Age of the oldest who waits there and how long it may, once half of that is over."""
    oldest, pool = amount(queue, "oldest_s"), picture.pools.get(text(queue, "model"), {})
    its = (amount(band, "ttl_s") for band in rows(pool, "bands") if text(band, "band") == text(queue, "band"))
    ttl = next(its, None)
    return (oldest, ttl) if oldest is not None and ttl is not None and oldest > ttl / 2 else None


def _old_waiters(picture: Picture, _now: float) -> Iterator[Line]:
    for queue in picture.queues:
        if (late := overdue(picture, queue)) is not None:
            model, waiting = text(queue, "model", "?"), count(queue, "waiting")
            what = f"somebody has waited for {model} in {text(queue, 'band', '?')} for {spanned(late[0])}"
            yield _warn(what, f"{waiting:,} wait, each for {spanned(late[1])} at most", Place("queues", model))


def _blocked_drains(picture: Picture, _now: float) -> Iterator[Line]:
    for subject, row in picture.drains.items():
        drain = part(row, "drain")
        if text(drain, "state") == "blocked":
            why = text(drain, "said") or "; ".join(words(drain, "waits_on"))
            yield _bad(f"the drain of {subject} is blocked", why, Place("drain", subject))


def _errors(picture: Picture, _now: float) -> Iterator[Line]:
    share = picture.rates.failed_share
    if share is not None and share > ERRORS_SHARE:
        worst = ((rates.failed_share or 0.0, name) for name, rates in picture.rates.models.items())
        most, name = max(worst, default=(0.0, ""))
        why = f"{most:.1%} of those for {name}" if most > ERRORS_SHARE else ""
        yield _warn(f"{share:.1%} of requests fail", why, Place("recent"))


LOOKS = (
    Look(_nobody_leads),
    Look(_no_link),
    Look(_doubts),
    Look(_store_away),
    Look(_not_ready),
    Look(_without_replica, ("model that nothing serves", "models that nothing serves"), Place("models")),
    Look(_nodes, ("node in trouble", "nodes in trouble"), Place("nodes")),
    Look(_gpus, ("excluded GPU", "excluded GPUs"), Place("nodes")),
    Look(_crash_loops, ("replica in a crash loop", "replicas in a crash loop"), Place(REPLICAS)),
    Look(_failed, ("failed replica", "failed replicas"), Place(REPLICAS)),
    Look(_short_of, ("model with too few replicas", "models with too few replicas"), Place("models")),
    Look(_full, ("pool without room", "pools without room"), Place("queues")),
    Look(_no_seats, ("band without seats", "bands without seats"), Place("queues")),
    Look(_old_waiters, ("queue with somebody long in it", "queues with somebody long in them"), Place("queues")),
    Look(_blocked_drains, ("blocked drain", "blocked drains"), Place("drains")),
    Look(_silent_standbys),
    Look(_dropped),
    Look(_errors),
)
