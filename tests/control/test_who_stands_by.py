"""Control planes that sign themselves in one store, and are told from it."""

from collections.abc import Callable

import trio
from attrs import evolve
from trio.testing import MockClock

from llmgw.control.leadership import Candidacy
from llmgw.control.standbys import Standbys
from llmgw.core.lease_facts import Addresses, LeaseLimits
from llmgw.core.lease_state import Leadership, Role
from llmgw.core.standbys import BEAT_S, SILENT_S
from llmgw.store.control_planes import every
from llmgw.store.face import Store


def signing(
    store: Store, name: str, role: Role = Role.STANDBY, failed: Callable[[str], object] = lambda why: None
) -> Standbys:
    state = Leadership(f"holder of {name}", LeaseLimits(), Addresses(name, admin=f"http://{name}"))
    candidacy = Candidacy(None, evolve(state, role=role), trio.current_time)  # type: ignore[arg-type]
    return Standbys(store, candidacy, failed)


def names(standbys: Standbys) -> list[tuple[str, bool]] | None:
    found = standbys.standbys()
    return None if found is None else [(one.name, one.silent) for one in found]


async def test_a_leader_knows_who_stands_by_until_that_one_leaves(any_store, autojump_clock: MockClock):
    leader, other = signing(any_store, "gw-1", Role.LEADING), signing(any_store, "gw-2")
    assert names(leader) is None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leader.run)
        await trio.sleep(0.1)
        assert names(leader) == []
        nursery.start_soon(other.run)
        await trio.sleep(2 * BEAT_S)
        assert names(leader) == [("gw-2", False)]
        await other.leave()
        await trio.sleep(2 * BEAT_S)
        assert names(leader) == []
        nursery.cancel_scope.cancel()
    assert [row.holder for row in await any_store.read(every)] == ["holder of gw-1"]


async def test_one_that_dies_is_silent_and_the_next_of_its_place_takes_its_row(any_store, autojump_clock: MockClock):
    leader = signing(any_store, "gw-1", Role.LEADING)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leader.run)
        await trio.sleep(0.1)
        with trio.move_on_after(2 * BEAT_S):
            await signing(any_store, "gw-2").run()
        await trio.sleep(SILENT_S + BEAT_S)
        assert names(leader) == [("gw-2", True)]
        again = signing(any_store, "gw-2")
        again._roll = evolve(again._roll, own="another holder of gw-2")
        nursery.start_soon(again.run)
        await trio.sleep(2 * BEAT_S)
        assert names(leader) == [("gw-2", False)]
        nursery.cancel_scope.cancel()


async def test_a_store_that_is_away_is_told_of_once_and_then_nobody_is_known(
    kind, any_store, autojump_clock: MockClock
):
    said: list[str] = []
    leader = signing(any_store, "gw-1", Role.LEADING, said.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leader.run)
        await trio.sleep(0.1)
        kind.goes_away(any_store)
        await trio.sleep(SILENT_S + BEAT_S)
        assert len(said) == 1
        assert names(leader) is None
        await leader.leave()
        assert len(said) == 2, "it ends all the same"
        kind.comes_back(any_store)
        nursery.cancel_scope.cancel()
