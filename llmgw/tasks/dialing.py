"""How a connection to an engine is made: resolve, connect to the first address that answers, shake hands."""

import ipaddress
import socket
import ssl
from functools import lru_cache

import trio

from llmgw.tasks.sockets import SocketStream, Watcher
from llmgw.tasks.streams import Stream
from llmgw.tasks.tls import client_tls


async def connect(watcher: Watcher, host: str, port: int, tls: ssl.SSLContext | None = None) -> Stream:
    """A connection to the first address that answers. Raises OSError; its deadline is the caller's scope."""
    failed: OSError = OSError(f"{host} has no address")
    for family, address in await _addresses(host, port):
        try:
            stream = await _connect_one(watcher, family, address)
        except OSError as error:
            failed = error
            continue
        if tls is None:
            return stream
        return await client_tls(stream, tls, host)
    raise failed


async def _addresses(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
    family = _family(host)
    if family is not None:
        return [(family, (host, port))]
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(int(family), (str(address[0]), int(address[1]))) for family, _, _, _, address in found]


@lru_cache(maxsize=1024)
def _family(host: str) -> int | None:
    """Of an address written in numbers; None for a name."""
    try:
        return socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        return None


async def _connect_one(watcher: Watcher, family: int, address: tuple[str, int]) -> SocketStream:
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        sock.connect(address)
        waiting = False
    except BlockingIOError:
        waiting = True
    except BaseException:
        sock.close()
        raise
    stream = watcher.adopt(sock, shielded=False)
    try:
        if waiting:
            await stream.wait_connected()
    except BaseException:
        stream.close()
        raise
    return stream
