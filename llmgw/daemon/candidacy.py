"""How this process comes to lead: by the lease in a store that several share, or because it is alone on its own."""

import random
import secrets
import time
from functools import partial

from llmgw.control.alone import Alone
from llmgw.control.leadership import Candidacy
from llmgw.core.lease_facts import LeaseLimits
from llmgw.core.lease_state import Leadership
from llmgw.store.face import Store
from llmgw.store.fenced import Fence
from llmgw.store.leader import fence


async def leadership_on(store: Store, limits: LeaseLimits) -> Alone | Candidacy:
    url = store.place.url
    if url is None:
        return await Alone.load(store, limits)
    from llmgw.store.connecting import Target, connect
    from llmgw.store.lease import PostgresLease

    holder, target = secrets.token_hex(16), Target.of(url, "lease")
    state = Leadership(holder, limits, spread=random.random(), since=boottime())
    lease = PostgresLease(partial(connect, target), holder, limits.ttl, lambda: candidacy.state.addresses)
    candidacy = Candidacy(lease, state, boottime)
    return candidacy


def fence_of(leadership: Alone | Candidacy) -> Fence | None:
    """What ends every transaction of the term that is led now; None: none may be acted under."""
    term = leadership.term
    if term is None or not leadership.may_act():
        return None
    return partial(fence, term=term)


def boottime() -> float:
    """Seconds that also count while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
