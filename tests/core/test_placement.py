"""Where a replica goes, and why not elsewhere."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.engine_spec import PlacementRules, Strategy
from llmgw.core.gpus import Evidence, Gpu, Severity
from llmgw.core.offers import Claim, Demand, GpuOffer, NodeOffer
from llmgw.core.placement import Placed, Unplaceable, place
from llmgw.core.placement_explained import explain, reasons_in_short, why_nothing_lands
from llmgw.core.shards import Fetch
from llmgw.core.what_if import Unknown, World, suppose

GIB = 1024


def gpu(index=0, total=24, *, node="n", claims=(), foreign=0, **more):
    uuid = f"GPU-{node}-{index}"
    return GpuOffer(Gpu(uuid, index, "RTX 4090", total * GIB, foreign * GIB, **more), tuple(claims))


def node(name, *gpus, **more):
    return NodeOffer(name, tuple(gpus), memory_free_mib=more.pop("memory", 64) * GIB, memory_mib=64 * GIB, **more)


def claim(gib, exclusive=False, instance="other-1.g1.r0", model="other"):
    return Claim(instance, gib * GIB, exclusive, model)


# -- examples ---------------------------------------------------------------------------------------


def test_memory_that_is_short_is_told_in_numbers():
    """24 GiB card, claimed 4, foreign 2, asked 21."""
    full = node("node-1", gpu(claims=[claim(4)], foreign=2))

    result = place(Demand("m", gpus=1, need_mib=21 * GIB, exclusive=False), [full])

    assert isinstance(result, Unplaceable)
    said = explain("model m", Demand("m", gpus=1, need_mib=21 * GIB, exclusive=False), result)
    (why,) = next(one for one in said.candidates if "GPU 0" in one.name).reasons
    assert why == "needs 21.0 GiB, free 18.0 (claimed 4.0, foreign 2.0)"
    assert said.would_change_it == ("3.0 GiB more free on node-1 GPU 0",)


def test_every_failed_check_of_a_node_is_named():
    bad = node(
        "node-1",
        gpu(claims=[claim(20, exclusive=True)]),
        target="cordoned",
        target_why="fan noise",
        labels={"zone": "b"},
        memory=1,
    )
    demand = Demand("m", gpus=1, need_mib=8 * GIB, memory_mib=4 * GIB, rules=PlacementRules({"zone": "a"}))

    (candidate,) = place(demand, [bad]).candidates

    assert {miss.check for miss in candidate.misses} == {"target", "selector", "host memory", "gpus"}
    assert {miss.check for miss in candidate.gpus[0].misses} == {"exclusive", "memory"}
    assert "cordoned: fan noise" in map(str, candidate.misses)
    assert "needs label zone=a, has b" in map(str, candidate.misses)


def test_a_card_nobody_could_ask_about_gets_nothing():
    stale = node("node-1", gpu(read_age_s=45.0))
    (candidate,) = place(Demand("m", gpus=1, need_mib=GIB), [stale]).candidates
    assert str(candidate.gpus[0].misses[0]) == "stale 45 s: the driver does not answer"


def test_a_card_with_excluding_evidence_gets_nothing_and_a_note_changes_nothing():
    lost = Evidence("xid 79", Severity.EXCLUDED, "fell off the bus", 1, 1, "a reboot")
    note = Evidence("xid 31", Severity.NOTE, "a fault of the program", 1, 1, "an hour")
    result = place(Demand("m", gpus=1), [node("a", gpu(evidence=(lost,))), node("b", gpu(evidence=(note,)))])
    assert result.nodes == ("b",)
    assert "xid 79: fell off the bus; clears: a reboot" in map(str, result.candidates[0].gpus[0].misses)


def test_a_slice_counts_for_itself_and_the_card_it_was_cut_from_for_nothing():
    card = gpu(0, 40, sliced=True)
    part = GpuOffer(Gpu("MIG-1", 1, "A100 3g.20gb", 20 * GIB, 0, slice_of="GPU-n-0"))
    assert isinstance(place(Demand("m", gpus=1, need_mib=30 * GIB), [node("n", card, part)]), Unplaceable)
    result = place(Demand("m", gpus=1, need_mib=18 * GIB), [node("n", card, part)])
    assert result.shards[0].gpus == ("MIG-1",)


def test_a_whole_card_is_one_with_nothing_on_it_but_the_drivers_part():
    used = node("a", gpu(foreign=4))
    idle = NodeOffer("b", (GpuOffer(Gpu("GPU-b", 0, "", 24 * GIB, 600)),))
    result = place(Demand("m", gpus=1), [used, idle])
    assert (result.nodes, result.shards[0].claim_mib) == (("b",), 24 * GIB)


def test_shared_cards_are_filled_before_empty_ones_are_broken_into():
    both = node("n", gpu(0), gpu(1, claims=[claim(4)]))
    result = place(Demand("m", gpus=1, need_mib=4 * GIB, exclusive=False), [both])
    assert result.shards[0].gpus == ("GPU-n-1",)


def test_small_cards_go_first_so_that_large_ones_stay_for_who_needs_them():
    both = node("n", gpu(0, 80), gpu(1, 24))
    assert place(Demand("m", gpus=1, need_mib=20 * GIB), [both]).shards[0].gpus == ("GPU-n-1",)


def test_spreading_takes_the_emptier_node_and_packing_the_fuller():
    nodes = [node("a", gpu(0, claims=[claim(24)]), gpu(1)), node("b", gpu(0, node="b"), gpu(1, node="b"))]
    spread = Demand("m", gpus=1, need_mib=8 * GIB)
    pack = attrs.evolve(spread, rules=PlacementRules(strategy=Strategy.PACK))
    assert place(spread, nodes).nodes == ("b",)
    assert place(pack, nodes).nodes == ("a",)


def test_replicas_of_one_model_go_apart():
    nodes = [node("a", gpu(0), gpu(1), models={"m": 1}), node("b", gpu(0, node="b", claims=[claim(24)]), gpu(1))]
    assert place(Demand("m", gpus=1, need_mib=8 * GIB), nodes).nodes == ("b",)


def test_a_node_that_has_the_weights_is_preferred():
    nodes = [node("a", gpu()), node("b", gpu(node="b"), has=frozenset({"/models/m"}))]
    assert place(Demand("m", gpus=1, files=Fetch("/models/m")), nodes).nodes == ("b",)


def test_a_restart_goes_home_unless_home_is_what_it_moves_away_from():
    nodes = [node("a", gpu()), node("b", gpu(node="b"), models={"m": 1})]
    home = Demand("m", gpus=1, home=frozenset({"b"}))
    assert place(home, nodes).nodes == ("b",)
    assert place(attrs.evolve(home, avoid=frozenset({"b"})), nodes).nodes == ("a",)


def test_models_that_may_not_meet_do_not():
    nodes = [node("a", gpu(), models={"other": 1})]
    demand = Demand("m", gpus=1, rules=PlacementRules(apart_from=("other",)))
    assert isinstance(place(demand, nodes), Unplaceable)


def test_one_replica_a_node_still_has_all_its_shards_there():
    rules = PlacementRules(one_per_node=True)
    nodes = [node("a", *(gpu(i) for i in range(4)))]
    assert len(place(Demand("m", 2, 1, rules=rules), nodes).shards) == 2
    assert isinstance(place(Demand("m", 2, 1, rules=rules), [attrs.evolve(nodes[0], models={"m": 2})]), Unplaceable)


def test_shards_stay_together_where_one_node_will_do():
    nodes = [node("a", gpu(0), gpu(1)), node("b", *(gpu(i, node="b") for i in range(4)))]
    assert place(Demand("m", 4, 1, need_mib=GIB), nodes).nodes == ("b",)


def test_shards_go_over_several_nodes_where_they_must():
    nodes = [node("a", gpu()), node("b", gpu(node="b"))]
    result = place(Demand("m", 2, 1), nodes)
    assert sorted(result.nodes) == ["a", "b"]
    short = place(Demand("m", 3, 1), nodes)
    assert isinstance(short, Unplaceable)
    assert short.room == 2
    assert "2 of 3 shards would fit" in str(explain("m", Demand("m", 3, 1), short))


def test_a_node_without_gpus_takes_what_needs_none():
    result = place(Demand("m", memory_mib=GIB), [node("cpu-1")])
    assert result.nodes == ("cpu-1",)
    assert isinstance(place(Demand("m", gpus=1), [node("cpu-1")]), Unplaceable)


def test_without_nodes_the_way_out_is_a_node():
    said = explain("model m", Demand("m"), place(Demand("m"), []))
    assert said.verdict == "no node fits: there are no nodes"
    assert said.would_change_it == ("a node with an agent: llmgw ctl nodes invite",)


def test_a_cordon_that_alone_stands_in_the_way_is_named_with_its_command():
    said = explain("m", Demand("m"), place(Demand("m"), [node("node-2", target="cordoned")]))
    assert said.would_change_it == ("uncordon node-2: llmgw ctl uncordon node-2",)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (node("n", gpu()), ""),
        (node("n", gpu(claims=[claim(24)])), "full: 1 of 1 GPUs claimed"),
        (node("n", gpu(), target="cordoned", target_why="fan"), "cordoned: fan"),
        (node("n", gpu(), trouble="unreachable for 12 s"), "unreachable for 12 s"),
        (node("n", gpu(read_age_s=45.0), gpu(1, read_age_s=44.0)), "stale 45 s: the driver does not answer"),
        (node("n", gpu(read_age_s=None)), "the driver never told of it"),
        (node("n", gpu(read_age_s=45.0), gpu(1)), ""),
        (node("n", gpu(claims=[claim(8)]), gpu(1, claims=[claim(23)])), ""),
        (node("n", gpu(claims=[claim(8), claim(12)], foreign=3)), ""),
        (node("n", gpu(claims=[claim(8), claim(12)], foreign=4)), "full: 1 of 1 GPUs claimed"),
        (node("n", gpu(claims=[claim(8, exclusive=True)])), "full: 1 of 1 GPUs claimed"),
        (node("n", gpu(claims=[claim(8, True)]), gpu(1, claims=[claim(20)])), ""),
        (node("n", gpu(foreign=24)), "full: no GPU is healthy and has room"),
        (node("n", gpu(claims=[claim(8)]), gpu(1, read_age_s=45.0)), ""),
        (node("n", gpu(read_age_s=45.0), gpu(1, claims=[claim(24)])), "full: no GPU is healthy and has room"),
    ],
)
def test_a_healthy_node_says_why_nothing_lands_there(one, why):
    assert why_nothing_lands(one) == why


def test_in_short_stands_what_speaks_against_every_card():
    """One is claimed, but its driver is what keeps others away from both."""
    stale = node("n", gpu(claims=[claim(20, exclusive=True)], read_age_s=45.0), gpu(1, read_age_s=45.0))
    mixed = node("n", gpu(claims=[claim(20, exclusive=True)]), gpu(1, read_age_s=45.0))
    demand = Demand("m", gpus=1, need_mib=20 * GIB)
    assert reasons_in_short(place(demand, [stale])) == "1 whose driver does not answer"
    assert reasons_in_short(place(demand, [mixed])) == "1 short of GPU memory"


# -- what if ----------------------------------------------------------------------------------------


def bytes_of(text):
    return int(text.removesuffix("GiB")) * 1024**3


def test_what_if_asks_the_same_function_about_a_changed_world():
    world = World(Demand("m", gpus=2), (node("a", gpu()), node("b", gpu(node="b"), target="cordoned")))
    assert isinstance(place(world.demand, world.nodes), Unplaceable)
    less = suppose(world, "gpus=1", bytes_of)
    assert place(less.demand, less.nodes).nodes == ("a",)
    gone = suppose(world, "gpus=1, without a", bytes_of)
    assert isinstance(place(gone.demand, gone.nodes), Unplaceable)
    back = suppose(world, "gpus=1, without a, with b", bytes_of)
    assert place(back.demand, back.nodes).nodes == ("b",)
    assert suppose(world, "gpu_memory=8GiB", bytes_of).demand.need_mib == 8 * GIB


@pytest.mark.parametrize("said", ["tomorrow", "gpus=-1", "gpus=x", "without z", "colour=red", "exclusive=maybe"])
def test_what_makes_no_sense_is_refused_with_what_would(said):
    with pytest.raises(Unknown):
        suppose(World(Demand("m"), ()), said, bytes_of)


# -- properties -------------------------------------------------------------------------------------

gpus_of = st.builds(
    lambda total, foreign, claims, age, sliced: (total, foreign, claims, age, sliced),
    st.sampled_from([24, 48, 80]),
    st.integers(0, 10),
    st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=2),
    st.sampled_from([0.5, 60.0, None]),
    st.sampled_from([False, False, False, True]),
)


@st.composite
def worlds(draw):
    nodes = []
    for number in range(draw(st.integers(0, 5))):
        name = f"node-{number}"
        cards = [
            gpu(i, total, node=name, foreign=foreign, claims=[claim(*c) for c in claims], read_age_s=age, sliced=sliced)
            for i, (total, foreign, claims, age, sliced) in enumerate(draw(st.lists(gpus_of, max_size=4)))
        ]
        nodes.append(
            node(
                name,
                *cards,
                memory=draw(st.integers(0, 64)),
                trouble=draw(st.sampled_from(["", "", "", "silent"])),
                target=draw(st.sampled_from(["schedulable", "schedulable", "cordoned"])),
                labels=draw(st.sampled_from([{}, {"zone": "a"}])),
                models=draw(st.sampled_from([{}, {"m": 1}, {"other": 2}])),
            )
        )
    return nodes


demands = st.builds(
    Demand,
    st.just("m"),
    st.integers(1, 3),
    st.integers(0, 3),
    st.sampled_from([0, 8 * GIB, 40 * GIB]),
    st.booleans(),
    st.sampled_from([0, 8 * GIB]),
    rules=st.builds(
        PlacementRules,
        st.sampled_from([{}, {"zone": "a"}]),
        strategy=st.sampled_from(Strategy),
        apart_from=st.sampled_from([(), ("other",)]),
        one_per_node=st.booleans(),
    ),
)


@given(demands, worlds())
def test_every_node_has_a_reason_or_a_score(demand, nodes):
    result = place(demand, nodes)
    assert [c.node.name for c in result.candidates] == sorted(n.name for n in nodes)
    for candidate in result.candidates:
        assert bool(candidate.misses) != bool(candidate.scores)
        assert (candidate.room > 0) <= bool(candidate.scores)
        assert all(0 <= value <= 1 for value in candidate.scores.values())


@given(demands, worlds(), st.randoms(use_true_random=False))
def test_the_order_of_nodes_does_not_matter(demand, nodes, rng):
    assert place(demand, rng.sample(nodes, len(nodes))) == place(demand, nodes)


@given(demands, worlds())
def test_what_is_placed_fits_and_no_card_is_given_twice(demand, nodes):
    result = place(demand, nodes)
    if isinstance(result, Unplaceable):
        assert result.room < demand.shards
        return
    assert [shard.rank for shard in result.shards] == list(range(demand.shards))
    by_name = {one.name: one for one in nodes}
    cards = [uuid for shard in result.shards for uuid in shard.gpus]
    assert len(cards) == len(set(cards)) == demand.shards * demand.gpus
    for shard in result.shards:
        host = by_name[shard.node]
        assert (host.trouble, host.target) == ("", "schedulable")
        for offer in host.gpus:
            if offer.gpu.uuid in shard.gpus:
                assert not offer.gpu.sliced
                assert not (offer.claims and (demand.exclusive or any(c.exclusive for c in offer.claims)))
                assert not demand.need_mib or offer.free_mib >= demand.need_mib
    for name in result.nodes:
        used = sum(shard.node == name for shard in result.shards)
        assert used * demand.memory_mib <= by_name[name].memory_free_mib


@given(demands, worlds())
def test_one_more_empty_node_never_makes_a_placement_impossible(demand, nodes):
    roomy = node("zz", *(gpu(i, 80, node="zz") for i in range(9)), labels={"zone": "a"})
    assert isinstance(place(demand, [*nodes, roomy]), Placed)


@given(demands, worlds())
def test_every_refusal_reads_as_words(demand, nodes):
    result = place(demand, nodes)
    said = explain("model m", demand, result)
    assert all(reason and "None" not in reason for one in said.candidates for reason in one.reasons)
    assert ("goes to" in said.verdict) == isinstance(result, Placed)


def test_whom_a_model_must_not_stand_beside_may_not_come_to_it_either():
    theirs = node("a", gpu(), models={"picky": 1}, apart={"picky": frozenset({"m"})})
    result = place(Demand("m", gpus=1), [theirs])
    assert "must not stand beside picky" in map(str, result.candidates[0].misses)
    gone = attrs.evolve(theirs, models={})
    assert isinstance(place(Demand("m", gpus=1), [gone]), Placed)


def test_a_successor_counts_the_one_it_replaces_nowhere():
    """Two nodes, a replica on each, the one on b is replaced: to b again, or both would end on a."""
    nodes = [node("a", gpu(0), gpu(1), models={"m": 1}), node("b", gpu(node="b"), gpu(1, node="b"), models={"m": 1})]
    demand = Demand("m", gpus=1, need_mib=8 * GIB, leaving=frozenset({"b"}))
    assert place(demand, nodes).nodes == ("b",)
    alone = attrs.evolve(demand, rules=PlacementRules(one_per_node=True))
    assert place(alone, nodes).nodes == ("b",)


def test_where_it_failed_again_and_again_comes_last_but_is_no_taboo():
    nodes = [node("a", gpu(), has=frozenset({"/m"})), node("b", gpu(node="b"))]
    demand = Demand("m", gpus=1, files=Fetch("/m"), shuns=frozenset({"a"}))
    assert place(demand, nodes).nodes == ("b",)
    assert place(demand, nodes[:1]).nodes == ("a",)
