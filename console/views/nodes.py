"""Nodes and their GPUs: state, room, what keeps replicas off them, and what clears that."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from console.model import Picture
from console.shown import Cell, Column, Line, Listing, Place, Row, Tone, clean, gib, line, number, plain, span
from console.views.view import Asked, Question

Json = Mapping[str, Any]

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
NODES = (
    Column("NODE"), Column("STATE", most=12), Column("GPUS", right=True), Column("FREE GIB", right=True),
    Column("REPLICAS", right=True), Column("HEARD", right=True), Column("REASON", most=0),
)  # fmt: skip
GPUS = (
    Column("GPU", right=True), Column("MODEL", most=20), Column("STATE", most=10), Column("OURS GIB", right=True),
    Column("FOREIGN", right=True), Column("FREE", right=True), Column("UTIL", right=True), Column("°C", right=True),
    Column("REPLICAS", most=30), Column("REASON", most=0),
)  # fmt: skip


def nodes(picture: Picture, _subject: str = "") -> Listing:
    empty = "no node has joined: `llmgw ctl nodes invite` prints a token, `llmgw agent --join` uses it"
    return Listing(NODES, tuple(_node(one) for one in picture.nodes.values()), empty)


def _node(one: Json) -> Row:
    gpus = one["gpus"]
    usable, free = [gpu for gpu in gpus if gpu["usable"]], sum(gpu["free_mib"] for gpu in gpus if gpu["usable"])
    broken = not one["healthy"] or one["state"] in ("unreachable", "lost", "blocked")
    why = reason(one)
    cells = (
        plain(one["name"]),
        state(one["state"]),
        Cell(f"{len(usable)}/{len(gpus)}", Tone.BAD if len(usable) < len(gpus) else Tone.PLAIN, len(usable)),
        Cell(gib(free), order=free),
        number(len(one["replicas"]), "d"),
        span(one["heard_age_s"]),
        plain(why, Tone.BAD if broken else Tone.DIM),
    )
    return Row(str(one["name"]), cells, broken, Place("node", str(one["name"])))


def state(name: str) -> Cell:
    return plain(name, STATES.get(name, Tone.PLAIN))


def reason(node: Json) -> str:
    """Why it is not as it should be, or why nothing lands there; empty: it is well and has room."""
    target, told = node["target"], [node["trouble"], node["driver"]]
    told += [f"GPU {gpu['index']}: {_first_cause(gpu)}" for gpu in node["gpus"] if not gpu["usable"]]
    if target["target"] != "schedulable":
        told.append(f"{target['target']} by {target['by']}" + (f": {target['why']}" if target["why"] else ""))
    found = [clean(one) for one in told if one]
    return "; ".join(found) or clean(node["nothing_lands_because"])


def _first_cause(gpu: Json) -> str:
    if gpu["evidence"]:
        return str(gpu["evidence"][0]["cause"])
    return "cut in slices" if gpu["sliced"] else "not read lately"


def node_detail(picture: Picture, _subject: str, name: str, asked: Asked, _width: int) -> tuple[Line, ...]:
    node = picture.nodes.get(name)
    return tuple(_about(node, asked)) if node is not None else (line("it is not there any more"),)


def _about(node: Json, asked: Asked) -> Iterator[Line]:
    agent, memory = node["agent"], node["memory"]
    yield line(plain(node["name"], Tone.STRONG), "  ", state(node["state"]), f"  {clean(node['address'])}")
    yield line(f"agent {clean(agent['version'])}, {_link(node)}, obeys {node['obeys']['rev']}/{node['obeys']['sent']}")
    yield three("memory", memory["total_mib"], memory["reserved_mib"], memory["free_mib"], "reserved")
    sums = node["gpu_memory"]
    yield three("GPU memory", sums["total_mib"], sums["claimed_mib"], sums["foreign_mib"], "claimed", "foreign")
    if why := reason(node):
        yield line("why     ", plain(why, Tone.WARN))
    for gpu in node["gpus"]:
        yield from evidence(gpu)
    for orphan in node["orphans"]:
        yield line("orphan  ", plain(f"{orphan['id']}: {orphan['why']}", Tone.WARN))
    if labels := ", ".join(f"{key}={value}" for key, value in node["labels"].items()):
        yield line(f"labels  {clean(labels)}")
    if "node" in asked:
        yield from changes(asked["node"])


def _link(node: Json) -> str:
    agent = node["agent"]
    if agent["linked"]:
        return f"linked for {span(agent['link_age_s']).text}"
    return f"not linked: {clean(agent['last_end'])}" if agent["last_end"] else "not linked"


def three(what: str, total: float, second: float, third: float, called: str, then: str = "free") -> Line:
    """Memory as three numbers, in GiB."""
    return line(f"{what}: {gib(total)} GiB, {called} {gib(second)}, {then} {gib(third)}")


def evidence(gpu: Json) -> Iterator[Line]:
    """What speaks against a GPU, since when, and what clears it."""
    for one in gpu["evidence"]:
        tone = Tone.BAD if not gpu["usable"] else Tone.WARN
        told = f"GPU {gpu['index']} {one['cause']} ({one['severity']}, {one['count']}x): {one['says']}"
        yield line(plain(told, tone))
        yield line("  clears: ", plain(one["clears"], Tone.DIM))


def changes(said: Json) -> Iterator[Line]:
    """What would change it, of an explanation."""
    for one in said.get("would_change_it", ()):
        yield line("would change it: ", plain(one))


def ask_node(_subject: str, key: str) -> Mapping[str, Question]:
    return {"node": Question(f"/explain/node/{quote(key, safe='')}")}


# -- the GPUs of one node ---------------------------------------------------------------------------------


def gpus(picture: Picture, name: str) -> Listing:
    node = picture.nodes.get(name)
    if node is None:
        return Listing(GPUS, (), f"no node is called {clean(name)}; :nodes shows those that there are")
    found = tuple(_gpu(name, gpu) for gpu in node["gpus"])
    return Listing(GPUS, found, "its agent reports no GPU", note=reason(node))


def _gpu(node: str, gpu: Json) -> Row:
    bad = not gpu["usable"] and not gpu["sliced"]
    shown = "ok" if gpu["usable"] else "sliced" if gpu["sliced"] else "excluded" if gpu["evidence"] else "stale"
    cells = (
        number(gpu["index"], "d"),
        plain(gpu["model"]),
        Cell(shown, Tone.BAD if bad else Tone.GOOD),
        Cell(gib(gpu["ours_mib"]), order=gpu["ours_mib"]),
        Cell(gib(gpu["foreign_mib"]), Tone.WARN if gpu["foreign_mib"] else Tone.DIM, gpu["foreign_mib"]),
        Cell(gib(gpu["free_mib"]), order=gpu["free_mib"]),
        number(gpu["utilisation"], ".0%"),
        number(gpu["temperature_c"], ".0f"),
        plain(", ".join(sorted({replica_of(claim["instance"]) for claim in gpu["claims"]}))),
        plain("" if gpu["usable"] else _first_cause(gpu), Tone.BAD if bad else Tone.DIM),
    )
    key = f"{node}/{gpu['uuid']}"
    return Row(key, cells, bad or bool(gpu["evidence"]), Place("gpu", key))


def replica_of(instance: str) -> str:
    """Of an instance's id, ``<replica>.g<generation>.r<rank>``."""
    return clean(instance.rsplit(".g", 1)[0])


def find_gpu(picture: Picture, key: str) -> Json | None:
    name, _, uuid = key.partition("/")
    node = picture.nodes.get(name)
    return next((gpu for gpu in node["gpus"] if gpu["uuid"] == uuid), None) if node is not None else None


def gpu_detail(picture: Picture, _subject: str, key: str, asked: Asked, _width: int) -> tuple[Line, ...]:
    gpu = find_gpu(picture, key)
    return tuple(_about_gpu(gpu, asked)) if gpu is not None else (line("it is not there any more"),)


def _about_gpu(gpu: Json, asked: Asked) -> Iterator[Line]:
    yield line(plain(f"GPU {gpu['index']} {gpu['model']}", Tone.STRONG), f"  {clean(gpu['uuid'])}")
    yield line(
        f"memory: {gib(gpu['total_mib'])} GiB, claimed {gib(gpu['claimed_mib'])}, ours {gib(gpu['ours_mib'])},"
        f" foreign {gib(gpu['foreign_mib'])}"
    )
    if gpu["read_age_s"] is not None:
        yield line(f"read {span(gpu['read_age_s']).text} ago, {number(gpu['power_w'], '.0f').text} W")
    yield from evidence(gpu)
    for one in gpu["processes"]:
        whose = replica_of(one["instance"]) if one["instance"] else "foreign"
        yield line(f"process {one['pid']} {clean(one['name'])}, {gib(one['mib'])} GiB, ", plain(whose, Tone.DIM))
    if "gpu" in asked:
        yield from changes(asked["gpu"])


def ask_gpu(_subject: str, key: str) -> Mapping[str, Question]:
    name, _, uuid = key.partition("/")
    return {"gpu": Question(f"/explain/gpu/{quote(name, safe='')}/{quote(uuid, safe='')}")}
