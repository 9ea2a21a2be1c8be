"""The life of one shard, as a table. What is not in the table cannot happen.

An event that another process brings and that is not in the table is a refusal (``Impossible``), not a crash.
"""

from collections.abc import Mapping
from enum import StrEnum

from llmgw.core.shards import ShardState as S


class Event(StrEnum):
    LAUNCHED = "launched"  # its process runs
    PROVED = "proved"  # it answered a real request
    LEAVE = "leave"  # out of the pool
    RETURN = "return"  # back into it: what it left for was undone
    STOP = "stop"
    EXITED = "exited"  # asked or not
    RELEASED = "released"  # it was asked to end: processes gone, memory back
    FELL = "fell"  # it was not asked to: processes gone, memory back
    TIMED_OUT = "timed out"
    VANISHED = "vanished"  # a reboot, or its node given up
    UNHEARD = "unheard"
    HEARD = "heard"  # again, and it runs


class Impossible(Exception):
    """An event that can't happen in this state."""


_ALWAYS = {Event.STOP: S.STOPPING, Event.VANISHED: S.LOST, Event.UNHEARD: S.UNKNOWN}
_RUNS = {**_ALWAYS, Event.EXITED: S.RELEASING, Event.FELL: S.FAILED}

TRANSITIONS: Mapping[S, Mapping[Event, S]] = {
    S.STARTING: {**_RUNS, Event.LAUNCHED: S.LOADING, Event.TIMED_OUT: S.STOPPING},
    S.LOADING: {**_RUNS, Event.PROVED: S.READY, Event.TIMED_OUT: S.STOPPING},
    S.READY: {**_RUNS, Event.LEAVE: S.LEAVING},
    S.LEAVING: {**_RUNS, Event.RETURN: S.READY},
    S.STOPPING: {**_RUNS, Event.STOP: S.STOPPING, Event.RELEASED: S.STOPPED},
    S.RELEASING: {
        **_ALWAYS,
        Event.STOP: S.RELEASING,  # it has ended; only its memory is waited for
        Event.RELEASED: S.STOPPED,
        Event.FELL: S.FAILED,
    },
    S.STOPPED: {Event.STOP: S.STOPPED},
    S.FAILED: {Event.STOP: S.STOPPED, Event.VANISHED: S.LOST},
    S.LOST: {Event.STOP: S.STOPPED, Event.HEARD: S.LOADING},
    S.UNKNOWN: {**_RUNS, Event.HEARD: S.LOADING, Event.RELEASED: S.STOPPED},
}


def may_become(state: S, other: S) -> bool:
    """Whether one event leads there."""
    return other in TRANSITIONS[state].values()


def after(state: S, event: Event) -> S:
    """Raises Impossible."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise Impossible(f"{event} while {state}") from None
