"""The whole cluster on one screen: who leads, what there is, how full it is, who waits, and what is wrong."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from attrs import evolve
from rich.cells import cell_len

from console.model import Picture
from console.shown import Cell, Line, Place, Tone, bar, counted, line, plain, spanned, sparks
from console.traffic import Rates
from console.views.fitting import cut, fitted, folded, joined, padded
from console.views.nodes import STATES, is_broken, stands
from console.views.read import Json, amount, count, part, rows, text
from console.views.wrong import ERRORS_SHARE, overdue, serves, wrong

MODELS_MAX = 4
LABEL = 9  # cells of what stands at the left
NAME_MAX, NUMBERS = 24, 16  # of a model; of what is said of it beside bar and history
BAR_LEAST, BAR_MOST = 6, 40
BAD_STATES = ("unreachable", "lost", "blocked", "unknown")


def overview(picture: Picture, now: float, width: int) -> tuple[Line, ...]:
    """``now``: the console's clock. With up to four models and nothing wrong, at most 15 lines."""
    return tuple(fitted(one, width) for one in _lines(picture, now, width))


def _lines(picture: Picture, now: float, width: int) -> Iterator[Line]:
    if picture.hold:
        banner = Cell("THE LEADER DOUBTS ITSELF AND STOPS NOTHING: ", Tone.BAD)
        yield line(banner, plain(picture.hold, Tone.BAD), leads_to=Place("leader"))
    yield _leader(picture, now)
    yield _nodes(picture)
    yield _traffic(picture.rates, width)
    yield line("")
    yield from _models(picture, width)
    yield line("")
    yield from _bands(picture)
    yield line("")
    for told in wrong(picture, now):
        yield from folded(told, width)


def _labelled(label: str, *cells: Cell | str, at: str) -> Line:
    return line(plain(padded(label, LABEL), Tone.DIM), *cells, leads_to=Place(at))


def _leader(picture: Picture, now: float) -> Line:
    if not picture.known:
        return _labelled("leads", Cell("not known yet", Tone.DIM), at="leader")
    leader = part(picture.leader, "leader")
    leads = text(leader, "state") in ("leading", "suspended")
    since, known_for = amount(leader, "since_s"), now - (now if picture.taken_at is None else picture.taken_at)
    cells = [plain(text(leader, "who", "?"), Tone.STRONG) if leads else Cell("nobody", Tone.BAD)]
    cells.append(plain(f"term {text(leader, 'term', '-')}"))
    if leads and picture.link.down_since is not None:
        cells.append(Cell("when it answered last", Tone.WARN))
    elif leads and since is not None:
        cells.append(Cell(f"since {spanned(since + known_for)}"))
    cells.append(plain(f"llmgw {text(picture.status, 'version', '?')}", Tone.DIM))
    if picture.age_s is not None:
        cells.append(Cell(f"as a standby knew it {spanned(picture.age_s)} ago", Tone.WARN))
    return _labelled("leads", *joined(cells, "   "), at="leader")


def _nodes(picture: Picture) -> Line:
    tally = Counter(map(_stands, picture.nodes.values()))
    faults = Counter(_stands(node) for node in picture.nodes.values() if is_broken(node))
    order = sorted(tally, key=lambda state: (state not in BAD_STATES, -tally[state], state))
    cells = [_counted(state, tally[state], 0 if state in BAD_STATES else faults[state]) for state in order]
    gpus = [gpu for node in picture.nodes.values() for gpu in rows(node, "gpus")]
    unfit = sum(gpu.get("usable") is False and gpu.get("sliced") is not True for gpu in gpus)
    if gpus:
        told = counted(len(gpus), "GPU") + (f", {unfit} not usable" if unfit else "")
        cells.append(Cell(told, Tone.BAD if unfit else Tone.DIM))
    return _labelled("nodes", *joined(cells or [_none(picture)], "   "), at="nodes")


def _stands(node: Json) -> str:
    return stands(node) if text(node, "state") else "unknown"


def _counted(state: str, number: int, faults: int) -> Cell:
    """One that is ready, with a GPU that is not, is ready and has a fault."""
    told = f"{number} {state}"
    if not faults:
        return plain(told, STATES.get(state, Tone.PLAIN))
    return plain(f"{told}, {'' if number == faults == 1 else f'{faults} of them '}with a fault", Tone.BAD)


def _none(picture: Picture) -> Cell:
    return Cell("none" if picture.known else "not known yet", Tone.DIM)


def _traffic(rates: Rates, width: int) -> Line:
    share = rates.failed_share
    failed = Tone.DIM if share is None else Tone.BAD if share > ERRORS_SHARE else Tone.GOOD
    cells = (
        Cell(f"{_rate(rates.requests_s)} requests/s"),
        Cell("errors " + ("-" if share is None else f"{share:.1%}"), failed),
        Cell(f"{_rate(rates.tokens_s)} tokens/s"),
        Cell("first token p99 " + ("-" if rates.ttft_p99_s is None else f"≤ {spanned(rates.ttft_p99_s)}")),
    )
    room = width - LABEL - sum(cell_len(cell.text) for cell in cells)
    return _labelled("traffic", *joined(cells, "   " if room >= 9 else "  "), at="requests")


def _rate(value: float | None) -> str:
    """In few cells: the line is to be whole in a narrow terminal."""
    if value is None:
        return "-"
    return f"{value / 1000:,.0f}k" if value >= 10_000 else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


# -- models and their pools -------------------------------------------------------------------------------


def _models(picture: Picture, width: int) -> Iterator[Line]:
    """By name; where they are many, the worst of them."""
    names = sorted(picture.models)
    if not names:
        yield _labelled("models", _none(picture), at="models")
        return
    if len(names) > MODELS_MAX:
        names = sorted(names, key=lambda name: (*_goodness(picture, name), name))[:MODELS_MAX]
    longest = max(cell_len(plain(name).text) for name in names)
    room, name_width = width - LABEL - NUMBERS, min(NAME_MAX, longest)
    drawn = min(BAR_MOST, max(BAR_LEAST, (room - name_width) // 2))
    for number, name in enumerate(names):
        yield _model(picture, name, "" if number else "models", name_width, drawn)
    left = len(picture.models) - len(names)
    if left > 0:
        yield _labelled("", Cell(f"and {left:,} more"), at="models")


def _goodness(picture: Picture, name: str) -> tuple[float, float]:
    """Small: look here first."""
    serving, wanted = serves(picture.models[name])
    saturation = amount(picture.pools.get(name, {}), "saturation") or 0.0
    return (serving / wanted if 0 <= serving < wanted else 1.0), -saturation


def _model(picture: Picture, name: str, label: str, name_width: int, drawn: int) -> Line:
    serving, wanted = serves(picture.models[name])
    pool, history = picture.pools.get(name, {}), picture.histories.get(name, ())
    saturation = amount(pool, "saturation")
    cells = (
        Cell(padded(plain(name).text, name_width, middle=True)),
        Cell(f" {f'{serving}/{wanted}':>6} ", _serving_tone(serving, wanted)),
        Cell(bar(saturation or 0.0, drawn), _full_tone(saturation)),
        Cell(f" {'-' if saturation is None else f'{saturation:.0%}':>5} ", _full_tone(saturation)),
        Cell(sparks(history, drawn), Tone.DIM),
    )
    return evolve(_labelled(label, *cells, at="models"), leads_to=Place("queues" if serving else "replicas", name))


def _serving_tone(serving: int, wanted: int) -> Tone:
    if serving >= wanted:
        return Tone.GOOD if wanted else Tone.DIM
    return Tone.WARN if serving else Tone.BAD


def _full_tone(saturation: float | None) -> Tone:
    if saturation is None:
        return Tone.BAD
    return Tone.BAD if saturation >= 1 else Tone.WARN if saturation >= 0.8 else Tone.GOOD


# -- the queues -------------------------------------------------------------------------------------------


def _bands(picture: Picture) -> Iterator[Line]:
    """Over all pools."""
    late = {text(queue, "band") for queue in picture.queues if overdue(picture, queue) is not None}
    oldest = oldest_by_band(picture.queues)
    if not picture.seats:
        yield _labelled("waiting", Cell("not known yet", Tone.DIM), at="queues")
    for number, seats in enumerate(picture.seats):
        band, waiting = text(seats, "band", "?"), count(seats, "waiting")
        tone = Tone.WARN if band in late else Tone.STRONG if waiting else Tone.DIM
        age = f"   oldest {spanned(oldest[band])}" if band in oldest else ""
        cells = (Cell(padded(cut(plain(band).text, 10), 11)), Cell(f"{waiting:>6,}", tone), Cell(age, tone))
        yield _labelled("" if number else "waiting", *cells, at="queues")


def oldest_by_band(queues: Iterable[Json]) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for queue in queues:
        age, band = amount(queue, "oldest_s"), text(queue, "band")
        if age is not None:
            found[band] = max(age, found.get(band, 0.0))
    return found
