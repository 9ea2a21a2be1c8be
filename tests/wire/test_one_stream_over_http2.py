"""One stream a connection, both ends: windows respected, and nothing that a peer sends is held without bound."""

from contextlib import suppress

import h2.config
import h2.connection
import h2.settings
import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given
from hypothesis import strategies as st

from llmgw.wire.h2_stream import ALLOWANCE, FRAME_SIZE, HEADERS_MAX, WINDOW, Body, End, H2Stream, Head, Violation

HEAD = [(":method", "POST"), (":scheme", "https"), (":authority", "gw"), (":path", "/agent/v1/link")]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize()


def pair() -> tuple[H2Stream, H2Stream]:
    """An agent's end and a leader's, after their heads."""
    agent, leader = H2Stream.for_client(HEAD), H2Stream.for_server()
    assert isinstance(leader.receive(agent.outgoing())[0], Head)
    leader.respond(200)
    (head,) = agent.receive(leader.outgoing())
    assert head == Head({":status": "200"})
    leader.receive(agent.outgoing())
    return agent, leader


def opened() -> H2Stream:
    """A leader's end with a stream that a raw peer has opened."""
    peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    peer.initiate_connection()
    peer.send_headers(1, HEAD)
    leader = H2Stream.for_server()
    leader.receive(peer.data_to_send())
    return leader


def flood(leader: H2Stream, *frames: Frame) -> None:
    for _ in range(ALLOWANCE + 10):
        for frame in frames:
            leader.receive(frame.serialize())


@given(st.binary(max_size=3 * WINDOW), st.lists(st.integers(1, 40_000), min_size=1, max_size=5), st.booleans())
def test_what_is_written_arrives_whole_and_never_more_than_the_window_is_under_way(data, cuts, upwards):
    sender, receiver = pair() if upwards else pair()[::-1]
    left, got, held = memoryview(data), bytearray(), 0
    for turn in range(10_000):
        left = left[sender.write(left) :]
        wire = sender.outgoing()
        size = cuts[turn % len(cuts)]
        for start in range(0, len(wire), size):
            for happening in receiver.receive(wire[start : start + size]):
                assert isinstance(happening, Body)
                got += happening.data
                held += happening.size
        assert held <= WINDOW
        receiver.consumed(held)
        held = 0
        sender.receive(receiver.outgoing())
        if not left:
            break
    assert bytes(got) == data


def test_what_is_not_consumed_holds_the_sender_back():
    agent, leader = pair()
    sent = agent.write(b"x" * 10 * WINDOW)
    while more := agent.write(b"x" * 10 * WINDOW):
        sent += more
    assert sent == WINDOW

    size = sum(one.size for one in leader.receive(agent.outgoing()) if isinstance(one, Body))
    agent.receive(leader.outgoing())
    assert agent.write(b"x") == 0

    leader.consumed(size)
    agent.receive(leader.outgoing())
    assert agent.write(b"x" * 10 * WINDOW) == WINDOW


def test_a_window_without_end_is_not_filled_at_once():
    """A peer that announces 2 GiB gets what one write may take, and no buffer of ours grows for it."""
    leader = opened()
    leader.receive(WindowUpdateFrame(0, window_increment=2**31 - 1 - WINDOW).serialize())
    leader.receive(WindowUpdateFrame(1, window_increment=2**31 - 1 - WINDOW).serialize())
    leader.respond(200)

    assert leader.write(bytes(10 * 1024**2)) == 64 * 1024


def test_either_end_can_say_that_it_is_done():
    agent, leader = pair()
    agent.finish()
    assert leader.receive(agent.outgoing()) == [End()]
    leader.finish()
    assert agent.receive(leader.outgoing()) == [End()]
    assert agent.write(b"x") == 0


def test_a_link_of_years_is_no_flood():
    """Small reports and windows opened again, ten thousand times."""
    agent, leader = pair()
    for number in range(10_000):
        for sender, receiver in ((agent, leader), (leader, agent)):
            text = b'{"t":"report","seq":%d,"gpus":[],"shards":[],"orphans":[],"has":[]}\n' % number
            assert sender.write(text) == len(text)
            for happening in receiver.receive(sender.outgoing()):
                assert isinstance(happening, Body)
                receiver.consumed(happening.size)
            sender.receive(receiver.outgoing())


@pytest.mark.parametrize(
    "frames",
    [
        [PingFrame(0, opaque_data=b"12345678")],
        [SettingsFrame(0, settings={})],
        [DataFrame(1, data=b"")],
        [DataFrame(1, data=b"x")],
        [WindowUpdateFrame(0, window_increment=1)],
        [PriorityFrame(1, depends_on=0, stream_weight=1)],
    ],
    ids=["pings", "settings", "empty data", "single bytes", "window updates", "priorities"],
)
def test_frames_that_carry_nothing_are_bounded(frames):
    leader = opened()
    with pytest.raises(Violation, match="flood"):
        flood(leader, *frames)
    assert len(leader.outgoing()) < 20_000


def test_an_overlong_frame_is_refused_by_its_head():
    """h2 would hold sixteen megabytes of it before it looked."""
    leader = opened()
    head = (2**24 - 1).to_bytes(3, "big") + b"\0\0\0\0\0\1"
    with pytest.raises(Violation, match="16777215 bytes"):
        leader.receive(head)


def test_a_head_without_end_is_refused():
    leader = H2Stream.for_server()
    leader.receive(PREFACE + HeadersFrame(1, data=b"\0" * 1000).serialize())
    more = ContinuationFrame(1, data=b"\0" * 1000).serialize() * 100
    with pytest.raises(Violation, match=f"more than {HEADERS_MAX} bytes of header fields"):
        leader.receive(more)


def test_a_head_that_unpacks_to_much_is_refused():
    """Four thousand times one indexed field: a few bytes that would become a hundred kilobytes."""
    peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    peer.initiate_connection()
    block = peer.encoder.encode([*HEAD, ("x-long", "y" * 2000)])
    more = peer.encoder.encode([("x-long", "y" * 2000)])
    leader = H2Stream.for_server()
    with pytest.raises(Violation):
        leader.receive(
            peer.data_to_send() + HeadersFrame(1, data=block + more * 100, flags=["END_HEADERS"]).serialize()
        )


def test_a_second_stream_ends_the_connection():
    for first in ([], [RstStreamFrame(1, error_code=8)]):
        leader = opened()
        for frame in first:
            assert leader.receive(frame.serialize()) == [End("the stream was reset")]
        encoder = h2.connection.H2Connection().encoder
        second = HeadersFrame(3, data=encoder.encode(HEAD), flags=["END_HEADERS"])
        with pytest.raises(Violation):
            leader.receive(second.serialize())


def test_data_beyond_the_window_ends_the_connection():
    leader = opened()
    frames = DataFrame(1, data=b"x" * FRAME_SIZE).serialize() * (WINDOW // FRAME_SIZE + 2)
    with pytest.raises(Violation):
        leader.receive(frames)


def test_padding_counts_against_the_window():
    leader = opened()
    (body,) = leader.receive(DataFrame(1, data=b"x" * 100, pad_length=200, flags=["PADDED"]).serialize())
    assert (len(body.data), body.size) == (100, 301)


@given(st.binary(max_size=400))
def test_garbage_is_a_violation_and_nothing_else(garbage):
    for leader, data in (
        (H2Stream.for_server(), garbage),
        (opened(), garbage),
        (H2Stream.for_server(), PREFACE + garbage),
    ):
        with suppress(Violation):
            leader.receive(data)


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 255), st.sampled_from([0, 1, 2, 3]), st.binary(max_size=60)))
)
def test_frames_in_any_order_are_a_violation_or_understood(frames):
    leader = opened()
    with suppress(Violation):
        for kind, flags, stream, data in frames:
            head = len(data).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
            for happening in leader.receive(head + data):
                assert isinstance(happening, Head | Body | End)
