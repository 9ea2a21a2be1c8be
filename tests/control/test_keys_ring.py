"""Keys: what an operator asks is on disk and in the ring, or declined with a reason."""

import string

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from llmgw.control.key_entries import KeyEntry, key_entry, seconds_of
from llmgw.control.keys import Created, Imported, Keys
from llmgw.core.identity import (
    PREFIX,
    TOKEN_PREFIX,
    Band,
    Declined,
    KeyRecord,
    Operator,
    Role,
    digest,
    new_key,
    well_formed,
)
from llmgw.store import audit
from llmgw.store import keys as rows
from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Store
from llmgw.store.opening import opened

ME = Operator("me", Role.ADMIN)


@pytest.fixture
def store(any_store: Store) -> Store:
    return any_store


async def made(keys: Keys, tenant: str = "acme", **more: object) -> Created:
    created = await keys.create(ME, KeyEntry(tenant, **more), new_tenant=True)
    assert isinstance(created, Created)
    return created


async def test_a_new_key_is_known_at_once_and_after_a_restart(store):
    keys = await Keys.load(store, now=lambda: 100.0)

    created = await made(keys, band=Band.SILVER, models=frozenset({"m"}), note="for the cat")

    assert keys.ring.find(created.secret_key, 100.0) == created.record
    again = await Keys.load(store)
    assert again.ring.find(created.secret_key, 100.0) == created.record
    assert again.ring.revision == keys.ring.revision == 1


async def test_a_key_is_never_stored_or_shown_whole(kind, store):
    keys = await Keys.load(store)

    created = await made(keys)

    assert well_formed(created.secret_key)
    assert created.secret_key not in repr(created)
    assert await keys.list() == [created.record]
    assert created.secret_key not in repr(kind.rows("select * from keys"))
    assert created.secret_key not in repr(kind.rows("select * from audit"))
    assert created.secret_key not in repr(await store.read(audit.recent))


async def test_an_unknown_tenant_is_declined_with_the_nearest_name(store):
    keys = await Keys.load(store)
    await made(keys, "research")

    declined = await keys.create(ME, KeyEntry("reserch"))

    assert isinstance(declined, Declined)
    assert declined.code == "unknown_tenant"
    assert "'research'" in declined.hint
    assert "--new-tenant" in declined.hint
    assert len(await keys.list()) == 1
    assert isinstance(await keys.create(ME, KeyEntry("research")), Created)


async def test_an_unknown_model_is_declined_with_the_nearest_name(store):
    keys = await Keys.load(store)

    declined = await keys.create(
        ME, KeyEntry("acme", models=frozenset({"lama-3"})), new_tenant=True, known_models={"llama-3", "qwen"}
    )

    assert isinstance(declined, Declined)
    assert declined.hint == "did you mean 'llama-3'?"
    assert await keys.tenants() == []


async def test_a_revoked_key_is_refused_at_once_and_stays_in_the_list(store):
    keys = await Keys.load(store, now=lambda: 100.0)
    created, other = await made(keys), await made(keys)

    revoked = await keys.revoke(ME, created.record.id, why="lost laptop")

    assert isinstance(revoked, KeyRecord)
    assert revoked.revoked_at == 100.0
    assert keys.ring.find(created.secret_key, 100.0) is None
    assert keys.ring.find(other.secret_key, 100.0)
    assert (await Keys.load(store)).ring.find(created.secret_key, 100.0) is None
    assert revoked in await keys.list()
    assert await keys.revoke(ME, created.record.id) == revoked  # twice is fine


def hashed(created: Created) -> str:
    return "sha256:" + digest(created.secret_key).hex()


async def test_a_key_is_found_by_the_beginning_of_its_id_by_what_is_shown_and_by_itself(store):
    keys = await Keys.load(store)
    for name in (lambda c: c.record.id[:10], lambda c: c.record.shown, lambda c: c.secret_key, hashed):
        created = await made(keys)
        revoked = await keys.revoke(ME, name(created))
        assert isinstance(revoked, KeyRecord)
        assert revoked.id == created.record.id


@pytest.mark.parametrize("text", ["", "k", "key_", "' or 1=1 --", "%", "______", "key_%", "no-such-key", "\udc80" * 9])
async def test_what_names_no_one_key_revokes_none(store, text):
    keys = await Keys.load(store)
    await made(keys)
    await made(keys)

    assert isinstance(await keys.revoke(ME, text), Declined)
    assert all(r.revoked_at is None for r in await keys.list())


async def test_a_beginning_that_two_keys_share_is_ambiguous(store):
    keys = await Keys.load(store, chance=lambda n: bytes(n))
    await made(keys)
    await store.write(lambda db: db.conn.execute("update keys set id = 'key_0000_other'"))
    keys._chance = lambda n: b"\1" * n
    await made(keys)
    await store.write(
        lambda db: db.conn.execute("update keys set id = 'key_0000_one' where id like 'key_%' and id not like '%other'")
    )

    declined = await keys.revoke(ME, "key_0000")

    assert isinstance(declined, Declined)
    assert declined.code == "ambiguous"
    assert "key_0000_one" in declined.message


async def test_an_import_takes_plain_keys_and_digests(store):
    keys = await Keys.load(store, now=lambda: 5.0)
    entries = [
        KeyEntry("acme", Band.BRONZE, key="sk-brought-from-elsewhere"),
        KeyEntry("beta", models=frozenset({"m"}), key="sha256:" + digest("sk-only-its-digest").hex()),
    ]

    done = await keys.import_keys(ME, entries, known_models={"m"})

    assert isinstance(done, Imported)
    assert done.new_tenants == ("acme", "beta")
    plain, hashed = keys.ring.find("sk-brought-from-elsewhere", 5.0), keys.ring.find("sk-only-its-digest", 5.0)
    assert plain
    assert hashed
    assert (plain.tenant, plain.band, hashed.tenant, hashed.models) == ("acme", Band.BRONZE, "beta", {"m"})
    assert len(plain.shown) < len("sk-brought-from-elsewhere") / 2


async def test_an_import_is_all_or_nothing_and_names_every_problem(store):
    keys = await Keys.load(store)
    mine = new_key(bytes(32))
    broken = mine[:-1] + ("A" if mine[-1] != "A" else "B")
    entries = [
        KeyEntry("acme", key="sk-good-good-good"),
        KeyEntry("acme", key="short"),
        KeyEntry("acme", key="sk-good-good-good"),
        KeyEntry("acme", key=broken),
        KeyEntry("acme", key="sha256:beef"),
        KeyEntry("acme", key="sk-with-model-x", models=frozenset({"x"})),
    ]

    declined = await keys.import_keys(ME, entries, known_models={"m"})

    assert isinstance(declined, Declined)
    for number in (2, 3, 4, 5, 6):
        assert f"entry {number}:" in declined.message
    assert "entry 1:" not in declined.message
    assert "sk-good-good-good" not in declined.message
    assert await keys.list() == []
    assert not keys.ring.by_digest


async def test_importing_the_same_file_twice_is_declined_and_changes_nothing(store):
    keys = await Keys.load(store)
    entries = [KeyEntry("acme", key="sk-once-upon-a-time")]
    await keys.import_keys(ME, entries)
    before = await keys.list()

    declined = await keys.import_keys(ME, [KeyEntry("beta", key="sk-another-new-one"), *entries])

    assert isinstance(declined, Declined)
    assert declined.code == "duplicate"
    assert f"entry 2: is here already as {before[0].id}" in declined.message
    assert await keys.list() == before


async def test_what_another_process_changed_counts_within_a_second(store, autojump_clock, nursery):
    ours, theirs = await Keys.load(store), await Keys.load(store)
    nursery.start_soon(ours.follow)

    created = await made(theirs)
    await trio.sleep(1)
    assert ours.ring.find(created.secret_key, 0.0)

    await theirs.revoke(ME, created.record.id)
    await trio.sleep(1)
    assert ours.ring.find(created.secret_key, 0.0) is None


async def test_a_change_between_two_of_ours_is_not_missed(store, autojump_clock, nursery):
    ours, theirs = await Keys.load(store), await Keys.load(store)
    other = await made(theirs)
    mine = await made(ours)
    nursery.start_soon(ours.follow)

    await trio.sleep(1)

    assert ours.ring.find(mine.secret_key, 0.0)
    assert ours.ring.find(other.secret_key, 0.0)


async def test_while_the_store_is_away_keys_that_are_known_go_on(kind, store, autojump_clock, nursery):
    keys = await Keys.load(store)
    created = await made(keys)
    nursery.start_soon(keys.follow)

    with kind.unreadable(store):
        await trio.sleep(2)
        assert keys.stale
        assert keys.ring.find(created.secret_key, 0.0)

    await trio.sleep(2)
    assert not keys.stale


async def test_a_key_the_store_refused_is_not_honoured(kind, store):
    keys = await Keys.load(store)
    kind.goes_away(store)

    with pytest.raises(StoreUnavailable):
        await keys.create(ME, KeyEntry("acme"), new_tenant=True)

    assert not keys.ring.by_digest


async def test_every_change_says_who_what_and_why(store):
    keys = await Keys.load(store, now=lambda: 7.0)
    created = await made(keys)
    await keys.import_keys(ME, [KeyEntry("acme", key="sk-brought-along")], why="moved")
    await keys.revoke(Operator("joe", Role.OPERATOR), created.record.id, why="left")

    revoked, imported, first = await store.read(audit.recent)

    assert (first.what, first.who, first.subject) == ("keys.create", "me", created.record.id)
    assert (imported.what, imported.why) == ("keys.import", "moved")
    assert (revoked.what, revoked.who, revoked.role, revoked.why, revoked.at) == (
        "keys.revoke",
        "joe",
        "operator",
        "left",
        7.0,
    )
    assert revoked.before["revoked_at"] is None
    assert revoked.after["revoked_at"] == 7.0


async def test_keys_made_at_the_same_time_are_all_in_the_ring(kind):
    async with opened(kind.place) as store:
        await _twenty_at_once(store)


async def _twenty_at_once(store: Store) -> None:
    keys = await Keys.load(store)
    created: list[Created] = []

    async def one() -> None:
        created.append(await made(keys))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(one)

    assert all(keys.ring.find(c.secret_key, 0.0) for c in created)
    assert keys.ring.revision == await store.read(rows.revision) == 20


async def test_a_key_that_expires_is_refused_from_then_on(store):
    keys = await Keys.load(store, now=lambda: 100.0)
    created = await made(keys, expires_at=200.0)

    assert keys.ring.find(created.secret_key, 199.0)
    assert keys.ring.find(created.secret_key, 200.0) is None
    assert isinstance(await keys.create(ME, KeyEntry("acme", expires_at=99.0), new_tenant=True), Declined)


@pytest.mark.parametrize("name", ["", " acme", "a\nb", "x" * 65, "\x1b[31m"])
async def test_a_tenant_name_that_would_confuse_is_declined(store, name):
    keys = await Keys.load(store)

    assert isinstance(await keys.create(ME, KeyEntry(name), new_tenant=True), Declined)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({}, "tenant is missing"),
        ({"tenant": 3}, "tenant is missing"),
        ({"tenant": "a", "role": "admin"}, "unknown field 'role'"),
        ({"tenant": "a", "key": "sk-12345678"}, "unknown field 'key'"),
        ({"tenant": "a", "band": "golden"}, "did you mean 'gold'"),
        ({"tenant": "a", "models": [1]}, "models must be a list"),
        ({"tenant": "a", "expires_at": "soon"}, "neither seconds"),
        ({"tenant": "a", "expires_at": True}, "neither seconds"),
        ({"tenant": "a", "note": 3}, "note must be text"),
    ],
)
def test_what_is_asked_of_a_key_is_read_strictly(raw, says):
    declined = key_entry(raw)

    assert isinstance(declined, Declined)
    assert says in str(declined)


def test_a_whole_entry_is_read():
    raw = {"tenant": "a", "band": "silver", "models": ["m", "n"], "expires_at": "2030-01-31", "note": "hi"}

    assert key_entry(raw) == KeyEntry("a", Band.SILVER, frozenset({"m", "n"}), 1896048000.0, "hi")
    assert key_entry({"tenant": "a", "key": "k", "models": "m; n"}, with_key=True) == KeyEntry(
        "a", models=frozenset({"m", "n"}), key="k"
    )
    assert seconds_of("2030-01-31T01:00:00+01:00") == 1896048000.0


@given(st.binary(min_size=32, max_size=32), st.sampled_from([PREFIX, TOKEN_PREFIX]))
def test_every_key_carries_its_checksum(chance, prefix):
    assert well_formed(new_key(chance, prefix), prefix)


@given(st.binary(min_size=32, max_size=32), st.data())
def test_one_wrong_character_is_noticed(chance, data):
    key = new_key(chance)
    at = data.draw(st.integers(len(PREFIX), len(key) - 1))
    other = data.draw(st.sampled_from([c for c in string.ascii_letters + string.digits if c != key[at]]))

    assert not well_formed(key[:at] + other + key[at + 1 :])
