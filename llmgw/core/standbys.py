"""Who else could lead: the control planes that sign themselves in a store that several share.

Each raises the count in its row every few seconds. Who is there is told from counts that rise while we watch, by our
own clock: no two clocks are compared.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from attrs import evolve, frozen

from llmgw.core.explain import Explanation, Fact
from llmgw.core.lease_facts import Addresses

BEAT_S = 3.0
SILENT_S = 10.0
FORGOTTEN_S = 24 * 3600.0
NOBODY = "nobody stands by: should it end, nobody leads until it is back"


@frozen
class Signed:
    """A row. ``holder``: the process, as the lease knows it."""

    holder: str
    beats: int
    addresses: Addresses


@frozen
class Standby:
    """``heard_s``: since its count rose; None: it has not risen since we watch."""

    holder: str
    addresses: Addresses
    heard_s: float | None
    silent: bool

    @property
    def name(self) -> str:
        return self.addresses.name or f"holder {self.holder[:8]}"

    @property
    def says(self) -> str:
        if not self.silent:
            return f"{self.name} stands by"
        heard = "since this one watches" if self.heard_s is None else f"for {self.heard_s:.0f} s"
        return f"{self.name} has not been heard {heard}"


@frozen
class _Seen:
    signed: Signed
    at: float  # its count was first seen as it is
    rose: bool


@frozen
class RollCall:
    """What one control plane, ``own``, has seen of all."""

    own: str
    seen: Mapping[str, _Seen] = MappingProxyType({})
    read_at: float | None = None

    def after(self, rows: Iterable[Signed], now: float) -> "RollCall":
        return RollCall(self.own, {row.holder: self._one(row, now) for row in rows}, now)

    def _one(self, row: Signed, now: float) -> _Seen:
        before = self.seen.get(row.holder)
        if before is not None and before.signed.beats == row.beats:
            return evolve(before, signed=row)
        came = before is not None or self.read_at is not None or row.holder == self.own
        return _Seen(row, now, came)

    def forgotten(self, now: float) -> tuple[Signed, ...]:
        """Rows of processes that ended long ago without a word."""
        return tuple(one.signed for one in self.seen.values() if now - one.at > FORGOTTEN_S)

    def standbys(self, leader: str, now: float) -> tuple[Standby, ...] | None:
        """All but the ``leader`` (its holder), by name; None: the store was not read lately, so it is not known."""
        if self.read_at is None or now - self.read_at > SILENT_S:
            return None
        others = (one for holder, one in self.seen.items() if holder != leader)
        found = [
            Standby(
                one.signed.holder, one.signed.addresses, now - one.at if one.rose else None,
                now - one.at > SILENT_S,
            )
            for one in others
            if one.rose or now - one.at > SILENT_S
        ]  # fmt: skip
        return tuple(sorted(found, key=lambda one: one.name))


def told_with(explanation: Explanation, standbys: Iterable[Standby], leads: bool) -> Explanation:
    """``leads``: whoever explains does; who stands by tells of itself anyway."""
    named = {one.name for one in explanation.candidates}
    others = [one for one in standbys if one.name not in named]
    facts = [Fact(one.says) for one in others]
    if leads and all(one.silent for one in others):
        facts.append(Fact(NOBODY))
    return evolve(explanation, because=(*explanation.because, *facts))
