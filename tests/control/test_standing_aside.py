"""Who leads no more: new requests are served while balancers notice, those that came in time are, and then none."""

import pytest
from attrs import define, field

from llmgw.control.standing_aside import StandingAside
from llmgw.core.fleet import Endpoint
from llmgw.core.replicas import Phase, Replica
from tests.control.little_cluster import SPEC, little_cluster, want

PAUSE_S = 4.0


def endpoint(id: str) -> Endpoint:
    return Endpoint(id, "m", f"http://{id}")


def row(name: str, generation: int, phase: Phase = Phase.WANTED) -> Replica:
    return Replica(name, "m", SPEC, phase, generation)


BOTH = {"m": (endpoint("m-1.g1"), endpoint("m-2.g2"))}


@define
class Request:
    received: float
    tries: list[str] = field(factory=list)


@define
class World:
    """One control plane's gateway."""

    another_leads: bool = False
    running: list[Request] = field(factory=list)
    told: list[object] = field(factory=list)
    aside: StandingAside = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.aside = StandingAside(lambda: self.another_leads, lambda: PAUSE_S, lambda: self.running, self.told.append)
        self.aside.route(BOTH)
        self.told.clear()

    def looks(self, *times: float) -> None:
        for now in times:
            self.aside.look(now)


@pytest.fixture
def world() -> World:
    return World()


def test_while_it_leads_or_nobody_else_does_it_serves_on(world: World):
    world.looks(0.0, 100.0, 1000.0)
    assert world.told == []


def test_it_serves_for_as_long_as_balancers_need_and_not_longer(world: World):
    world.another_leads = True
    world.looks(10.0, 10.0 + PAUSE_S - 0.1)
    assert world.told == []
    world.looks(10.0 + PAUSE_S, 10.0 + PAUSE_S + 1)
    assert world.told == [{}], "said once"


def test_whoever_came_in_time_and_waits_is_served_first(world: World):
    world.another_leads = True
    waits, late, streams = Request(PAUSE_S - 1), Request(PAUSE_S + 1), Request(0.0, ["m-1.g1"])
    world.running += [waits, late, streams]
    world.looks(0.0, 60.0)
    assert world.told == []
    waits.tries.append("m-2.g2")
    world.looks(61.0)
    assert world.told == [{}], "who came late, and who streams already, hold up nothing"


def test_a_lead_that_comes_back_before_that_changes_nothing(world: World):
    world.another_leads = True
    world.looks(0.0, 3.0)
    world.another_leads = False
    world.looks(3.5)
    world.another_leads = True
    world.looks(3.9, PAUSE_S, PAUSE_S + 3.8)
    assert world.told == [], "the balancers' time begins anew"


def test_on_leading_again_it_serves_at_once_what_still_is_there(world: World):
    world.another_leads = True
    world.looks(0.0, PAUSE_S)
    routes = world.aside.lead({"m-1": row("m-1", 1), "m-2": row("m-2", 3)})
    assert routes == {"m": (endpoint("m-1.g1"),)}, "of m-2 another generation runs, elsewhere"
    assert world.told == [{}, routes]


def test_what_the_other_leader_took_out_is_out_as_the_term_begins(world: World):
    assert world.aside.lead({"m-1": row("m-1", 1), "m-2": row("m-2", 2, Phase.LEAVING)}) == {"m": BOTH["m"][:1]}
    assert world.aside.lead({}) == {}
    assert world.told == [{"m": BOTH["m"][:1]}, {}]


async def test_what_is_served_already_as_a_term_begins_stays_so_until_it_was_tried(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 1, "node-2": 1}, [want(n=2)]) as little:
        await little.until(lambda: len(little.serving()) == 2)
        served, victim = little.routes[-1][1], little.shard("m-2")
        await little.leader_dies()
        victim.kill()
        await little.lead(served)
        began = len(little.routes)
        await little.until(lambda: "m-2.g3" in little.routed())
        later = [sorted(one.id for its in routes.values() for one in its) for _, routes in little.routes[began:]]
        assert later == [["m-1.g1"], ["m-1.g1", "m-2.g3"]], "the one that lives never left, the dead one did"


async def test_an_incarnation_is_never_told_twice_to_serve(tmp_path, autojump_clock):
    async with little_cluster(tmp_path, {"node-1": 1}, [want()]) as little:
        await little.until(little.serving)
        await little.quiet()
        served = little.routes[-1][1]
        await little.leader_dies()
        await little.lead(served)
        began = len(little.routes)
        await little.until(little.serving)
        await little.quiet()
        assert [event.subject for event in little.told("replica.ready")] == ["m-1"]
        assert little.routes[began:] == [], "nothing has changed for the gateway"
