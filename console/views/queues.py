"""Who waits for which pool, in which band and of which tenant; and how full a pool is against the bands' ceilings."""

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

from console.model import Picture
from console.shown import Cell, Column, Line, Listing, Place, Row, Tone, bar, line, number, plain, span, sparks
from console.views.explained import explained
from console.views.fitting import fitted, joined, padded
from console.views.read import Json, amount, count, flag, part, rows, text
from console.views.view import Asked, Question
from console.views.wrong import overdue

COLUMNS = (
    Column("POOL", most=28, middle=True),
    Column("BAND", most=10),
    Column("TENANT", most=24),
    Column("WAITING", right=True),
    Column("OLDEST", right=True),
    Column("MAY WAIT", right=True, spare=True),
    Column("SERVED", right=True, spare=True),
    Column("MEAN WAIT", right=True, spare=True),
    Column("REFUSED", right=True),
    Column("FULL", right=True),
)
EMPTY = "no pool: no model is configured, or queues have not been read yet"
PANE = 72  # cells of a pane where nobody says
NOW_WAITING_MAX = 5  # tenants of a band where every pool is shown
LABEL = 12
PARTS = ("load", "queue", "kv")


def listing(picture: Picture, subject: str = "") -> Listing:
    """``subject``: a model, with all its tenants; "": every pool, with tenants that wait now."""
    found: list[Row] = []
    for model in sorted({*picture.pools, *(text(queue, "model") for queue in picture.queues)} - {""}):
        if subject in ("", model):
            its = [queue for queue in picture.queues if text(queue, "model") == model]
            found.append(_pool(picture, model, its))
            for at, queue in enumerate(its):
                found += _band(picture, queue, at, every_tenant=bool(subject))
    return Listing(COLUMNS, tuple(found), EMPTY)


def _pool(picture: Picture, model: str, queues: list[Json]) -> Row:
    pool = picture.pools.get(model, {})
    saturation = amount(pool, "saturation")
    oldest = max((age for queue in queues if (age := amount(queue, "oldest_s")) is not None), default=None)
    full = saturation is None or saturation >= 1
    cells = (
        plain(model, Tone.STRONG, _order(model)),
        Cell(""),
        Cell(""),
        number(count(pool, "waiting") or sum(count(queue, "waiting") for queue in queues), ",d"),
        span(oldest),
        Cell(""),
        number(sum(count(queue, "served") for queue in queues), ",d"),
        span(_mean(queues)),
        number(sum(map(refused, queues)), ",d"),
        number(saturation, ".0%", Tone.BAD if full else Tone.PLAIN),
    )
    late = any(overdue(picture, queue) is not None for queue in queues)
    return Row(model, cells, full or late, Place("queues", model))


def _order(model: str, band: int = -1, tenant: str = "") -> str:
    """Sorted by pool, its bands come below it as they rank, and their tenants below them."""
    return f"{model}\0{band + 1}\0{tenant}"


def _mean(queues: list[Json]) -> float | None:
    served = sum(count(queue, "served") for queue in queues)
    waits = sum((amount(queue, "wait_mean_s") or 0.0) * count(queue, "served") for queue in queues)
    return waits / served if served else None


def _band(picture: Picture, queue: Json, at: int, every_tenant: bool) -> Iterator[Row]:
    """``at``: where it stands among the bands."""
    model, band = text(queue, "model"), text(queue, "band")
    rule = next((one for one in rows(picture.pools.get(model, {}), "bands") if text(one, "band") == band), {})
    late, place = overdue(picture, queue) is not None, Place("queues", model)
    names = (plain(model, Tone.DIM, _order(model, at)), plain(band), plain(""))
    cells = (*names, *_numbers(queue, late, amount(rule, "ttl_s")), _ceiling(rule))
    yield Row(f"{model}/{band}", cells, late, place)
    tenants = rows(queue, "tenants")
    if not every_tenant:
        tenants = [one for one in tenants if count(one, "waiting")][:NOW_WAITING_MAX]
    for one in tenants:
        tenant = text(one, "tenant", "?")
        names = (plain(model, Tone.DIM, _order(model, at, tenant)), plain(band, Tone.DIM), plain(tenant))
        yield Row(f"{model}/{band}/{tenant}", (*names, *_numbers(one, False, None), plain("")), False, place)


def _ceiling(rule: Json) -> Cell:
    """What a pool's saturation is below while the band is let in; and whether it is now."""
    ceiling = amount(rule, "ceiling")
    if ceiling is None:
        return Cell("-", Tone.DIM, -1.0)
    opened = flag(rule, "at_once", True)
    return Cell(f"< {ceiling:.0%}" if opened else f"not < {ceiling:.0%}", Tone.DIM if opened else Tone.WARN, ceiling)


def _numbers(row: Json, late: bool, ttl_s: float | None) -> tuple[Cell, ...]:
    waiting = count(row, "waiting")
    return (
        number(waiting, ",d", Tone.STRONG if waiting else Tone.DIM),
        span(amount(row, "oldest_s"), Tone.WARN if late else Tone.PLAIN),
        Cell("") if ttl_s is None else span(ttl_s, Tone.DIM),
        number(count(row, "served"), ",d"),
        span(amount(row, "wait_mean_s")),
        number(refused(row), ",d", Tone.WARN if refused(row) else Tone.DIM),
    )


def refused(row: Json) -> int:
    """Whatever the reason was; since the control plane started."""
    reasons = part(row, "refused")
    return sum(count(reasons, reason) for reason in reasons)


def asks(subject: str, key: str) -> Mapping[str, Question]:
    return {"queue": Question(f"/explain/queue/{quote(model_of(subject, key), safe='')}")}


def model_of(subject: str, key: str) -> str:
    """``key``: of a row of a pool, a band or a tenant; a model may have a slash in its name, a band has none."""
    if subject:
        return subject
    for number_of_parts in (2, 1):
        head, *rest = key.rsplit("/", number_of_parts)
        if rest and rest[0] in ("platinum", "gold", "silver", "bronze"):
            return head
    return key


def detail(picture: Picture, subject: str, key: str, asked: Asked, width: int = PANE) -> tuple[Line, ...]:
    told = queue_detail(picture, model_of(subject, key), width)
    return (*told, line(""), *explained(asked["queue"], width)) if "queue" in asked else told


# -- one pool -----------------------------------------------------------------------------------------------


def queue_detail(picture: Picture, model: str, width: int) -> tuple[Line, ...]:
    """Saturation with the ceilings drawn as marks, its parts at each endpoint, and the seats of the bands."""
    pool = picture.pools.get(model)
    if pool is None:
        return (fitted(line(f"no pool of {model} is known"), width),)
    return tuple(fitted(one, width) for one in _about(picture, model, pool, width))


def _about(picture: Picture, model: str, pool: Json, width: int) -> Iterator[Line]:
    bands, endpoints = rows(pool, "bands"), rows(pool, "endpoints")
    yield line(
        plain(model, Tone.STRONG),
        f"  {count(pool, 'usable')} of {len(endpoints)} endpoints usable, {count(pool, 'waiting'):,} wait,"
        f" admission is {text(pool, 'mode', '?')}",
    )
    if text(pool, "why"):
        yield line(plain(text(pool, "why"), Tone.BAD))
    yield from _saturation(amount(pool, "saturation"), bands, width)
    history = picture.histories.get(model, ())
    if history:
        drawn = max(1, width - LABEL)
        yield line(_label("before"), Cell(sparks(history, drawn, max(1.0, *history)), Tone.DIM))
    for endpoint in endpoints:
        yield from _endpoint(endpoint, width)
    yield from _seats(picture)


def _label(label: str) -> Cell:
    return Cell(padded(label, LABEL), Tone.DIM)


def _saturation(saturation: float | None, bands: Sequence[Json], width: int) -> Iterator[Line]:
    """The bar ends where the highest ceiling is."""
    ceilings = [(one, ceiling) for one in bands if (ceiling := amount(one, "ceiling")) is not None]
    marks, shown = [ceiling for _, ceiling in ceilings], saturation or 0.0
    tone = Tone.BAD if saturation is None or shown >= 1 else Tone.GOOD
    told = "-" if saturation is None else f"{shown:.2f}"
    drawn = bar(shown, max(1, width - LABEL - 6), marks, max([1.0, shown, *marks]))
    yield line(_label("saturation"), Cell(drawn, tone), Cell(f" {told:>5}", tone))
    if ceilings:
        yield line(_label("ceilings"), *joined(_named(one, ceiling) for one, ceiling in ceilings))


def _named(band: Json, ceiling: float) -> Cell:
    return plain(f"{text(band, 'band', '?')} {ceiling:g}", Tone.GOOD if flag(band, "at_once") else Tone.WARN)


def _endpoint(one: Json, width: int) -> Iterator[Line]:
    """Its parts, with the one that decides set off."""
    usable, saturation, id = flag(one, "usable", True), amount(one, "saturation"), text(one, "id", "?")
    place = Place("requests", id)
    drawn = max(1, min(20, width // 4))
    yield line(
        plain(id, Tone.PLAIN if usable else Tone.BAD),
        "  ",
        Cell(bar(saturation or 0.0, drawn), Tone.BAD if (saturation or 0) >= 1 else Tone.GOOD),
        f" {'-' if saturation is None else f'{saturation:.2f}'}",
        leads_to=place,
    )
    if not usable:
        yield line("  ", plain(text(one, "why", "not usable"), Tone.BAD), leads_to=place)
        return
    decides, parts = text(one, "decides"), part(one, "parts")
    cells = [_part(name, amount(parts, name), name == decides) for name in PARTS]
    if decides and decides not in PARTS:
        cells.append(plain(f"decides: {decides}", Tone.STRONG))
    yield line("  ", *joined(cells), leads_to=place)
    yield line("  ", plain(_room(one), Tone.DIM), leads_to=place)


def _part(name: str, value: float | None, decides: bool) -> Cell:
    return Cell(f"{name} {'-' if value is None else f'{value:.2f}'}", Tone.STRONG if decides else Tone.DIM)


def _room(one: Json) -> str:
    told = [f"{count(one, 'in_flight'):,} of ours"]
    told += [f"{granted:,} granted and on their way" for granted in (count(one, "granted"),) if granted]
    told += [f"{others:,} of others" for others in (count(one, "others"),) if others]
    told.append(f"runs {count(one, 'capacity'):,} ({text(one, 'capacity_how', 'nobody knows why')})")
    if amount(one, "running") is None:
        told.append(f"no sample: {text(one, 'sample_why', 'none yet')}")
    else:
        told.append(f"says {count(one, 'running'):,} running, {count(one, 'waiting'):,} waiting")
    return ", ".join(told)


def _seats(picture: Picture) -> Iterator[Line]:
    if picture.seats:
        yield line(Cell("seats of the bands, over all pools", Tone.DIM))
    for seats in picture.seats:
        held, most = count(seats, "waiting"), amount(seats, "seats_max")
        held_mib, most_mib = (amount(seats, "bytes") or 0.0) / 2**20, (amount(seats, "bytes_max") or 0.0) / 2**20
        told = f"{held:,} of {'-' if most is None else f'{most:,.0f}'} seats, {held_mib:.1f} of {most_mib:,.0f} MiB"
        share = max(held / most if most else 0.0, held_mib / most_mib if most_mib else 0.0)
        tone = Tone.BAD if share >= 1 else Tone.WARN if share >= 0.5 else Tone.DIM
        yield line(_label(plain(text(seats, "band", "?")).text), Cell(told, tone))
