"""The life of a shard as a table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.engine_life import TRANSITIONS, Event, Impossible, after
from llmgw.core.shards import ENDED, ShardState


def test_every_state_has_a_row():
    assert set(TRANSITIONS) == set(ShardState)


@given(st.sampled_from(ShardState))
def test_stopping_is_legal_from_every_state(state):
    assert after(state, Event.STOP) in {ShardState.STOPPING, ShardState.RELEASING, ShardState.STOPPED}


def test_a_shard_that_runs_is_proved_before_it_is_ready():
    assert after(after(ShardState.STARTING, Event.LAUNCHED), Event.PROVED) is ShardState.READY
    with pytest.raises(Impossible, match="proved while starting"):
        after(ShardState.STARTING, Event.PROVED)


@given(st.sampled_from(ShardState), st.lists(st.sampled_from(Event), max_size=20))
def test_whatever_happens_a_shard_that_is_told_to_stop_and_let_go_of_has_ended(state, events):
    for event in events:
        try:
            state = after(state, event)
        except Impossible:
            continue
    state = after(state, Event.STOP)
    if state not in ENDED:
        state = after(state, Event.RELEASED)
    assert state in ENDED


def test_a_shard_heard_of_again_must_prove_itself_again():
    assert after(after(ShardState.READY, Event.UNHEARD), Event.HEARD) is ShardState.LOADING
