"""What systemd hears, on a socket as it would listen on, and the sockets that it holds."""

import fcntl
import os
import socket

import pytest
import trio

from llmgw.tasks.systemd import Notify, WrongSockets, activated


@pytest.fixture
def manager(tmp_path):
    """The other end of $NOTIFY_SOCKET."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


def heard(sock):
    found = []
    while True:
        try:
            found.append(sock.recv(4096).decode().split("\n"))
        except BlockingIOError:
            return found


def environ(manager, **more):
    return {"NOTIFY_SOCKET": manager.getsockname(), "OTHER": "stays"} | more


def test_it_is_told_that_the_service_is_ready_and_that_it_stops(manager):
    found = environ(manager)
    systemd = Notify.taken_from(found, 1)
    systemd.ready("serving\nSTOPPING=1")
    systemd.extend(2.5, "3 requests run")
    systemd.stopping("told to")
    assert heard(manager) == [
        ["READY=1", "STATUS=serving STOPPING=1"],
        ["EXTEND_TIMEOUT_USEC=2500000", "STATUS=3 requests run"],
        ["STOPPING=1", "STATUS=told to"],
    ]
    assert found == {"OTHER": "stays"}  # no child takes them for its own


def test_an_abstract_address_is_one():
    name = f"@llmgw-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + name[1:])
        Notify.taken_from({"NOTIFY_SOCKET": name}, 1).ready("yes")
        assert sock.recv(100) == b"READY=1\nSTATUS=yes"


async def test_the_life_sign_comes_from_the_loop_that_works(manager, autojump_clock):
    systemd = Notify.taken_from(environ(manager, WATCHDOG_USEC="3000000", WATCHDOG_PID="7"), 7)
    with trio.move_on_after(3.5):
        await systemd.watchdog()
    assert heard(manager) == [["WATCHDOG=1"]] * 4  # at 0, 1, 2, 3 s


@pytest.mark.parametrize(
    "more", [{}, {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}], ids=["no-watchdog", "of-another-process"]
)
async def test_without_a_watchdog_of_its_own_it_gives_none(manager, autojump_clock, more):
    systemd = Notify.taken_from(environ(manager, **more), 7)
    with trio.move_on_after(100):
        await systemd.watchdog()
    assert heard(manager) == []


def test_without_systemd_nobody_is_told_and_a_manager_that_is_gone_breaks_nothing(tmp_path):
    Notify.taken_from({}, 1).ready("serving")
    gone = Notify(str(tmp_path / "gone"))
    gone.ready("serving")
    assert "No such file" in gone.failed


@pytest.fixture
def held():
    """A socket that listens, as a descriptor that systemd hands over."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield os.dup(sock.fileno()), sock.getsockname()


def given(**more):
    return {"LISTEN_FDS": "1", "LISTEN_PID": "7", "LISTEN_FDNAMES": "clients"} | more


def test_a_socket_that_it_holds_is_found_by_its_name(held):
    found, (fd, address) = given(), held
    taken = activated(found, 7, ("clients", "admin"), fd)
    assert [(name, sock.getsockname()) for name, sock in taken.items()] == [("clients", address)]
    assert not os.get_inheritable(fd)
    assert found == {}
    taken["clients"].close()


def test_sockets_of_another_process_are_left_alone(held):
    assert activated(given(LISTEN_PID="8"), 7, ("clients",), held[0]) == {}
    assert activated({}, 7, ("clients",), held[0]) == {}
    os.close(held[0])


def test_one_that_is_not_known_is_refused_with_the_names_there_are(held):
    with pytest.raises(WrongSockets, match=r"'llmgw\.socket': FileDescriptorName= must be one of clients, admin"):
        activated(given(LISTEN_FDNAMES="llmgw.socket"), 7, ("clients", "admin"), held[0])


def test_two_of_one_name_are_refused(held):
    first = fcntl.fcntl(held[0], fcntl.F_DUPFD, 200)
    assert fcntl.fcntl(held[0], fcntl.F_DUPFD, first + 1) == first + 1  # the next one, as systemd counts
    os.close(held[0])
    with pytest.raises(WrongSockets, match="two sockets are called 'clients'"):
        activated(given(LISTEN_FDS="2", LISTEN_FDNAMES="clients:clients"), 7, ("clients", "admin"), first)


def test_what_does_not_listen_is_refused():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        fd = os.dup(sock.fileno())
    with pytest.raises(WrongSockets, match="not a listening TCP socket"):
        activated(given(), 7, ("clients",), fd)


def test_what_is_no_socket_is_refused(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(WrongSockets, match="is no socket"):
        activated(given(), 7, ("clients",), fd)
    os.close(fd)
