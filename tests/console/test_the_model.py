"""What the console knows does not depend on the order in which it was told."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console import model as models
from console.model import Model, Picture, term_of
from tests.console.worlds import World, happenings, told


def facts(picture: Picture) -> tuple[Any, ...]:
    return picture.seq, picture.term, picture.nodes, picture.replicas, picture.models, picture.drains


def fed(model: Model, what: Any) -> None:
    if what == "missed":
        model.take_missed(3)
    elif what == "lost":
        model.lost("away", 1.0)
    elif what == "linked":
        model.linked("http://127.0.0.1:1")
    elif "kind" in what:
        model.take_event(what)
    else:
        model.take_snapshot(what, now=5.0)


def fresh(snapshot: Any) -> Picture:
    model = Model()
    model.take_snapshot(snapshot, now=5.0)
    return model.picture


@given(st.data(), happenings)
def test_any_order_with_gaps_and_repeats_and_then_a_snapshot_is_like_a_fresh_one(data, story):
    events, snapshots = told(story)
    things = [*events, *snapshots, "missed", "lost", "linked"]
    order = data.draw(st.lists(st.sampled_from(things), max_size=30))
    at = data.draw(st.integers(0, len(order)))
    model = Model()
    for what in [*order[:at], snapshots[-1], *order[at:]]:
        fed(model, what)
    assert facts(model.picture) == facts(fresh(snapshots[-1]))


@given(st.data(), happenings)
def test_events_in_any_order_after_a_snapshot_are_like_the_snapshot_after_them(data, story):
    """The sum of what is known is what counts: no event is applied twice, none before an older one."""
    events, snapshots = told(story)
    model = Model()
    model.take_snapshot(snapshots[0], now=5.0)
    for event in data.draw(st.permutations([*events, *events])):
        model.take_event(event)
    assert model.picture.nodes == fresh(snapshots[-1]).nodes
    assert model.picture.replicas == fresh(snapshots[-1]).replicas


@given(st.data(), happenings)
def test_each_event_is_listed_once_and_in_order(data, story):
    events, _ = told(story)
    model = Model()
    for event in data.draw(st.permutations([*events, *events])):
        model.take_event(event)
    assert [event["seq"] for event in model.picture.events] == [event["seq"] for event in events]


def test_an_event_asks_for_a_snapshot_and_one_that_has_it_does_not_ask_again():
    world, model = World(), Model()
    assert model.outdated
    model.take_snapshot(world.snapshot(), now=1.0)
    assert not model.outdated
    event = world.happens("replica.ready", "m-1")
    model.take_event(event)
    assert model.outdated
    model.take_snapshot(world.snapshot(), now=2.0)
    model.take_event(event)
    assert not model.outdated


def test_what_was_missed_asks_for_a_snapshot_and_is_counted():
    world, model = World(), Model()
    model.take_snapshot(world.snapshot(), now=1.0)
    model.take_missed(7)
    assert model.outdated
    assert model.picture.missed == 7


def test_a_leader_on_a_store_that_was_put_back_is_believed_though_its_numbers_are_lower():
    """Its term is above the one before; events under the old numbers are not its own."""
    world, model = World(seq=500), Model()
    model.take_snapshot(world.snapshot(), now=1.0)
    model.take_event(world.happens("replica.failed", "m-1"))
    after = World(term="1.1", seq=100)
    after.happens("replica.ready", "m-1")
    model.take_snapshot(after.snapshot(), now=2.0)
    assert model.picture.seq == 101
    assert model.picture.replicas["m-1"]["state"] == "ready"
    model.take_event(after.happens("replica.failed", "m-1"))
    assert model.picture.replicas["m-1"]["state"] == "failed"


def test_an_answer_of_the_leader_before_does_not_count():
    before, after, model = World(term="2.9", seq=900), World(term="2.11", seq=400), Model()
    model.take_snapshot(after.snapshot(), now=1.0)
    assert not model.take_snapshot(before.snapshot(), now=2.0)
    assert model.picture.seq == 400


def test_a_standbys_answer_counts_where_the_leader_of_its_term_has_told_nothing():
    world, model = World(term="1.1", seq=5), Model()
    assert model.take_snapshot(world.snapshot(), now=1.0, age_s=0.0)
    assert model.take_snapshot(world.snapshot(), now=2.0)
    assert not model.take_snapshot(world.snapshot(), now=3.0, age_s=0.0)
    assert model.picture.age_s is None
    assert model.take_snapshot(World(term="1.2", seq=5).snapshot(), now=4.0, age_s=0.0)
    assert model.picture.age_s == 0.0


def test_events_that_are_kept_are_bounded_and_those_forgotten_stay_so(monkeypatch):
    monkeypatch.setattr(models, "EVENTS_MAX", 3)
    world, model = World(), Model()
    events = [world.happens("config.applied", str(number)) for number in range(6)]
    for event in [*events, *events]:
        model.take_event(event)
    assert [event["seq"] for event in model.picture.events] == [event["seq"] for event in events[-3:]]


def test_the_first_loss_is_since_when_what_is_shown_is_stale():
    model = Model()
    model.linked("http://127.0.0.1:1")
    model.lost("refused", now=10.0)
    model.lost("no answer in time", now=12.0)
    assert (model.picture.link.down_since, model.picture.link.why) == (10.0, "no answer in time")
    model.linked("http://127.0.0.1:2")
    assert model.picture.link.down_since is None


def test_what_is_shown_is_as_old_as_the_last_answer_before_the_loss():
    model = Model()
    model.asks("http://127.0.0.1:1", now=1.0)
    model.linked("http://127.0.0.1:1")
    model.heard(7.0)
    model.lost("no answer in time", now=12.0)
    assert model.picture.link.down_since == 7.0


def test_who_never_answered_is_lost_since_it_was_first_asked():
    model = Model()
    model.asks("http://127.0.0.1:1", now=1.0)
    model.lost("no answer in time", now=16.0)
    assert (model.picture.link.down_since, model.picture.link.asked) == (1.0, "http://127.0.0.1:1")


def test_an_answer_is_news_only_where_it_ends_a_doubt():
    model = Model()
    model.asks("http://127.0.0.1:1", now=1.0)
    before, picture = model.version, model.picture
    model.heard(2.0)
    assert (model.version, model.picture.link.silent_s(4.9)) == (before, None)
    assert picture.link.heard_at == 1.0
    assert model.picture.link.silent_s(6.0) == 4.0
    model.heard(6.0)
    assert (model.version, model.picture.link.silent_s(6.0)) == (before + 1, None)


@pytest.mark.parametrize("changes", [{"you": 5}, {"status": "up"}, {"leader": []}, {"nodes": {"a": 1}}, {"drains": 3}])
def test_a_snapshot_of_another_shape_changes_nothing(changes):
    model = Model()
    with pytest.raises((TypeError, AttributeError)):
        model.take_snapshot({**World().snapshot(), **changes}, now=1.0)
    assert not model.picture.known


@pytest.mark.parametrize(
    ("name", "said"),
    [("queues", {"bands": 5, "queues": []}), ("queues", {"bands": [], "queues": [1]}), ("running", {"requests": "x"})],
)
def test_a_measurement_of_another_shape_changes_nothing(name, said):
    model = Model()
    with pytest.raises(TypeError):
        model.take_live(name, said, now=1.0)
    assert model.picture == Picture()


def test_the_history_of_a_pool_is_as_long_as_it_is_bounded_and_ends_with_the_pool():
    model = Model()
    for number in range(models.HISTORY_MAX + 5):
        model.take_live("pools", {"pools": [{"model": "m", "saturation": number / 100}]}, now=float(number))
    history = model.picture.histories["m"]
    assert len(history) == models.HISTORY_MAX
    assert history[-1] == (models.HISTORY_MAX + 4) / 100
    model.take_live("pools", {"pools": []}, now=0.0)
    assert model.picture.histories == {}


def test_terms_are_compared_as_numbers():
    assert term_of("2.11") > term_of("2.9") > term_of("")


def test_a_snapshot_that_does_not_have_the_latest_event_leaves_another_one_wanted():
    world, model = World(), Model()
    before = world.snapshot()
    model.take_event(world.happens("replica.ready", "m-1"))
    model.take_snapshot(before, now=1.0)
    assert model.outdated
