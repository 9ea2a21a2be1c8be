"""Sockets on one edge-triggered epoll of our own.

Trio re-arms its epoll at every wait; here each socket is registered once, and one task waits for all of
them. ``EPOLLRDHUP`` tells that a peer has left even behind bytes nobody has read, so no connection
needs a reader task. What must stay true:

* a socket is registered before its first read;
* a read that fills what was asked for assumes there is more; a shorter one has emptied the buffer, and
  whatever comes after it makes a new edge;
* edges stay in the epoll until the watcher polls it, in the same thread as every reader, so none is
  lost between a check and a wait.
"""

import errno
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

import outcome
import trio
from attrs import define, field

from llmgw.tasks.streams import Broken, Interrupted, Stalled

_WATCHED = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_READ = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_WRITE = select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_LEFT = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_BATCH = 1024
_IN_A_ROW = 16  # receives without waiting before others get a turn


@define(eq=False)
class Watcher:
    """The epoll and the sockets on it; ``run`` must be running for any of them to wait."""

    _epoll: select.epoll = field(factory=select.epoll, init=False)
    _streams: "dict[int, SocketStream]" = field(factory=dict, init=False)

    def __enter__(self) -> "Watcher":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for stream in list(self._streams.values()):
            stream.close()
        self._epoll.close()

    def __len__(self) -> int:
        return len(self._streams)

    def adopt(
        self, sock: socket.socket, write_stall: float = 30.0, shielded: bool = True, inherited: bool = False
    ) -> "SocketStream":
        """Take over a connected (or connecting) socket; closing the stream closes it."""
        sock.setblocking(False)
        if not inherited and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = SocketStream(self, sock, sock.fileno(), write_stall, shielded)
        self._epoll.register(stream.fd, _WATCHED)
        self._streams[stream.fd] = stream
        return stream

    def forget(self, fd: int) -> None:
        if self._streams.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    async def run(self) -> None:
        """Wake whoever waits; for ever."""
        streams, epoll = self._streams, self._epoll
        while True:
            await trio.lowlevel.wait_readable(epoll.fileno())
            for fd, events in epoll.poll(0, _BATCH):
                stream = streams.get(fd)
                if stream is not None:
                    stream.happened(events)


@define(eq=False)
class SocketStream:
    _watcher: Watcher
    _sock: socket.socket
    fd: int
    write_stall: float
    shielded: bool = True  # a cancel must not leave half an answer; off where a cancel ends the connection anyway
    peer: str = ""  # the address that was accepted
    on_hangup: Callable[[], None] | None = field(default=None, init=False)
    gone: bool = field(default=False, init=False)
    _readable: bool = field(default=True, init=False)
    _closed: bool = field(default=False, init=False)
    _reader: trio.lowlevel.Task | None = field(default=None, init=False)
    _writer: trio.lowlevel.Task | None = field(default=None, init=False)
    _in_a_row: int = field(default=0, init=False)
    _interrupted: bool = field(default=False, init=False)

    def happened(self, events: int) -> None:
        """The watcher's word; callbacks and reschedules only, nothing here may wait."""
        if events & _READ:
            self._readable = True
            self._wake_reader()
        if events & _WRITE and self._writer is not None:
            self._wake_writer()
        if events & _LEFT and not self.gone:
            self.gone = True
            if self.on_hangup is not None:
                self.on_hangup()

    async def receive(self, most: int = 65536) -> bytes:
        while True:
            if self._closed:
                raise Broken("closed")
            if self._readable:
                data = self._receive_now(most)
                if data is not None:
                    self._in_a_row += 1
                    if self._in_a_row > _IN_A_ROW:
                        self._in_a_row = 0
                        await trio.lowlevel.cancel_shielded_checkpoint()  # the bytes are ours: no cancel here
                    return data
            self._in_a_row = 0
            await self._wait_readable()

    def interrupt(self) -> None:
        if self._reader is not None:
            task, self._reader = self._reader, None
            trio.lowlevel.reschedule(task, outcome.Error(Interrupted()))
        else:
            self._interrupted = True

    def _receive_now(self, most: int) -> bytes | None:
        try:
            data = self._sock.recv(most)
        except (BlockingIOError, InterruptedError):
            self._readable = False
            return None
        except OSError as error:
            raise Broken(str(error)) from error
        # After a hang-up the end-of-file makes no further edge: read on until it comes.
        self._readable = self.gone or len(data) == most or not data
        return data

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            raise Broken(str(error)) from error
        if sent < len(data):
            await self._send_rest(memoryview(data)[sent:])

    async def _send_rest(self, rest: memoryview) -> None:
        while rest:
            with trio.CancelScope(shield=self.shielded, deadline=trio.current_time() + self.write_stall) as scope:
                await self._wait_writable()
            if scope.cancelled_caught:
                raise Stalled(f"no byte taken for {self.write_stall:g} s")
            try:
                rest = rest[self._sock.send(rest) :]
            except (BlockingIOError, InterruptedError):
                if self.gone:
                    raise Broken("the peer left") from None
            except OSError as error:
                raise Broken(str(error)) from error

    def finish_sending(self) -> None:
        """Tell the peer that nothing more comes; it may still send."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close with a TCP reset, as a crashed process would."""
        with suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.close()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = self.gone = True
        self._watcher.forget(self.fd)
        self._sock.close()
        self._wake_reader()
        self._wake_writer()

    async def wait_connected(self) -> None:
        """For a socket whose connect is under way. Raises OSError."""
        await self._wait_writable()
        error = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, f"connect: {errno.errorcode.get(error, error)}")
        self.gone, self._readable = False, True

    def _wake_reader(self) -> None:
        if self._reader is not None:
            task, self._reader = self._reader, None
            trio.lowlevel.reschedule(task)

    def _wake_writer(self) -> None:
        if self._writer is not None:
            task, self._writer = self._writer, None
            trio.lowlevel.reschedule(task)

    async def _wait_readable(self) -> None:
        if self._interrupted:
            self._interrupted = False
            raise Interrupted
        self._reader = trio.lowlevel.current_task()

        def give_up(_: object) -> trio.lowlevel.Abort:
            self._reader = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)

    async def _wait_writable(self) -> None:
        self._writer = trio.lowlevel.current_task()

        def give_up(_: object) -> trio.lowlevel.Abort:
            self._writer = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)


@define(eq=False)
class SocketListener:
    """Accepts connections from one listening socket, whose options they inherit."""

    _watcher: Watcher
    _sock: socket.socket
    write_stall: float = 30.0
    _in_a_row: int = field(default=0, init=False)

    @property
    def address(self) -> str:
        return joined_address(*self._sock.getsockname()[:2])

    @property
    def port(self) -> int:
        return int(self._sock.getsockname()[1])

    async def accept(self) -> SocketStream:
        """The next connection. Raises OSError (EMFILE, ENOBUFS, …); the caller decides how long to pause.

        A burst is taken without a turn of the loop for each, but not so that nobody else gets one.
        """
        while True:
            try:
                sock, address = self._sock.accept()
            except BlockingIOError:
                self._in_a_row = 0
                await trio.lowlevel.wait_readable(self._sock)
                continue
            except ConnectionAbortedError:
                continue
            stream = self._watcher.adopt(sock, self.write_stall, inherited=True)
            stream.peer = str(address[0]) if isinstance(address, tuple) else "local"
            self._in_a_row += 1
            if self._in_a_row > _IN_A_ROW:
                self._in_a_row = 0
                await trio.lowlevel.cancel_shielded_checkpoint()  # the connection is ours: no cancel here
            return stream

    def close(self) -> None:
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()


def joined_address(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """``127.0.0.1:7440`` or ``[::1]:7440`` -> host and port. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def listen(watcher: Watcher, address: str, write_stall: float = 30.0, backlog: int = 4096) -> SocketListener:
    """Open a listening socket on ``host:port``. Raises OSError."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _notice_the_silently_dead(sock, user_timeout_s=write_stall * 2)
        try:
            sock.bind((host, port))
        except OSError as error:
            raise OSError(error.errno, f"{address}: {error.strerror}") from error
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    await trio.lowlevel.checkpoint()
    return SocketListener(watcher, sock, write_stall)


def adopt(watcher: Watcher, sock: socket.socket, write_stall: float = 30.0) -> SocketListener:
    """A listening socket that somebody else opened. Raises OSError."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _notice_the_silently_dead(sock, user_timeout_s=write_stall * 2)
    return SocketListener(watcher, sock, write_stall)


def _notice_the_silently_dead(sock: socket.socket, user_timeout_s: float) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(user_timeout_s * 1000))
