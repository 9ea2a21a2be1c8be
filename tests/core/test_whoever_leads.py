"""Whatever happens to two control planes and their database: at most one is obeyed, and one is soon."""

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from llmgw.core import lease
from llmgw.core.lease_facts import Resign, Stop
from llmgw.core.lease_state import Role
from tests.core.lease_world import HOUR_S, LIMITS, Weather, World

NODES = st.sampled_from(["north", "south"])
TIMES = st.sampled_from([0.25, 0.5, 1.0, 2.0, 5.0, 12.0, 25.0])
STANDS = st.sampled_from([0.5, 2.25, 3.0, 9.0, 20.0])
DELAYS = st.sampled_from([0.0, None, 0.5, 1.75, 3.0, 5.0])
WEATHERS = st.builds(Weather, DELAYS, DELAYS, st.sampled_from([2.0, 7.0]))


def at_most_one_is_obeyed(world: World) -> None:
    actors = world.actors()
    assert len(actors) <= 1, f"both act at {world.now}: {[(n, world.nodes[n].state) for n in actors]}"


class Leaders(RuleBasedStateMachine):
    """Each thing that happens is followed by some time; ``for_s``: so long it lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(check=at_most_one_is_obeyed)
        self.world.run(2.0)

    def lasts(self, seconds: float, undo: Callable[[], None], then: float) -> None:
        self.world.later(seconds, undo)
        self.world.run(then)

    @rule(then=st.sampled_from([0.25, 0.5, 1.0, 2.0, 5.0, 8.0, 10.0, 12.0, 25.0]))
    def time_passes(self, then: float) -> None:
        self.world.run(then)

    @rule(name=NODES, weathers=st.lists(WEATHERS, min_size=1, max_size=3), for_s=TIMES, then=TIMES)
    def the_line_to_the_database_gets_bad(self, name: str, weathers: list[Weather], for_s: float, then: float) -> None:
        node = self.world.nodes[name]
        node.weathers = weathers
        self.lasts(for_s, lambda: setattr(node, "weathers", [Weather()]), then)

    @rule(name=NODES, for_s=STANDS, then=TIMES)
    def a_process_stands_still(self, name: str, for_s: float, then: float) -> None:
        node = self.world.nodes[name]
        node.running = False
        self.lasts(for_s, lambda: setattr(node, "running", True), then)

    @rule(for_s=STANDS, then=TIMES)
    def the_leader_stands_still(self, for_s: float, then: float) -> None:
        for name in self.world.actors():
            self.a_process_stands_still(name, for_s, then)

    @rule(name=NODES, after_s=TIMES, then=TIMES)
    def a_process_ends_and_another_starts(self, name: str, after_s: float, then: float) -> None:
        node = self.world.nodes[name]
        if node.running:
            node.state = lease.after(node.state, Stop(), self.world.now + node.clock)
        self.lasts(after_s, lambda: self.world.start(name) if self.world.nodes[name] is node else None, then)

    @rule(name=NODES, then=TIMES)
    def a_process_is_killed_and_starts_again(self, name: str, then: float) -> None:
        self.world.start(name)
        self.world.run(then)

    @rule(name=NODES, work=st.sampled_from([0.0, 0.5, 1.5]), orders=st.sampled_from([0.0, 0.5, 4.0]))
    def a_leader_gets_slow(self, name: str, work: float, orders: float) -> None:
        node = self.world.nodes[name]
        node.work_ends_s, node.orders_s = work, orders

    @rule(name=NODES, then=TIMES)
    def the_operator_has_it_resign(self, name: str, then: float) -> None:
        node = self.world.nodes[name]
        if node.running:
            node.state = lease.after(node.state, Resign("an operator asked"), self.world.now + node.clock)
        self.world.run(then)

    @rule(name=NODES, which=st.integers(0, 2), for_s=TIMES, then=TIMES)
    def an_agent_is_cut_off(self, name: str, which: int, for_s: float, then: float) -> None:
        cut_from = self.world.agents[which].cut_from
        cut_from.add(name)
        self.lasts(for_s, lambda: cut_from.discard(name), then)

    @rule(by=st.sampled_from([-HOUR_S, HOUR_S, -11.0, 11.0]), then=TIMES)
    def the_databases_clock_jumps(self, by: float, then: float) -> None:
        self.world.db.offset += by
        self.world.run(then)

    @rule(for_s=TIMES, then=TIMES)
    def the_database_is_paused(self, for_s: float, then: float) -> None:
        self.world.pause(True)
        self.lasts(for_s, lambda: self.world.pause(False), then)

    @rule(for_s=TIMES, then=TIMES)
    def the_database_goes_away(self, for_s: float, then: float) -> None:
        self.world.db.up_at = max(self.world.db.up_at, self.world.now + for_s)
        self.world.run(then)

    @rule(lag=st.sampled_from([0.0, 0.3, 1.0, 2.0, 6.0, 20.0]), then=TIMES)
    def a_lagging_standby_database_takes_over(self, lag: float, then: float) -> None:
        self.world.promote(lag)
        self.world.run(then)

    @rule(age=st.sampled_from([2.0, 20.0, 100.0]), new_cluster=st.booleans(), then=TIMES)
    def a_dump_is_restored(self, age: float, new_cluster: bool, then: float) -> None:
        self.world.restore(age, new_cluster)
        self.world.run(then)

    @rule()
    def all_is_well_for_three_ttl(self) -> None:
        world = self.world
        world.heal()
        world.run(3 * LIMITS.ttl)
        states = [(node.state.role, node.state.why) for node in world.nodes.values()]
        assert len(world.actors()) == 1, f"nobody leads: {states}"
        (leader,) = world.actors()
        term = world.nodes[leader].state.term
        assert [agent.seen for agent in world.agents] == [term] * 3, f"{leader} is not obeyed by all: {states}"

    @invariant()
    def no_agent_obeyed_an_older_term_than_its_highest(self) -> None:
        for agent in self.world.agents:
            for before, after in zip(agent.obeyed, agent.obeyed[1:], strict=False):
                assert after.is_newer_than(before), agent

    @invariant()
    def who_leads_holds_a_term(self) -> None:
        for node in self.world.nodes.values():
            if node.state.role is Role.LEADING:
                assert node.state.held
                assert node.state.term.nonce


TestLeaders = Leaders.TestCase
TestLeaders.settings = settings(stateful_step_count=25)
