"""What must be done so that what runs becomes what is wanted: plan(desired, fleet, now) -> actions with reasons.

Replacement first: a new replica serves for ``healthy_min`` before the old one leaves the pool, and that one
stops when it has no request left. ``live <= desired + 1``; one surge at a time a model.
"""

from collections.abc import Mapping, Sequence

from attrs import define, field, frozen

from llmgw.core.actions import (
    Action,
    Again,
    Create,
    Fail,
    Forget,
    Leave,
    Plan,
    Renew,
    Return,
    Settled,
    Stop,
)
from llmgw.core.drain import DrainLimits
from llmgw.core.engine_spec import OnFull, Want
from llmgw.core.node_life import NodeNow, NodeState
from llmgw.core.placing import Placing
from llmgw.core.replicas import Phase, ReplicaLimits, ReplicaNow, Standing, backoff, by_model
from llmgw.core.turns import BOUNDED, coming, finds_no_place, turn_of
from llmgw.core.worth import NOT_SERVING, away_from, is_active, slot_worth, wants_out

_SCALED = "no longer wanted"
_LAST_CALL = "last call"


@frozen
class Seen:
    """Everything a pass knows. ``hold``: why nothing may be stopped; ``settled``: every node has been heard."""

    wants: Mapping[str, Want]
    replicas: Mapping[str, ReplicaNow]
    nodes: Mapping[str, NodeNow]
    wall: float
    hold: str = ""
    settled: bool = True
    ill_restarts: Mapping[str, int] = field(factory=dict)  # by model, within the last hour


def plan(seen: Seen, limits: ReplicaLimits, drains: DrainLimits | None = None) -> Plan:
    if not seen.settled:
        return Plan(held=("everything",), hold="not every node has reported to this leader yet")
    planner = Planner(seen, limits, drains or DrainLimits())
    members = planner._members = by_model(seen.replicas)
    for model in sorted({*members, *seen.wants}):
        planner.model(model, members.get(model, []))
    planner.place_waiting()
    return Plan(tuple(planner.actions), tuple(planner.held), seen.hold)


@define(eq=False)
class Planner:
    """One pass. A replica gets at most one action a pass; the next pass sees what came of it."""

    seen: Seen
    limits: ReplicaLimits
    drains: DrainLimits
    actions: list[Action] = field(factory=list, init=False)
    held: list[str] = field(factory=list, init=False)
    _acted: set[str] = field(factory=set, init=False)
    _members: Mapping[str, Sequence[ReplicaNow]] = field(factory=dict, init=False)  # by model

    def model(self, name: str, members: Sequence[ReplicaNow]) -> None:
        want = self.seen.wants.get(name)
        if want is not None:
            self._bring_back(members, want)
        for now in members:
            self._finish(now)
        active = [now for now in members if is_active(now)]
        if want is None:
            for now in active:
                self._remove(now, "its model is no longer wanted")
            return
        for now in active:
            self._end_overdue(now)
            self._renew(now, want)
        self._settle(members, want)
        self._count(members, want)
        self._replace(members, want)

    # -- what has ended, or is about to ---------------------------------------------------------------

    def _finish(self, now: ReplicaNow) -> None:
        replica = now.replica
        match replica.phase, now.standing:
            case Phase.STOPPING, Standing.ENDED:
                self._do(replica.name, Forget(replica.name, replica.why), holds=True)
            case Phase.RESTARTING, Standing.ENDED:
                self._do(replica.name, Again(replica.name, replica.why), holds=True)
            case Phase.WANTED, Standing.BROKEN:
                self._fail(now)
            case Phase.WANTED, Standing.GONE if self._never_began(now):
                self._do(replica.name, Stop(replica.name, now.why), holds=True)
            case Phase.LEAVING, _:
                self._finish_leaving(now)

    def _never_began(self, now: ReplicaNow) -> bool:
        """Its nodes are there and at least one does not do as it is told: what it was told is taken back."""
        nodes = (self.seen.nodes[shard.node] for shard in now.shards)
        return not now.healthy_s and all(node.state is NodeState.READY for node in nodes)

    def _finish_leaving(self, now: ReplicaNow) -> None:
        name, replica = now.name, now.replica
        if now.overdue:
            self._do(name, Stop(name, f"{replica.why}; {now.overdue}", now.in_flight), holds=True)
        elif now.standing is Standing.BROKEN:
            self._do(name, Stop(name, f"{replica.why}; {now.why}"), holds=True)
        elif not now.in_flight and (now.idle or now.standing is Standing.GONE):
            self._do(name, Stop(name, f"{replica.why}, no request left"), holds=True)
        elif now.age_s > self.limits.leave_within:
            what = f"{replica.why}; gave up after {now.age_s:.0f} s with {now.in_flight} requests in flight"
            self._do(name, Stop(name, what, now.in_flight), holds=True)

    def _end_overdue(self, now: ReplicaNow) -> None:
        """A drain that is over waits for nobody; where nothing could take its place, this was the last one."""
        if now.overdue and now.replica.phase is Phase.WANTED:
            self._do(now.name, Stop(now.name, now.overdue, now.in_flight), holds=True)
        elif now.serving and (why := self._last_call(now)) and self._can_be_spared(now):
            self._do(now.name, Leave(now.name, f"{_LAST_CALL}: {why}, and others of its model serve"), holds=True)

    def _last_call(self, now: ReplicaNow) -> str:
        nodes = (self.seen.nodes[shard.node] for shard in now.shards if shard.node in self.seen.nodes)
        return next((why for node in nodes if (why := node.last_call(self.drains.last_call))), "")

    def _can_be_spared(self, now: ReplicaNow) -> bool:
        """Nothing is about to take its place, and others stay: what they begin will not be cut."""
        members = self._members[now.replica.model]
        coming = any(one.replica.replaces == now.name and one.live for one in members)
        return not coming and any(one.serving and not self._last_call(one) for one in members)

    def _fail(self, now: ReplicaNow) -> None:
        replica = now.replica
        ill = now.why.startswith("unwell")
        if ill and (held := self._may_not_restart(replica.model)):
            self.held.append(f"restart of {now.name} ({now.why}): {held}")
            return
        steady = now.healthy_s >= self.limits.steady_after
        crashes = 1 if steady else replica.crashes + 1
        served = now.healthy_s >= self.limits.healthy_min
        elsewhere = crashes >= self.limits.crash_loop and not served
        fail = Fail(now.name, now.why, crashes, backoff(crashes, self.limits), ill, served, elsewhere)
        self._do(now.name, fail, holds=True)

    def _may_not_restart(self, model: str) -> str:
        """One that runs and answers nothing is restarted, but never all of a model at once, nor for ever."""
        replicas = self.seen.replicas
        now_too = {action.replica for action in self.actions if isinstance(action, Fail)}
        for other in replicas.values():
            if other.replica.model == model and (other.replica.phase is Phase.RESTARTING or other.name in now_too):
                return "another of its model restarts"
        if self.seen.ill_restarts.get(model, 0) >= self.limits.restarts_per_hour:
            return f"{self.limits.restarts_per_hour} restarts within an hour (replica.restarts_per_hour)"
        return ""

    # -- a new spec -----------------------------------------------------------------------------------

    def _renew(self, now: ReplicaNow, want: Want) -> None:
        """What serves nobody takes it up at once; what serves is replaced first."""
        replica = now.replica
        if replica.restores is not None and self._did_not_come_up(now, want):
            return
        if replica.revision == want.spec.revision or replica.gave_up_on == want.spec.revision:
            # A place that it must leave is no place to start or to come back in.
            badly = now.out if replica.phase is Phase.WANTED else ""
            if (why := replica.leave_why or badly) and now.standing in NOT_SERVING:
                self._renewed(now, want, why)
            return
        if now.standing in NOT_SERVING:
            self._renewed(now, want, "its engine's spec changed")

    def _renewed(self, now: ReplicaNow, want: Want, why: str) -> None:
        restart = now.replica.phase is Phase.WANTED
        self._do(now.name, Renew(now.name, want.spec, restart, why), holds=restart)

    def _did_not_come_up(self, now: ReplicaNow, want: Want) -> bool:
        replica = now.replica
        if replica.crashes < self.limits.crash_loop or replica.revision != want.spec.revision:
            return False
        assert replica.restores is not None
        why = f"the new spec did not come up in {replica.crashes} tries ({replica.last_end}): the old one is taken up"
        restart = replica.phase is Phase.WANTED
        self._do(now.name, Renew(now.name, replica.restores, restart, why, want.spec.revision), holds=restart)
        return True

    # -- replacements ---------------------------------------------------------------------------------

    def _settle(self, members: Sequence[ReplicaNow], want: Want) -> None:
        by_name = {now.name: now for now in members}
        for now in members:
            old_name = now.replica.replaces
            if not old_name or not is_active(now):
                continue
            old = by_name.get(old_name)
            if old is None:
                self._do(now.name, Settled(now.name, old_name))
            elif is_active(old):
                self._settle_pair(now, old, want)

    def _bring_back(self, members: Sequence[ReplicaNow], want: Want) -> None:
        """What leaves for a drain, a sick GPU or a move that is no more serves again, and its successor goes."""
        successors = {now.replica.replaces: now for now in members if is_active(now) and now.replica.replaces}
        for old in members:
            new = successors.get(old.name)
            if self._has_time_again(old):
                self._do(old.name, Return(old.name, "its drain is not soon over any more"))
            if new is not None and old.standing is Standing.LEAVING and self._is_undone(new, old, want):
                self._do(old.name, Return(old.name, "what it left for is no longer asked"))

    def _has_time_again(self, old: ReplicaNow) -> bool:
        called = old.standing is Standing.LEAVING and old.replica.why.startswith(_LAST_CALL)
        return called and not self._last_call(old)

    def _settle_pair(self, new: ReplicaNow, old: ReplicaNow, want: Want) -> None:
        why = wants_out(old, want) or new.replica.reason
        if old.serving and self._is_undone(new, old, want):
            if not new.serving or self._may_go(new, want):
                self._remove(new, f"no longer needed: {old.name} serves")
        elif new.serving and new.healthy_s >= self.limits.healthy_min and self._may_go(old, want):
            what = f"{new.name} serves in its place: {why}"
            act: Action = Leave(old.name, what) if old.replica.phase is Phase.WANTED else Stop(old.name, what)
            self._do(old.name, act, holds=True)
        elif old.replica.phase is Phase.WAITING:
            self._settle_waiting(new, old)
        elif old.serving and not wants_out(old, want) and not new.serving:
            self._remove(new, f"no longer needed: {old.name} serves")
        elif new.replica.stop_first and old.serving:
            self._do(old.name, Leave(old.name, f"{new.name} fits nowhere beside it: {why}"), holds=True)

    def _is_undone(self, new: ReplicaNow, old: ReplicaNow, want: Want) -> bool:
        """What the one was to be replaced for, a drain, a sick GPU or a move, is no more."""
        return bool(new.replica.replaces_for) and not wants_out(old, want)

    def _may_go(self, old: ReplicaNow, want: Want) -> bool:
        """Not while others of the model are down, or more are wanted by now and have not come up.

        Where policy allows it, it makes room for those that fit nowhere.
        """
        leaving = {action.replica for action in self.actions if isinstance(action, Leave)}
        members = self._members[want.model]
        serving = sum(now.serving and now.name not in leaving for now in members)
        blocked = any(finds_no_place(now) for now in members)
        return serving > want.replicas or not old.serving or (want.rules.on_full is OnFull.STOP_FIRST and blocked)

    def _settle_waiting(self, new: ReplicaNow, old: ReplicaNow) -> None:
        """The old one has lost its place: one of the two is enough."""
        if new.live or new.replica.stop_first:
            self._remove(old, f"{new.name} takes its place")
        else:
            self._remove(new, f"{old.name} waits for a place itself")

    def _replace(self, members: Sequence[ReplicaNow], want: Want) -> None:
        active = [now for now in members if is_active(now)]
        replaced = {now.replica.replaces for now in active}
        # A replacement that finds no place takes nobody's, and is nobody's turn.
        standing = [now for now in active if now.standing is not Standing.GONE and not self._in_vain(now)]
        # Those created in this very pass count as well.
        created = sum(isinstance(a, Create) and a.model == want.model for a in self.actions)
        room = want.replicas + 1 - len(standing) - created
        taken = any(turn_of(active, self.seen.replicas))
        for now in sorted(active, key=lambda one: (one.standing is not Standing.GONE, one.name)):
            why, surge = wants_out(now, want), now.standing is not Standing.GONE
            if not why or now.name in replaced or now.name in self._acted or room <= 0:
                continue
            if surge and (taken or not now.serving):
                continue
            if surge and now.out and not self._may_surge():
                self.held.append(f"a replacement of {now.name} ({why}): {self.drains.surges_max} start already")
                continue
            self._do(now.name, self._successor(now, want, why), holds=not surge)
            room, taken = room - 1, True

    def _successor(self, now: ReplicaNow, want: Want, why: str) -> Create:
        away, prefer, to = away_from(now), self._planned(now), now.replica.move_to
        kind = now.out_kind or ("move" if now.replica.moves else "")
        return Create(want.model, want.spec, why, now.name, away, prefer, to, kind)

    def _in_vain(self, now: ReplicaNow) -> bool:
        return bool(now.replica.replaces) and not now.replica.stop_first and finds_no_place(now)

    def _may_surge(self) -> bool:
        """Drains and sick GPUs share a bound over all models."""
        created = sum(isinstance(action, Create) and action.kind in BOUNDED for action in self.actions)
        return created + coming(self.seen.replicas, self.seen.wall) < self.drains.surges_max

    def _planned(self, now: ReplicaNow) -> tuple[str, ...]:
        """Where the dry run of its drain saw its replacement go."""
        for shard in now.shards:
            node = self.seen.nodes.get(shard.node)
            if node is not None and node.drain is not None and node.draining:
                return node.drain.planned.get(now.name, ())
        return ()

    # -- how many -------------------------------------------------------------------------------------

    def _count(self, members: Sequence[ReplicaNow], want: Want) -> None:
        names = {now.name for now in members if is_active(now)}
        slots = [now for now in members if is_active(now) and now.replica.replaces not in names]
        lacking = want.replicas - len(slots)
        if lacking > 0:
            back = self._returning(members, want)[:lacking]
            for now in back:
                self._do(now.name, Return(now.name, f"{want.replicas} are wanted again"))
            for _ in range(lacking - len(back)):
                self.actions.append(
                    Create(want.model, want.spec, f"{want.replicas} are wanted, {len(slots)} are there")
                )
        elif lacking < 0:
            why = f"{want.replicas} are wanted, {len(slots)} are there"
            successors = {now.replica.replaces: now for now in members if is_active(now)}
            for now in sorted(slots, key=lambda one: slot_worth(one, successors.get(one.name), want))[:-lacking]:
                self._remove(now, why)
                for other in members:
                    if other.replica.replaces == now.name and is_active(other):
                        self._remove(other, why)

    def _returning(self, members: Sequence[ReplicaNow], want: Want) -> list[ReplicaNow]:
        return [
            now
            for now in members
            if now.standing is Standing.LEAVING
            and now.name not in self._acted
            and not now.replica.leave_why
            and now.replica.why.startswith(_SCALED)
            and now.replica.revision == want.spec.revision
        ]

    def _remove(self, now: ReplicaNow, why: str) -> None:
        name = now.name
        match now.replica.phase:
            case Phase.WAITING:
                self._do(name, Forget(name, f"{_SCALED}: {why}"))
            case Phase.WANTED if now.serving or now.standing in (Standing.UNKNOWN, Standing.GONE) or now.in_flight:
                self._do(name, Leave(name, f"{_SCALED}: {why}"), holds=True)
            case _:
                self._do(name, Stop(name, f"{_SCALED}: {why}"), holds=True)

    # -- where ----------------------------------------------------------------------------------------

    def place_waiting(self) -> None:
        waiting = [
            now
            for now in self.seen.replicas.values()
            if now.replica.phase is Phase.WAITING
            and now.replica.retry_at <= self.seen.wall
            and now.name not in self._acted
            and now.replica.model in self.seen.wants
        ]
        seen = self.seen
        placing = Placing(seen.wants, seen.replicas, seen.nodes, self._members, self.drains.surges_max)
        for action in placing.decide(waiting):
            self._do(action.replica, action)

    def _do(self, name: str, action: Action, holds: bool = False) -> None:
        """``holds``: it stops something, or lets go of a claim; not while the leader doubts itself."""
        if name in self._acted:
            return
        self._acted.add(name)
        if holds and self.seen.hold and not self._is_lost(name):
            self.held.append(str(action))
        else:
            self.actions.append(action)

    def _is_lost(self, name: str) -> bool:
        """An operator gave up each of its nodes: that is nothing to doubt."""
        nodes = [self.seen.nodes.get(shard.node) for shard in self.seen.replicas[name].shards]
        return bool(nodes) and all(node is None or node.given_up for node in nodes)
