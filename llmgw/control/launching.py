"""What each node is told to run: the whole set, made of the rows alone, so that the same rows always say the same."""

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from llmgw.core.presets import First, launch
from llmgw.core.replicas import Phase, Replica
from llmgw.core.shards import Launch

RUNNING = frozenset({Phase.WANTED, Phase.LEAVING})


def engine_key(secret: str, instance: str) -> str:
    """Each incarnation's own key, which its engine asks for; made anew of the store's secret, so never stored."""
    return "sk-" + hmac.new(secret.encode(), instance.encode(), hashlib.sha256).hexdigest()[:48]


def wanted_on(replicas: Iterable[Replica], secret: str) -> Mapping[str, tuple[Launch, ...]]:
    """By node. A rank after the first is wanted once rank 0's address is known."""
    found: dict[str, list[Launch]] = {}
    for replica in sorted(replicas, key=lambda one: one.name):
        if replica.phase not in RUNNING:
            continue
        key = engine_key(secret, replica.endpoint_id)
        for place in replica.shards:
            if place.rank and not replica.first_ports:
                continue
            first = First(replica.first_host, replica.first_ports) if place.rank else None
            entry = launch(
                replica.spec, replica.model, replica.name, replica.generation, place.rank, place.gpus, key, first
            )
            found.setdefault(place.node, []).append(entry)
    return {node: tuple(entries) for node, entries in found.items()}


def paths_asked(replicas: Iterable[Replica], more: Iterable[str]) -> tuple[str, ...]:
    """Files that placement would like to know about on every node."""
    paths = {replica.spec.model for replica in replicas} | set(more)
    return tuple(sorted(path for path in paths if path.startswith("/")))
