"""Operators' tokens: named, with a role, shown once."""

import stat

import pytest
import trio

from llmgw.control.tokens import FIRST, CreatedToken, Tokens
from llmgw.core.identity import TOKEN_PREFIX, Declined, Operator, Role, TokenRecord, well_formed
from llmgw.store import audit
from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Store
from llmgw.store.secret_file import write_secret

ME = Operator("me", Role.ADMIN)


@pytest.fixture
def store(any_store: Store) -> Store:
    return any_store


async def test_the_first_start_writes_a_token_for_its_owner_alone(store):
    tokens = await Tokens.load(store)

    path = await tokens.first_start(store.place.admin_token)

    assert path == store.place.admin_token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = path.read_text().strip()
    assert token.startswith(TOKEN_PREFIX)
    assert well_formed(token, TOKEN_PREFIX)
    assert tokens.identify(token) == Operator(FIRST, Role.ADMIN)
    assert [f.name for f in path.parent.iterdir() if "admin.token" in f.name] == ["admin.token"]


async def test_a_later_start_leaves_tokens_as_they_are(store):
    first = await Tokens.load(store)
    path = await first.first_start(store.place.admin_token)
    path.unlink()

    later = await Tokens.load(store)

    assert await later.first_start(store.place.admin_token) is None
    assert not path.exists()


async def test_a_first_start_the_store_refused_is_made_again(kind, store):
    tokens = await Tokens.load(store)
    kind.goes_away(store)
    with pytest.raises(StoreUnavailable):
        await tokens.first_start(store.place.admin_token)
    kind.comes_back(store)

    path = await tokens.first_start(store.place.admin_token)

    assert tokens.identify(path.read_text().strip())


async def test_a_token_has_a_name_and_a_role_and_ends_when_revoked(store):
    tokens = await Tokens.load(store)
    await tokens.first_start(store.place.admin_token)

    created = await tokens.create(ME, "grafana", Role.VIEWER)
    assert isinstance(created, CreatedToken)
    assert tokens.identify(created.token) == Operator("grafana", Role.VIEWER)
    assert created.token not in repr(created)

    revoked = await tokens.revoke(ME, "grafana", why="moved")
    assert isinstance(revoked, TokenRecord)
    assert tokens.identify(created.token) is None
    assert [t.name for t in await tokens.list()] == [FIRST]
    assert [(a.what, a.subject, a.why) for a in await store.read(audit.recent)][:1] == [
        ("tokens.revoke", "grafana", "moved")
    ]


async def test_the_last_admin_token_stays(store):
    tokens = await Tokens.load(store)
    await tokens.first_start(store.place.admin_token)

    declined = await tokens.revoke(ME, FIRST)
    assert isinstance(declined, Declined)
    assert "last admin token" in declined.message

    await tokens.create(ME, "second", Role.ADMIN)
    assert isinstance(await tokens.revoke(ME, FIRST), TokenRecord)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 65, "a\nb"])
async def test_a_name_that_would_confuse_is_declined(store, name):
    assert isinstance(await (await Tokens.load(store)).create(ME, name, Role.ADMIN), Declined)


async def test_a_name_is_used_once_and_a_wrong_one_gets_the_nearest(store):
    tokens = await Tokens.load(store)
    await tokens.create(ME, "grafana", Role.VIEWER)

    again = await tokens.create(ME, "grafana", Role.ADMIN)
    wrong = await tokens.revoke(ME, "graphana")

    assert isinstance(again, Declined)
    assert again.code == "duplicate"
    assert isinstance(wrong, Declined)
    assert (wrong.code, wrong.hint) == ("not_found", "did you mean 'grafana'?")


@pytest.mark.parametrize("token", ["", "x", "' or 1=1", TOKEN_PREFIX, "\udc80"])
async def test_nobody_is_nobody(store, token):
    tokens = await Tokens.load(store)
    await tokens.first_start(store.place.admin_token)

    assert tokens.identify(token) is None


async def test_another_process_s_change_counts_within_a_second(store, autojump_clock, nursery):
    ours, theirs = await Tokens.load(store), await Tokens.load(store)
    nursery.start_soon(ours.follow)

    created = await theirs.create(ME, "joe", Role.OPERATOR)
    await trio.sleep(1)

    assert ours.identify(created.token) == Operator("joe", Role.OPERATOR)


def test_roles_rise():
    assert [[a.may(b) for b in Role] for a in Role] == [[True, False, False], [True, True, False], [True, True, True]]


def test_a_secret_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "there").mkdir()

    with pytest.raises(OSError, match="directory"):
        write_secret(tmp_path / "there", "secret")

    assert [f.name for f in tmp_path.iterdir()] == ["there"]
