"""The event feed as its readers meet it: listed, and as server-sent events over a socket."""

import json

import pytest
import trio

from llmgw.admin import feed
from llmgw.core.identity import Role
from llmgw.wire.event_feed import events_in
from tests.admin.desk import ask
from tests.admin.talking import WITHIN_S, connected, served
from tests.polling import until


def tell(desk, number=1, kind="node.back", subject="node-1"):
    return [desk.plane.events.tell(kind, subject, f"{subject} says {n}").seq for n in range(number)]


async def listed(desk, **query):
    answer = await ask(desk.app(), "GET", "/admin/v1/events", desk.bearer(Role.VIEWER), query_string=query)
    return answer.status_code, await answer.get_json()


class Reader:
    """One connection that follows: the bytes that came, out of their chunks, and the events in them."""

    def __init__(self, stream):
        self.stream, self.raw, self.plain, self.headed = stream, b"", b"", False

    async def head(self):
        with trio.fail_after(WITHIN_S):
            while b"\r\n\r\n" not in self.raw:
                await self._more()
        self.headed = True
        head, _, self.raw = self.raw.partition(b"\r\n\r\n")
        return head.decode().lower()

    async def until(self, number):
        """At least so many events, whole ones; what comes of the next stays."""
        if not self.headed:
            await self.head()
        with trio.fail_after(WITHIN_S):
            while len(found := list(events_in([self.plain]))) < number:
                await self._more()
                self._unpack()
        self.plain = self.plain.rpartition(b"\n\n")[2]
        return found

    async def _more(self):
        some = await self.stream.receive_some(65536)
        assert some, f"closed after {self.raw[-200:]!r}"
        self.raw += some

    def _unpack(self):
        while b"\r\n" in self.raw:
            size, _, rest = self.raw.partition(b"\r\n")
            length = int(size, 16)
            if len(rest) < length + 2:
                return
            self.plain, self.raw = self.plain + rest[:length], rest[length + 2 :]


async def following(desk, port, query="", *headers, receive_buffer=None):
    stream = await connected(port, receive_buffer)
    token = f"Authorization: {desk.bearer(Role.VIEWER)['Authorization']}"
    lines = [f"GET /admin/v1/events?follow=1{query} HTTP/1.1", "Host: localhost", token, *headers, "", ""]
    await stream.send_all("\r\n".join(lines).encode())
    return Reader(stream)


# -- listed --------------------------------------------------------------------------------------------------


async def test_the_latest_are_listed_oldest_first_with_where_to_go_on(desk):
    tell(desk, 5)

    _, answer = await listed(desk, limit=2)

    assert [e["seq"] for e in answer["events"]] == [4, 5]
    assert (answer["missed"], answer["last"]) == (0, 5), "nobody said since when, so nothing is missed"


@pytest.mark.parametrize(
    ("query", "seqs", "missed"),
    [
        ({"since": 3}, [4, 5, 6], 0),
        ({"since": 0}, [1, 2, 3, 4, 5, 6], 0),
        ({"since": 1, "limit": 2}, [5, 6], 3),
        ({"since": 99}, [1, 2, 3, 4, 5, 6], 0),
        ({"kind": "model"}, [4, 5, 6], 0),
        ({"kind": "model", "limit": 1}, [6], 0),
        ({"kind": "model", "since": 3, "limit": 1}, [6], 2),
        ({"subject": "m"}, [4, 5, 6], 0),
        ({"subject": "node"}, [], 0),
        ({"kind": "node.lost"}, [], 0),
    ],
)
async def test_a_list_is_narrowed_before_it_is_cut(desk, query, seqs, missed):
    tell(desk, 3)
    tell(desk, 3, "model.scaled", "m")

    _, answer = await listed(desk, **query)

    assert ([e["seq"] for e in answer["events"]], answer["missed"]) == (seqs, missed)


@pytest.mark.parametrize("since", ["-1", "x", "1.5", "٣", "9" * 30])
async def test_what_is_no_number_of_an_event_is_refused(desk, since):
    status, answer = await listed(desk, since=since)

    assert (status, answer["error"]["code"]) == (400, "field")
    assert "last id" in answer["error"]["hint"]


# -- followed ------------------------------------------------------------------------------------------------


async def test_a_follower_hears_what_happens_from_now_on_each_with_its_number(desk):
    tell(desk, 2)
    async with served(desk.app()) as port:
        reader = await following(desk, port)
        async with reader.stream:
            head = await reader.head()
            tell(desk, 1, "model.scaled", "m\u2028n")
            [told] = await reader.until(1)

    assert head.startswith("http/1.1 200")
    assert "content-type: text/event-stream" in head
    assert (told.id, told.kind, told.data["seq"], told.data["subject"]) == ("3", "model.scaled", 3, "m\u2028n")


@pytest.mark.parametrize(
    ("query", "headers"), [("", ["Last-Event-ID: 2"]), ("&since=2", []), ("&since=0", ["Last-Event-ID: 2"])]
)
async def test_who_comes_again_goes_on_behind_the_last_one_it_has_seen(desk, query, headers):
    tell(desk, 5)
    async with served(desk.app()) as port:
        reader = await following(desk, port, query, *headers)
        async with reader.stream:
            found = await reader.until(3)

    assert [told.id for told in found] == ["3", "4", "5"]


async def test_the_accept_header_alone_asks_for_a_stream(desk):
    tell(desk)
    async with served(desk.app()) as port:
        reader = await following(desk, port, "&follow=", "Accept: text/event-stream", "Last-Event-ID: 0")
        async with reader.stream:
            assert "text/event-stream" in await reader.head()


async def test_of_a_narrowed_stream_the_rest_moves_the_number_and_is_no_event(desk):
    async with served(desk.app()) as port:
        reader = await following(desk, port, "&kind=model&subject=m")
        async with reader.stream:
            await reader.head()
            tell(desk, 2)
            tell(desk, 1, "model.scaled", "m")
            tell(desk, 1, "model.scaled", "other")
            found = await reader.until(2)

    assert [(told.id, told.kind, told.data is None) for told in found] in (
        [("3", "model.scaled", False), ("4", "", True)],
        [("2", "", True), ("3", "model.scaled", False)],  # it was woken in between
    )


async def test_who_was_away_too_long_is_told_how_much_it_missed(desk):
    desk.plane.events._most = lambda: 10
    tell(desk, 30)
    async with served(desk.app()) as port:
        reader = await following(desk, port, "&since=4")
        async with reader.stream:
            found = await reader.until(11)

    assert (found[0].kind, found[0].id, found[0].data) == ("missed", "", {"missed": 16, "since": 4})
    assert [int(told.id) for told in found[1:]] == list(range(21, 31))


async def test_a_number_of_another_store_is_said_to_be_strange(desk):
    tell(desk, 2)
    async with served(desk.app()) as port:
        reader = await following(desk, port, "&since=70")
        async with reader.stream:
            found = await reader.until(3)

    assert (found[0].kind, found[0].data) == ("missed", {"missed": 0, "since": 70})
    assert [told.id for told in found[1:]] == ["1", "2"]


async def test_a_reader_that_does_not_read_costs_nothing_and_is_told_what_it_missed(desk):
    """Sentences of 4 KB fill what the system buffers between us; only as much as is remembered waits beyond it."""
    desk.plane.events._most = lambda: 10
    async with served(desk.app()) as port:
        reader = await following(desk, port, receive_buffer=4096)
        async with reader.stream:
            await reader.head()
            for _ in range(300):
                for _ in range(10):
                    desk.plane.events.tell("node.back", "node-1", "x" * 4096)
                await trio.testing.wait_all_tasks_blocked(0.0001)
            assert len(desk.plane.events.since(0)[0]) == 10
            seen, missed = 0, 0
            with trio.fail_after(WITHIN_S):
                while seen + missed < 3000:
                    found = await reader.until(1)
                    seen += sum(told.kind == "node.back" for told in found)
                    missed += sum(told.data["missed"] for told in found if told.kind == "missed")

    assert seen + missed == 3000
    assert missed > 0


async def test_who_leaves_is_waited_for_no_more(desk):
    async with served(desk.app()) as port:
        reader = await following(desk, port)
        await reader.head()
        await until(lambda: desk.plane.events._news.statistics().tasks_waiting == 1)
        await reader.stream.aclose()
        await until(lambda: desk.plane.events._news.statistics().tasks_waiting == 0)


# -- signs of life, under a clock that jumps -----------------------------------------------------------------


async def test_a_silent_feed_says_that_it_lives(desk, autojump_clock):
    said = feed._stream(desk.plane.events, 0, feed.Wanted(), lambda: True)
    began = trio.current_time()

    lines = [await anext(said) for _ in range(3)]

    assert lines == [b": events of llmgw\n\n", b": still here\n\n", b": still here\n\n"]
    assert trio.current_time() - began == pytest.approx(2 * feed.COMMENT_S)
    await said.aclose()


async def test_a_feed_in_which_nothing_matches_shows_life_too(desk, autojump_clock):
    said = feed._stream(desk.plane.events, 0, feed.Wanted(kind="model"), lambda: True)
    await anext(said)
    tell(desk, 2)

    assert await anext(said) == b"id: 2\n\n"
    await said.aclose()


async def test_a_reader_far_behind_is_given_all_that_is_remembered_in_batches(desk, autojump_clock):
    tell(desk, feed.BATCH + 100)
    said = feed._stream(desk.plane.events, 0, feed.Wanted(), lambda: True)
    await anext(said)

    ids = [json.loads((await anext(said)).split(b"data: ")[1])["seq"] for _ in range(feed.BATCH + 100)]

    assert ids == list(range(1, feed.BATCH + 101))
    await said.aclose()


async def test_a_feed_ends_with_the_leadership_so_that_its_reader_goes_to_the_next_leader(desk, autojump_clock):
    leads = True
    said = feed._stream(desk.plane.events, 0, feed.Wanted(), lambda: leads)
    await anext(said)
    tell(desk, 1)
    assert b"id: 1\n" in await anext(said)

    leads = False
    assert [line async for line in said] == []
