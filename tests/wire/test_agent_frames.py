"""What leader and agent say to each other, line by line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.gpus import Evidence, Gpu, Severity
from llmgw.core.shards import Exit, Fetch, Launch, ShardSeen, ShardState
from llmgw.core.term import Term
from llmgw.wire.agent_frames import (
    Hello,
    Lines,
    Malformed,
    Obeys,
    Report,
    Wanted,
    Welcome,
    line,
    read_down,
    read_up,
)

EVIDENCE = Evidence("xid 79", Severity.EXCLUDED, "fell off the bus", 1.0, 2.0, "a reboot")
SHARD = ShardSeen("m-1.g7.r0", ShardState.FAILED, ports={"http": 20000}, exit=Exit(signal=9, oom=True))
UP = [
    Hello(1, "c", "node-1", "boot", Term(0, 3, "x"), 12, labels={"zone": "a"}),
    Report(4, Obeys(Term(0, 3, "x"), 9), gpus=(Gpu("GPU-1", 0, evidence=(EVIDENCE,)),), shards=(SHARD,)),
]
DOWN = [
    Welcome(Term(0, 3, "x"), 1000),
    Wanted(Term(0, 3, "x"), 9, (Launch("m-1.g7.r0", ("x", "{port}"), files=Fetch("/models/m"), key="k"),)),
]


@pytest.mark.parametrize("frame", UP, ids=lambda frame: type(frame).__name__)
def test_what_an_agent_says_is_read_as_it_was_meant(frame):
    assert read_up(line(frame)) == frame


@pytest.mark.parametrize("frame", DOWN, ids=lambda frame: type(frame).__name__)
def test_what_a_leader_says_is_read_as_it_was_meant(frame):
    assert read_down(line(frame)) == frame


def test_a_version_apart_is_understood():
    """Members that are not known yet are passed over; those that are not there have defaults."""
    assert read_up(b'{"t":"report","seq":7,"dreams":["of sheep"]}') == Report(7)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"t":"wanted"}', b'{"t":"report","seq":"x"}', b"\xff", b"[" * 9000]
)
def test_what_is_no_frame_is_refused(text):
    with pytest.raises(Malformed, match="can't be read"):
        read_up(text)


def test_a_key_is_never_shown():
    assert "sesame" not in repr(Launch("a.g1.r0", ("x",), key="sesame"))


@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"")), max_size=8), st.data())
def test_lines_come_whole_however_they_were_cut(lines, data):
    text = b"".join(one + b"\n" for one in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    reader, got = Lines(100), []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        got += reader.feed(text[start:end])
    assert got == [one for one in lines if one]


@pytest.mark.parametrize(
    ("before", "last"),
    [
        (b"", b"x" * 11),
        (b"x" * 6, b"x" * 6),
        (b"", b"a\n" + b"x" * 11 + b"\n"),
        (b"", b"a\n" + b"x" * 11),
    ],
)
def test_a_line_beyond_the_bound_is_refused_before_it_ends(before, last):
    reader = Lines(10)
    reader.feed(before)
    with pytest.raises(Malformed, match="more than 10 bytes"):
        reader.feed(last)
