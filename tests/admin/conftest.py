from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmgw.control.keys import Keys
from llmgw.control.tokens import Tokens
from llmgw.core.identity import Operator, Role
from llmgw.store.opening import opened
from llmgw.store.place import Place
from tests.admin.desk import Desk
from tests.clusters import plane

BOSS = Operator("first-start", Role.ADMIN)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """The admin app over a real store, with an operator of each role."""
    async with opened(Place(tmp_path, tmp_path / "llmgw.db")) as store:
        keys, tokens = await Keys.load(store), await Tokens.load(store)
        shown = {}
        for role in Role:
            made = await tokens.create(BOSS, f"some-{role}", role)
            shown[role] = made.token
        yield Desk(store, keys, tokens, shown, await plane(store))
