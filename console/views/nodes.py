"""Nodes and their GPUs: state, room, what keeps replicas off them, and what clears that."""

from collections.abc import Iterator, Mapping
from datetime import tzinfo
from shlex import join as quoted
from urllib.parse import quote

from console.model import Picture
from console.shown import Cell, Column, Line, Listing, Place, Row, Tone, clean, gib, line, number, plain, span
from console.views.read import Json, amount, count, flag, moment, part, rows, size, text, words
from console.views.view import Asked, Question

STATES = {
    "ready": Tone.GOOD,
    "cordoned": Tone.WARN,
    "draining": Tone.BUSY,
    "drained": Tone.DIM,
    "blocked": Tone.BAD,
    "unreachable": Tone.BAD,
    "unknown": Tone.WARN,
    "lost": Tone.BAD,
}
SCHEDULABLE = "schedulable"
BROKEN = ("unreachable", "lost", "blocked")
NODES = (
    Column("NODE", identifies=True), Column("STATE", most=12), Column("GPUS OK", right=True),
    Column("FREE GIB", right=True), Column("REPLICAS", right=True), Column("HEARD", right=True),
    Column("REASON", most=0),
)  # fmt: skip
GPUS = (
    Column("GPU", right=True), Column("MODEL", most=20), Column("STATE", most=10), Column("OURS GIB", right=True),
    Column("FOREIGN", right=True), Column("FREE", right=True), Column("UTIL", right=True), Column("°C", right=True),
    Column("REPLICAS", most=30), Column("REASON", most=0),
)  # fmt: skip
OK, SLICED, EXCLUDED, STALE, NOT_TOLD = "ok", "sliced", "excluded", "stale", "-"
GPU_STATES = {OK: Tone.GOOD, SLICED: Tone.GOOD, EXCLUDED: Tone.BAD, STALE: Tone.BAD, NOT_TOLD: Tone.DIM}
NOT_THERE = line("it is not there any more")


def nodes(picture: Picture, _subject: str = "") -> Listing:
    empty = "no node has joined: `llmgw ctl nodes invite` prints a token, `llmgw agent --join` uses it"
    return Listing(NODES, tuple(_node(name, one) for name, one in picture.nodes.items()), empty)


def _node(name: str, one: Json) -> Row:
    broken = is_broken(one)
    replicas = size(one, "replicas")
    cells = (
        plain(name),
        state(stands(one)),
        _usable(one),
        memory(_free(one)),
        number(replicas, ",d"),
        span(amount(one, "heard_age_s")),
        plain(reason(one), Tone.BAD if broken else Tone.DIM),
    )
    return Row(name, cells, broken, Place("node", name))


def is_broken(node: Json) -> bool:
    """Something there has to be mended. What an operator wants of it, and a GPU that is cut in slices, is no fault."""
    return text(node, "state") in BROKEN or not flag(node, "healthy", True)


def stands(node: Json) -> str:
    """Its state; of one that is ready, and that an operator wants nothing on, that is the state."""
    state, target = text(node, "state", "-"), text(part(node, "target"), "target", SCHEDULABLE)
    if state != "ready" or target == SCHEDULABLE:
        return state
    if target == "drained":
        return "draining" if size(node, "replicas") or size(node, "shards") else "drained"
    return target


def state(name: str) -> Cell:
    return plain(name, STATES.get(name, Tone.PLAIN))


def memory(mib: float | None, tone: Tone = Tone.PLAIN) -> Cell:
    """In GiB, and sorts as a number; None: not known, and last."""
    return number(None if mib is None else mib / 1024, ".1f", tone)


def _usable(node: Json) -> Cell:
    there = size(node, "gpus")
    if there is None:
        return number(None)
    found = [standing(gpu) for gpu in rows(node, "gpus")]
    bad = EXCLUDED in found or STALE in found
    return Cell(f"{found.count(OK)}/{there}", Tone.BAD if bad else Tone.PLAIN, found.count(OK))


def _free(node: Json) -> float | None:
    """On the GPUs that would be used; not known as long as one of them does not say."""
    told = [amount(gpu, "free_mib") for gpu in rows(node, "gpus") if standing(gpu) == OK]
    known = [mib for mib in told if mib is not None]
    return sum(known) if len(known) == len(told) and size(node, "gpus") is not None else None


def standing(gpu: Json) -> str:
    """Of GPU_STATES: whether something lands there, or why not."""
    if flag(gpu, "usable"):
        return OK
    if flag(gpu, "sliced"):
        return SLICED
    if any(text(one, "severity") == EXCLUDED for one in rows(gpu, "evidence")):
        return EXCLUDED
    return STALE if gpu.get("usable") is False else NOT_TOLD


def reason(node: Json) -> str:
    """What an operator wants of it, why it is not as it should be, or why nothing lands there; empty: it has room."""
    told = [target_of(node), text(node, "trouble"), text(node, "driver"), *_reasons_of_gpus(node)]
    found = [clean(one) for one in told if one]
    return "; ".join(found) or clean(text(node, "nothing_lands_because"))


def _reasons_of_gpus(node: Json) -> Iterator[str]:
    for gpu in rows(node, "gpus"):
        if why := reason_of_gpu(gpu):
            yield f"GPU {text(gpu, 'index', '?')}: {why}"


def reason_of_gpu(gpu: Json) -> str:
    """Why nothing lands there; empty: something may."""
    match standing(gpu):
        case "excluded":
            excluding = (one for one in rows(gpu, "evidence") if text(one, "severity") == EXCLUDED)
            return next((_cause(one) for one in excluding), "")
        case "sliced":
            return "cut in slices"
        case "stale":
            age = amount(gpu, "read_age_s")
            return "not read lately" if age is None else f"not read for {span(age).text}"
    return ""


def _cause(evidence: Json) -> str:
    return text(evidence, "cause") or text(evidence, "says", "nobody says why")


def target_of(node: Json) -> str:
    target = part(node, "target")
    wanted, why = text(target, "target", SCHEDULABLE), text(target, "why")
    if wanted == SCHEDULABLE:
        return ""
    if wanted == "drained" and stands(node) != wanted:
        wanted = "draining, asked"  # whoever reads "drained" takes the machine out
    return f"{wanted} by {text(target, 'by', 'somebody')}" + (f": {why}" if why else "")


def node_detail(picture: Picture, _subject: str, name: str, asked: Asked, _width: int) -> tuple[Line, ...]:
    node = picture.nodes.get(name)
    return tuple(_about(name, node, asked)) if node is not None else (NOT_THERE,)


def _about(name: str, node: Json, asked: Asked) -> Iterator[Line]:
    agent, obeys = part(node, "agent"), part(node, "obeys")
    yield line(plain(name, Tone.STRONG), "  ", state(stands(node)), f"  {text(node, 'address')}")
    obeyed = f"obeys {text(obeys, 'rev', '-')}/{text(obeys, 'sent', '-')}"
    yield line(f"agent {text(agent, 'version', '-')}, {_link(agent)}, {obeyed}")
    yield memories("memory", part(node, "memory"), "reserved", "free")
    yield memories("GPU memory", part(node, "gpu_memory"), "claimed", "ours", "foreign")
    if why := reason(node):
        yield line("why     ", plain(why, Tone.WARN))
    for gpu in rows(node, "gpus"):
        yield from evidence(gpu, name)
    for orphan in rows(node, "orphans"):
        told = f"{text(orphan, 'id', '?')}: {text(orphan, 'why', 'nobody says why')}"
        yield line("orphan  ", plain(told, Tone.WARN))
    labels = part(node, "labels")
    if labels:
        yield line("labels  ", ", ".join(f"{key}={text(labels, key)}" for key in labels))
    yield from changes(part(asked, "node"))


def _link(agent: Json) -> str:
    if flag(agent, "linked"):
        return f"linked for {span(amount(agent, 'link_age_s')).text}"
    last = text(agent, "last_end")
    if not last:
        return "not linked" if agent.get("linked") is False else "linked or not, nobody says"
    return f"not linked: {last}"


def memories(what: str, sums: Json, *names: str) -> Line:
    """In GiB: how much there is, and how much of it is what."""
    told = ", ".join(f"{name} {gib(amount(sums, f'{name}_mib'))}" for name in names)
    return line(f"{what}: {gib(amount(sums, 'total_mib'))} GiB, {told}")


def evidence(gpu: Json, node: str = "", zone: tzinfo | None = None) -> Iterator[Line]:
    """What speaks against a GPU, since when, and what clears it; with its ``node`` also how an operator does."""
    for one in rows(gpu, "evidence"):
        severity, since = text(one, "severity", "?"), moment(one, "first_at", zone=zone)
        times = f", {count(one, 'count'):,}x" if count(one, "count") else ""
        kind = f"({severity}{times}{f', since {since}' if since else ''})"
        said = f": {text(one, 'says')}" if text(one, "says") else ""
        told = f"GPU {text(gpu, 'index', '?')} {text(one, 'cause', '?')} {kind}{said}"
        yield line(plain(told, Tone.BAD if severity == EXCLUDED else Tone.WARN))
        yield line("  clears: ", plain(text(one, "clears", "nobody says"), Tone.DIM))
        if node and severity == EXCLUDED:
            named = quoted([node, text(gpu, "index") or text(gpu, "uuid"), text(one, "cause")])
            yield line("  by hand: ", plain(f"llmgw ctl gpus clear {named} --why WHY", Tone.DIM))


def changes(said: Json) -> Iterator[Line]:
    """What would change it, of an explanation."""
    for one in words(said, "would_change_it"):
        yield line("would change it: ", plain(one))


def ask_node(_subject: str, key: str) -> Mapping[str, Question]:
    return {"node": Question(f"/explain/node/{quote(key, safe='')}")}


# -- the GPUs of one node ---------------------------------------------------------------------------------


def gpus(picture: Picture, name: str) -> Listing:
    node = picture.nodes.get(name)
    if node is None:
        return Listing(GPUS, (), f"no node is called {clean(name)}; :nodes shows those that there are")
    found = tuple(_gpu(name, gpu) for gpu in rows(node, "gpus"))
    return Listing(GPUS, found, "its agent reports no GPU", note=reason(node))


def _gpu(node: str, gpu: Json) -> Row:
    shown, foreign = standing(gpu), amount(gpu, "foreign_mib")
    bad = shown in (EXCLUDED, STALE)
    instances = {text(claim, "instance") for claim in rows(gpu, "claims")} - {""}
    cells = (
        number(amount(gpu, "index"), ".0f"),
        plain(text(gpu, "model", "-")),
        Cell(shown, GPU_STATES[shown]),
        memory(amount(gpu, "ours_mib")),
        memory(foreign, Tone.WARN if foreign else Tone.DIM),
        memory(amount(gpu, "free_mib")),
        number(amount(gpu, "utilisation"), ".0%"),
        number(amount(gpu, "temperature_c"), ".0f"),
        plain(", ".join(sorted(map(replica_of, instances)))),
        plain(reason_of_gpu(gpu), Tone.BAD if bad else Tone.DIM),
    )
    key = f"{node}/{text(gpu, 'uuid')}"
    return Row(key, cells, bad or bool(rows(gpu, "evidence")), Place("gpu", key))


def replica_of(instance: str) -> str:
    """Of an instance's id, ``<replica>.g<generation>.r<rank>``."""
    return clean(instance.rsplit(".g", 1)[0])


def find_gpu(picture: Picture, key: str) -> Json | None:
    name, _, uuid = key.partition("/")
    return next((gpu for gpu in rows(picture.nodes.get(name, {}), "gpus") if text(gpu, "uuid") == uuid), None)


def gpu_detail(picture: Picture, _subject: str, key: str, asked: Asked, _width: int) -> tuple[Line, ...]:
    gpu = find_gpu(picture, key)
    return tuple(_about_gpu(key.partition("/")[0], gpu, asked)) if gpu is not None else (NOT_THERE,)


def _about_gpu(node: str, gpu: Json, asked: Asked) -> Iterator[Line]:
    named = f"GPU {text(gpu, 'index', '?')} {text(gpu, 'model')}"
    yield line(plain(named, Tone.STRONG), f"  {text(gpu, 'uuid')}")
    yield memories("memory", gpu, "claimed", "ours", "foreign")
    age = amount(gpu, "read_age_s")
    if age is not None:
        yield line(f"read {span(age).text} ago, {number(amount(gpu, 'power_w'), '.0f').text} W")
    if text(gpu, "slice_of"):
        yield line(f"a slice of {text(gpu, 'slice_of')}")
    yield from evidence(gpu, node)
    for one in rows(gpu, "processes"):
        whose = replica_of(text(one, "instance")) or "foreign"
        process = f"process {text(one, 'pid', '?')} {text(one, 'name', '?')}, {gib(amount(one, 'mib'))} GiB, "
        yield line(process, plain(whose, Tone.DIM))
    yield from changes(part(asked, "gpu"))


def ask_gpu(_subject: str, key: str) -> Mapping[str, Question]:
    name, _, uuid = key.partition("/")
    return {"gpu": Question(f"/explain/gpu/{quote(name, safe='')}/{quote(uuid, safe='')}")}
