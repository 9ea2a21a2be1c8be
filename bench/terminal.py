"""How quick the console is on a large cluster: part of ``make bench``.

200 nodes of 8 GPUs, 2,000 replicas, 50 models and 200 events a second, told over a socket by another process. Measured:
from a key press to when everything it changed is drawn, on each of the long screens, and the console's memory. It draws
160x48 cells as in a terminal; what a terminal itself needs is not in it. Fails above its bounds.
"""

import asyncio
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from statistics import median, quantiles
from typing import Any

from textual import events as textual_events

from console.app import Console
from console.feed.api import AdminApi
from console.feed.following import Following
from console.model import Model
from console.screens.listing import ListingScreen

NODES, GPUS, REPLICAS, MODELS, EVENTS_S = 200, 8, 2_000, 50, 200
PRESSES, SETTLES_S, GAP_S = 60, 3.0, 0.03
PRESS_MS, MEMORY_MIB = 100.0, 300
SCREENS = ("nodes", "replicas", "models", "queues", "requests", "events")
KEYS = ("down", "down", "pagedown", "up", "G", "g")
SIZE = (160, 48)
GIB = 1024
Json = dict[str, Any]


# -- the cluster, in a process of its own -----------------------------------------------------------------


def node(number: int) -> Json:
    name = f"node-{number}"
    its = [gpu(name, index) for index in range(GPUS)]
    return {
        "name": name, "state": "ready", "target": {"target": "schedulable", "by": "", "at": None, "why": ""},
        "healthy": number % 40 != 0, "trouble": "", "nothing_lands_because": "full: 8 of 8 GPUs claimed",
        "heard_age_s": 0.5, "address": f"10.0.0.{number}", "labels": {"rack": str(number % 10)}, "gpus": its,
        "memory": {"total_mib": 512 * GIB, "reserved_mib": GIB, "free_mib": 100 * GIB},
        "gpu_memory": {key: sum(one[key] for one in its) for key in ("total_mib", "claimed_mib", "ours_mib")}
        | {"foreign_mib": 0},
        "driver": "", "replicas": [], "shards": [], "orphans": [], "obeys": {"rev": 9, "sent": 9, "behind_s": 0.0},
        "agent": {"version": "1", "boot": "b", "linked": True, "link_age_s": 9.0, "last_end": "", "peer": "10.0.0.1",
                  "joined_at": 1.0, "seen_at": 1.0},
    }  # fmt: skip


def gpu(name: str, index: int) -> Json:
    return {
        "uuid": f"GPU-{name}-{index}", "index": index, "model": "NVIDIA H200", "usable": True, "total_mib": 141 * GIB,
        "claimed_mib": 80 * GIB, "ours_mib": 79 * GIB, "foreign_mib": 0, "free_mib": 61 * GIB,
        "claims": [{"instance": f"m-{index}.g1.r0", "mib": 80 * GIB, "exclusive": True}],
        "processes": [{"pid": 7, "mib": 80 * GIB, "name": "python", "instance": f"m-{index}.g1.r0"}],
        "temperature_c": 60.0, "power_w": 500.0, "utilisation": 0.9, "read_age_s": 0.4, "slice_of": "",
        "sliced": False, "evidence": [],
    }  # fmt: skip


def replica(number: int) -> Json:
    name, on = f"model-{number % MODELS}-{number}", f"node-{number % NODES}"
    shard = {
        "id": f"{name}.g1.r0", "rank": 0, "node": on, "state": "ready", "why": "", "age_s": 100.0,
        "gpus": [f"GPU-{on}-{number % GPUS}"], "claim_mib": 80 * GIB, "gpu_mib": 79 * GIB, "memory_mib": 4 * GIB,
        "pid": number, "host": "10.0.0.1", "ports": {"http": 8000}, "adopted": False, "started_at": 1.0,
        "log_age_s": 5.0,
    }  # fmt: skip
    return {
        "name": name, "model": f"model-{number % MODELS}", "state": "ready", "why": "", "phase": "wanted",
        "age_s": 100.0, "serving": True, "in_pool": True, "healthy_s": 90.0, "generation": 1, "revision": "abc",
        "up_to_date": True, "in_flight": 3, "replaces": "", "leaves_because": "", "crashes": 0, "retry_at": None,
        "last_end": "", "canary": {"failures": 0, "why": "", "age_s": 2.0}, "shards": [shard],
    }  # fmt: skip


def model(number: int) -> Json:
    each = REPLICAS // MODELS
    run = {
        "blocked": [], "desired": each, "live": each, "max": each, "min": each, "out_of_date": 0, "revision": "abc",
        "scaled": None, "serving": each, "states": {"ready": each},
    }  # fmt: skip
    return {
        "name": f"model-{number}", "aliases": [], "context_max": None, "endpoints": each, "fallback": [],
        "in_flight": 9, "replicas": run, "saturation": 0.6, "usable": each,
    }  # fmt: skip


def pool(number: int) -> Json:
    bands = [
        {"band": name, "ceiling": top, "floor": 0.0, "ttl_s": 60.0, "waiting": 0, "at_once": True}
        for name, top in (("platinum", 2.0), ("gold", 1.0), ("silver", 0.95), ("bronze", 0.9))
    ]
    one = {
        "usable": True, "why": "", "saturation": 0.6, "parts": {"load": 0.6, "queue": 0.0, "kv": 0.3},
        "decides": "load", "in_flight": 3, "granted": 0, "max_in_flight": None, "others": 0, "may_run": 20,
        "capacity": 32, "capacity_how": "learnt", "running": 3, "waiting": 0, "kv": 0.3, "sample_age_s": 0.2,
        "sample_why": "", "busy_for_s": None,
    }  # fmt: skip
    rooms = [{"id": f"model-{number}-{n}.g1", **one} for n in range(REPLICAS // MODELS)]
    return {"model": f"model-{number}", "mode": "on", "saturation": 0.6, "why": "", "waiting": 0,
            "usable": len(rooms), "bands": bands, "endpoints": rooms}  # fmt: skip


def running(number: int) -> Json:
    return {
        "id": f"req_{number:020}", "route": "chat/completions", "model": f"model-{number % MODELS}", "asked": "m",
        "tenant": f"tenant-{number % 30}", "band": "gold", "stream": True, "phase": "streaming",
        "endpoint": f"model-{number % MODELS}-{number}.g1", "attempt": 1, "age_s": number / 10, "waited_s": 0.0,
        "first_token_age_s": 1.0, "tokens": number, "bytes_in": 100,
    }  # fmt: skip


def event(seq: int) -> Json:
    kind = ("replica.ready", "replica.leaving", "node.back", "replica.started")[seq % 4]
    of = seq % REPLICAS
    subject = f"node-{seq % NODES}" if kind.startswith("node") else f"model-{of % MODELS}-{of}"
    return {"seq": seq, "at": time.time(), "kind": kind, "subject": subject, "sentence": f"{subject} goes on: {seq}",
            "data": {"why": "as it goes", "model": f"model-{of % MODELS}", "generation": 1}}  # fmt: skip


class Cluster:
    """Answers as the management API does; its parts are encoded once, since it is not what is measured."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        whole = {
            "at": time.time(), "you": {"name": "bench", "role": "admin"}, "hold": "", "drains": [],
            "status": {"version": "bench", "cluster_id": "c", "term": "1.1", "ready": True, "store_away_s": 0.0},
            "leader": {"leader": {"who": "gw-1", "state": "leading", "term": "1.1", "since_s": 9.0, "margin_s": 8.0,
                                  "renewals": 9, "here": True, "ready": True, "addresses": {}}},
            "models": [model(n) for n in range(MODELS)], "nodes": [node(n) for n in range(NODES)],
            "replicas": [replica(n) for n in range(REPLICAS)],
        }  # fmt: skip
        bands = [{"band": "gold", "waiting": 0, "seats_max": 1000, "bytes": 0, "bytes_max": 1}]
        queues = [
            {"model": f"model-{n}", "band": band, "waiting": 0, "oldest_s": None, "bytes": 0, "served": 9,
             "wait_mean_s": 0.1, "wait_longest_s": 0.2, "refused": {}, "tenants": []}
            for n in range(MODELS) for band in ("platinum", "gold", "silver", "bronze")
        ]  # fmt: skip
        self.snapshot = json.dumps(whole).encode()[:-1]
        self.lives = {
            "/pools": {"pools": [pool(n) for n in range(MODELS)]},
            "/queues": {"bands": bands, "queues": queues},
            "/requests/running": {"requests": [running(n) for n in range(500)]},
            "/traffic": {"since": 1.0, "ttft_bounds_s": [], "models": []},
        }
        self.encoded = {path: json.dumps(said).encode() for path, said in self.lives.items()}

    @property
    def seq(self) -> int:
        return int((time.monotonic() - self.began) * EVENTS_S)

    def answer(self, path: str) -> bytes:
        if path == "/snapshot":
            return self.snapshot + b', "seq": %d}' % self.seq
        if path == "/events":
            last = self.seq
            told = [event(seq) for seq in range(max(1, last - 200), last + 1)]
            return json.dumps({"events": told, "missed": 0, "last": last}).encode()
        return self.encoded.get(path, b'{"because": [], "verdict": "as it should be", "candidates": []}')

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path, _, query = head.split()[1].decode().removeprefix("/admin/v1").partition("?")
                if "follow" in query:
                    await self.feed(writer)
                body = self.answer(path)
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
                )
                writer.write(body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def feed(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        at = self.seq
        while True:
            for seq in range(at + 1, self.seq + 1):
                told = event(seq)
                kind, data = told["kind"].encode(), json.dumps(told).encode()
                writer.write(b"id: %d\nevent: %b\ndata: %b\n\n" % (seq, kind, data))
                at = seq
            await writer.drain()
            await asyncio.sleep(0.01)


def cluster(told: Connection) -> None:
    async def run() -> None:
        server = await asyncio.start_server(Cluster().serve, "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


# -- the console ------------------------------------------------------------------------------------------


@asynccontextmanager
async def opened(port: int) -> AsyncIterator[tuple[Console, Any]]:
    api, model_ = AdminApi((f"http://127.0.0.1:{port}",), "token"), Model()
    following = Following(api, model_, lambda: None, time.monotonic)
    app = Console(model_, api.ask, following.run, following.watching)
    async with app.run_test(size=SIZE) as pilot:
        while not model_.picture.known:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.05)
        yield app, pilot


async def press(app: Console, key: str) -> float:
    """Milliseconds until all that it changed is drawn."""
    drawn = asyncio.Event()
    began = time.perf_counter()
    app.post_message(textual_events.Key(key, ":" if key == "colon" else key if len(key) == 1 else None))
    app.call_later(lambda: app.screen.call_after_refresh(drawn.set))
    await drawn.wait()
    return (time.perf_counter() - began) * 1000


async def measured(port: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    async with opened(port) as (app, pilot):
        for name in SCREENS:
            for key in ("colon", *name, "enter"):
                await press(app, key)
            await asyncio.sleep(SETTLES_S)
            assert isinstance(app.screen, ListingScreen), name
            assert len(app.screen.table.rows) > 1, name
            found[name] = []
            for number in range(PRESSES):
                found[name].append(await press(app, KEYS[number % len(KEYS)]))
                await asyncio.sleep(GAP_S)
            await pilot.press("escape")
    return found


def main() -> int:
    ours, its = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(target=cluster, args=(its,), daemon=True)
    other.start()
    port = ours.recv()
    try:
        found = asyncio.run(measured(port))
    finally:
        other.kill()
        other.join()
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"console: {NODES} nodes, {REPLICAS:,} replicas, {EVENTS_S} events/s; a key until it is drawn")
    for name, times in found.items():
        p95 = quantiles(times, n=20)[-1]
        print(f"  {name:<9} {median(times):5.0f} ms median, {p95:5.0f} ms p95, {max(times):5.0f} ms worst")
    print(f"  memory    {mib:5.0f} MiB at most")
    slow = [name for name, times in found.items() if quantiles(times, n=20)[-1] > PRESS_MS]
    if slow or mib > MEMORY_MIB:
        print(f"FAILED: bounds are {PRESS_MS:g} ms p95 and {MEMORY_MIB} MiB; above: {', '.join(slow) or 'memory'}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
