"""Models, their replicas and the shards of one: how they do, why, and the end of an engine's log."""

from collections.abc import Iterator, Mapping
from itertools import chain
from urllib.parse import quote

from console.model import Picture
from console.shown import Column, Line, Listing, Place, Row, Tone, clean, counted, gib, line, number, plain, span
from console.views.nodes import NOT_THERE, find_gpu, memory
from console.views.read import Json, amount, count, flag, part, rows, text, words
from console.views.view import Asked, Question

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
    Column("MODEL", most=32, identifies=True), Column("SERVING", right=True), Column("DESIRED", right=True),
    Column("FULL", right=True), Column("IN FLIGHT", right=True), Column("STATES", most=30), Column("REASON", most=0),
)  # fmt: skip
REPLICAS = (
    Column("REPLICA", most=30, identifies=True), Column("MODEL", most=24, spare=True, middle=True),
    Column("STATE", most=10),
    Column("NODES", most=20), Column("IN FLIGHT", right=True, spare=True), Column("AGE", right=True),
    Column("CRASHES", right=True, spare=True), Column("REASON", most=0),
)  # fmt: skip
SHARDS = (
    Column("SHARD", most=30, identifies=True), Column("NODE", most=20), Column("STATE", most=10),
    Column("GPUS", most=20), Column("GPU GIB", right=True), Column("PID", right=True), Column("AGE", right=True),
    Column("REASON", most=0),
)  # fmt: skip


def models(picture: Picture, _subject: str = "") -> Listing:
    empty = "no model is configured: `llmgw ctl apply FILE` gives the gateway some"
    return Listing(MODELS, tuple(_model(name, one) for name, one in picture.models.items()), empty)


def _model(name: str, one: Json) -> Row:
    run = part(one, "replicas")
    serving, desired = _served(one)
    tone, full = _tone(serving, desired), amount(one, "saturation")
    cells = (
        plain(name),
        number(serving, ",.0f", tone),
        number(desired, ",.0f"),
        number(full, ".0%", Tone.BAD if full is not None and full >= 1 else Tone.PLAIN),
        number(amount(one, "in_flight"), ",.0f"),
        plain(_states(run) or _endpoints(one), Tone.DIM),
        plain("; ".join(dict.fromkeys(words(run, "blocked"))), Tone.WARN),
    )
    # Of a model that runs elsewhere there is no replica to look at.
    return Row(name, cells, tone in (Tone.BAD, Tone.WARN), Place("replicas" if run else "queues", name))


def _served(model: Json) -> tuple[float | None, float | None]:
    """How many serve, and how many are wanted; of a model that nobody runs replicas of, only its endpoints serve."""
    run = part(model, "replicas")
    return (amount(run, "serving"), amount(run, "desired")) if run else (amount(model, "usable"), None)


def _tone(serving: float | None, desired: float | None) -> Tone:
    if serving is None:
        return Tone.PLAIN
    if not serving and desired != 0:
        return Tone.BAD
    return Tone.WARN if desired is not None and serving < desired else Tone.GOOD


def _states(run: Json) -> str:
    states = part(run, "states")
    return ", ".join(f"{count(states, name):,} {name}" for name in states)


def _endpoints(model: Json) -> str:
    usable, there = amount(model, "usable"), amount(model, "endpoints")
    if usable is None or there is None:
        return "-"
    return f"{usable:,.0f} of {there:,.0f} endpoints usable"


def model_detail(picture: Picture, _subject: str, name: str, asked: Asked, _width: int) -> tuple[Line, ...]:
    model = picture.models.get(name)
    return tuple(_about_model(name, model, asked)) if model is not None else (NOT_THERE,)


def _about_model(name: str, model: Json, asked: Asked) -> Iterator[Line]:
    aliases, fallback, run = words(model, "aliases"), words(model, "fallback"), part(model, "replicas")
    yield line(plain(name, Tone.STRONG), f"  also {', '.join(aliases)}" if aliases else "")
    if run:
        yield from _about_run(name, run)
    if fallback:
        yield line(f"falls back on {', '.join(fallback)}")
    if "queue" in asked:
        yield line("queue: ", plain(text(part(asked, "queue"), "verdict", "-")), leads_to=Place("queues", name))


def _about_run(name: str, run: Json) -> Iterator[Line]:
    serving, desired, least, most = (text(run, key, "-") for key in ("serving", "desired", "min", "max"))
    says = f"{least} to {most}" if least != most else least
    wanted = f"an operator said {text(run, 'scaled')}, the config {says}" if text(run, "scaled") else says
    yield line(f"replicas: {serving} serve, {desired} wanted ({wanted})")
    if count(run, "out_of_date"):
        what = f"{counted(count(run, 'out_of_date'), 'replica')} not of revision {text(run, 'revision', '-')}"
        yield line(plain(f"{what}: to be replaced", Tone.BUSY))
    for why in dict.fromkeys(words(run, "blocked")):
        yield line("waits: ", plain(why, Tone.WARN), leads_to=Place("placement", name))


def ask_model(_subject: str, key: str) -> Mapping[str, Question]:
    return {"queue": Question(f"/explain/queue/{quote(key, safe='')}")}


# -- replicas ---------------------------------------------------------------------------------------------


def replicas(picture: Picture, subject: str = "") -> Listing:
    """``subject``: of a model, on a node (``node:NAME``), or "" for all."""
    found = tuple(_replica(name, one) for name, one in picture.replicas.items() if _is_of(one, subject))
    return Listing(REPLICAS, found, "no replica runs here" if subject else "agents run no replica: see :models")


def on_gpu(picture: Picture, key: str) -> Listing:
    """``key``: ``node/uuid``."""
    _, _, uuid = key.partition("/")
    found = tuple(_replica(name, one) for name, one in picture.replicas.items() if uuid and uuid in _gpus(one))
    speaks = (
        f"{text(one, 'cause', '?')}: {text(one, 'says')}; clears: {text(one, 'clears', 'nobody says')}"
        for one in rows(find_gpu(picture, key) or {}, "evidence")
    )
    return Listing(REPLICAS, found, "no replica is on this GPU", clean("; ".join(speaks)))


def _gpus(replica: Json) -> Iterator[str]:
    return chain.from_iterable(words(shard, "gpus") for shard in rows(replica, "shards"))


def _is_of(one: Json, subject: str) -> bool:
    if subject.startswith(NODE):
        return subject.removeprefix(NODE) in _nodes(one)
    return subject in ("", text(one, "model"))


def _nodes(replica: Json) -> list[str]:
    """Each once, by rank."""
    return list(dict.fromkeys(text(shard, "node", "?") for shard in rows(replica, "shards")))


def _replica(name: str, one: Json) -> Row:
    state, crashes = text(one, "state", "-"), amount(one, "crashes")
    faulty = state in FAULTS
    cells = (
        plain(name),
        plain(text(one, "model", "-")),
        plain(state, STATES.get(state, Tone.PLAIN)),
        plain(", ".join(_nodes(one))),
        number(amount(one, "in_flight"), ",.0f"),
        span(amount(one, "age_s")),
        number(crashes, ",.0f", Tone.WARN if crashes else Tone.DIM),
        plain(text(one, "why") or text(one, "leaves_because"), Tone.BAD if faulty else Tone.DIM),
    )
    return Row(name, cells, faulty, Place("replica", name))


def replica_detail(picture: Picture, _subject: str, name: str, asked: Asked, _width: int) -> tuple[Line, ...]:
    replica = picture.replicas.get(name)
    return tuple(_about(name, replica, asked)) if replica is not None else (NOT_THERE,)


def _about(name: str, one: Json, asked: Asked) -> Iterator[Line]:
    state, canary = text(one, "state", "-"), part(one, "canary")
    head = (plain(name, Tone.STRONG), "  ", plain(state, STATES.get(state, Tone.PLAIN)))
    yield line(*head, f"  generation {text(one, 'generation', '-')}, revision {text(one, 'revision', '-')}")
    if text(one, "why"):
        yield line("why     ", plain(text(one, "why"), Tone.WARN), leads_to=Place("placement", name))
    if text(one, "leaves_because"):
        yield line("leaves  ", plain(text(one, "leaves_because")))
    if text(one, "last_end"):
        yield line("before  ", plain(text(one, "last_end"), Tone.DIM))
    if count(canary, "failures"):
        failed = f"{counted(count(canary, 'failures'), 'failure')}: {text(canary, 'why', 'nobody says why')}"
        yield line("canary  ", plain(failed, Tone.BAD))
    if not flag(one, "up_to_date", True):
        yield line(plain("it is to be replaced: another revision is wanted", Tone.BUSY))
    yield from log_tail(part(asked, "log"))


def log_tail(said: Json) -> Iterator[Line]:
    """The end of an engine's log as it was reported last, and how old that is. Empty: nobody has answered yet."""
    if not said:
        return
    age = amount(said, "age_s")
    old = "" if age is None else f", {span(age).text} old"
    why = f" ({text(said, 'error')})" if text(said, "error") else ""
    yield line(plain(f"log of {text(said, 'instance', '?')} on {text(said, 'node', '?')}{old}{why}", Tone.DIM))
    for written in text(said, "text").splitlines()[-LOG_LINES:]:
        yield line("  ", plain(written.expandtabs(4)))


def ask_replica(_subject: str, key: str) -> Mapping[str, Question]:
    return {"log": Question(f"/replicas/{quote(key, safe='')}/logs", {"bytes": LOG_BYTES})}


# -- the shards of one replica ----------------------------------------------------------------------------


def shards(picture: Picture, name: str) -> Listing:
    replica = picture.replicas.get(name)
    if replica is None:
        return Listing(SHARDS, (), f"no replica is called {clean(name)} any more; :replicas shows those that there are")
    why = clean(text(replica, "why"))
    empty = f"it has no place now: {why}" if why else "it has no place now"
    return Listing(SHARDS, tuple(_shard(name, one, picture) for one in rows(replica, "shards")), empty, note=why)


def _shard(replica: str, one: Json, picture: Picture) -> Row:
    id, node, state = text(one, "id", "?"), text(one, "node", "-"), text(one, "state", "-")
    faulty = state in FAULTS
    cells = (
        plain(id),
        plain(node),
        plain(state, STATES.get(state, Tone.PLAIN)),
        plain(", ".join(_index(picture, node, uuid) for uuid in words(one, "gpus"))),
        memory(amount(one, "gpu_mib")),
        number(amount(one, "pid"), ".0f"),
        span(amount(one, "age_s")),
        plain(text(one, "why"), Tone.BAD if faulty else Tone.DIM),
    )
    return Row(id, cells, faulty, Place("requests", replica))


def _index(picture: Picture, node: str, uuid: str) -> str:
    """Of a GPU on its node; a node that has not told of it leaves its UUID."""
    return text(find_gpu(picture, f"{node}/{uuid}") or {}, "index", uuid)


def shard_detail(picture: Picture, name: str, key: str, asked: Asked, _width: int) -> tuple[Line, ...]:
    its = rows(picture.replicas.get(name, {}), "shards")
    shard = next((one for one in its if text(one, "id", "?") == key), None)
    return tuple(_about_shard(shard, asked)) if shard is not None else (NOT_THERE,)


def _about_shard(one: Json, asked: Asked) -> Iterator[Line]:
    adopted, ports = ", adopted" if flag(one, "adopted") else "", part(one, "ports")
    yield line(plain(text(one, "id", "?"), Tone.STRONG), f"  {text(one, 'state', '-')}{adopted}")
    listens = ", ".join(f"{name} {text(ports, name, '-')}" for name in ports)
    yield line(f"{text(one, 'host', '-')}: {listens or 'no port yet'}")
    claims, of_gpu, of_host = (gib(amount(one, f"{what}_mib")) for what in ("claim", "gpu", "memory"))
    yield line(f"memory: claims {claims} GiB, GPU {of_gpu}, host {of_host}")
    if text(one, "why"):
        yield line("why     ", plain(text(one, "why"), Tone.WARN))
    yield from log_tail(part(asked, "log"))


def ask_shard(subject: str, key: str) -> Mapping[str, Question]:
    rank = key.rsplit(".r", 1)[-1]
    params = {"bytes": LOG_BYTES, "shard": rank} if rank.isdigit() else {"bytes": LOG_BYTES}
    return {"log": Question(f"/replicas/{quote(subject, safe='')}/logs", params)}
