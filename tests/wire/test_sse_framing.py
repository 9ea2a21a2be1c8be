"""Framing: the same bytes cut anywhere are the same events, whatever ends their lines."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.wire import sse
from llmgw.wire.sse import BOM, EventTooLarge, Framer, read_event

# Lines of events as engines may send them: no line end of any kind inside.
line = st.one_of(
    st.sampled_from(
        [b"data: {}", b"data:x", b"data", b": c", b":", b"event: e", b"id: 1", b"retry: 3", b"data: [DONE]"]
    ),
    st.binary(max_size=12).map(lambda raw: b"data: " + raw.translate(None, b"\r\n")),
)
event_lines = st.lists(line, min_size=1, max_size=4)
ends = st.sampled_from([b"\n", b"\r\n", b"\r"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[list[bytes]], bytes]:
    """Events, and one way to write them; between two of them may stand more blank lines."""
    events = draw(st.lists(event_lines, min_size=1, max_size=5))
    text = draw(st.sampled_from([b"", BOM]))
    text += draw(st.sampled_from([b"", b"\n", b"\n\n", b"\r\n"])) if not text else b""
    for lines in events:
        end = draw(ends)
        text += b"".join(one + end for one in lines) + end * draw(st.integers(1, 3))
    return events, text


def cut(text: bytes, places: list[int]) -> list[bytes]:
    at = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(at)]


def framed(pieces: list[bytes], most: int = 10_000) -> list[bytes]:
    framer = Framer(most)
    events = [event for piece in pieces for event in framer.feed(piece)]
    return events + framer.finish()


@given(streams(), st.lists(st.integers(0, 10_000), max_size=12))
def test_any_cut_gives_the_same_events(written: tuple[list[list[bytes]], bytes], places: list[int]) -> None:
    events, text = written

    expected = [b"\n".join(lines) + b"\n\n" for lines in events]
    assert framed([text]) == expected
    assert framed(cut(text, places)) == expected
    assert framed([bytes([byte]) for byte in text]) == expected


@given(streams(), st.lists(st.integers(0, 10_000), max_size=12))
def test_no_event_is_held_back_once_its_blank_line_has_come(
    written: tuple[list[list[bytes]], bytes], places: list[int]
) -> None:
    """But for a CR that ends a segment, nothing needs the next byte."""
    events, text = written
    framer = Framer(10_000)

    came = [event for piece in cut(text, places) for event in framer.feed(piece)]

    assert len(came) == len(events)


@given(st.binary(max_size=200), st.lists(st.integers(0, 10_000), max_size=12))
def test_whatever_the_bytes_the_cut_makes_no_difference(text: bytes, places: list[int]) -> None:
    assert framed(cut(text, places)) == framed([text])


@given(st.binary(max_size=200))
def test_events_end_in_one_blank_line_and_have_none_inside(text: bytes) -> None:
    for event in framed([text]):
        assert event.endswith(b"\n\n")
        assert b"\r" not in event
        assert b"\n\n" not in event[:-1]
        assert event[:1] != b"\n"


def test_a_byte_order_mark_is_dropped_at_the_start_alone() -> None:
    assert framed([BOM + b"data: a\n\n"]) == [b"data: a\n\n"]
    assert framed([b"data: a\n\n" + BOM + b"data: b\n\n"]) == [b"data: a\n\n", BOM + b"data: b\n\n"]


def test_a_byte_order_mark_may_come_in_pieces() -> None:
    assert framed([BOM[:1], BOM[1:2], BOM[2:] + b"data: a\n\n"]) == [b"data: a\n\n"]


def test_a_last_event_without_its_blank_line_is_given_at_the_end() -> None:
    assert framed([b"data: a\n\ndata: b"]) == [b"data: a\n\n", b"data: b\n\n"]
    assert framed([b"data: b\r"]) == [b"data: b\n\n"]
    assert framed([b"\n\n"]) == []


def test_an_event_has_a_bound_however_it_comes() -> None:
    with pytest.raises(EventTooLarge):
        framed([b"data: " + b"x" * 101], 100)
    with pytest.raises(EventTooLarge):
        framed([b"data: "] + [b"x"] * 101, 100)
    assert len(framed([b"data: x\n\n" * 100], 100)) == 100


# -- one event --------------------------------------------------------------------------------------

SAFE = [b"data: {}\n\n", b"data:{}\n\n", b'data: {"a":"b\\nc"}\n\n', b"data:  {}\n\n"]
ANEW = [
    (b"id: 1\ndata: {}\n\n", b"data: {}\n\n"),
    (b"retry: 1\ndata: {}\n\n", b"data: {}\n\n"),
    (b"event: x\ndata: {}\n\n", b"data: {}\n\n"),
    (b": c\ndata: {}\n\n", b"data: {}\n\n"),
    (b'data: {"a":\ndata: 1}\n\n', b'data: {"a": 1}\n\n'),
    (b'data:{"a":\ndata:\ndata:1}\n\n', b'data: {"a":  1}\n\n'),
]
NAMED = [
    (b"event: x\ndata: {}\n\n", b"event: x\ndata: {}\n\n"),
    (b"data: {}\n\n", b"data: {}\n\n"),
    (b"data: {}\nevent: x\n\n", b"event: x\ndata: {}\n\n"),
    (b"event:x\nid: 1\ndata: {}\n\n", b"event: x\ndata: {}\n\n"),
    (b"event: y\nevent: x\ndata: {}\n\n", b"event: x\ndata: {}\n\n"),
]


@pytest.mark.parametrize("raw", SAFE)
def test_a_safe_event_keeps_its_bytes(raw: bytes) -> None:
    assert read_event(raw, named=False).bytes == raw


@pytest.mark.parametrize(("raw", "safe"), ANEW)
def test_any_other_is_made_anew_around_its_data(raw: bytes, safe: bytes) -> None:
    assert read_event(raw, named=False).bytes == safe
    json.loads(safe[6:])


@pytest.mark.parametrize(("raw", "safe"), NAMED)
def test_where_events_have_names_the_name_comes_first(raw: bytes, safe: bytes) -> None:
    event = read_event(raw, named=True)
    assert (event.bytes, event.data) == (safe, b"{}")
    assert event.name == (b"x" if b"x" in raw else b"")


@pytest.mark.parametrize("raw", [b": c\n\n", b"event: x\n\n", b"id: 1\n\n", b"data:\n\n", b"data: \n\n", b"data\n\n"])
@pytest.mark.parametrize("named", [False, True])
def test_an_event_without_data_says_nothing(raw: bytes, named: bool) -> None:
    assert read_event(raw, named).data is None


@given(event_lines, st.booleans())
def test_whatever_is_sent_on_is_in_the_safe_profile(lines: list[bytes], named: bool) -> None:
    event = read_event(b"\n".join(lines) + b"\n\n", named)

    if event.data is not None:
        sent = event.bytes[:-2].split(b"\n")
        assert event.bytes.endswith(b"\n\n")
        assert sent.pop().startswith(b"data:")
        assert sent in ([], [b"event: " + event.name])
        assert not sent or named


def test_our_comment_stops_no_client() -> None:
    assert sse.KEEP_ALIVE == b": keep-alive\n\n"
