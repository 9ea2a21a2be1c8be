"""Models, their replicas and the shards of one: how they do, why, and the end of an engine's log."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from console.model import Picture
from console.shown import Cell, Column, Line, Listing, Place, Row, Tone, clean, gib, line, number, plain, span
from console.views.nodes import find_gpu
from console.views.view import Asked, Question

Json = Mapping[str, Any]

NODE = "node:"  # of a subject: the replicas on that node
LOG_BYTES, LOG_LINES = 8192, 12
STATES = {
    "ready": Tone.GOOD,
    "starting": Tone.BUSY,
    "loading": Tone.BUSY,
    "waiting": Tone.WARN,
    "leaving": Tone.BUSY,
    "stopping": Tone.BUSY,
    "unknown": Tone.WARN,
    "gone": Tone.BAD,
    "failed": Tone.BAD,
    "crash loop": Tone.BAD,
}
FAULTS = frozenset({"failed", "crash loop", "waiting", "unknown", "gone"})
MODELS = (
    Column("MODEL", most=32), Column("SERVING", right=True), Column("DESIRED", right=True), Column("FULL", right=True),
    Column("IN FLIGHT", right=True), Column("STATES", most=30), Column("REASON", most=0),
)  # fmt: skip
REPLICAS = (
    Column("REPLICA", most=30), Column("MODEL", most=24), Column("STATE", most=10), Column("NODES", most=20),
    Column("IN FLIGHT", right=True), Column("AGE", right=True), Column("CRASHES", right=True), Column("REASON", most=0),
)  # fmt: skip
SHARDS = (
    Column("SHARD", most=30), Column("NODE", most=20), Column("STATE", most=10), Column("GPUS", most=20),
    Column("GPU GIB", right=True), Column("PID", right=True), Column("AGE", right=True), Column("REASON", most=0),
)  # fmt: skip


def models(picture: Picture, _subject: str = "") -> Listing:
    empty = "no model is configured: `llmgw ctl apply FILE` gives the gateway some"
    return Listing(MODELS, tuple(_model(one) for one in picture.models.values()), empty)


def _model(one: Json) -> Row:
    run = one.get("replicas") or {}
    serving, desired = run.get("serving", one["usable"]), run.get("desired")
    short = desired is not None and serving < desired
    tone = Tone.BAD if not serving and desired != 0 else Tone.WARN if short else Tone.GOOD
    states = ", ".join(f"{count} {name}" for name, count in run.get("states", {}).items())
    cells = (
        plain(one["name"]),
        number(serving, "d", tone),
        number(desired, "d"),
        number(one["saturation"], ".0%", Tone.BAD if (one["saturation"] or 0) >= 1 else Tone.PLAIN),
        number(one["in_flight"], "d"),
        plain(states or f"{one['usable']} of {one['endpoints']} endpoints usable", Tone.DIM),
        plain("; ".join(dict.fromkeys(run.get("blocked", ()))), Tone.WARN),
    )
    return Row(str(one["name"]), cells, tone in (Tone.BAD, Tone.WARN), Place("replicas", str(one["name"])))


def model_detail(picture: Picture, _subject: str, name: str, asked: Asked, _width: int) -> tuple[Line, ...]:
    model = picture.models.get(name)
    return tuple(_about_model(model, asked)) if model is not None else (line("it is not there any more"),)


def _about_model(model: Json, asked: Asked) -> Iterator[Line]:
    name, run = str(model["name"]), model.get("replicas")
    aliases = ", ".join(model["aliases"])
    yield line(plain(name, Tone.STRONG), f"  also {clean(aliases)}" if aliases else "")
    if run:
        scaled = "" if run["scaled"] is None else f", scaled to {run['scaled']} by an operator"
        yield line(f"replicas: {run['serving']} serve, {run['desired']} wanted ({run['min']} to {run['max']}){scaled}")
        if run["out_of_date"]:
            yield line(plain(f"{run['out_of_date']} run an older revision than {run['revision']}", Tone.BUSY))
        for why in dict.fromkeys(run["blocked"]):
            yield line("waits: ", plain(why, Tone.WARN), leads_to=Place("placement", name))
    if model["fallback"]:
        yield line(f"falls back on {clean(', '.join(model['fallback']))}")
    if "queue" in asked:
        yield line("queue: ", plain(asked["queue"].get("verdict", "")), leads_to=Place("queues", name))


def ask_model(_subject: str, key: str) -> Mapping[str, Question]:
    return {"queue": Question(f"/explain/queue/{quote(key, safe='')}")}


# -- replicas ---------------------------------------------------------------------------------------------


def replicas(picture: Picture, subject: str = "") -> Listing:
    """``subject``: of a model, on a node (``node:NAME``), or "" for all."""
    found = tuple(_replica(one) for one in picture.replicas.values() if _is_of(one, subject))
    return Listing(REPLICAS, found, "no replica runs here" if subject else "agents run no replica: see :models")


def on_gpu(picture: Picture, key: str) -> Listing:
    """``key``: ``node/uuid``."""
    _, _, uuid = key.partition("/")
    its = [one for one in picture.replicas.values() if any(uuid in shard["gpus"] for shard in one["shards"])]
    gpu = find_gpu(picture, key)
    note = "" if gpu is None else "; ".join(clean(f"{one['cause']}: {one['says']}") for one in gpu["evidence"])
    return Listing(REPLICAS, tuple(map(_replica, its)), "no replica is on this GPU", note)


def _is_of(one: Json, subject: str) -> bool:
    if subject.startswith(NODE):
        return any(shard["node"] == subject.removeprefix(NODE) for shard in one["shards"])
    return subject in ("", one["model"])


def _replica(one: Json) -> Row:
    nodes = dict.fromkeys(str(shard["node"]) for shard in one["shards"])
    faulty = one["state"] in FAULTS
    cells = (
        plain(one["name"]),
        plain(one["model"]),
        plain(one["state"], STATES.get(one["state"], Tone.PLAIN)),
        plain(", ".join(nodes)),
        number(one["in_flight"], "d"),
        span(one["age_s"]),
        number(one["crashes"], "d", Tone.WARN if one["crashes"] else Tone.DIM),
        plain(one["why"] or one["leaves_because"], Tone.BAD if faulty else Tone.DIM),
    )
    return Row(str(one["name"]), cells, faulty, Place("replica", str(one["name"])))


def replica_detail(picture: Picture, _subject: str, name: str, asked: Asked, _width: int) -> tuple[Line, ...]:
    replica = picture.replicas.get(name)
    return tuple(_about(replica, asked)) if replica is not None else (line("it is not there any more"),)


def _about(one: Json, asked: Asked) -> Iterator[Line]:
    head = (plain(one["name"], Tone.STRONG), "  ", plain(one["state"], STATES.get(one["state"], Tone.PLAIN)))
    yield line(*head, f"  generation {one['generation']}, revision {clean(one['revision'])}")
    placed = Place("placement", str(one["name"]))
    if one["why"]:
        yield line("why     ", plain(one["why"], Tone.WARN), leads_to=placed)
    if one["leaves_because"]:
        yield line("leaves  ", plain(one["leaves_because"]))
    if one["last_end"]:
        yield line("before  ", plain(one["last_end"], Tone.DIM))
    if one["canary"]["failures"]:
        yield line("canary  ", plain(f"{one['canary']['failures']} failures: {one['canary']['why']}", Tone.BAD))
    if not one["up_to_date"]:
        yield line(plain("it is to be replaced: another revision is wanted", Tone.BUSY))
    yield from log_tail(asked.get("log"))


def log_tail(said: Json | None) -> Iterator[Line]:
    """The end of an engine's log as it was reported last, and how old that is."""
    if said is None:
        return
    age = "" if said["age_s"] is None else f", {span(said['age_s']).text} old"
    why = f" ({clean(said['error'])})" if said["error"] else ""
    yield line(plain(f"log of {said['instance']} on {said['node']}{age}{why}", Tone.DIM))
    for text in said["text"].replace("\r", "\n").splitlines()[-LOG_LINES:]:
        yield line("  ", plain(text.expandtabs(4)))


def ask_replica(_subject: str, key: str) -> Mapping[str, Question]:
    return {"log": Question(f"/replicas/{quote(key, safe='')}/logs", {"bytes": LOG_BYTES})}


# -- the shards of one replica ----------------------------------------------------------------------------


def shards(picture: Picture, name: str) -> Listing:
    replica = picture.replicas.get(name)
    if replica is None:
        return Listing(SHARDS, (), f"no replica is called {clean(name)} any more; :replicas shows those that there are")
    why = clean(replica["why"])
    empty = f"it has no place now: {why}" if why else "it has no place now"
    return Listing(SHARDS, tuple(_shard(name, one, picture) for one in replica["shards"]), empty, note=why)


def _shard(replica: str, one: Json, picture: Picture) -> Row:
    faulty = one["state"] in FAULTS
    cells = (
        plain(one["id"]),
        plain(one["node"]),
        plain(one["state"], STATES.get(one["state"], Tone.PLAIN)),
        plain(", ".join(_index(picture, one["node"], uuid) for uuid in one["gpus"])),
        Cell(gib(one["gpu_mib"]), order=one["gpu_mib"] or 0),
        number(one["pid"], "d"),
        span(one["age_s"]),
        plain(one["why"], Tone.BAD if faulty else Tone.DIM),
    )
    return Row(str(one["id"]), cells, faulty, Place("requests", replica))


def _index(picture: Picture, node: str, uuid: str) -> str:
    gpu = find_gpu(picture, f"{node}/{uuid}")
    return clean(uuid) if gpu is None else str(gpu["index"])


def shard_detail(picture: Picture, name: str, key: str, asked: Asked, _width: int) -> tuple[Line, ...]:
    replica = picture.replicas.get(name)
    its = replica["shards"] if replica is not None else ()
    shard = next((one for one in its if one["id"] == key), None)
    return tuple(_about_shard(shard, asked)) if shard is not None else (line("it is not there any more"),)


def _about_shard(one: Json, asked: Asked) -> Iterator[Line]:
    yield line(plain(one["id"], Tone.STRONG), f"  {clean(one['state'])}" + (", adopted" if one["adopted"] else ""))
    ports = ", ".join(f"{name} {port}" for name, port in one["ports"].items())
    yield line(f"{clean(one['host'])}: {clean(ports) or 'no port yet'}")
    yield line(f"memory: claims {gib(one['claim_mib'])} GiB, GPU {gib(one['gpu_mib'])}, host {gib(one['memory_mib'])}")
    if one["why"]:
        yield line("why     ", plain(one["why"], Tone.WARN))
    yield from log_tail(asked.get("log"))


def ask_shard(subject: str, key: str) -> Mapping[str, Question]:
    rank = key.rsplit(".r", 1)[-1]
    params = {"bytes": LOG_BYTES, "shard": rank} if rank.isdigit() else {"bytes": LOG_BYTES}
    return {"log": Question(f"/replicas/{quote(subject, safe='')}/logs", params)}
