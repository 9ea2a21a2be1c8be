"""Stories in which one rule alone keeps two control planes apart: told with the rule, and again without it."""

from collections.abc import Callable
from math import inf

import pytest
from attrs import evolve

from llmgw.core import lease
from llmgw.core.lease_facts import Resign, Right
from llmgw.core.lease_state import Leadership
from tests.core.lease_world import HOUR_S, Agent, Node, Weather, World

LOST = Weather(request_s=None)
Break = Callable[[pytest.MonkeyPatch], None]


def check(world: World) -> None:
    actors = world.actors()
    assert len(actors) <= 1, f"both act: {actors}"
    for agent in world.agents:
        for before, after in zip(agent.obeyed, agent.obeyed[1:], strict=False):
            assert after.is_newer_than(before), f"{agent.name} obeyed {before} and then {after}"


def led_by(name: str) -> World:
    """That one leads, the other one watches."""
    world = World(check=check)
    if name == "south":
        world.nodes["north"].running = False
    world.run(2)
    world.nodes["north"].running = True
    world.run(3)
    assert world.actors() == [name]
    return world


def resigns(world: World, node: Node) -> None:
    node.state = lease.after(node.state, Resign("an operator asked"), world.now + node.clock)


def an_answer_that_comes_late_and_then_none() -> None:
    world = led_by("north")
    world.nodes["north"].weathers = [Weather(reply_s=5.0, patience_s=7.0)]
    world.run(2.5)
    world.nodes["north"].weathers = [LOST]
    world.run(15)
    assert world.actors() == ["south"]


def a_database_whose_clock_jumps_ahead() -> None:
    world = led_by("north")
    world.db.offset += HOUR_S
    world.run(20)
    assert world.actors() == ["north"]


def a_database_whose_clock_jumps_back_and_a_leader_that_is_gone() -> None:
    world = led_by("north")
    world.db.offset -= HOUR_S
    world.nodes["north"].running = False
    world.run(25)
    assert world.actors() == ["south"]


def a_lagging_database_takes_over_and_another_process_comes() -> None:
    world = led_by("north")
    world.nodes["south"].weathers = [Weather(request_s=0.5)]
    resigns(world, world.nodes["north"])
    world.run(2)
    assert world.actors() == ["south"]
    world.nodes["south"].weathers = [LOST]
    taken_at = next(at for at, kept in world.db.past if kept.row.released and kept.row.seq > 0)
    world.promote(lag_s=world.now - taken_at + 0.01)
    assert world.db.kept.row.released
    world.start("north")
    world.run(15)
    assert world.actors() == ["north"]


def an_order_that_was_long_under_way() -> None:
    world = led_by("north")
    world.nodes["north"].orders_s = 4.0
    world.run(1)
    resigns(world, world.nodes["north"])
    world.run(8)
    assert world.actors() == ["south"]


def a_lease_that_was_taken_unheard_and_found_late() -> None:
    world = World(check=check)
    unheard = Weather(reply_s=None)
    world.nodes["north"].weathers = [Weather(), unheard, LOST, LOST, Weather(), *[LOST] * 50]  # look, acquire, looks, …
    world.run(20)
    assert world.actors() == ["south"]


def a_release_that_takes_long_to_arrive() -> None:
    world = led_by("north")
    world.nodes["north"].weathers = [Weather(request_s=3.0)]
    resigns(world, world.nodes["north"])
    world.run(0.5)
    world.nodes["north"].weathers = [Weather()]
    world.run(12)
    assert len(world.actors()) == 1


def a_dump_that_is_restored() -> None:
    world = led_by("north")
    world.run(2)
    for _ in range(3):
        resigns(world, world.nodes[world.actors()[0]])
        world.run(15)
    world.restore(age_s=40, new_cluster=False)
    world.run(60)
    assert len(world.actors()) == 1
    leader = world.actors()[0]
    assert [agent.seen for agent in world.agents] == [world.nodes[leader].state.term] * 3


def trust_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease, "trusted_from", lambda it, sent_at, now: now + it.limits.trusted)


def the_databases_clock_alone(patch: pytest.MonkeyPatch) -> None:
    def takes_at(it: Leadership) -> tuple[float, Right] | None:
        if it.row is None:
            return None
        return (it.row_at if it.row.released else it.row_at + it.row.remaining_s, Right.EXPIRED)

    patch.setattr(Leadership, "takes_at", takes_at)


def never_by_the_own_clock_alone(patch: pytest.MonkeyPatch) -> None:
    true = Leadership.takes_at

    def takes_at(it: Leadership) -> tuple[float, Right] | None:
        moment = true(it)
        return (inf, Right.EXPIRED) if moment is not None and moment[1] is Right.UNCHANGED else moment

    patch.setattr(Leadership, "takes_at", takes_at)


def released_is_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "doubt", "")


def agents_obey_whoever_speaks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Agent, "would_obey", lambda agent, term: True)


def trust_from_when_it_was_found(patch: pytest.MonkeyPatch) -> None:
    true = lease._acquired
    patch.setattr(lease, "_acquired", lambda it, term, sent_at, now: true(it, term, now, now))


def what_was_given_back_is_renewed(patch: pytest.MonkeyPatch) -> None:
    begun, true = lease.begun, lease._unanswered

    def keeps(it, call, now, nonce):  # type: ignore[no-untyped-def]
        return evolve(begun(it, call, now, nonce), held=it.held)

    def gives_up(it, sent, why, now):  # type: ignore[no-untyped-def]
        after = true(it, sent, why, now)
        return evolve(lease._down(after, now, why), out_until=now) if it.role is lease.Role.LEAVING else after

    patch.setattr(lease, "begun", keeps)
    patch.setattr(lease, "_unanswered", gives_up)


def a_term_is_never_lifted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease, "_told", lambda it, told, now: it)


STORIES: list[tuple[Callable[[], None], Break]] = [
    (an_answer_that_comes_late_and_then_none, trust_from_the_answer),
    (a_database_whose_clock_jumps_ahead, the_databases_clock_alone),
    (a_database_whose_clock_jumps_back_and_a_leader_that_is_gone, never_by_the_own_clock_alone),
    (a_lagging_database_takes_over_and_another_process_comes, released_is_released),
    (an_order_that_was_long_under_way, agents_obey_whoever_speaks),
    (a_lease_that_was_taken_unheard_and_found_late, trust_from_when_it_was_found),
    (a_release_that_takes_long_to_arrive, what_was_given_back_is_renewed),
    (a_dump_that_is_restored, a_term_is_never_lifted),
]


@pytest.mark.parametrize("story", [story for story, _ in STORIES], ids=lambda story: story.__name__)
def test_the_rules_hold_in(story):
    story()


@pytest.mark.parametrize(("story", "broken"), STORIES, ids=lambda one: one.__name__)
def test_without_its_rule_they_do_not(story, broken, monkeypatch):
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        story()
