"""May a leader that nobody can outvote put its term above one that an agent has obeyed, or does another lead?

On SQLite no lease says that somebody else leads; only agents do. So it stands aside, rather than take them away:
- for good, where the term has a number that only PostgreSQL gives, and this store never had it from there: what leads
  there came after this store;
- as long as one of them may have heard another leader within one ttl. An agent that has just started can't tell: it
  counts as one that heard it when it first asked here, until it has come again and again for that long. One that finds
  its leader elsewhere does not come again.
"""

from math import inf

from attrs import define, field, frozen

from llmgw.core.term import Term


@frozen
class Lift:
    """Nobody leads under it: the store went back in time."""

    above: Term


@frozen
class Aside:
    """Lead nothing for so long. ``way_out``: what an operator does about it, if time does not help."""

    why: str
    for_s: float
    way_out: str = ""


@define
class Hearsay:
    """What agents that can't tell have said, and when: first, and last."""

    ttl: float
    _told: dict[tuple[str, Term], tuple[float, float]] = field(factory=dict, init=False)

    def judge(self, ours: Term, agent: str, seen: Term, heard_s: float | None, now: float) -> Lift | Aside:
        if seen.n > ours.n:
            why = f"{agent} has obeyed term {seen}, of a leader on PostgreSQL; this store, term {ours}, is from before"
            return Aside(why, inf, "set [store] url to that PostgreSQL; or restore a backup of it into another one")
        since = self._unheard_s(agent, seen, now) if heard_s is None else heard_s
        if since >= self.ttl:
            self._told.clear()
            return Lift(seen)
        what = "can't tell when it last heard" if heard_s is None else f"heard, {heard_s:.1f} s ago,"
        why = f"{agent} {what} the leader of term {seen}, this one's is {ours}"
        return Aside(why, self.ttl - since, "stop one of the two, if both have this cluster's store")

    def _unheard_s(self, agent: str, seen: Term, now: float) -> float:
        """Since it began to come here and nowhere else."""
        first, last = self._told.get((agent, seen), (now, now))
        if now - last > 2 * self.ttl:
            first = now
        self._told[agent, seen] = first, now
        return now - first
