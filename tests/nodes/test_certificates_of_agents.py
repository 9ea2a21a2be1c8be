"""The CA, what it signs, and a new certificate while links run."""

import datetime
import json
import os
import ssl
import stat
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from agent.dialing import NoLink, TlsDial, trusting
from llmgw.cli.certs import command
from llmgw.core.joining import ca_digits
from llmgw.nodes.certificates import Files, NoCertificate, der, make_ca, make_server, renew, show
from llmgw.nodes.identity import ListenerIdentity
from llmgw.nodes.limits import AgentsLimits
from llmgw.nodes.listener import agents_context
from tests.agent_links import Leader, agent_on, until

DAY = 86_400.0
NOW = datetime.datetime.now(datetime.UTC)


def made(folder: Path, days: int = 90, now: datetime.datetime = NOW) -> Files:
    files = Files(folder / "certs")
    make_ca(files, now)
    make_server(files, "agents", ("leader.test", "127.0.0.1"), now, days)
    return files


def shake(context: ssl.SSLContext, ca: bytes, name: str = "leader.test") -> ssl.SSLObject:
    """A handshake in memory; raises ssl.SSLError."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(ca).wrap_bio(back, there, server_hostname=name)
    server = context.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client


def test_a_ca_and_its_certificate_are_trusted_and_keys_are_their_owner_s(tmp_path):
    files = made(tmp_path)

    client = shake(agents_context(str(files.chain()), str(files.key())), files.ca.read_bytes())

    assert client.version() == "TLSv1.3"
    assert client.selected_alpn_protocol() == "h2"
    assert shake(agents_context(str(files.chain()), str(files.key())), files.ca.read_bytes(), "127.0.0.1")
    assert {stat.S_IMODE(f.stat().st_mode) for f in (files.key(), files.ca_key)} == {0o600}
    assert (show(files.ca).is_ca, show(files.chain()).is_ca) == (True, False)
    assert show(files.chain()).ends_at == pytest.approx(NOW.timestamp() + 90 * DAY, abs=2)
    assert show(files.ca).ends_at == pytest.approx(NOW.timestamp() + 3650 * DAY, abs=2)


def test_another_name_or_another_ca_is_not_trusted(tmp_path):
    files, others = made(tmp_path / "a"), made(tmp_path / "b")
    context = agents_context(str(files.chain()), str(files.key()))

    with pytest.raises(ssl.SSLCertVerificationError):
        shake(context, files.ca.read_bytes(), "gw.test")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(context, others.ca.read_bytes())


def test_a_ca_is_made_once(tmp_path):
    files = made(tmp_path)
    before = files.ca.read_bytes()

    with pytest.raises(NoCertificate, match="agents have pinned it"):
        make_ca(files, NOW)
    assert files.ca.read_bytes() == before


def test_renewing_keeps_names_and_life_and_takes_a_new_key(tmp_path):
    files = made(tmp_path, 30, NOW - datetime.timedelta(days=20))
    before, key = show(files.chain()), files.key().read_bytes()

    after = renew(files, "agents", NOW)

    assert (after.names, after.subject) == (before.names, before.subject)
    assert after.ends_at == pytest.approx(before.ends_at + 20 * DAY, abs=2)
    assert files.key().read_bytes() != key
    assert shake(agents_context(str(files.chain()), str(files.key())), files.ca.read_bytes())


def test_no_certificate_outlives_its_ca(tmp_path):
    files = Files(tmp_path)
    make_ca(files, NOW, days=10)
    make_server(files, "agents", ("x",), NOW, 90)

    assert show(files.chain()).ends_at <= show(files.ca).ends_at


def test_what_is_missing_or_does_not_fit_is_said(tmp_path):
    files, others = made(tmp_path / "a"), made(tmp_path / "b")
    files.ca_key.write_bytes(others.ca_key.read_bytes())
    with pytest.raises(NoCertificate, match="is not the key of"):
        make_server(files, "agents", ("x",), NOW)
    files.ca_key.unlink()
    with pytest.raises(NoCertificate, match="it signs, so it must be at hand"):
        make_server(files, "agents", ("x",), NOW)
    files.chain().write_text("nothing")
    with pytest.raises(NoCertificate, match="holds no certificate in PEM"):
        show(files.chain())


def test_a_certificate_is_due_at_two_thirds_of_its_life(tmp_path):
    shown = show(made(tmp_path, days=90).chain())
    at = NOW.timestamp()

    assert [shown.state(at + day * DAY) for day in (-1, 0, 59, 61, 89, 91)] == [
        "not yet valid", "valid", "valid", "due", "due", "expired",
    ]  # fmt: skip


# -- in the daemon -----------------------------------------------------------------------------------------


class Wall:
    def __init__(self) -> None:
        self.now = NOW.timestamp()

    def __call__(self) -> float:
        return self.now


def identity_of(folder: Path, wall: Wall, said: list[str]) -> ListenerIdentity:
    identity = ListenerIdentity.load(AgentsLimits(), folder, said.append, wall)
    assert identity is not None
    return identity


def test_without_a_certificate_there_is_no_listener(tmp_path):
    assert ListenerIdentity.load(AgentsLimits(), tmp_path) is None


def test_what_is_due_is_renewed_where_the_ca_s_key_is_at_hand(tmp_path):
    files, wall, said = made(tmp_path), Wall(), []
    identity = identity_of(tmp_path, wall, said)
    assert identity.ca_digits == ca_digits(der(files.ca))
    before = identity.context

    identity.look()
    assert (identity.context is before, said) == (True, [])

    wall.now += 61 * DAY
    identity.look()
    assert identity.context is not before
    assert identity.expires_in_s() == pytest.approx(90 * DAY, rel=0.01)
    assert len(said) == 1

    files.ca_key.unlink()
    wall.now += 61 * DAY
    identity.look()
    assert identity.expires_in_s() < 30 * DAY


def test_a_pair_that_does_not_fit_leaves_the_one_in_use(tmp_path):
    files, said = made(tmp_path), []
    identity, others = identity_of(tmp_path, Wall(), said), made(tmp_path / "b")
    before = identity.context

    files.key().write_bytes(others.key().read_bytes())
    identity.look()
    identity.look()

    assert identity.context is before
    assert len(said) == 1
    assert "stays as it is" in said[0]
    assert identity.trouble

    files.chain().write_bytes(others.chain().read_bytes())
    identity.look()
    assert identity.context is not before
    assert not identity.trouble


async def test_a_renewal_cuts_no_link_and_the_next_handshake_shows_it(tmp_path, nursery, autojump_clock):
    made(tmp_path, 90, NOW - datetime.timedelta(days=61))
    wall, said = Wall(), []
    wall.now -= 61 * DAY
    identity = identity_of(tmp_path, wall, said)
    leader = await Leader.make(tmp_path, nursery)
    leader.listener.context = lambda: identity.context
    leader.joining._ca = lambda: identity.ca_digits
    leader.listener.house.ca = lambda: identity.ca
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)
    shown = agent.stream.getpeercert()["serialNumber"]

    wall.now += 61 * DAY
    identity.look()
    heard = len(leader.heard)
    await until(lambda: len(leader.heard) > heard + 5)
    assert leader.registry.nodes["node-1"].counts["links"] == 1

    second = agent_on(tmp_path / "b", leader.dial, name="node-2", token=await leader.token())
    nursery.start_soon(second.run)
    await until(lambda: "node-2" in leader.registry.linked())
    assert second.stream.getpeercert()["serialNumber"] != shown
    leader.store.close()


async def test_over_real_sockets_an_agent_links_and_an_expired_certificate_is_said_in_words(tmp_path, nursery):
    files = made(tmp_path)
    leader = await Leader.make(tmp_path, nursery)
    leader.listener.context = lambda: agents_context(str(files.chain()), str(files.key()))
    leader.joining._ca = lambda: ca_digits(der(files.ca))
    leader.listener.house.ca = files.ca.read_bytes
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(leader.listener.serve, listener)
    server = f"127.0.0.1:{listener.socket.getsockname()[1]}"

    agent = agent_on(tmp_path / "a", TlsDial(), token=await leader.token(), servers=(server,))
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)
    assert leader.registry.nodes["node-1"].address == "127.0.0.1"
    assert agent.engines.address == "127.0.0.1"
    agent.scope.cancel()

    with pytest.raises(NoLink, match="not accepted"):
        await TlsDial("other.test")(server, files.ca.read_bytes())
    make_server(files, "agents", ("127.0.0.1",), NOW - datetime.timedelta(days=100), 90)
    with pytest.raises(NoLink, match="has expired; renew it with `llmgw certs renew`, or set this host's clock right"):
        await TlsDial()(server, files.ca.read_bytes())
    with pytest.raises(NoLink, match="refused"):
        await TlsDial()("127.0.0.1:1", files.ca.read_bytes())
    leader.store.close()


# -- the command -------------------------------------------------------------------------------------------


def test_the_command_makes_shows_and_renews(tmp_path):
    def run(*args: str) -> str:
        done = CliRunner().invoke(command, [args[0], "--dir", str(tmp_path), *args[1:]])
        assert done.exit_code == 0, done.output
        return done.output

    assert "a CA was made" in run("init", "--host", "gw.test", "--host", "::1")
    run("server", "admin", "--host", "localhost")
    run("renew")
    shown = json.loads(run("show", "-o", "json"))["certificates"]

    assert [(os.path.basename(one["file"]), one["state"]) for one in shown] == [
        ("admin.pem", "valid"), ("agents.pem", "valid"), ("ca.pem", "valid"),
    ]  # fmt: skip
    assert shown[1]["names"] == ["gw.test", "::1"]
    assert "gw.test, ::1" in run("show")


def test_the_command_keeps_what_is_there_and_says_what_is_missing(tmp_path):
    files = made(tmp_path)
    again = CliRunner().invoke(command, ["init", "--dir", str(files.folder)])
    none = CliRunner().invoke(command, ["show", "--dir", str(tmp_path / "empty")])
    expired = made(tmp_path / "old", 90, NOW - datetime.timedelta(days=100))
    old = CliRunner().invoke(command, ["show", "--dir", str(expired.folder)])

    assert (again.exit_code, none.exit_code, old.exit_code) == (1, 4, 1)
    assert "expired" in old.output


def test_the_data_directory_that_certs_init_makes_is_its_owner_s(tmp_path, monkeypatch):
    monkeypatch.delenv("LLMGW_CONFIG", raising=False)
    monkeypatch.setenv("LLMGW_STORE__DATA_DIR", str(tmp_path / "above" / "data"))

    done = CliRunner().invoke(command, ["init", "--host", "gw.test"])

    assert done.exit_code == 0, done.output
    made_here = (tmp_path / "above" / "data", tmp_path / "above" / "data" / "certs")
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in made_here} == {0o700}
