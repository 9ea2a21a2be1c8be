"""What every store promises, whatever lies beneath."""

import json
import time
from functools import partial

import pytest
from attrs import evolve

from llmgw.core.identity import Band, KeyRecord
from llmgw.core.joining import JoinTokenRecord, NodeRecord
from llmgw.core.term import Term
from llmgw.store import accounts, audit, decisions, desired, events, join_tokens, keys, leader, nodes, tokens
from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Database
from llmgw.store.fenced import Fenced
from llmgw.store.housekeeping import tidy
from llmgw.store.limits import StoreLimits
from llmgw.store.usage import insert
from tests.stores import POSTGRES


def key(id: str, shown: str = "sk-…abcd", note: str = "") -> KeyRecord:
    return KeyRecord(
        id, id.encode().ljust(32, b"\0"), shown, "acme", Band.GOLD, frozenset({"m"}), 1.5, None, None, note
    )


async def with_keys(store, *records: KeyRecord) -> None:
    def add(db: Database) -> None:
        keys.add_tenants(db, ["acme"], 1.0)
        keys.add(db, records)

    await store.write(add)


async def test_a_start_counts_up_and_the_cluster_keeps_its_id(kind):
    first = kind.open()
    first.close()
    second = kind.open()
    second.close()
    passing = kind.open(starts=False)
    passing.close()

    assert [store.start for store in (first, second, passing)] == [1, 2, 2]
    assert first.cluster_id == second.cluster_id == passing.cluster_id
    assert len(first.cluster_id) == 32


async def test_what_fails_half_way_leaves_nothing(any_store):
    def half(db: Database) -> None:
        db.conn.execute("insert into tenants values ('acme', 1.0)")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await any_store.write(half)

    assert await any_store.read(lambda conn: conn.execute("select count(*) from tenants").fetchone()) == (0,)
    await any_store.write(lambda db: keys.add_tenants(db, ["acme"], 1.0))
    assert await any_store.read(keys.tenants) == [("acme", 1.0)]


async def test_the_reader_cannot_write(any_store):
    with pytest.raises(StoreUnavailable, match=r"can't be written|read-only"):
        await any_store.read(lambda conn: conn.execute("delete from keys"))

    assert await any_store.read(keys.every) == []


async def test_a_reader_sees_one_state(any_store):
    assert await any_store.read(keys.unrevoked) == ([], 0)
    await any_store.write(lambda db: keys.raise_revision(db.conn))

    assert await any_store.read(keys.unrevoked) == ([], 1)


async def test_a_broken_truth_is_not_blamed_on_the_store(any_store):
    await with_keys(any_store, key("key_1"))

    with pytest.raises(Exception, match=r"(?i)unique") as caught:
        await any_store.write(lambda db: keys.add(db, [key("key_1")]))

    assert not isinstance(caught.value, StoreUnavailable)


async def test_a_key_comes_back_as_it_went_and_is_found_by_what_it_begins_with(any_store):
    one, other = key("key_1", note="50 % of it"), key("key_2", shown="sk-%_…", note="zwölf\nKräne")
    await with_keys(any_store, one, other)

    assert await any_store.read(keys.every) == [one, other]
    assert await any_store.read(lambda conn: keys.matching(conn, "key_")) == [one, other]
    assert await any_store.read(lambda conn: keys.matching(conn, "sk-%")) == [other]
    assert await any_store.read(lambda conn: keys.matching(conn, "")) == [one, other]
    assert await any_store.read(lambda conn: keys.by_digest(conn, one.digest)) == one


async def test_a_text_that_postgresql_cannot_hold_is_stored_without_what_it_cannot(kind, any_store):
    act = audit.Act(1.0, "me\0", "admin", "keys.create", "a")
    await any_store.write(lambda db: audit.note(db, act))

    (found,) = await any_store.read(lambda conn: audit.recent(conn, 5))
    assert found.who == ("me\ufffd" if kind.name == POSTGRES else "me\0")


async def test_names_come_in_the_order_of_their_bytes(any_store):
    names = ["b", "a", "B", "ä", "a-1", "a1", "_"]
    await any_store.write(lambda db: keys.add_tenants(db, names, 1.0))

    assert [name for name, _ in await any_store.read(keys.tenants)] == sorted(names, key=str.encode)


async def test_a_node_that_joins_again_keeps_what_was_asked_of_it(any_store):
    def node(credential: bytes) -> NodeRecord:
        return NodeRecord("node-1", credential, 1.0, "tok", {"zone": "a"}, "10.0.0.1", "boot", "0.5")

    await any_store.write(lambda db: nodes.save(db, node(b"a" * 32)))
    await any_store.write(lambda db: nodes.aim(db, "node-1", "cordoned", "ann", 2.0, "hot"))
    await any_store.write(lambda db: nodes.seen(db, {"node-1": 3.0}))
    await any_store.write(lambda db: nodes.save(db, node(b"b" * 32)))

    (found,) = await any_store.read(nodes.every)
    assert (found.credential, found.target, found.seen_at) == (b"b" * 32, "cordoned", 3.0)


async def test_a_join_token_is_used_up_and_forgotten(any_store):
    token = JoinTokenRecord("t", b"d" * 32, 1.0, "ann", 10.0, None, 1, 0)
    await any_store.write(lambda db: join_tokens.add(db, token))
    await any_store.write(lambda db: join_tokens.use(db, "t"))

    assert (await any_store.read(lambda conn: join_tokens.find(conn, "t"))).uses == 1
    await any_store.write(lambda db: join_tokens.forget(db, 11.0))
    assert await any_store.read(join_tokens.every) == []


async def test_only_the_latest_decisions_and_events_are_kept(any_store):
    for n in range(8):
        told = decisions.Decision(float(n), "placed", "m-1", "m", f"on node-{n}", {"n": n})
        await any_store.write(lambda db, told=told: decisions.add(db, told, most=3))
        event = events.Event(n, float(n), "replica.started", "m-1", "it started", {"n": n})
        await any_store.write(lambda db, event=event: events.add(db, [event, event], most=3))

    assert [d.at for d in await any_store.read(lambda conn: decisions.recent(conn, 10, "m"))] == [7.0, 6.0, 5.0]
    assert (await any_store.read(lambda conn: decisions.latest(conn, "m-1"))).told == {"n": 7}
    assert [e.seq for e in await any_store.read(lambda conn: events.latest(conn, 10))] == [5, 6, 7]


async def test_revisions_and_scales_come_back(any_store):
    unsure = desired.Revision(1, 1.0, "ann", "", "llmgw.toml", [])
    wanted = desired.Revision(1, 1.5, "bob", "again", "llmgw.toml", [{"name": "m"}])
    for revision in (unsure, wanted):
        await any_store.write(lambda db, revision=revision: desired.add(db, revision))
    for replicas in (2, 3):
        said = desired.Scale("m", replicas, 1.0, "ann", "busy")
        await any_store.write(lambda db, said=said: desired.scale(db, said))

    assert await any_store.read(desired.latest) == wanted
    assert await any_store.read(desired.scales) == [said]


async def test_the_fence_lets_only_the_very_latest_term_through(any_store):
    term = await any_store.read(leader.term_of)
    await any_store.write(lambda db: leader.fence(db.conn, term))
    for other in (evolve(term, n=term.n + 1), evolve(term, epoch=term.epoch - 1), evolve(term, nonce="another")):
        with pytest.raises(leader.NotLeading):
            await any_store.write(lambda db, other=other: leader.fence(db.conn, other))

    lifted = await any_store.write(lambda db: leader.lift(db, term, Term(7, 40, "x"), "fresh"))

    assert lifted == Term(7, 41, "fresh") == await any_store.read(leader.term_of)
    with pytest.raises(leader.NotLeading):
        await any_store.write(lambda db: leader.fence(db.conn, term))


async def test_what_a_leader_writes_is_refused_once_it_leads_no_more(any_store):
    term, refused = await any_store.read(leader.term_of), []
    leads = True
    fenced = Fenced(any_store, lambda: partial(leader.fence, term=term) if leads else None, lambda: refused.append(1))
    await fenced.write(lambda db: leader.counted(db.conn, "generation", 3))

    await any_store.write(lambda db: leader.lift(db, term, Term(7, 40, "x"), "fresh"))
    with pytest.raises(leader.NotLeading):
        await fenced.write(lambda db: leader.counted(db.conn, "generation", 5))
    assert refused == [1]
    assert await any_store.write(lambda db: leader.counted(db.conn, "generation", 1)) == 4, "it was rolled back"

    leads = False
    with pytest.raises(leader.NotLeading):
        await fenced.write(lambda db: leader.counted(db.conn, "generation", 5))
    assert refused == [1], "the store was not even asked"


async def test_counters_give_each_number_once(any_store):
    assert await any_store.write(lambda db: leader.counted(db.conn, "generation", 3)) == 3
    assert await any_store.write(lambda db: leader.counted(db.conn, "generation", 1)) == 4
    assert await any_store.write(lambda db: tokens.raise_revision(db.conn)) == 1
    made = [await any_store.write(lambda db, x=x: leader.secret(db.conn, "salt", x)) for x in ("a", "b")]
    assert made == ["a", "a"]


async def test_accounts_of_two_starts_stand_beside_each_other(kind):
    def account(requests: int) -> accounts.Account:
        return accounts.Account(300, "m", "gold", "acme", {"requests": requests, "shadow": {"n": 1}}, [{"id": "a"}])

    for requests in (1, 2):
        store = kind.open()
        for _ in range(2):
            await store.write(lambda db, n=requests, start=store.start: accounts.save(db, [account(n)], start))
        found = await store.read(lambda conn: accounts.between(conn, 0, 600, "m"))
        shadows = await store.read(lambda conn: accounts.shadows_between(conn, 0, 600))
        store.close()

    assert sorted(a.counts["requests"] for a in found) == [1, 2]
    assert shadows == [("m", "gold", "acme", {"n": 1})] * 2


async def test_what_is_too_old_goes_and_the_rest_stays(any_store, autojump_clock):
    usage = [
        (f"r{n}", float(n), "t", "k", "gold", "m", "e", "chat", "ok", 200, 1, 1, 0, n % 2 == 0, 1.0, None, 1)
        for n in range(10)
    ]
    await any_store.write(lambda db: insert(db, usage))
    spans = [accounts.Account(n, "m", "gold", "t", {}, []) for n in range(10)]
    await any_store.write(lambda db: accounts.save(db, spans, 1))
    await any_store.write(lambda db: audit.note(db, audit.Act(1.0, "me", "admin", "keys.create", "key_1")))

    removed = await tidy(any_store, StoreLimits(usage_keep=3), accounts_keep_s=5, now=10)

    assert removed == 7 + 5
    left = "select (select count(*) from usage), (select count(*) from accounts), (select count(*) from audit)"
    assert await any_store.read(lambda conn: conn.execute(left).fetchone()) == (3, 5, 1)


async def test_the_audit_gives_back_what_it_was_told(any_store):
    act = audit.Act(1.0, "me", "admin", "keys.revoke", "key_1", "left us", {"a": 1}, None)
    await any_store.write(lambda db: audit.note(db, act))

    assert await any_store.read(lambda conn: audit.recent(conn, 5)) == [act]
    assert json.dumps(act.before) == '{"a": 1}'


async def test_a_store_that_is_away_says_so_and_comes_back(kind, any_store):
    kind.goes_away(any_store)
    with pytest.raises(StoreUnavailable):
        await any_store.write(lambda db: keys.add_tenants(db, ["acme"], 1.0))

    kind.comes_back(any_store)
    await any_store.write(lambda db: keys.add_tenants(db, ["acme"], time.time()))

    assert len(await any_store.read(keys.tenants)) == 1


def test_the_data_directory_is_for_one_control_plane_alone(kind, any_store):
    with pytest.raises(StoreUnavailable, match="in use by process"):
        kind.open()
