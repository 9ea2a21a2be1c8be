"""One folder, one cluster: a node does not move while engines run, and it is told how it may, or comes in again."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from agent.dialing import NoLink, NotTrusted, TlsDial
from agent.places import Intent, Places
from agent.proc import boot_id
from llmgw.core.term import Term
from tests.agent_links import AUTHORITY, ME, TERM, Agent, Authority, Leader, agent_on, until

OTHER_DIGITS = "0" * 32
ENGINE = "m-1.g1.r0"


@pytest.fixture
async def leaders(tmp_path: Path, nursery: trio.Nursery, autojump_clock) -> AsyncIterator[tuple[Leader, Leader]]:
    here = await Leader.make(tmp_path / "here", nursery)
    there = await Leader.make(tmp_path / "there", nursery)
    yield here, there
    for leader in (here, there):
        assert leader.failures == []
        leader.store.close()


async def member_of(leader: Leader, nursery: trio.Nursery, folder: Path, rev: int = 1) -> Agent:
    agent = agent_on(folder, leader.dial, token=await leader.token())
    nursery.start_soon(agent.run)
    await until(lambda: agent.link.state.startswith("linked"))
    leader.registry.want("node-1", rev, [])
    await until(lambda: agent.engines.told)
    agent.scope.cancel()
    return agent


def with_engine(folder: Path) -> None:
    place = Places(folder).of(ENGINE)
    place.make()
    place.write_intent(Intent("start", boot_id()))


async def said_by(agent: Agent, nursery: trio.Nursery) -> str:
    nursery.start_soon(agent.run)
    await until(lambda: agent.said)
    await trio.sleep(30)
    return agent.link.state


async def test_a_node_with_engines_does_not_ask_a_cluster_of_another_ca(leaders, nursery, tmp_path, autojump_clock):
    here, there = leaders
    await member_of(here, nursery, tmp_path / "a")
    with_engine(tmp_path / "a")

    token = (await there.token()).rpartition("-")[0] + "-" + OTHER_DIGITS
    agent = agent_on(tmp_path / "a", there.dial, token=token)
    said = await said_by(agent, nursery)

    assert said.startswith("no link with leader.test:7443: the join token is of another cluster, or of another CA, but")
    assert f"belongs to cluster {here.store.cluster_id} as node-1 and has 1 of its engines ({ENGINE})" in said
    assert "llmgw ctl scale MODEL 0" in said
    assert "llmgw ctl nodes remove node-1" in said
    assert "another --data-dir" in said
    assert not there.joining.nodes
    assert not there.connections


async def test_a_node_with_engines_leaves_a_cluster_alone_whose_answer_names_another(
    leaders, nursery, tmp_path, autojump_clock
):
    here, there = leaders
    await member_of(here, nursery, tmp_path / "a")
    with_engine(tmp_path / "a")

    agent = agent_on(tmp_path / "a", there.dial, token=await there.token())
    said = await said_by(agent, nursery)

    assert f"the join token is of cluster {there.store.cluster_id}" in said
    assert f"has 1 of its engines ({ENGINE})" in said
    assert agent.engines.told == []
    assert len(there.connections) == 1  # it does not ask again and again
    again = agent_on(tmp_path / "a", here.dial)
    nursery.start_soon(again.run)
    await until(lambda: again.link.state.startswith("linked"))


async def test_a_node_without_engines_moves_though_the_terms_of_its_cluster_were_higher(
    leaders, nursery, tmp_path, autojump_clock
):
    here, there = leaders
    here.lead = Term(0, 40, "long")
    await member_of(here, nursery, tmp_path / "a")
    place = Places(tmp_path / "a").of(ENGINE)
    place.make()
    place.write_intent(Intent("failed", boot_id(), "no luck"))  # nothing of it is alive

    agent = agent_on(tmp_path / "a", there.dial, token=await there.token())
    nursery.start_soon(agent.run)
    there.registry.want("node-1", 1, [])
    await until(lambda: agent.engines.told)

    assert agent.membership.joined.cluster == there.store.cluster_id
    assert agent.terms.seen == TERM


async def test_joining_again_with_engines_is_no_move(leaders, nursery, tmp_path, autojump_clock):
    here, _ = leaders
    await member_of(here, nursery, tmp_path / "a")
    with_engine(tmp_path / "a")

    agent = agent_on(tmp_path / "a", here.dial, token=await here.token())
    nursery.start_soon(agent.run)
    await until(lambda: agent.link.state.startswith("linked"))


async def test_a_control_plane_of_another_ca_is_told_from_one_that_is_away(leaders, nursery, tmp_path, autojump_clock):
    here, _ = leaders
    await member_of(here, nursery, tmp_path / "a")

    async def dial(server: str, ca: bytes | None) -> trio.abc.Stream:
        raise NotTrusted("leader.test:7443: its certificate is not accepted")

    said = await said_by(agent_on(tmp_path / "a", dial), nursery)

    assert said.startswith("no link: leader.test:7443: its certificate is not accepted; ")
    assert f"{tmp_path / 'a'} belongs to cluster {here.store.cluster_id} now, as node-1" in said
    assert "join with a new token of it" in said


@pytest.mark.parametrize(("issued_by_other", "raises"), [(True, NotTrusted), (False, NoLink)])
async def test_a_dial_tells_another_ca_from_another_name(nursery, issued_by_other, raises):
    context = Authority().context("127.0.0.1") if issued_by_other else AUTHORITY.context("elsewhere.test")
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def shake(stream: trio.SocketStream) -> None:
        tls = trio.SSLStream(stream, context, server_side=True)
        with pytest.raises((trio.BrokenResourceError, ssl.SSLError)):
            await tls.do_handshake()

    nursery.start_soon(trio.serve_listeners, shake, [listener])
    with pytest.raises(NoLink) as raised:
        await TlsDial()(f"127.0.0.1:{listener.socket.getsockname()[1]}", AUTHORITY.pem)

    assert raised.type is raises
    nursery.cancel_scope.cancel()


# -- coming in again -------------------------------------------------------------------------------------


async def test_a_removed_node_is_told_why_its_old_token_does_not_help(leaders, nursery, tmp_path, autojump_clock):
    here, _ = leaders
    before = await member_of(here, nursery, tmp_path / "a")
    await here.joining.remove(ME, "node-1")

    token = before.membership.settings.join_token
    said = await said_by(agent_on(tmp_path / "a", here.dial, token=token), nursery)

    assert said.startswith("refused by leader.test:7443: node-1 was removed from the cluster; to come in again")
    assert "llmgw ctl nodes invite" in said
    assert "--join @FILE" in said
    assert f"the token {token.split('-')[2]} that it was given now is the one it joined with" in said
    assert token not in said


async def test_a_node_replaced_by_another_of_its_name_is_told_the_next_step(leaders, nursery, tmp_path, autojump_clock):
    here, _ = leaders
    await member_of(here, nursery, tmp_path / "a")
    await member_of(here, nursery, tmp_path / "b", rev=2)

    said = await said_by(agent_on(tmp_path / "a", here.dial), nursery)

    assert "has joined again since, with another credential; to come in again it needs a new join token" in said


async def test_a_removed_node_whose_new_token_is_refused_too_hears_both(leaders, nursery, tmp_path, autojump_clock):
    here, _ = leaders
    await member_of(here, nursery, tmp_path / "a")
    await here.joining.remove(ME, "node-1")

    token = await here.token()
    await here.joining.revoke(ME, token.split("-")[2])
    said = await said_by(agent_on(tmp_path / "a", here.dial, token=token), nursery)

    assert "was removed from the cluster" in said
    assert "was refused: join token" in said
    assert "was revoked" in said


# -- the token that was given ----------------------------------------------------------------------------


async def test_a_token_file_that_is_missing_is_named_unless_the_node_has_joined(
    leaders, nursery, tmp_path, autojump_clock
):
    here, _ = leaders
    file = tmp_path / "join.token"
    said = await said_by(agent_on(tmp_path / "a", here.dial, token=f"@{file}"), nursery)
    assert f"the file of the join token is not there: {file}" in said

    await member_of(here, nursery, tmp_path / "b")
    joined = agent_on(tmp_path / "b", here.dial, token=f"@{file}")
    assert await said_by(joined, nursery) == "linked with leader.test:7443"


async def test_a_token_file_that_others_can_read_is_refused_unless_it_was_used(
    leaders, nursery, tmp_path, autojump_clock
):
    here, _ = leaders
    file = tmp_path / "join.token"
    file.write_text(await here.token() + "\n")
    file.chmod(0o640)
    agent = agent_on(tmp_path / "a", here.dial, token=f"@{file}")
    said = await said_by(agent, nursery)
    assert f"others can read the join token in {file} (mode 0640): chmod 600 {file}" in said
    assert not here.joining.nodes

    file.chmod(0o600)
    await until(lambda: agent.link.state == "linked with leader.test:7443")
    agent.scope.cancel()
    file.chmod(0o644)
    again = agent_on(tmp_path / "a", here.dial, token=f"@{file}")
    assert await said_by(again, nursery) == "linked with leader.test:7443"


@pytest.mark.parametrize("text", ["foo", "", "llmgw-join-abc"])
async def test_a_file_without_a_token_is_named(text, leaders, nursery, tmp_path, autojump_clock):
    here, _ = leaders
    file = tmp_path / "join.token"
    file.write_text(text)
    file.chmod(0o600)

    said = await said_by(agent_on(tmp_path / "a", here.dial, token=f"@{file}"), nursery)

    assert f"what is in {file} is no join token" in said
