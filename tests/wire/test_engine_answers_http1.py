"""One HTTP/1.1 answer of an engine: its head, its pieces and its end, however the bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.wire.http1 import Malformed, Response, header_lines

BODY = b'{"a":"\r\n\r\n0\r\n\r\n"}' * 3
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Type: x\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
CHUNKS = b"5\r\n%b\r\n%x;ext=1\r\n%b\r\n0\r\nX-Trailer: t\r\n\r\n" % (
    BODY[:5], len(BODY) - 5, BODY[5:]
)  # fmt: skip
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS
TO_THE_END = b"HTTP/1.1 200 OK\r\n\r\n" + BODY
INFORMED = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + LENGTH
FORMS = {"length": LENGTH, "chunked": CHUNKED, "to the end": TO_THE_END, "informed": INFORMED}


def cut(text: bytes, places: list[int]) -> list[bytes]:
    at = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(at)]


def fed(pieces: list[bytes], head_max: int = 65536) -> tuple[Response, bytes]:
    response, body = Response(head_max), b""
    for piece in pieces:
        response.feed(piece)
        body += b"".join(response.take())
    return response, body


@given(st.sampled_from(sorted(FORMS)), st.lists(st.integers(0, 1000), max_size=10))
def test_an_answer_is_the_same_wherever_it_is_cut(form: str, places: list[int]) -> None:
    response, body = fed(cut(FORMS[form], places))

    assert (response.status, body, response.overrun) == (200, BODY, False)
    assert response.complete is (form != "to the end")
    assert response.connection_ended()
    assert response.framed is (form != "to the end")
    assert [name for name, _ in response.headers if name in (b"x-trailer", b"link")] == []


@pytest.mark.parametrize("form", sorted(FORMS))
def test_byte_by_byte_is_the_same_answer(form: str) -> None:
    response, body = fed([bytes([byte]) for byte in FORMS[form]])
    assert (response.status, body) == (200, BODY)


@pytest.mark.parametrize("text", [LENGTH, CHUNKED])
def test_an_answer_cut_short_anywhere_is_not_whole(text: bytes) -> None:
    for end in range(len(text)):
        response, _ = fed([text[:end]])
        assert not response.complete
        assert not response.connection_ended()
        assert response.head_done is (b"\r\n\r\n" in text[:end])


KEPT = [
    (LENGTH, True),
    (CHUNKED, True),
    (LENGTH.replace(b"1.1", b"1.0"), False),
    (LENGTH.replace(b"Content-Type: x", b"Connection: close"), False),
    (LENGTH.replace(b"Content-Type: x", b"Connection: Keep-Alive"), True),
    (LENGTH.replace(b"1.1", b"1.0").replace(b"Content-Type: x", b"Connection: keep-alive"), True),
    (TO_THE_END, False),
    (b"HTTP/1.1 204 No Content\r\n\r\n", True),
    (b"HTTP/1.1 304 Not Modified\r\n\r\n", True),
]


@pytest.mark.parametrize(("text", "kept"), KEPT)
def test_whether_the_connection_may_serve_again(text: bytes, kept: bool) -> None:
    response, _ = fed([text])
    assert (response.complete and response.keep_alive and response.framed and not response.overrun) is kept


@pytest.mark.parametrize("more", [b"HTTP/1.1 200 OK\r\n\r\n", b"x", b"\r\n\r\n", b"\0"])
@pytest.mark.parametrize("text", [LENGTH, CHUNKED])
def test_bytes_behind_the_end_are_seen_and_no_part_of_it(text: bytes, more: bytes) -> None:
    for pieces in ([text + more], [text, more]):
        response, body = fed(pieces)
        assert (body, response.complete) == (BODY, True)
        # An empty line is forgiven by the parser; anything else spoils the connection.
        assert response.overrun or more == b"\r\n\r\n"


BAD = [
    b"SSH-2.0-OpenSSH_9\r\n\r\n",
    b"<html>\r\n\r\n",
    b"HTTP/2 200\r\n\r\n",
    b"HTTP/1.1 abc OK\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nA\0B: 1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_answer_is_malformed(text: bytes) -> None:
    with pytest.raises(Malformed):
        fed([text])


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_a_head_has_a_bound_however_it_comes(size: int) -> None:
    text = b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 2000
    with pytest.raises(Malformed, match="too long"):
        fed([text[at : at + size] for at in range(0, len(text), size)], head_max=4096)


def test_a_large_body_right_behind_its_head_is_no_long_head() -> None:
    text = b"HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n" + b"x" * 60_000
    response, body = fed([text], head_max=4096)
    assert (response.complete, len(body)) == (True, 60_000)


def test_started_says_that_any_byte_came() -> None:
    response = Response()
    assert not response.started
    response.feed(b"H")
    assert response.started


@given(st.lists(st.tuples(st.just(b"x-a"), st.binary(max_size=20)), max_size=4))
def test_no_value_splits_the_head_it_is_written_into(headers: list[tuple[bytes, bytes]]) -> None:
    text = header_lines(headers)
    assert text.count(b"\r\n") == text.count(b"\n") == text.count(b"\r") == len(headers)
