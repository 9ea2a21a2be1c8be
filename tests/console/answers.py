"""What the management API answers on a small cluster, shortened: values to make pictures of.

One model on two nodes. ``picture(...)`` puts them together; ``{**REPLICA, "state": "failed"}`` changes one.
"""

from typing import Any

from attrs import evolve

from console.model import Link, Picture
from console.traffic import Rates

WALL = 1_796_061_223.0

STATUS = {
    "client_connections": 7, "cluster_id": "56f14d5f", "endpoints": 2, "in_flight": 3, "keys": 1, "leader": "vm",
    "leads": True, "log_lines_dropped": 0, "models": 1, "not_ready_because": "", "ready": True,
    "requests_remembered": 801, "revision": 1, "store_away_s": 0.0, "term": "0.1", "uptime_s": 50.3,
    "usable_endpoints": 2, "usage_rows_dropped": 0, "usage_rows_waiting": 0, "version": "0.5.0", "waiting": 0,
}  # fmt: skip

LEADER = {
    "acts": True, "leads": True, "store_away_s": 0.0, "alone": True, "standbys": [],
    "leader": {
        "addresses": {
            "admin": "http://127.0.0.1:36601", "agents": "127.0.0.1:45773", "client": "http://127.0.0.1:40927",
            "name": "vm",
        },
        "here": True, "margin_s": None, "ready": True, "renewals": 0, "since_s": 50.3, "state": "leading",
        "term": "0.1", "who": "vm",
    },
}  # fmt: skip

EVIDENCE = {
    "cause": "xid 79", "severity": "excluded", "says": "the card has fallen off the bus", "first_at": WALL - 60,
    "last_at": WALL - 5, "count": 2, "clears": "a reboot of the node",
}  # fmt: skip

GPU: dict[str, Any] = {
    "uuid": "GPU-node-1-0", "index": 0, "model": "Simulated", "usable": True, "total_mib": 24576,
    "claimed_mib": 20480, "ours_mib": 20480, "foreign_mib": 0, "free_mib": 4096,
    "claims": [{"instance": "demo-model-3.g4.r0", "mib": 20480, "exclusive": True}],
    "processes": [{"pid": 4096, "mib": 20480, "name": "python", "instance": "demo-model-3.g4.r0"}],
    "temperature_c": 40.0, "power_w": 200.0, "utilisation": 0.5, "read_age_s": 0.2, "slice_of": "", "sliced": False,
    "evidence": [],
}  # fmt: skip
FREE_GPU = {
    **GPU, "uuid": "GPU-node-2-0", "claimed_mib": 0, "ours_mib": 0, "free_mib": 24576, "claims": [], "processes": [],
    "power_w": 60.0, "utilisation": 0.0,
}  # fmt: skip

NODE: dict[str, Any] = {
    "name": "node-1", "state": "ready", "target": {"target": "schedulable", "by": "", "at": None, "why": ""},
    "healthy": True, "trouble": "", "nothing_lands_because": "full: 1 of 1 GPUs claimed", "heard_age_s": 0.7,
    "address": "127.0.0.1", "labels": {}, "gpus": [GPU],
    "memory": {"total_mib": 24105, "reserved_mib": 1024, "free_mib": 23081},
    "gpu_memory": {"total_mib": 24576, "claimed_mib": 20480, "ours_mib": 20480, "foreign_mib": 0}, "driver": "",
    "replicas": ["demo-model-3"], "shards": ["demo-model-3.g4.r0"], "orphans": [],
    "obeys": {"rev": 3, "sent": 3, "behind_s": 0.0},
    "agent": {
        "version": "0.5.0", "boot": "a2c09c67", "linked": True, "link_age_s": 49.0, "last_end": "",
        "peer": "127.0.0.1", "joined_at": WALL - 48, "seen_at": WALL - 30,
    },
}  # fmt: skip
NODE_2 = {
    **NODE, "name": "node-2", "gpus": [FREE_GPU], "nothing_lands_because": "", "replicas": [], "shards": [],
    "gpu_memory": {"total_mib": 24576, "claimed_mib": 0, "ours_mib": 0, "foreign_mib": 0},
}  # fmt: skip

SHARD = {
    "id": "demo-model-3.g4.r0", "rank": 0, "node": "node-1", "state": "ready", "why": "", "age_s": 34.2,
    "gpus": ["GPU-node-1-0"], "claim_mib": 20480, "gpu_mib": 20480, "memory_mib": 31, "pid": 4096,
    "host": "127.0.0.1", "ports": {"http": 21051, "peer": 21053}, "adopted": False, "started_at": WALL - 34,
    "log_age_s": 33.3,
}  # fmt: skip
REPLICA: dict[str, Any] = {
    "name": "demo-model-3", "model": "demo-model", "state": "ready", "why": "", "phase": "wanted", "age_s": 35.1,
    "serving": True, "in_pool": True, "healthy_s": 34.2, "generation": 4, "revision": "7f6a92fae519",
    "up_to_date": True, "in_flight": 2, "replaces": "", "leaves_because": "", "crashes": 0, "retry_at": None,
    "last_end": "", "canary": {"failures": 0, "why": "", "age_s": 3.6}, "shards": [SHARD],
}  # fmt: skip
REPLICA_2 = {
    **REPLICA, "name": "demo-model-4", "generation": 5,
    "shards": [{**SHARD, "id": "demo-model-4.g5.r0", "gpus": ["GPU-node-1-1"]}],
}  # fmt: skip
CRASHING = {
    **REPLICA, "state": "crash loop", "why": "the engine ended with status 1", "serving": False, "in_pool": False,
    "crashes": 7, "retry_at": WALL + 40, "last_end": "exited with 1 after 2 s",
}  # fmt: skip

MODEL: dict[str, Any] = {
    "name": "demo-model", "aliases": [], "context_max": None, "endpoints": 2, "fallback": [], "in_flight": 3,
    "replicas": {
        "blocked": [], "desired": 2, "live": 2, "max": 2, "min": 2, "out_of_date": 0, "revision": "7f6a92fae519",
        "scaled": None, "serving": 2, "states": {"ready": 2},
    },
    "saturation": 0.047, "usable": 2,
}  # fmt: skip
STATIC_MODEL = {
    "name": "elsewhere", "aliases": [], "context_max": None, "endpoints": 1, "fallback": [], "in_flight": 0,
    "saturation": 0.0, "usable": 1,
}  # fmt: skip

BAND = {"band": "gold", "ceiling": 1.0, "floor": 0.0, "ttl_s": 60.0, "waiting": 0, "at_once": True}
BANDS = [
    {**BAND, "band": "platinum", "ceiling": 2.0, "ttl_s": 30.0},
    BAND,
    {**BAND, "band": "silver", "ceiling": 0.95, "ttl_s": 120.0},
    {**BAND, "band": "bronze", "ceiling": 0.9, "ttl_s": 600.0},
]
ROOM = {
    "id": "demo-model-3.g4", "usable": True, "why": "", "saturation": 0.062,
    "parts": {"load": 0.062, "queue": 0.0, "kv": 0.002}, "decides": "load", "in_flight": 2, "granted": 0,
    "max_in_flight": None, "others": 0, "may_run": 7, "capacity": 32, "capacity_how": "usual for this engine",
    "running": 2, "waiting": 0, "kv": 0.001953125, "sample_age_s": 0.127, "sample_why": "", "busy_for_s": None,
}  # fmt: skip
POOL: dict[str, Any] = {
    "model": "demo-model", "mode": "on", "saturation": 0.047, "why": "", "waiting": 0, "usable": 2, "bands": BANDS,
    "endpoints": [ROOM, {**ROOM, "id": "demo-model-4.g5", "saturation": 0.031, "in_flight": 1}],
}  # fmt: skip
REMOVED_POOL = {"model": "gone", "why": "removed from the configuration", "bands": [], "endpoints": []}

SEATS = [
    {"band": band["band"], "waiting": 0, "seats_max": 1000, "bytes": 0, "bytes_max": 67108864} for band in BANDS
]  # fmt: skip
TENANT = {
    "tenant": "demo", "waiting": 2, "oldest_s": 4.2, "bytes": 200, "served": 12, "wait_mean_s": 1.5,
    "wait_longest_s": 9.0, "refused": {"queue_full": 3},
}  # fmt: skip
QUEUE: dict[str, Any] = {
    "model": "demo-model", "band": "gold", "waiting": 0, "oldest_s": None, "bytes": 0, "served": 0,
    "wait_mean_s": None, "wait_longest_s": None, "refused": {}, "tenants": [],
}  # fmt: skip
WAITING_QUEUE = {**QUEUE, **{key: TENANT[key] for key in TENANT if key != "tenant"}, "tenants": [TENANT]}
QUEUES = [{**QUEUE, "band": band["band"]} for band in BANDS]

RUNNING: dict[str, Any] = {
    "id": "req_40ae84120f5800000321", "route": "chat/completions", "model": "demo-model", "asked": "demo-model",
    "tenant": "demo", "band": "gold", "stream": True, "phase": "streaming", "endpoint": "demo-model-4.g5",
    "attempt": 1, "age_s": 1.1, "waited_s": 0.0, "first_token_age_s": 1.0, "tokens": 55, "bytes_in": 100,
}  # fmt: skip
QUEUED = {
    **RUNNING, "id": "req_40ae84120f5800000325", "phase": "queued", "endpoint": "", "attempt": 0,
    "first_token_age_s": None, "tokens": 0,
}  # fmt: skip
RECENT: dict[str, Any] = {
    "id": "req_40ae84120f5800000320", "at": WALL - 20, "route": "chat/completions", "outcome": "ok", "status": 200,
    "total_s": 12.5, "tenant": "demo", "key": "sk-llmgw-NeyO5Z…", "band": "gold", "asked": "demo-model",
    "model": "demo-model", "adapter": "", "stream": True, "endpoint": "demo-model-4.g5", "read_s": 0.00005,
    "wait_s": 3.0, "waited_behind": "2 of gold", "dial_s": 0.0001, "headers_s": 0.08, "ttft_s": 0.08,
    "prompt_tokens": 9, "completion_tokens": 4, "cached_tokens": 0, "estimated": False, "message": "",
    "bytes_in": 91, "bytes_out": 531, "label": "", "retry_count": "",
    "tries": [{"endpoint": "demo-model-4.g5", "outcome": "ok", "why": "", "seconds": 0.078}], "fallbacks": [],
    "let_through": "", "fell_back_on": [],
}  # fmt: skip
NOT_FOUND = {
    **RECENT, "id": "req_40ae84120f5800000323", "at": WALL, "outcome": "model_not_found", "status": 404,
    "total_s": 0.000458, "asked": "nope", "model": "", "stream": False, "endpoint": "", "headers_s": None,
    "ttft_s": None, "message": "The model `nope` does not exist or you do not have access to it.", "tries": [],
}  # fmt: skip
BROKE = {
    **RECENT, "id": "req_40ae84120f5800000324", "outcome": "engine_broke", "status": 502, "ttft_s": None,
    "message": "the engine closed the connection",
    "tries": [{"endpoint": "demo-model-3.g4", "outcome": "engine_broke", "why": "reset", "seconds": 0.5}],
}  # fmt: skip

EVENTS: list[dict[str, Any]] = [
    {"seq": 31, "at": WALL - 24, "kind": "node.target", "subject": "node-2",
     "sentence": "node-2 is drained after 11 s: no process is left, 0 requests were cut", "data": {"ended": "drained"}},
    {"seq": 32, "at": WALL - 23, "kind": "replica.settled", "subject": "demo-model-4",
     "sentence": "demo-model-4 has replaced demo-model-2", "data": {"why": "", "model": "demo-model", "generation": 5}},
    {"seq": 33, "at": WALL - 22, "kind": "gpu.evidence", "subject": "node-1/GPU-node-1-0",
     "sentence": "node-1 GPU 0: excluded: xid 79: the card has fallen off the bus", "data": {"cause": "xid 79"}},
]  # fmt: skip

PROGRESS: dict[str, Any] = {
    "state": "draining", "left": ["demo-model-3"], "processes": ["demo-model-3.g4.r0"],
    "waits_on": ["demo-model-3 finishes 2 requests, oldest 9 s"], "grace_s": 2700.0, "left_s": 2650.0,
    "at_deadline": "stop", "planned": {"demo-model-3": ["node-2"], "demo-model-5": ["node-3"]},
    "replaced": ["demo-model-5"], "cut": 0, "said": "", "ended_at": None,
}  # fmt: skip
DRAIN: dict[str, Any] = {
    "subject": "node-1", "target": "drained", "by": "ada", "at": WALL - 50, "why": "fans are loud", "drain": PROGRESS,
}  # fmt: skip
BLOCKED_DRAIN = {
    **DRAIN,
    "drain": {**PROGRESS, "state": "blocked", "waits_on": ["demo-model-3 is blocked: 1 with GPUs claimed"]},
}  # fmt: skip

MOVE: dict[str, Any] = {
    "replica": "demo-model-3", "model": "demo-model", "to": ["node-2"], "why": "apart 1.00, room 0.83",
    "blocked": False, "requests": 2, "oldest_s": 9.0, "takes_s": 12.0,
}  # fmt: skip
STUCK_MOVE = {**MOVE, "replica": "demo-model-4", "to": [], "why": "no node fits: 1 with GPUs claimed", "blocked": True}
DRY_RUN: dict[str, Any] = {
    "dry_run": True, "node": "node-1", "plan": {"estimate_s": 14.0, "moves": [MOVE]}, "refused": "",
    "target": "drained",
}  # fmt: skip

PLACEMENT: dict[str, Any] = {
    "because": [
        {"age_s": None, "text": "1 shard of 1 GPU with 20.0 GiB free on each, nobody beside it"},
        {"age_s": 3.0, "text": "2 wanted, 2 serving"},
    ],
    "candidates": [
        {"chosen": False, "name": "node-1", "reasons": ["needs 1 GPU, 0 of 1 would do"], "scores": {}},
        {
            "chosen": False, "name": "node-1 GPU 0 (Simulated, GPU-node-1-0)", "scores": {},
            "reasons": [
                "claimed by demo-model-3.g4.r0, and this asks for a card of its own",
                "needs 20.0 GiB, free 4.0 (claimed 20.0, foreign 0.0)",
            ],
        },
        {
            "chosen": True, "name": "node-2", "reasons": [],
            "scores": {"apart": 1.0, "fit": 0.8333333333333334, "room": 1.0, "total": 4.416666666666667},
        },
        {"chosen": True, "name": "node-2 GPU 0 (Simulated, GPU-node-2-0)", "reasons": [], "scores": {}},
    ],
    "next_command": "llmgw ctl nodes", "subject": "one more replica of demo-model",
    "sentence": "one more replica of demo-model: goes to node-2 (1 GPU)", "verdict": "goes to node-2 (1 GPU)",
    "would_change_it": [],
}  # fmt: skip
UNPLACED = {
    **PLACEMENT, "verdict": "no node fits: 1 with GPUs claimed", "candidates": PLACEMENT["candidates"][:2],
    "would_change_it": ["16.0 GiB more free on node-1 GPU 0"],
}  # fmt: skip

HEALTHY = Picture(
    seq=33,
    term=(0, 1),
    taken_at=100.0,
    you={"name": "ada", "role": "operator"},
    status=STATUS,
    leader=LEADER,
    nodes={"node-1": NODE, "node-2": NODE_2},
    replicas={"demo-model-3": REPLICA, "demo-model-4": REPLICA_2},
    models={"demo-model": MODEL},
    pools={"demo-model": POOL},
    seats=SEATS,
    queues=QUEUES,
    running=[RUNNING, QUEUED],
    recent=[NOT_FOUND, BROKE, RECENT],
    rates=Rates(12.5, 340.0, 0.002, 0.25),
    histories={"demo-model": (0.0, 0.02, 0.05, 0.047)},
    events=EVENTS,
    link=Link("http://127.0.0.1:36601"),
)


def picture(**changes: Any) -> Picture:
    return evolve(HEALTHY, **changes)
