"""Two control planes whose settings do not fit each other: said once it is sure, and never of two that do fit."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.lease_explained import changes, explain
from llmgw.core.lease_facts import Addresses, LeaseLimits, LeaseRow
from tests.core.test_the_rules_of_the_lease import OTHERS, Part


class Watching(Part):
    """A standby that looks at a leader whose lease.ttl is its own, and keeps what is told of that."""

    def __init__(self, ttl: float = 10.0, renew: float = 2.0, name: str = "south", here: str = "north") -> None:
        super().__init__()
        self.it = evolve(self.it, addresses=Addresses(here))
        self.leader = ttl, renew, name
        self.told: list[tuple[str, str]] = []
        self.began = self.now

    def row(self) -> LeaseRow:
        ttl, renew, name = self.leader
        number, since_s = divmod(self.now - self.began, renew)
        addresses = Addresses(name, admin="https://there:7442")
        return evolve(OTHERS, seq=50 + int(number), remaining_s=ttl - since_s, addresses=addresses)

    def looks(self, seconds: float, every_s: float = 1.0) -> "Watching":
        end = self.now + seconds
        while self.now < end:
            before = self.it
            self.it = evolve(self.it, look_at=self.now)
            self.sees(self.row())
            self.told += [(one.kind, one.sentence) for one in changes(before, self.it) if one.kind == "leader.misfit"]
            self.wait(every_s)
        return self

    @property
    def explained(self) -> str:
        return "; ".join(fact.text for fact in explain(self.it, self.now).because)


def test_the_same_name_on_both_is_said_once_and_explained():
    part = Watching(name="gw-1", here="gw-1").looks(60)
    says = "another control plane, which leads, is called gw-1 too: server.name must differ"
    assert part.told == [("leader.misfit", says)]
    assert says in part.explained


def test_the_name_of_a_leader_that_is_dead_may_be_ours_we_were_it():
    part = Watching(renew=1000.0, name="gw-1", here="gw-1").looks(8)
    assert part.told == []


@pytest.mark.parametrize("ttl", [30.0, 6.0])
def test_another_ttl_there_is_said_once_with_the_field_and_what_it_is(ttl):
    part = Watching(ttl=ttl).looks(60)
    ((kind, sentence),) = part.told
    assert kind == "leader.misfit"
    assert sentence.startswith("lease.ttl is 10 s here, and the leader's is between ")
    least, most = (float(word) for word in sentence.split("between ")[1].split(" s:")[0].split(" and "))
    assert least <= ttl <= most + 0.1
    assert sentence in part.explained


def test_a_clock_of_the_database_that_jumps_once_accuses_nobody():
    part = Watching()
    for jump in (0.0, 0.0, 20.0, 0.0, 0.0, -7.0, 0.0):
        part.leader = 10.0 + jump, 2.0, "south"
        part.looks(2)
    assert part.told == []


@given(st.floats(2, 60), st.floats(0.1, 5), st.lists(st.floats(0.01, 3), min_size=2, max_size=40))
def test_two_that_fit_are_never_accused(ttl, renew, pauses):
    part = Watching(ttl=ttl, renew=min(renew, ttl / 3))
    part.it = evolve(part.it, limits=LeaseLimits(ttl=ttl))
    for pause in pauses:
        part.looks(pause, every_s=pause)
    assert part.told == []
