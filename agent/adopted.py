"""An engine that was found running, ended or lost, as one that is watched again."""

from agent.adoption import Found, Gone, Lost, NeverRan, NeverStarted, Running
from agent.engine_parts import Parts
from agent.engine_process import EngineProcess
from agent.groups import Group
from agent.places import EnginePlace, Spec, State
from llmgw.core.shards import ENDED, Launch, ShardState


def engine_of(place: EnginePlace, found: Found, parts: Parts) -> EngineProcess | None:
    """None: there never was one."""
    match found:
        case Running(state, pidfd, group, spec, key, rebuilt, note):
            if rebuilt:
                _write_again(place, state, parts)
            engine = _known(place, spec, state, group, ShardState.LOADING, parts)
            engine.pidfd, engine.note, engine.log.key = pidfd, note, key
        case Gone(state, group, spec, pids, exit, note):
            engine = _known(place, spec, state, group, ShardState.RELEASING, parts)
            engine.left, engine.exit, engine.note = pids, exit, note
        case Lost(why, spec):
            engine = _known(place, spec, None, parts.group(place.id, ""), ShardState.LOST, parts)
            engine.why = why
        case NeverStarted(why, spec):
            engine = _known(place, spec, None, parts.group(place.id, ""), ShardState.FAILED, parts)
            engine.why = why
        case NeverRan():
            return None
    if engine.state not in ENDED:
        parts.ports.hold(place.id, engine.ports.values())
    return engine


def _known(
    place: EnginePlace, spec: Spec | None, state: State | None, group: Group, now: ShardState, parts: Parts
) -> EngineProcess:
    launch = spec.launch if spec else Launch(place.id, ())
    engine = EngineProcess(launch, spec.hash if spec else "", parts, place, group, now)
    engine.adopted, engine.record_lost = True, spec is None
    if spec is not None:
        engine.ports, engine.host = spec.ports, spec.host
    if state is not None:
        engine.written = state
        engine.ports, engine.host, engine.hash = state.ports, state.host or engine.host, state.spec_hash
    return engine


def _write_again(place: EnginePlace, state: State, parts: Parts) -> None:
    try:
        place.write_state(state)
    except OSError as error:
        parts.say(f"{place.id}: its state can't be written down again: {error.strerror}")
