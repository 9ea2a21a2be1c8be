"""TLS over a watched socket, behind the same narrow face.

The hang-up still comes from the socket below. A cancelled ``send_all`` would poison an SSLStream in both
directions, so sends are shielded; what bounds them is the socket's own write stall.
"""

import ssl
from collections.abc import Callable

import trio
from attrs import define

from llmgw.tasks.sockets import SocketStream
from llmgw.tasks.streams import Broken


class _Transport(trio.abc.Stream):
    """What trio.SSLStream asks of the connection below it."""

    def __init__(self, socket: SocketStream) -> None:
        self._socket = socket

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        try:
            return await self._socket.receive(max_bytes or 65536)
        except Broken as error:
            raise trio.BrokenResourceError from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        try:
            await self._socket.send(data)
        except Broken as error:
            raise trio.BrokenResourceError from error

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._socket.close()
        await trio.lowlevel.checkpoint()


@define(eq=False)
class TlsStream:
    _socket: SocketStream
    _tls: "trio.SSLStream[_Transport]"

    @property
    def on_hangup(self) -> Callable[[], None] | None:
        return self._socket.on_hangup

    @on_hangup.setter
    def on_hangup(self, callback: Callable[[], None] | None) -> None:
        self._socket.on_hangup = callback

    @property
    def gone(self) -> bool:
        return self._socket.gone

    @property
    def peer(self) -> str:
        return self._socket.peer

    async def receive(self, most: int = 65536) -> bytes:
        try:
            return bytes(await self._tls.receive_some(most))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise Broken(str(error.__cause__ or "TLS connection broken")) from error

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        try:
            with trio.CancelScope(shield=self._socket.shielded):
                await self._tls.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            if isinstance(error.__cause__, Broken):
                raise error.__cause__ from None
            raise Broken("TLS connection broken") from error

    def interrupt(self) -> None:
        self._socket.interrupt()

    def finish_sending(self) -> None:
        self._socket.finish_sending()

    def close(self) -> None:
        self._socket.close()


async def server_tls(socket: SocketStream, context: ssl.SSLContext) -> TlsStream:
    """Shake hands with a client; raises Broken. Its deadline is the caller's scope."""
    return await _shaken(socket, trio.SSLStream(_Transport(socket), context, server_side=True, https_compatible=True))


async def client_tls(socket: SocketStream, context: ssl.SSLContext, host: str) -> TlsStream:
    """Shake hands with a server; raises OSError, its certificate refused included."""
    tls = trio.SSLStream(_Transport(socket), context, server_hostname=host, https_compatible=True)
    try:
        return await _shaken(socket, tls)
    except Broken as error:
        raise OSError(f"TLS with {host}: {error}") from error


async def _shaken(socket: SocketStream, tls: "trio.SSLStream[_Transport]") -> TlsStream:
    try:
        await tls.do_handshake()
    except trio.BrokenResourceError as error:
        socket.close()
        raise Broken(f"handshake failed: {error.__cause__ or error}") from error
    except BaseException:
        socket.close()
        raise
    return TlsStream(socket, tls)
