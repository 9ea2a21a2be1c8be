"""The one process on an SQLite store, and what it does when agents know of another leader."""

import pytest
import trio
from attrs import define, field

from llmgw.control.alone import Alone
from llmgw.control.tenure import Tenure
from llmgw.core.lease_explained import Transition
from llmgw.core.lease_facts import LeaseLimits
from llmgw.core.term import Term
from llmgw.store.leader import term_of
from llmgw.store.place import Place
from llmgw.store.sqlite import open_store
from llmgw.store.turn import inline

LIMITS = LeaseLimits()


@define(eq=False)
class Process:
    alone: Alone
    told: list[Transition] = field(factory=list)
    tenures: list[Tenure] = field(factory=list)

    async def lead(self, tenure: Tenure) -> None:
        self.tenures.append(tenure)
        await tenure.leaving.wait()

    @property
    def kinds(self) -> list[str]:
        return [transition.kind for transition in self.told]


@pytest.fixture
def store(tmp_path):
    opened = open_store(Place(tmp_path, tmp_path / "llmgw.db"), lambda: inline)
    yield opened
    opened.close()


@pytest.fixture
async def process(store, nursery, autojump_clock):
    made = Process(await Alone.load(store, LIMITS))
    made.alone.lead, made.alone.on_transition = made.lead, made.told.append
    nursery.start_soon(made.alone.run)
    await trio.sleep(0.1)
    return made


async def test_an_old_copy_never_takes_the_agents_of_a_leader_on_postgresql(process, autojump_clock):
    alone = process.alone
    alone.told("node-1", Term(1, 32, "pg"), heard_s=None)
    assert not alone.may_act()
    await trio.sleep(3600)

    assert alone.term is None
    assert await alone.store.read(term_of) == alone.led_under == Term(0, 1, alone.led_under.nonce)
    assert process.tenures[0].leaving.is_set()
    assert process.kinds == ["leader.began", "leader.store_back"]
    assert "until it is started again: node-1 has obeyed term 1.32" in process.told[-1].sentence


async def test_it_says_everywhere_why_it_stands_aside(process, autojump_clock):
    process.alone.told("node-1", Term(1, 32, "pg"), heard_s=None)

    explained = process.alone.explain()
    assert "stands aside, because node-1 has obeyed term 1.32" in str(explained)
    assert "[store] url" in explained.would_change_it[0]
    assert not explained.candidates[0].chosen
    assert process.alone.leader().state == "aside"
    assert not process.alone.readiness(300).ready
    assert process.alone.readiness(300).elsewhere


async def test_a_leader_that_was_heard_lately_is_left_its_agents_and_then_the_term_is_lifted(process, autojump_clock):
    alone = process.alone
    alone.told("node-1", Term(0, 9, "other"), heard_s=3.0)
    await trio.sleep(LIMITS.ttl - 3.5)
    assert alone.term is None
    await trio.sleep(1)
    assert alone.may_act()
    assert alone.term == alone.led_under

    alone.told("node-1", Term(0, 9, "other"), heard_s=LIMITS.ttl + 1)
    await trio.sleep(0.1)
    assert (alone.term.n, alone.term.epoch) == (0, 10)
    assert process.kinds == ["leader.began", "leader.store_back", "leader.began", "leader.lifted"]
    assert len(process.tenures) == 2


async def test_another_leader_of_the_same_number_is_an_alarm_once(process, autojump_clock):
    alone, seen = process.alone, Term(0, 1, "another nonce")
    for _ in range(2):
        alone.told("node-1", seen, heard_s=LIMITS.ttl + 1)
    await trio.sleep(0.1)

    assert process.kinds == ["leader.began", "leader.store_back", "leader.lifted"]
    assert "obeyed another leader under this one's number, term 0.1" in process.told[1].sentence


async def test_what_leads_and_does_not_finish_is_cancelled_before_it_leads_again(process, autojump_clock):
    async def lead(tenure: Tenure) -> None:
        process.tenures.append(tenure)
        await trio.sleep_forever()

    alone = process.alone
    alone.lead = lead
    alone.told("node-1", Term(0, 9, "other"), heard_s=LIMITS.ttl - 1)
    await trio.sleep(1.5)  # the second tenure has begun, with that one
    assert alone.may_act()
    alone.told("node-1", Term(0, 9, "other"), heard_s=LIMITS.ttl - 1)
    await trio.sleep(LIMITS.acks_within + 0.1)
    assert process.tenures[-1].scope.cancelled_caught
