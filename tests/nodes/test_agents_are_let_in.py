"""Who comes in by the agents' listener, by which route, and what the store keeps of it."""

import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import trio

from agent.dialing import ask
from llmgw.control.joining import Invited, Joining
from llmgw.core.identity import Declined
from llmgw.core.joining import (
    CREDENTIAL_PREFIX,
    Admitted,
    Joined,
    Unwelcome,
    ca_digits,
    may_be_named,
    read_join_token,
)
from llmgw.nodes.registry import NotLeading
from llmgw.store import audit
from llmgw.store import nodes as rows
from llmgw.wire.agent_joining import CA, JOIN, LINK, Denied, JoinAsked, JoinGiven, encode, read
from tests.agent_links import AUTHORITY, ME, Leader


@pytest.fixture
async def leader(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Leader]:
    leader = await Leader.make(tmp_path, nursery)
    yield leader
    assert leader.failures == []
    leader.store.close()


async def asked(
    leader: Leader, method: str, path: str, token: str = "", body: bytes | None = None
) -> tuple[int, bytes]:
    head: Mapping[str, str] = {":method": method, ":path": path}
    if token:
        head = {**head, "authorization": f"Bearer {token}"}
    answer = await ask(await leader.dial("leader.test:7443", AUTHORITY.pem), "leader.test:7443", head, body)
    return answer.status, bytes(answer.body)


async def joined(leader: Leader, name: str = "node-1", **how) -> str:
    given = await leader.joining.join(await leader.token(**how), JoinAsked(name))
    assert isinstance(given, Joined), given
    return given.credential


ROUTES = [
    ("POST", LINK),
    ("GET", CA),
    ("POST", JOIN),
    ("GET", "/"),
    ("POST", "/metrics"),
    ("DELETE", LINK),
    ("PUT", "/x"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    "token", ["", "x", "llmgw-join-abc", CREDENTIAL_PREFIX + "a" * 38, "llmgw-join-a-b-" + "0" * 32]
)
async def test_every_route_without_a_valid_token_is_401(leader, method, path, token):
    body = encode(JoinAsked("node-1")) if path == JOIN and method == "POST" else None

    status, said = await asked(leader, method, path, token, body)

    assert status == 401
    assert read(Denied, said).why
    assert leader.registry.counts["unauthorized"] == 1


async def test_a_credential_opens_the_link_and_nothing_else(leader):
    credential = await joined(leader)

    for method, path in [("GET", LINK), ("POST", "/agent/v1/engines"), ("GET", "/agent/v1/join")]:
        assert (await asked(leader, method, path, credential))[0] == 404
    assert (await asked(leader, "GET", CA, credential))[0] == 401


async def test_a_join_token_shows_the_ca_without_its_secret(leader):
    token = read_join_token(await leader.token())

    status, pem = await asked(leader, "GET", CA, token.public)

    assert status == 200
    assert token.vouches_for(ssl.PEM_cert_to_DER_cert(pem.decode()))
    assert (await asked(leader, "POST", LINK, token.text))[0] == 401


async def test_joining_gives_what_a_node_keeps_for_ever(leader):
    token = await leader.token()
    status, body = await asked(leader, "POST", JOIN, token, encode(JoinAsked("node-1", "boot", "0.3", "", {"a": "b"})))
    given = read(JoinGiven, body)

    assert status == 200
    assert given.cluster == leader.store.cluster_id
    assert leader.joining.authenticate(given.credential) == Admitted("node-1")
    node = leader.joining.nodes["node-1"]
    assert (node.boot, node.version, node.labels, node.target) == ("boot", "0.3", {"a": "b"}, "schedulable")
    kept = await leader.store.read(lambda conn: str(conn.execute("select * from nodes").fetchall()))
    assert given.credential not in kept
    acts = await leader.store.read(audit.recent)
    assert [(act.what, act.subject) for act in acts][:1] == [("nodes.join", "node-1")]
    assert token not in str(acts)
    assert given.credential not in str(acts)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"{" * 5000, b"x" * 20_000])
async def test_a_body_that_is_none_is_refused(leader, body):
    status, said = await asked(leader, "POST", JOIN, await leader.token(), body)

    assert status in (400, 413)
    assert read(Denied, said).why
    assert not leader.joining.nodes


async def test_who_does_not_lead_lets_nobody_join_and_names_who_does(leader):
    credential, token = await joined(leader), await leader.token()
    leader.lead = NotLeading("10.0.0.2:7443")

    for path, shown, body in [(LINK, credential, None), (JOIN, token, encode(JoinAsked("node-2")))]:
        status, said = await asked(leader, "POST", path, shown, body)
        assert status == 421
        assert read(Denied, said) == Denied("this control plane does not lead", "10.0.0.2:7443")
    assert list(leader.joining.nodes) == ["node-1"]


# -- tokens and nodes ------------------------------------------------------------------------------------


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def joining(leader: Leader, clock: Clock) -> Joining:
    return await Joining.load(leader.store, lambda: AUTHORITY.digits, clock)


async def invited(joining: Joining, **how) -> Invited:
    made = await joining.invite(ME, **how)
    assert isinstance(made, Invited)
    return made


async def test_a_token_ends_by_time_by_word_and_by_use(joining, clock):
    by_time, by_word, by_use = [(await invited(joining, valid_s=60, uses_max=n)).token for n in (0, 0, 1)]
    assert isinstance(await joining.join(by_use.text, JoinAsked("node-1")), Joined)
    await joining.revoke(ME, by_word.id, why="leaked")
    clock.now += 60

    why = [str(await joining.join(token.text, JoinAsked("node-2"))) for token in (by_time, by_word, by_use)]

    assert why[0] == f"join token {by_time.id} has expired"
    assert why[1] == f"join token {by_word.id} was revoked"
    assert by_use.id in why[2]
    assert str(joining.may_ask_for_ca(by_time.public)) == why[0]
    assert list(joining.nodes) == ["node-1"]


async def test_a_secret_of_another_token_opens_nothing(joining):
    one, other = (await invited(joining)).token, (await invited(joining)).token
    mixed = one.text.replace(one.secret, other.secret)

    assert isinstance(await joining.join(mixed, JoinAsked("node-1")), Unwelcome)
    assert one.secret not in repr(one)


async def test_without_a_ca_nobody_is_invited(leader):
    joining = await Joining.load(leader.store, lambda: "")

    assert isinstance(refused := await joining.invite(ME), Declined)
    assert "llmgw certs init" in refused.hint


async def test_a_removed_node_is_known_by_name_and_may_join_again(joining):
    ended: list[tuple[str, str]] = []
    joining.on_ended = lambda node, why: ended.append((node, why))
    token = (await invited(joining)).token.text
    first = await joining.join(token, JoinAsked("node-1"))

    await joining.remove(ME, "node-1", why="sold")
    assert joining.authenticate(first.credential) == Unwelcome("node-1 was removed from the cluster (sold)")
    assert ended == [("node-1", "node-1 was removed from the cluster (sold)")]
    assert isinstance(again := await joining.remove(ME, "node-1"), Declined)
    assert again.code == "not_found"

    second = await joining.join(token, JoinAsked("node-1"))
    assert joining.authenticate(second.credential) == Admitted("node-1")
    assert "joined again since" in str(joining.authenticate(first.credential))
    assert len(ended) == 1


async def test_joining_again_keeps_what_was_asked_of_the_node(joining, leader):
    token = (await invited(joining)).token.text
    first = await joining.join(token, JoinAsked("node-1"))
    await leader.store.write(lambda db: rows.aim(db, "node-1", "cordoned", "me", 5.0, "fans"))
    ended = []
    joining.on_ended = lambda node, why: ended.append(why)

    await joining.join(token, JoinAsked("node-1", "boot-2"))

    node = joining.nodes["node-1"]
    assert (node.target, node.target_why, node.boot) == ("cordoned", "fans", "boot-2")
    assert ended == ["node-1 has joined again since, with another credential"]
    assert isinstance(joining.authenticate(first.credential), Unwelcome)


async def test_what_another_process_changed_is_taken_up(joining, leader, autojump_clock, nursery):
    credential = await joined(leader)
    nursery.start_soon(joining.follow)
    await trio.sleep(1)
    assert joining.authenticate(credential) == Admitted("node-1")

    ended = []
    joining.on_ended = lambda node, why: ended.append(node)
    await leader.joining.remove(ME, "node-1")
    await trio.sleep(1)

    assert ended == ["node-1"]
    assert isinstance(joining.authenticate(credential), Unwelcome)


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "../x", "a" * 64, "é", "a\n"])
async def test_a_name_that_would_confuse_is_refused(joining, name):
    said = await joining.join((await invited(joining)).token.text, JoinAsked(name))

    assert isinstance(said, Unwelcome)
    assert not may_be_named(name)


@pytest.mark.parametrize(
    "text", ["", "llmgw-join-", "llmgw-join-a", "llmgw-join-a-b", "llmgw-join-a-b-" + "g" * 32, "x" * 99]
)
def test_what_is_no_join_token_is_none(text):
    assert read_join_token(text) is None


def test_a_fingerprint_is_of_the_whole_certificate():
    der = ssl.PEM_cert_to_DER_cert(AUTHORITY.pem.decode())
    assert ca_digits(der) == AUTHORITY.digits
    assert ca_digits(der[:-1] + bytes([der[-1] ^ 1])) != AUTHORITY.digits


async def test_nobody_joins_under_the_name_of_a_node_that_is_linked(leader):
    leader.joining.is_linked = lambda name: name == "node-1"
    token = await leader.token()
    status, said = await asked(leader, "POST", JOIN, token, encode(JoinAsked("node-1", "boot", "0.3", "", {})))
    assert status in (401, 403, 409)
    assert "a node node-1 is linked now: give this machine another --name" in read(Denied, said).why
    assert not leader.joining.nodes
    assert (await asked(leader, "POST", JOIN, token, encode(JoinAsked("node-2", "boot", "0.3", "", {}))))[0] == 200
