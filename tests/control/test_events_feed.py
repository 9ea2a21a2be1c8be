"""Events: each is told once to each reader, or counted as missed, however telling and reading take turns."""

from collections.abc import Iterator

import pytest
import trio
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from llmgw.control.events import KINDS, SKIPPED, Events, as_json
from llmgw.store import events as rows
from llmgw.store.errors import StoreUnavailable
from llmgw.store.opening import opened
from llmgw.store.place import Place

STEPS = st.lists(st.one_of(st.just("tell"), st.tuples(st.integers(0, 2), st.integers(1, 4))), max_size=60)


@define
class Reader:
    seq: int = 0
    seen: list[int] = field(factory=list)
    missed: int = 0

    def read(self, events: Events, most: int | None = None) -> None:
        found, missed = events.since(self.seq, most)
        assert most is None or len(found) <= most
        self.seen += [event.seq for event in found]
        self.missed += missed
        if self.seen:
            self.seq = self.seen[-1]


def told(events: Events, number: int = 1) -> Iterator[int]:
    for _ in range(number):
        yield events.tell("node.back", "node-1", "node-1 is back").seq


@given(STEPS, st.integers(1, 8))
def test_every_event_is_seen_once_or_counted_as_missed(steps, most):
    events = Events(None, lambda: most, lambda: 0.0)
    readers = [Reader(), Reader(), Reader()]
    there: list[int] = []

    for step in steps:
        if step == "tell":
            there += told(events)
        else:
            readers[step[0]].read(events, step[1])
    for reader in readers:
        reader.read(events)

    for reader in readers:
        assert reader.seen == sorted(set(reader.seen))
        assert set(reader.seen) <= set(there)
        assert len(reader.seen) + reader.missed == len(there)


@given(st.integers(0, 30), st.integers(1, 8), st.integers(0, 30))
def test_what_is_remembered_is_given_and_nothing_else(number, most, seq):
    events = Events(None, lambda: most, lambda: 0.0)
    there = list(told(events, number))
    from_here = 0 if seq > number else seq  # a number that was never told is another store's

    found, missed = events.since(seq)

    assert [event.seq for event in found] == [n for n in there[-most:] if n > from_here]
    assert missed == len([n for n in there[:-most] if n > from_here])


def test_an_event_has_a_kind_out_of_the_set():
    events = Events(None, lambda: 10)
    with pytest.raises(AssertionError, match=r"node\.exploded"):
        events.tell("node.exploded", "node-1", "it did")
    assert all(kind == kind.lower() and "." in kind for kind in KINDS)


def test_what_an_event_says_is_plain_values():
    event = Events(None, lambda: 10, lambda: 7.0).tell("model.scaled", "m", "m is scaled to 2", replicas=2)

    assert as_json(event) == {
        "seq": 1, "at": 7.0, "kind": "model.scaled", "subject": "m", "sentence": "m is scaled to 2",
        "data": {"replicas": 2},
    }  # fmt: skip


async def test_many_wait_and_all_are_woken_by_one_event(autojump_clock):
    events, woken = Events(None, lambda: 10), []

    async def reader(name):
        await events.wait(0)
        woken.append(name)

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(reader, name)
        await trio.testing.wait_all_tasks_blocked()
        assert woken == []
        list(told(events))
    assert sorted(woken) == ["a", "b", "c"]


async def test_who_has_seen_all_waits_also_right_after_a_start_that_skipped_numbers(tmp_path):
    async with store_in(tmp_path) as store:
        events = await Events.load(store, lambda: 10)
        [last] = told(events)
        await events.flush()
        again = await Events.load(store, lambda: 10)

        with trio.move_on_after(0.01) as scope:
            await again.wait(last)
        assert scope.cancelled_caught
        list(told(again))
        await again.wait(last)


async def test_a_start_remembers_what_was_written(tmp_path):
    async with store_in(tmp_path) as store:
        events = await Events.load(store, lambda: 3)
        assert events.since(0) == ([], 0)
        list(told(events, 5))
        await events.flush()

        again = await Events.load(store, lambda: 3)

        assert [e.seq for e in again.since(0)[0]] == [3, 4, 5]
        assert again.since(0)[1] == 2
        assert again.since(4)[1] == 0
        assert again.since(4)[0] == events.since(4)[0]


async def test_after_a_crash_no_number_means_another_event(tmp_path):
    async with store_in(tmp_path) as store:
        events = await Events.load(store, lambda: 10)
        list(told(events, 3))
        await events.flush()
        seen = list(told(events, 2))[-1]  # and then the process is killed

        again = await Events.load(store, lambda: 10)
        new = again.tell("leader.began", "leader", "this control plane leads")

        assert again.since(seen) == ([new], 0)
        assert new.seq == 3 + SKIPPED + 1


async def test_as_many_are_kept_as_may_be_though_numbers_were_skipped(tmp_path):
    async with store_in(tmp_path) as store:
        for _ in range(3):
            events = await Events.load(store, lambda: 4)
            list(told(events, 2))
            await events.flush()

        kept = await store.read(lambda conn: rows.latest(conn, 100))

    assert [e.seq for e in kept] == [SKIPPED + 3, SKIPPED + 4, 2 * SKIPPED + 5, 2 * SKIPPED + 6]


class Away:
    """A store that takes nothing for a while."""

    def __init__(self, store):
        self.store, self.away = store, True

    async def write(self, change):
        if self.away:
            raise StoreUnavailable("disk full")
        return await self.store.write(change)


async def test_what_the_store_does_not_take_is_written_when_it_does_and_bounded_until_then(tmp_path):
    async with store_in(tmp_path) as store:
        away = Away(store)
        events = Events(away, lambda: 3)
        list(told(events, 5))
        await events.flush()
        assert events.failing == "disk full"

        away.away = False
        await events.flush()

        assert events.failing == ""
        assert [e.seq for e in await store.read(lambda conn: rows.latest(conn, 100))] == [3, 4, 5]


async def test_what_is_told_while_a_batch_is_written_comes_with_the_next(tmp_path):
    async with store_in(tmp_path) as store:
        events = await Events.load(store, lambda: 10)
        list(told(events))

        class Slow:
            async def write(self, change):
                list(told(events))
                return await store.write(change)

        events._store = Slow()
        await events.flush()
        events._store = store
        await events.flush()

        assert [e.seq for e in await store.read(lambda conn: rows.latest(conn, 100))] == [1, 2]


def store_in(folder):
    return opened(Place(folder, folder / "llmgw.db"))
