"""Which store it is, by its URL, opened for as long as somebody needs it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Store
from llmgw.store.place import URL, Place
from llmgw.store.sqlite import open_store

CLOSE_WITHIN_S = 10.0


NO_PSYCOPG = "store.url: PostgreSQL needs psycopg; pip install 'llmgw[postgres]'"


def check_url(place: Place, field: str = URL) -> None:
    """Whether it can be a store's, without asking anybody. Raises StoreUnavailable."""
    if place.url:
        try:
            from llmgw.store.connecting import Target
        except ImportError:
            raise StoreUnavailable(NO_PSYCOPG) from None
        Target.of(place.url, field=field)


def open_any(place: Place, starts: bool = True) -> Store:
    """``starts``: a control plane begins, which counts; otherwise somebody who comes with a question.

    Blocks. Raises DataLocked, StoreTooNew, StoreUnavailable.
    """
    if not place.url:
        return open_store(place, starts=starts)
    try:
        from llmgw.store.postgres import open_postgres
    except ImportError:
        raise StoreUnavailable(NO_PSYCOPG) from None
    return open_postgres(place, starts=starts)


@asynccontextmanager
async def opened(place: Place, starts: bool = True) -> AsyncIterator[Store]:
    """The store for as long as the block runs, opened and closed off the loop."""
    store = await trio.to_thread.run_sync(open_any, place, starts)
    try:
        yield store
    finally:
        with trio.move_on_after(CLOSE_WITHIN_S, shield=True):
            await trio.to_thread.run_sync(store.close, abandon_on_cancel=True)
