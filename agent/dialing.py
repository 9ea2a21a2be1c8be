"""A connection to a control plane's agent listener: TLS that trusts one CA, HTTP/2, and one short question."""

import ssl
from collections.abc import Mapping
from typing import Protocol

import trio
from attrs import define, field, frozen

from llmgw.tasks.duplex import GONE, Duplex
from llmgw.tasks.sockets import split_address
from llmgw.wire.h2_stream import Body, End, H2Stream, Head, Violation

WITHIN_S = 10.0  # to connect and shake hands; and for the answer to a short question
STALL_S = 10.0
ANSWER_MAX = 64 * 1024
OTHER_CA = frozenset({18, 19, 20, 21})  # OpenSSL's X509_V_ERR: self-signed, or no issuer that is trusted


class NoLink(Exception):
    """A connection that could not be made, or gave no answer; its text says why."""


class NotTrusted(NoLink):
    """Its certificate is of another CA than the one that is trusted here."""


class Dial(Protocol):
    """A connection to ``host:port`` after its handshake; ``None``: whoever answers. Raises NoLink."""

    async def __call__(self, server: str, ca: bytes | None) -> trio.abc.Stream: ...


@frozen
class TlsDial:
    """``server_name`` is expected in the certificate; empty: the host that was asked for."""

    server_name: str = ""

    async def __call__(self, server: str, ca: bytes | None) -> trio.abc.Stream:
        host, port = _split(server)
        context = unverified() if ca is None else trusting(ca)
        with trio.move_on_after(WITHIN_S):
            try:
                stream = await trio.open_tcp_stream(host, port)
                tls = trio.SSLStream(stream, context, server_hostname=self.server_name or host, https_compatible=True)
                return await _shaken(tls, server)
            except GONE as error:
                raise _kind(error.__cause__)(f"{server}: {said(error.__cause__ or error)}") from None
            except OSError as error:
                raise NoLink(f"{server}: {said(error)}") from None
        raise NoLink(f"{server} did not answer within {WITHIN_S:g} s")


async def _shaken(tls: "trio.SSLStream[trio.SocketStream]", server: str) -> trio.abc.Stream:
    """Explicitly: a failed handshake would hang whoever else waits in the stream."""
    try:
        await tls.do_handshake()
        if tls.selected_alpn_protocol() != "h2":
            raise NoLink(f"{server} speaks no HTTP/2: is that an agent listener?")
    except BaseException:
        await trio.aclose_forcefully(tls)
        raise
    return tls


@define(eq=False)
class Answer:
    """To one question on a connection of its own."""

    status: int = 0
    body: bytearray = field(factory=bytearray)
    over: bool = False


async def ask(stream: trio.abc.Stream, server: str, head: Mapping[str, str], body: bytes | None) -> Answer:
    """Raises NoLink; the connection is closed afterwards."""
    h2, answer, left = H2Stream.for_client(request(server, head), end=body is None), Answer(), memoryview(body or b"")

    def heard(data: bytes) -> None:
        try:
            for happening in h2.receive(data):
                match happening:
                    case Head(fields):
                        answer.status = int(fields.get(":status", "0"))
                    case Body(part, size):
                        answer.body += part
                        h2.consumed(size)
                        if len(answer.body) > ANSWER_MAX:
                            duplex.cut(f"an answer of more than {ANSWER_MAX} bytes")
                    case End(why):
                        answer.over = not why
                        duplex.cut(why or "answered")
        except Violation as error:
            duplex.cut(str(error))

    def outgoing() -> bytes:
        nonlocal left
        left = left[h2.write(left) :] if left else left
        if not left and body is not None:
            h2.finish()
        return h2.outgoing()

    duplex = Duplex(stream, heard, outgoing, STALL_S)
    why = f"no answer within {WITHIN_S:g} s"
    with trio.move_on_after(WITHIN_S):
        why = await duplex.run()
    if not answer.over:
        raise NoLink(f"{server}: {why}")
    return answer


def request(server: str, head: Mapping[str, str]) -> list[tuple[str, str]]:
    pseudo = [(":method", head[":method"]), (":scheme", "https"), (":authority", server), (":path", head[":path"])]
    return [*pseudo, *((name, value) for name, value in head.items() if not name.startswith(":"))]


def trusting(ca: bytes) -> ssl.SSLContext:
    """Nobody but who this CA (PEM) vouches for. Raises NoLink."""
    context = _context()
    try:
        context.load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise NoLink(f"the CA file holds no certificate: {error}") from None
    return context


def unverified() -> ssl.SSLContext:
    """For fetching the CA certificate, whose hash is checked afterwards; no secret may be sent."""
    context = _context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def said(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = ""
        if "expired" in error.verify_message or "not yet valid" in error.verify_message:
            hint = "; renew it with `llmgw certs renew`, or set this host's clock right"
        return f"its certificate is not accepted: {error.verify_message}{hint}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if error.__cause__ is not None:  # Trio's word for several addresses, or for one
        inner = error.__cause__
        return said(inner.exceptions[0] if isinstance(inner, ExceptionGroup) else inner)
    return str(error) or type(error).__name__


def _kind(error: BaseException | None) -> type[NoLink]:
    other_ca = isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in OTHER_CA
    return NotTrusted if other_ca else NoLink


def local_address(stream: trio.abc.Stream) -> str:
    """Where the other side sees us, if no one translates addresses between; empty without a socket."""
    below = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    return str(below.socket.getsockname()[0]) if isinstance(below, trio.SocketStream) else ""


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    return context


def _split(server: str) -> tuple[str, int]:
    try:
        return split_address(server)
    except ValueError as error:
        raise NoLink(f"agent.servers: {error}") from None
