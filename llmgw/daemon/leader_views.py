"""Who leads, as operators, Prometheus and balancers are told."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from attrs import asdict, define, field

from llmgw.admin.applying import note_applied
from llmgw.config import Config
from llmgw.control.alone import Alone
from llmgw.control.leadership import Candidacy
from llmgw.control.standbys import Standbys
from llmgw.core.explain import Explanation
from llmgw.core.identity import Declined, Operator
from llmgw.core.lease_explained import Transition
from llmgw.core.lease_facts import Addresses
from llmgw.core.standbys import Standby, told_with
from llmgw.daemon.parts import Parts
from llmgw.store.audit import Act
from llmgw.store.face import Store
from llmgw.telemetry.families import Family, single, tallied

Leadership = Alone | Candidacy
LEADING = "leading"  # a state of a leader
# Each is there from the first scrape on: what was never 0 has not risen.
TRANSITIONS = ("began", "ended", "other", "suspended", "resumed", "lifted", "store_back", "misfit")


@define(eq=False)
class LeaderViews:
    leadership: Leadership
    parts: Parts
    store: Store
    standbys: Standbys | None  # None: nobody else could lead
    transitions: Counter[str] = field(factory=lambda: Counter(dict.fromkeys(TRANSITIONS, 0)), init=False)

    @property
    def leads(self) -> bool:
        return self.leadership.term is not None

    def other(self) -> Addresses:
        """Who leads instead of us, as far as it is known."""
        leader = self.leadership.leader()
        return Addresses() if leader is None or leader.here or leader.state != LEADING else leader.addresses

    def standby_of(self) -> Addresses | None:
        return None if self.leads else self.other()

    def stands_back(self) -> str:
        """Why clients should be sent elsewhere; empty: they should not. With static endpoints alone all serve."""
        config = self.parts.config
        if not config.wants:
            return ""
        readiness = self.leadership.readiness(config.store.offline_grace)
        return "" if readiness.ready else f"stands by: {readiness.why}"

    def another_leads(self) -> bool:
        """Replicas are another control plane's to change, and clients should go there."""
        return self.leadership.readiness(self.parts.config.store.offline_grace).elsewhere

    def store_away_s(self) -> float:
        """Since the store last answered; 0: it does."""
        return max(self.parts.keys.stale_s, self.leadership.away_s)

    # -- operators ------------------------------------------------------------------------------------

    def shown(self) -> dict[str, Any]:
        """For `ctl leader`: who leads, as this control plane knows it."""
        leader = self.leadership.leader()
        told: dict[str, Any] = {
            "leads": self.leads,
            "acts": self.leadership.may_act(),
            "store_away_s": round(self.store_away_s(), 1),
            "leader": None,
            "alone": self.standbys is None,
            "standbys": [] if self.standbys is None else None,
        }
        if (others := self._others()) is not None:
            told["standbys"] = [_standby(one) for one in others]
        if leader is not None:
            spans = {name: _rounded(getattr(leader, name)) for name in ("since_s", "margin_s")}
            told["leader"] = {**asdict(leader), **spans, "term": str(leader.term)}
        return told

    def explain(self) -> Explanation:
        explanation, others = self.leadership.explain(), self._others()
        return explanation if others is None else told_with(explanation, others, self.leads)

    def _others(self) -> tuple[Standby, ...] | None:
        """All control planes but the leader; None: it is not known who is there, or nobody could be."""
        return None if self.standbys is None else self.standbys.standbys()

    async def resign(self, by: Operator, why: str) -> dict[str, Any] | Declined:
        if isinstance(self.leadership, Alone):
            hint = "two control planes need one PostgreSQL: [store] url"
            return Declined("alone", "nobody else could lead: the store is SQLite", hint)
        term = str(self.leadership.term)
        if not self.leadership.resign(f"{by.name} asked for it" + (f": {why}" if why else "")):
            return Declined("not_leading", "this control plane does not lead", "`llmgw ctl leader` says who does")
        act = Act(time.time(), by.name, str(by.role), "leader.resign", term, why)
        await note_applied(self.store, self.parts.report, act)
        ready = [one.name for one in self._others() or () if not one.silent]
        return {"resigned": term, "stays_out_s": self.leadership.state.limits.ttl, "stand_by": ready}

    # -- metrics --------------------------------------------------------------------------------------

    def noted(self, told: Transition) -> None:
        self.transitions[told.kind.rpartition(".")[2]] += 1
        self.parts.log.warning("leadership", what=told.kind, term=str(told.term), said=told.sentence)

    def families(self) -> Iterator[Family]:
        leader = self.leadership.leader()
        yield single("llmgw_leading", "1 while this control plane leads", self.leads)
        yield single(
            "llmgw_store_away_seconds", "since the store last answered; 0: it does", round(self.store_away_s(), 3)
        )
        if leader is not None:
            labels = {"leader": leader.who, "term": str(leader.term)}
            yield Family("llmgw_leader_info", "always 1; who leads, as this control plane knows it", ((labels, 1.0),))
            if leader.here and leader.margin_s is not None:
                yield single(
                    "llmgw_lease_margin_seconds", "for so long the lease is trusted yet", round(leader.margin_s, 3)
                )
                yield single("llmgw_lease_renewals", "of the term that is led now", leader.renewals)
        others = self._others()
        if self.leads and others is not None:
            states = Counter({("stands_by",): 0, ("silent",): 0})
            states.update(("silent" if one.silent else "stands_by",) for one in others)
            yield Family(
                "llmgw_standbys", "control planes beside the leader, as it knows them", tallied(states, ("state",))
            )
        transitions = tallied(self.transitions, ("what",))
        yield Family("llmgw_leader_transitions_total", "of leadership, as seen here", transitions, "counter")


def where(config: Config, client: str, admin: str, agents: str, host: str) -> Addresses:
    """How others reach this control plane: as the config says, else by its listeners, else by the host's name."""

    def url(said: str, address: str, tls: str) -> str:
        return said or f"{'https' if tls else 'http'}://{_named(address, host)}"

    return Addresses(
        config.listen.name or host,
        url(config.listen.advertise, client, config.listen.tls_cert),
        url(config.admin.advertise, admin, config.admin.tls_cert),
        config.agents.advertise or (_named(agents, host) if agents else ""),
    )


def _standby(one: Standby) -> dict[str, Any]:
    return {
        "name": one.name, "addresses": asdict(one.addresses), "heard_s": _rounded(one.heard_s), "silent": one.silent
    }  # fmt: skip


def _named(address: str, host: str) -> str:
    """A wildcard is no place where anybody could be reached."""
    name, _, port = address.rpartition(":")
    return f"{host}:{port}" if name in ("0.0.0.0", "[::]", "") else address


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
