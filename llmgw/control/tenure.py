"""One leadership of this process, as what leads is handed it."""

from typing import Protocol

import trio
from attrs import define, field

from llmgw.core.term import Term


class Leads(Protocol):
    @property
    def term(self) -> Term | None: ...

    def may_act(self) -> bool: ...


@define(eq=False)
class Tenure:
    """One leadership of this process, from ``began`` to its end, handed to what leads.

    ``leaving`` is set when it is to finish what it began, ``lease.acks_within`` before it is cancelled. The term may
    be lifted meanwhile: ``may_act`` and ``term`` are asked each time.
    """

    leads: Leads
    leaving: trio.Event = field(factory=trio.Event)
    scope: trio.CancelScope = field(factory=trio.CancelScope, repr=False)
    ended: trio.Event = field(factory=trio.Event)

    @property
    def term(self) -> Term | None:
        """None: it has ended."""
        return self.leads.term

    def may_act(self) -> bool:
        return not self.leaving.is_set() and self.leads.may_act()
