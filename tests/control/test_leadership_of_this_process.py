"""The tasks around who leads, on a mock clock and a database that the test holds in its hand."""

from collections.abc import Awaitable, Callable
from typing import NoReturn

import pytest
import trio
import trio.testing
from attrs import define, evolve, field

from llmgw.control.leadership import EXIT_STILL_WORKING, Candidacy
from llmgw.control.tenure import Tenure
from llmgw.core.lease_explained import Transition
from llmgw.core.lease_facts import Acquire, Acquired, Addresses, Answer, Call, Failed, LeaseLimits, Released, Renew
from llmgw.core.lease_state import Leadership, Role
from llmgw.core.term import Term
from tests.core.lease_world import Db

LIMITS = LeaseLimits()


@define(eq=False)
class Shared:
    """What two candidacies share: the database, and who is told of a release."""

    db: Db = field(factory=Db)
    listeners: list[Callable[[], None]] = field(factory=list)


@define(eq=False)
class Line:
    """One process's line to it. ``up`` false: no statement gets there, and each waits to its deadline."""

    shared: Shared
    holder: str
    up: bool = True
    answer_s: float = 0.01
    calls: list[Call] = field(factory=list)

    async def carry_out(self, call: Call, nonce: str, within_s: float) -> Answer:
        self.calls.append(call)
        if not self.up:
            await trio.sleep(within_s)
            return Failed("the store is away")
        answer = self.shared.db.run(call, self.holder, nonce, trio.current_time())
        if isinstance(answer, Acquired):
            kept = self.shared.db.kept
            self.shared.db.kept = evolve(kept, row=evolve(kept.row, addresses=Addresses(self.holder)))
        if isinstance(answer, Released):
            for nudge in self.shared.listeners:
                nudge()
        await trio.sleep(self.answer_s)
        return answer

    async def nudges(self, nudge: Callable[[], None]) -> NoReturn:
        self.shared.listeners.append(nudge)
        await trio.sleep_forever()
        raise AssertionError


@define(eq=False)
class Process:
    shared: Shared
    name: str
    lead: Callable[[Tenure], Awaitable[object]] | None = None
    offset: float = 0.0  # its clock has been standing or has jumped ahead by so much
    told: list[Transition] = field(factory=list)
    exits: list[int] = field(factory=list)
    line: Line = field(init=False)
    candidacy: Candidacy = field(init=False)
    tenures: list[Tenure] = field(factory=list)
    failed: list[BaseException] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.line = Line(self.shared, self.name)
        state = Leadership(self.name, LIMITS, Addresses(self.name))
        nonces = iter(f"{self.name}-{number}" for number in range(10_000))
        self.candidacy = Candidacy(
            self.line, state, lambda: trio.current_time() + self.offset, self._lead, self.told.append,
            self.failed.append, lambda: next(nonces), self.exits.append,
        )  # fmt: skip

    async def _lead(self, tenure: Tenure) -> None:
        self.tenures.append(tenure)
        await (self.lead or _until_leaving)(tenure)

    @property
    def kinds(self) -> list[str]:
        return [transition.kind for transition in self.told]


async def _until_leaving(tenure: Tenure) -> None:
    await tenure.leaving.wait()


@pytest.fixture
def shared() -> Shared:
    return Shared()


@pytest.fixture
async def north(shared, nursery, autojump_clock) -> Process:
    process = Process(shared, "north")
    nursery.start_soon(process.candidacy.run)
    await trio.sleep(1)
    assert process.candidacy.may_act()
    return process


@pytest.fixture
async def south(shared, nursery, north) -> Process:
    process = Process(shared, "south")
    nursery.start_soon(process.candidacy.run)
    await trio.sleep(1)
    return process


async def test_the_first_to_come_leads_and_goes_on_leading_under_one_term(north, autojump_clock):
    began = north.candidacy.term
    await trio.sleep(60)

    assert north.candidacy.term == began
    assert north.candidacy.may_act()
    assert north.kinds == ["leader.began"]
    assert len(north.tenures) == 1
    assert 28 <= sum(isinstance(call, Renew) for call in north.line.calls) <= 32


async def test_the_second_to_come_stands_by_and_knows_who_leads(north, south, autojump_clock):
    assert south.candidacy.term is None
    leader = south.candidacy.leader()
    assert leader is not None
    assert (leader.who, leader.here, leader.state) == ("north", False, "leading")
    assert south.kinds == ["leader.other"]
    assert "north leads" in str(south.candidacy.explain())


async def test_a_leader_that_resigns_is_followed_within_a_tenth_of_a_second(north, south, autojump_clock):
    assert north.candidacy.resign("an operator asked")
    assert not north.candidacy.may_act()
    await trio.sleep(0.1)

    assert south.candidacy.may_act()
    assert south.candidacy.term is not None
    assert south.candidacy.term.epoch == 2
    assert north.tenures[0].ended.is_set()
    await trio.sleep(60)
    assert south.candidacy.may_act()


async def test_a_standby_cannot_resign(north, south, autojump_clock):
    assert not south.candidacy.resign("an operator asked")
    await trio.sleep(30)
    assert north.candidacy.may_act()


async def test_who_resigned_with_nobody_else_there_leads_again_after_one_ttl(north, autojump_clock):
    north.candidacy.resign("an operator asked")
    resigned = trio.current_time()
    while not north.candidacy.may_act():
        await north.candidacy.changed.wait()

    assert LIMITS.ttl <= trio.current_time() - resigned < LIMITS.ttl + 1
    await trio.testing.wait_all_tasks_blocked()
    assert len(north.tenures) == 2


async def test_what_leads_has_a_moment_to_finish_before_the_lease_is_given_back(shared, nursery, autojump_clock):
    finished: list[float] = []

    async def lead(tenure: Tenure) -> None:
        await tenure.leaving.wait()
        assert not tenure.may_act()
        await trio.sleep(0.3)
        assert not shared.db.kept.row.released
        finished.append(trio.current_time())

    north = Process(shared, "north", lead)
    nursery.start_soon(north.candidacy.run)
    await trio.sleep(1)
    await north.candidacy.stop()

    assert shared.db.kept.row.released
    assert trio.current_time() - finished[0] < 0.1


async def test_what_leads_and_does_not_finish_is_cancelled_and_then_the_lease_is_given_back(
    shared, nursery, autojump_clock
):
    async def lead(tenure: Tenure) -> None:
        await trio.sleep_forever()

    north = Process(shared, "north", lead)
    nursery.start_soon(north.candidacy.run)
    await trio.sleep(1)
    before = trio.current_time()
    await north.candidacy.stop()

    assert shared.db.kept.row.released
    assert trio.current_time() - before == pytest.approx(LIMITS.acks_within, abs=0.1)
    assert north.exits == []


async def test_a_task_that_leads_on_after_the_margin_ends_the_process(shared, nursery, autojump_clock):
    async def lead(tenure: Tenure) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(20)

    north = Process(shared, "north", lead)
    nursery.start_soon(north.candidacy.run)
    await trio.sleep(1)
    north.candidacy.resign("an operator asked")
    await trio.sleep(LIMITS.acks_within + LIMITS.margin - 0.1)
    assert north.exits == []
    assert not shared.db.kept.row.released
    await trio.sleep(0.2)
    assert north.exits == [EXIT_STILL_WORKING]


async def test_a_store_that_is_away_ends_the_leadership_before_another_may_begin(shared, north, south, autojump_clock):
    north.line.up = False
    away = trio.current_time()
    acted = took = away
    while trio.current_time() < away + 30:
        await trio.sleep(0.05)
        acted = trio.current_time() if north.candidacy.may_act() else acted
        assert not (north.candidacy.may_act() and south.candidacy.may_act())
        if took == away and south.candidacy.may_act():
            took = trio.current_time()

    assert acted - away <= LIMITS.trusted
    assert north.tenures[0].scope.cancel_called or north.tenures[0].ended.is_set()
    assert LIMITS.ttl - LIMITS.renew <= took - away < LIMITS.ttl + 2 * LIMITS.poll
    assert north.kinds == ["leader.began", "leader.ended"]


async def test_a_store_that_comes_back_finds_the_same_leader_under_the_same_term(north, autojump_clock):
    term = north.candidacy.term
    north.line.up = False
    await trio.sleep(60)
    assert not north.candidacy.may_act()
    assert north.candidacy.readiness(300).ready
    assert not north.candidacy.readiness(30).ready
    north.line.up = True
    await trio.sleep(4)

    assert north.candidacy.may_act()
    assert north.candidacy.term == term
    assert [tenure.ended.is_set() for tenure in north.tenures] == [True, False]


async def test_a_store_that_is_away_for_three_seconds_changes_nothing(north, south, autojump_clock):
    north.line.up = south.line.up = False
    await trio.sleep(3)
    north.line.up = south.line.up = True
    await trio.sleep(30)

    assert north.kinds == ["leader.began"]
    assert north.candidacy.may_act()


async def test_after_a_stall_nothing_is_done_until_a_renewal_has_succeeded(north, autojump_clock):
    north.offset += 3  # the loop stood still
    assert not north.candidacy.may_act()
    await trio.sleep(0.505)
    assert north.candidacy.state.role is Role.SUSPENDED
    await trio.sleep(0.5)

    assert north.candidacy.may_act()
    assert north.kinds == ["leader.began", "leader.suspended", "leader.resumed"]
    assert len(north.tenures) == 1


async def test_an_agent_that_obeyed_a_later_term_has_it_lifted_and_the_work_goes_on(north, autojump_clock):
    north.candidacy.told("node-1", Term(1, 9, "lost"), heard_s=None)
    assert not north.candidacy.may_act()
    await trio.sleep(0.1)

    assert north.candidacy.may_act()
    assert (north.tenures[0].term.n, north.tenures[0].term.epoch) == (1, 10)
    assert north.kinds == ["leader.began", "leader.lifted"]


async def test_an_agent_that_just_heard_the_holder_of_a_later_term_ends_this_leadership(north, autojump_clock):
    north.candidacy.told("node-1", Term(1, 9, "elsewhere"), heard_s=3.0)
    await trio.sleep(1)

    assert north.candidacy.term is None
    assert north.tenures[0].ended.is_set()
    assert "node-1" in north.told[-1].sentence


async def test_what_leads_and_fails_hands_over(shared, nursery, north, south, autojump_clock):
    async def lead(tenure: Tenure) -> None:
        raise OSError("no more files")

    north.lead = lead
    south.lead = lead
    north.candidacy.resign("so that the other one tries")
    await trio.sleep(0.2)

    assert [str(error.exceptions[0]) for error in south.failed] == ["no more files"]
    assert south.candidacy.term is None
    ended = [told.sentence for told in south.told if told.kind == "leader.ended"]
    assert "no more files" in ended[-1]  # by then the first one may have taken it again


async def test_who_stopped_waits_for_the_next_leader_to_be_ready(shared, north, south, autojump_clock):
    await north.candidacy.stop()
    began = trio.current_time()
    async with trio.open_nursery() as waiting:
        waiting.start_soon(north.candidacy.wait_handed_over)
        await trio.sleep(2)
        assert south.candidacy.may_act()
        assert north.candidacy.readiness(300).ready
        south.candidacy.serving(True)

    assert 2 < trio.current_time() - began < 2 + 2 * LIMITS.poll
    assert not any(isinstance(call, Acquire) for call in north.line.calls[5:])


async def test_who_stopped_waits_no_longer_than_the_handover_when_nobody_comes(north, autojump_clock):
    await north.candidacy.stop()
    began = trio.current_time()
    await north.candidacy.wait_handed_over()

    assert trio.current_time() - began == pytest.approx(LIMITS.handover, abs=1)


async def test_a_service_that_is_started_again_leads_again_after_one_ttl(shared, autojump_clock):
    north = Process(shared, "north")
    for _ in range(2):
        with trio.move_on_after(15):
            await north.candidacy.run()

    assert north.candidacy.state.leads
    assert len(north.tenures) == 2
