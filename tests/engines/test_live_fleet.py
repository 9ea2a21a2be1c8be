"""What a reload keeps of the live fleet, what leaves it, and what is believed of it meanwhile."""

from typing import cast

import pytest
from attrs import define, evolve, field
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.breaker import BreakerLimits, State
from llmgw.core.fleet import Endpoint, Engine, Fleet, Model, fleet_of
from llmgw.core.saturation import Sample
from llmgw.engines.client import Counts, EngineClient
from llmgw.engines.live import LiveEndpoint, LiveFleet
from llmgw.engines.views import endpoint_metrics


@define(eq=False)
class Connections:
    """An endpoint's client, as far as the fleet knows it."""

    endpoint: Endpoint
    closed: bool = False
    counts: Counts = field(factory=Counts)
    idle_connections: int = 0

    def close(self) -> None:
        self.closed = True


def live_fleet(**more: object) -> LiveFleet:
    return LiveFleet(lambda endpoint: cast(EngineClient, Connections(endpoint)), **more)  # type: ignore[arg-type]


def model(*endpoints: Endpoint, name: str = "m") -> Model:
    return Model(name, endpoints=tuple(evolve(e, model=name) for e in endpoints))


def endpoint(id: str, url: str = "", **more: object) -> Endpoint:
    return Endpoint(id, "m", url or f"http://{id}", **more)  # type: ignore[arg-type]


A, B, C = endpoint("a"), endpoint("b"), endpoint("c")


def of(fleet: LiveFleet, id: str, name: str = "m") -> LiveEndpoint:
    pool = fleet.pool(name)
    assert pool is not None
    return next(one for one in pool.endpoints if one.id == id)


def test_what_did_not_change_is_the_same_object_after_a_reload():
    fleet = live_fleet()
    fleet.apply(fleet_of((model(A, B),)), 0.0)
    a = of(fleet, "a")

    added = fleet.apply(fleet_of((model(A, C),)), 1.0)

    assert of(fleet, "a") is a
    assert [one.id for one in added] == ["c"]
    assert added[0].added_at == 1.0


def test_an_endpoint_whose_url_changed_is_another_one_and_the_old_one_leaves():
    fleet = live_fleet()
    fleet.apply(fleet_of((model(A),)), 0.0)
    old = of(fleet, "a")
    old.in_flight = 2

    fleet.apply(fleet_of((model(endpoint("a", "http://elsewhere")),)), 1.0)

    assert of(fleet, "a") is not old
    assert old.unusable(1.0) == "leaving: removed from the configuration"
    assert cast(Connections, old.client).closed
    assert list(fleet) == [of(fleet, "a"), old]


def test_five_in_flight_on_one_that_is_removed_and_comes_back_under_its_name_count_down_where_they_counted_up():
    fleet = live_fleet()
    fleet.apply(fleet_of((model(A, B),)), 0.0)
    taken = of(fleet, "a")
    taken.in_flight = 5

    fleet.apply(fleet_of((model(B),)), 1.0)
    fleet.apply(fleet_of((model(A, B),)), 2.0)

    assert of(fleet, "a").in_flight == 0
    assert fleet.leaving() == [taken]
    for _ in range(5):
        taken.in_flight -= 1
    assert of(fleet, "a").in_flight == 0
    assert taken.in_flight == 0
    assert fleet.leaving() == []


def test_one_that_leaves_with_nothing_under_way_is_gone_at_once():
    fleet = live_fleet()
    fleet.apply(fleet_of((model(A, B),)), 0.0)

    fleet.apply(fleet_of((model(B),)), 1.0)

    assert [one.id for one in fleet] == ["b"]


async def test_a_name_is_shown_once_with_all_its_requests_though_a_namesake_is_leaving():
    fleet = live_fleet()
    for number in range(3):
        fleet.apply(fleet_of((model(endpoint("a", f"http://{number}")),)), float(number))
        of(fleet, "a").in_flight = 2

    assert [(one["endpoint"], one["values"]["in_flight"][2]) for one in endpoint_metrics(fleet)] == [("a", 6)]


def test_a_model_that_is_gone_has_no_pool():
    fleet = live_fleet()
    fleet.apply(fleet_of((model(A), model(B, name="n"))), 0.0)

    fleet.apply(fleet_of((model(A),)), 1.0)

    assert fleet.pool("n") is None
    assert [pool.model.name for pool in fleet.pools()] == ["m"]


def test_what_is_known_of_prompts_survives_a_reload_but_not_a_new_address_nor_a_new_process():
    fleet = live_fleet()
    fleet.apply(fleet_of((model(A, B, C),)), 0.0)
    pool = fleet.pool("m")
    assert pool is not None
    for id in "abc":
        pool.prefixes.served(id, [1, 2])

    fleet.apply(fleet_of((model(evolve(A, capacity=9), endpoint("b", "http://new"), C),)), 1.0)
    pool = fleet.pool("m")
    assert pool is not None
    assert pool.prefixes.matches([1, 2]) == {"a": 1.0, "c": 1.0}

    of(fleet, "c").restarted()
    assert pool.prefixes.matches([1, 2]) == {"a": 1.0}


def test_a_restart_of_one_that_left_says_nothing_of_its_namesake():
    fleet = live_fleet()
    fleet.apply(fleet_of((model(A),)), 0.0)
    old = of(fleet, "a")
    fleet.apply(fleet_of((model(endpoint("a", "http://new")),)), 1.0)
    pool = fleet.pool("m")
    assert pool is not None
    pool.prefixes.served("a", [1])

    old.restarted()

    assert pool.prefixes.matches([1]) == {"a": 1.0}


# -- usable, full, ready ----------------------------------------------------------------------------


def broken(live: LiveEndpoint, now: float) -> None:
    while live.breaker.state(now) is not State.OPEN:
        live.breaker.bad(now, "connection reset")


def test_an_endpoint_nobody_has_asked_yet_is_usable_and_a_dead_one_is_not():
    fleet = live_fleet()
    fleet.apply(fleet_of((model(A),)), 0.0)
    a = of(fleet, "a")
    assert a.usable(0.0)

    a.healthy, a.health_why = False, "connection refused"

    assert a.unusable(0.0) == "unhealthy: connection refused"
    assert fleet.ready(None, 0.0) == "no endpoint is usable"


def test_ready_counts_a_half_open_endpoint_also_while_one_request_tries_it():
    fleet = live_fleet(breaker_limits=BreakerLimits(open_for=5.0))
    fleet.apply(fleet_of((model(A),)), 0.0)
    a = of(fleet, "a")
    broken(a, 0.0)
    assert fleet.ready(None, 4.9) == "no endpoint is usable"
    assert a.unusable(4.9) == "breaker open: connection reset"

    assert fleet.ready(None, 5.0) is None
    a.breaker.take(5.0)
    assert fleet.ready("m", 5.0) is None


def test_ready_asks_for_one_model_by_any_of_its_names():
    fleet = live_fleet()
    both = (evolve(model(A), aliases=("gpt-4",)), model(B, name="n"))
    fleet.apply(fleet_of(both), 0.0)
    of(fleet, "a").healthy = False

    assert fleet.ready(None, 0.0) is None
    assert fleet.ready("n", 0.0) is None
    assert fleet.ready("gpt-4", 0.0) == "no endpoint is usable"
    assert fleet.ready("nobody", 0.0) == "no model 'nobody' is configured"


def test_an_empty_fleet_is_not_ready():
    fleet = live_fleet()
    assert fleet.ready(None, 0.0) == "no endpoint is configured"
    fleet.apply(Fleet(), 0.0)
    assert fleet.ready(None, 0.0) == "no endpoint is configured"


def test_a_model_whose_replicas_are_all_down_is_not_said_to_be_unconfigured():
    fleet = live_fleet()
    run = evolve(model(), run_by_agents=True)
    fleet.apply(fleet_of((run,)), 0.0)
    assert fleet.ready(None, 0.0) == fleet.ready("m", 0.0) == "no replica serves yet"
    fleet.apply(fleet_of((evolve(run, endpoints=(A,)),)), 0.0)
    of(fleet, "a").healthy = False
    assert fleet.ready("m", 0.0) == "no endpoint is usable"


def test_its_own_429_makes_an_endpoint_full_until_its_retry_after():
    fleet = live_fleet()
    fleet.apply(fleet_of((model(A),)), 0.0)
    a = of(fleet, "a")
    a.busy_until = 3.0

    assert a.saturation(2.9) == 1.0
    assert a.saturation(3.0) == 0.0
    assert a.usable(2.9)


@pytest.mark.parametrize(
    ("more", "capacity"),
    [({"engine": Engine.LLAMACPP}, 1), ({"engine": Engine.OPENAI}, None), ({"capacity": 7}, 7), ({}, 256)],
)
def test_an_explicit_capacity_wins_over_the_engines_batch(more: dict[str, object], capacity: int | None):
    fleet = live_fleet()
    fleet.apply(fleet_of((model(endpoint("a", **more)),)), 0.0)

    assert of(fleet, "a").capacity == capacity


def test_only_usable_endpoints_count_for_a_pool():
    fleet = live_fleet()
    fleet.apply(fleet_of((model(evolve(A, capacity=10), evolve(B, capacity=30)),)), 0.0)
    a, b = of(fleet, "a"), of(fleet, "b")
    a.in_flight, b.in_flight = 5, 30
    pool = fleet.pool("m")
    assert pool is not None

    assert pool.saturation(0.0) == pytest.approx((0.5 * 10 + 1.0 * 30) / 40)
    a.healthy = False
    assert pool.saturation(0.0) == 1.0
    b.healthy = False
    assert pool.saturation(0.0) is None


def test_what_others_have_there_counts_beside_ours():
    fleet = live_fleet()
    fleet.apply(fleet_of((model(evolve(A, capacity=32)),)), 0.0)
    a = of(fleet, "a")
    a.in_flight, a.sample = 8, Sample(0.0, running=24, waiting=0, ours=8)

    assert a.saturation(0.0) == pytest.approx(24 / 32)


# -- any story of reloads ---------------------------------------------------------------------------

ids = st.sampled_from("abcd")
urls = st.sampled_from(["http://one", "http://two"])
fleets = st.dictionaries(ids, urls, max_size=4).map(
    lambda wanted: fleet_of((model(*(endpoint(id, url) for id, url in wanted.items())),))
)
story_steps = st.lists(
    st.one_of(fleets, st.tuples(st.just("take"), ids), st.tuples(st.just("end"), st.integers(0, 50)))
)


@given(story_steps)
def test_no_count_is_ever_below_0_and_nothing_with_requests_is_forgotten(story: list[object]):
    fleet, now = live_fleet(), 0.0
    taken: list[LiveEndpoint] = []
    for step in story:
        now += 1
        match step:
            case Fleet():
                fleet.apply(step, now)
            case ("take", str(name)):
                pool = fleet.pool("m")
                for one in pool.endpoints if pool else ():
                    if one.id == name:
                        one.in_flight += 1
                        taken.append(one)
            case ("end", int(number)) if taken:
                taken.pop(number % len(taken)).in_flight -= 1
        everybody = list(fleet)
        assert len({id(one) for one in everybody}) == len(everybody)
        assert all(one.in_flight == sum(other is one for other in taken) for one in everybody)
        assert all(any(one is known for known in everybody) for one in taken)
        assert [one.id for one in everybody if not one.leaving] == [e.id for e in fleet.fleet.endpoints]
        assert all(one.in_flight > 0 for one in everybody if one.leaving)
