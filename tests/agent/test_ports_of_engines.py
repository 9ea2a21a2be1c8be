"""Ports that engines get: each once, none that somebody has, and clear words when there are no more."""

import socket
from contextlib import ExitStack

import pytest

from agent import ports as module
from agent.ports import NoPorts, Ports, is_free


@pytest.fixture
def ports():
    return Ports(31000, 31011)


def test_all_names_get_one_or_none_does(ports):
    ports.reserve("a", [f"p{n}" for n in range(10)])
    with pytest.raises(NoPorts, match="31000-31011 has no free port: 12 of 12 are reserved by a, b, 0 are used"):
        ports.reserve("b", ["http", "dist", "more"])
    assert len(ports.reserve("b", ["http", "dist"])) == 2


def test_a_port_is_not_given_out_while_anybody_has_it(ports):
    with ExitStack() as stack:
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            taken = stack.enter_context(socket.socket(family))
            taken.bind((address, 31000 if family is socket.AF_INET else 31001))
        assert not is_free(31000)
        assert not is_free(31001)
        assert ports.reserve("a", ["http"]) == {"http": 31002}
    assert is_free(31000)


def test_what_was_given_back_rests_until_the_others_were_used(ports):
    assert ports.reserve("a", ["http"]) == {"http": 31000}
    ports.release("a")
    assert ports.reserve("b", ["http"]) == {"http": 31001}
    assert ports.of("a") == ()


def test_a_port_lent_to_an_outgoing_connection_is_replaced(ports):
    """C6."""
    had = ports.reserve("a", ["http", "dist"])
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.bind(("127.0.0.1", had["http"]))
        client.connect(server.getsockname())
        fresh, lost = ports.renew("a", had)
    assert lost == (had["http"],)
    assert fresh["dist"] == had["dist"]
    assert fresh["http"] not in had.values()
    assert set(ports.of("a")) == set(fresh.values())


def test_ports_of_engines_that_were_there_first_are_kept_from_others(ports):
    ports.hold("old", [31000, 50000])
    assert ports.reserve("new", ["http"]) == {"http": 31001}


@pytest.mark.parametrize("text", ["", "a-b", "20-10", "0-5", "1-70000"])
def test_a_range_that_is_none_is_refused(text):
    with pytest.raises(ValueError):
        Ports.parse(text)


def test_one_port_is_a_range():
    assert Ports.parse("31000") == Ports(31000, 31000)


@pytest.mark.parametrize(
    ("lent", "kept", "advised"),
    [
        ("30000\t60999", "", "net.ipv4.ip_local_reserved_ports=31000-31011`"),
        ("30000\t60999", "8080", "ip_local_reserved_ports=8080,31000-31011`"),
        ("30000\t60999", "30000-32000", ""),
        ("50000\t60999", "", ""),
    ],
)
def test_the_line_that_keeps_ports_from_being_lent(ports, tmp_path, monkeypatch, lent, kept, advised):
    for name, text in (("LENT", lent), ("KEPT", kept)):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(module, name, tmp_path / name)
    assert advised in ports.advice()
    assert bool(ports.advice()) == bool(advised)
