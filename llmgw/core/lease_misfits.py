"""Are the two control planes set up for each other? As far as renewals that a standby sees tell for sure.

A renewal between two looks puts the leader's ``lease.ttl`` between what is left of the lease at the second one, and
that and the time between them. Two renewals in a row must say the same: a database's clock that jumps lies once.
"""

from attrs import frozen

from llmgw.core.lease_facts import LeaseRow

SLACK_S = 0.5  # what answers take, and what two settings may differ by before it matters


@frozen
class Misfit:
    """``field`` of the config that is wrong on one of the two."""

    field: str
    says: str


@frozen
class Misfits:
    """Of this process and whoever leads. ``suspected``: by the last renewal, fields; ``sure``: by two in a row."""

    holder: str = ""
    suspected: frozenset[str] = frozenset()
    sure: tuple[Misfit, ...] = ()

    def after(self, before: LeaseRow, row: LeaseRow, between_s: float, name: str, ttl: float) -> "Misfits":
        """Two looks at the lease of another process, at most ``between_s`` apart; ``name`` and ``ttl`` are our own."""
        renewed = row.holder == before.holder and row.term == before.term and row.seq > before.seq
        if not renewed or row.released:
            return self if row.holder == self.holder else Misfits(row.holder)
        found = _found(row, between_s, name, ttl)
        known = self if self.holder == row.holder else Misfits()
        told = {misfit.field: misfit for misfit in known.sure}  # in the words of the first time
        sure = tuple(told.get(one.field, one) for one in found if one.field in known.suspected)
        return Misfits(row.holder, frozenset(one.field for one in found), sure)


def _found(row: LeaseRow, between_s: float, name: str, ttl: float) -> list[Misfit]:
    found = []
    if name and row.addresses.name == name:
        says = f"another control plane, which leads, is called {name} too: server.name must differ"
        found.append(Misfit("server.name", says))
    least, most = row.remaining_s, row.remaining_s + between_s
    if least > ttl + SLACK_S or most < ttl - SLACK_S:
        leaders = f"between {least:.1f} and {most:.1f} s"
        says = f"lease.ttl is {ttl:g} s here, and the leader's is {leaders}: [lease] must be the same on both"
        found.append(Misfit("lease.ttl", says))
    return found
