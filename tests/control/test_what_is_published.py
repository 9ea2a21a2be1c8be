"""What nodes and the gateway are told: the same for the same rows, and no key anywhere else."""

import json
import sqlite3
import zlib

import attrs
import trio

from llmgw.control.launching import engine_key
from llmgw.control.node_views import nodes_json, replicas_json
from llmgw.engines.client import EngineClient
from tests.control.little_cluster import SECRET, SPEC, little_cluster, want
from tests.control.little_nodes import Manner

TWO = {"node-1": 2, "node-2": 2}
PAIR = attrs.evolve(SPEC, shards=2, gpus=2)


def wanted(little):
    """By node: revision and entries."""
    return {name: (node.wanted.rev, node.wanted.shards) for name, node in little.there.registry.nodes.items()}


async def busy(little):
    await little.until(lambda: little.serving("pair") and len(little.serving()) == 0)
    await little.quiet()


async def test_a_new_leader_wants_exactly_the_same(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want("pair", spec=PAIR)]) as little:
        await little.until(lambda: little.serving("pair"))
        await little.quiet()
        before = {name: shards for name, (_, shards) in wanted(little).items()}
        await little.leader_dies()
        await little.lead()
        await little.until(lambda: little.serving("pair"))
        await trio.sleep(30)
        after = wanted(little)
        assert {name: shards for name, (_, shards) in after.items()} == before
        assert {rev for rev, _ in after.values()} == {1}


async def test_nothing_is_told_anew_while_nothing_changes(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want(n=2), want("pair", n=1, spec=attrs.evolve(PAIR, gpus=1))]) as little:
        await little.until(lambda: len(little.serving()) == 2 and little.serving("pair"))
        await little.quiet()
        before, routed = wanted(little), len(little.routes)
        await trio.sleep(300)
        assert wanted(little) == before
        assert len(little.routes) == routed


async def test_a_routing_table_is_made_for_a_change_alone(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, TWO, [want(n=2)]) as little:
        await little.until(lambda: len(little.serving()) == 2)
        for earlier, later in zip(little.routes, little.routes[1:], strict=False):
            assert earlier[1] != later[1]
        little.shard("m-1").kill()
        await little.until(lambda: "m-1.g3" in little.routed())
        assert [sorted(one.id for its in routes.values() for one in its) for _, routes in little.routes[-2:]] == [
            ["m-2.g2"],
            ["m-1.g3", "m-2.g2"],
        ]


async def test_a_rank_after_the_first_is_wanted_with_rank_0s_address_and_never_changes(tmp_path, autojump_clock):
    seen = []
    async with little_cluster(tmp_path, TWO, [want("pair", spec=PAIR)]) as little:
        first = little.nodes["node-1"]
        for _ in range(60):
            seen += (
                [entry for node in little.there.registry.nodes.values() for entry in node.wanted.shards]
                if all(node.wanted for node in little.there.registry.nodes.values())
                else []
            )
            if not first.shards:
                assert not any(entry.id.endswith(".r1") for entry in seen)
            await trio.sleep(0.1)
        await little.until(lambda: little.serving("pair"))
    assert len({entry.id for entry in seen}) == 2
    assert len({json.dumps(attrs.asdict(entry), default=dict) for entry in seen}) == 2


async def test_an_engines_key_is_told_to_its_node_and_kept_nowhere(tmp_path, autojump_clock):
    """Not in rows, decisions, events, the audit, nor in anything operators are shown."""
    manners = {"m-2": Manner(dies_after_s=20)}
    async with little_cluster(tmp_path, TWO, [want(n=2), want("pair", spec=PAIR)], manners=manners) as little:
        await little.until(lambda: len(little.serving()) == 2)
        await trio.sleep(60)
        rows = little.there.cluster.rows
        told = [e for node in little.there.registry.nodes.values() for e in node.wanted.shards]
        keys = {entry.key for entry in told}
        assert len(keys) >= 2
        assert all(len(key) > 40 for key in keys)
        every = {engine_key(SECRET, f"{name}.g{g}") for name in rows for g in range(1, 9)}
        assert keys <= every
        assert all(key not in " ".join(entry.argv) + repr(entry) for entry in told for key in every)
        shown = json.dumps([*replicas_json(little.there.cluster), *nodes_json(little.there.cluster)])
        for live in little.there.cluster.live:
            shown += repr(live.endpoint) + repr(EngineClient(live.endpoint, print))
        shown += " ".join(f"{one.sentence} {one.data}" for one in little.told())
        assert not [key for key in every if key in shown]
        await little.there.events.flush()
        text = await little.there.store.read(everything)
        assert "m-2" in text
        assert not [key for key in every if key in text]


def everything(conn: sqlite3.Connection) -> str:
    """All text of all tables; what is compressed is opened."""
    found = []
    for (table,) in conn.execute("select name from sqlite_master where type = 'table'").fetchall():
        for row in conn.execute(f"select * from {table}"):
            found += [_opened(value) for value in row if isinstance(value, str | bytes)]
    return "\n".join(found)


def _opened(value: str | bytes) -> str:
    if isinstance(value, str):
        return value
    try:
        return zlib.decompress(value).decode()
    except zlib.error:
        return value.hex()
