"""Streams on the edge-triggered epoll, in memory and under TLS: the same promises behind the same face."""

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trustme

from llmgw.tasks.dialing import connect
from llmgw.tasks.memory import memory_pair
from llmgw.tasks.sockets import Watcher, listen, split_address
from llmgw.tasks.streams import Broken, Interrupted, Stalled
from llmgw.tasks.tls import client_tls, server_tls
from tests.polling import until


@asynccontextmanager
async def socket_pair(write_stall: float = 5.0) -> AsyncIterator[tuple]:
    with Watcher() as watcher, trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            one, other = socket.socketpair(socket.AF_UNIX)
            yield watcher.adopt(one, write_stall), watcher.adopt(other, write_stall)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def tls_pair() -> AsyncIterator[tuple]:
    ca = trustme.CA()
    server_context, client_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    ca.issue_cert("llm.example").configure_cert(server_context)
    ca.configure_trust(client_context)
    async with socket_pair() as (one, other):
        made = {}

        async def server() -> None:
            made["server"] = await server_tls(one, server_context)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(server)
            client = await client_tls(other, client_context, "llm.example")
        yield made["server"], client


@asynccontextmanager
async def in_memory() -> AsyncIterator[tuple]:
    with trio.fail_after(20):
        yield memory_pair()


pairs = pytest.mark.parametrize("pair", [socket_pair, tls_pair, in_memory], ids=["socket", "tls", "memory"])


@pairs
async def test_bytes_arrive_whole_and_in_order_both_ways(pair):
    sent = bytes(range(256)) * 4000
    async with pair() as (one, other):

        async def read(stream, into: bytearray) -> None:
            while len(into) < len(sent):
                into += await stream.receive(5000)

        here, there = bytearray(), bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, one, here)
            nursery.start_soon(read, other, there)
            nursery.start_soon(one.send, sent)
            nursery.start_soon(other.send, sent)

        assert bytes(here) == sent
        assert bytes(there) == sent


@pairs
async def test_a_hang_up_is_told_even_behind_bytes_nobody_has_read(pair):
    async with pair() as (one, other):
        told = []
        one.on_hangup = lambda: told.append(one.gone)
        await other.send(b"unread")
        other.close()
        await until(lambda: told)

        assert told == [True]
        assert await one.receive() == b"unread"


@pairs
async def test_a_waiting_receive_is_interrupted_and_nothing_is_lost(pair):
    async with pair() as (one, other):
        async with trio.open_nursery() as nursery:

            async def waits() -> None:
                with pytest.raises(Interrupted):
                    await one.receive()

            nursery.start_soon(waits)
            await trio.testing.wait_all_tasks_blocked(0.01)
            one.interrupt()
        await other.send(b"later")

        assert await one.receive() == b"later"


@pairs
async def test_an_interrupt_while_nobody_waits_meets_the_next_wait_but_not_bytes_that_are_there(pair):
    async with pair() as (one, other):
        await other.send(b"here")
        await trio.testing.wait_all_tasks_blocked(0.05)  # the bytes have been seen to arrive
        one.interrupt()

        assert await one.receive() == b"here"
        with pytest.raises(Interrupted):
            await one.receive()


@pairs
async def test_closing_wakes_whoever_waits_on_the_stream(pair):
    async with pair() as (one, _), trio.open_nursery() as nursery:

        async def waits() -> None:
            with pytest.raises(Broken):
                await one.receive()

        nursery.start_soon(waits)
        await trio.testing.wait_all_tasks_blocked(0.01)
        one.close()
        one.close()


async def test_a_cancel_does_not_cut_a_send_in_half():
    big = b"a" * 3_000_000
    async with socket_pair() as (one, other):
        with trio.move_on_after(0.05):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.send, big)

                async def read_late() -> None:
                    with trio.CancelScope(shield=True):
                        await trio.sleep(0.1)
                        got = 0
                        while got < len(big):
                            got += len(await other.receive())

                nursery.start_soon(read_late)
        await one.send(b"!")

        assert await other.receive() == b"!"


async def test_a_reader_that_takes_nothing_is_stalled_not_waited_for():
    async with socket_pair(write_stall=0.1) as (one, _):
        with pytest.raises(Stalled):
            await one.send(b"a" * 10_000_000)


async def test_a_sender_hears_at_once_that_its_reader_left():
    async with socket_pair(write_stall=60) as (one, other), trio.open_nursery() as nursery:

        async def sends() -> None:
            with pytest.raises(Broken):
                await one.send(b"a" * 10_000_000)

        nursery.start_soon(sends)
        await trio.testing.wait_all_tasks_blocked(0.01)
        other.close()


async def test_a_stream_that_always_has_bytes_lets_others_run():
    async with socket_pair() as (one, other):
        turns = []
        async with trio.open_nursery() as nursery:

            async def floods() -> None:
                for _ in range(200):
                    await other.send(b"a" * 60_000)

            async def reads() -> None:
                got = 0
                while got < 200 * 60_000:
                    got += len(await one.receive(100))
                nursery.cancel_scope.cancel()

            async def counts() -> None:
                while True:
                    turns.append(1)
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(floods)
            nursery.start_soon(reads)
            nursery.start_soon(counts)

        assert len(turns) > 100


async def test_a_refused_certificate_is_an_os_error_that_names_the_host():
    ca, stranger = trustme.CA(), trustme.CA()
    server_context, client_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    ca.issue_cert("llm.example").configure_cert(server_context)
    stranger.configure_trust(client_context)
    async with socket_pair() as (one, other), trio.open_nursery() as nursery:

        async def server() -> None:
            with pytest.raises(Broken):
                await server_tls(one, server_context)

        nursery.start_soon(server)
        with pytest.raises(OSError, match=r"llm\.example"):
            await client_tls(other, client_context, "llm.example")


async def test_nobody_listening_is_an_os_error_and_leaves_nothing_watched():
    with Watcher() as watcher, trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            spare = await listen(watcher, "127.0.0.1:0")
            port = spare.port
            spare.close()
            with pytest.raises(ConnectionRefusedError):
                await connect(watcher, "127.0.0.1", port)
            assert len(watcher) == 0
            nursery.cancel_scope.cancel()


async def test_both_address_families_are_dialled():
    with Watcher() as watcher, trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            for address in ("127.0.0.1:0", "[::1]:0"):
                listener = await listen(watcher, address)
                host, port = split_address(listener.address)
                here = await connect(watcher, host, port)
                there = await listener.accept()
                await here.send(b"hello")
                assert await there.receive() == b"hello"
                assert there.peer == host
                listener.close()
            nursery.cancel_scope.cancel()


async def test_an_accepted_connection_would_notice_a_silently_dead_client():
    """Its options come from the listening socket, so accepting costs no system call for them."""
    with Watcher() as watcher, trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            listener = await listen(watcher, "127.0.0.1:0", write_stall=7)
            await connect(watcher, "127.0.0.1", listener.port)
            accepted = socket.socket(fileno=(await listener.accept()).fd)
            try:
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 14_000
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            finally:
                accepted.detach()
            listener.close()
            nursery.cancel_scope.cancel()
