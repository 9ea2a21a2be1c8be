"""Which operators there are, and what their tokens allow. Like keys: digests in the store, a snapshot in memory."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import trio
from attrs import define, field, frozen

from llmgw.control.nearest import meant
from llmgw.core.identity import TOKEN_PREFIX, Declined, Operator, Role, TokenRecord, digest, new_key
from llmgw.store import audit
from llmgw.store import tokens as rows
from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Database, Store
from llmgw.store.secret_file import write_secret

T = TypeVar("T")
FOLLOW_S = 0.5
NAME_MAX = 64
FIRST = "first-start"  # the name of the token that the first start writes to a file


@frozen
class CreatedToken:
    record: TokenRecord
    token: str = field(repr=False)


@define(eq=False)
class Tokens:
    """Made by ``await Tokens.load(store)``; ``follow`` is a service."""

    _store: Store = field(repr=False)
    _now: Callable[[], float] = field(repr=False)
    _chance: Callable[[int], bytes] = field(repr=False)
    _by_digest: Mapping[bytes, Operator] = field(factory=dict, init=False, repr=False)
    _revision: int = field(default=0, init=False)
    _turn: trio.Lock = field(factory=trio.Lock, init=False, repr=False)

    @classmethod
    async def load(
        cls,
        store: Store,
        now: Callable[[], float] = time.time,
        chance: Callable[[int], bytes] = os.urandom,
    ) -> "Tokens":
        tokens = cls(store, now, chance)
        await tokens._reload()
        return tokens

    def identify(self, token: str) -> Operator | None:
        """Who shows this token; None for nobody. Compared by digest, so its timing tells nothing."""
        return self._by_digest.get(digest(token))

    async def follow(self, every_s: float = FOLLOW_S) -> NoReturn:
        """Service: take up what another process changed."""
        while True:
            await trio.sleep(every_s)
            try:
                if await self._store.read(rows.revision) != self._revision:
                    await self._reload()
            except StoreUnavailable:
                continue  # go on with what is known; Keys.stale tells of it

    async def list(self) -> Sequence[TokenRecord]:
        return await self._store.read(rows.every)

    async def create(self, by: Operator, name: str, role: Role, why: str = "") -> CreatedToken | Declined:
        """A new token; shown once."""
        if not (0 < len(name) <= NAME_MAX and name.isprintable() and " " not in name and "/" not in name):
            return Declined("invalid", f"a token's name has 1 to {NAME_MAX} printable characters, no space or slash")
        token = new_key(self._chance(32), TOKEN_PREFIX)
        record = TokenRecord(name, digest(token), role, self._now(), by.name)

        def change(db: Database) -> CreatedToken | Declined:
            if any(had.name == name for had in rows.every(db.conn)):
                return Declined("duplicate", f"there is a token {name!r} already", "choose another name or revoke it")
            rows.add(db, record)
            self._note(db, by, "tokens.create", name, why, after=as_json(record))
            return CreatedToken(record, token)

        return await self._commit(change)

    async def revoke(self, by: Operator, name: str, why: str = "") -> TokenRecord | Declined:
        """Refused from now on. The last admin token stays: nobody could make another."""

        def change(db: Database) -> TokenRecord | Declined:
            there = rows.every(db.conn)
            found = next((had for had in there if had.name == name), None)
            if found is None:
                return Declined("not_found", f"no token is called {name!r}", meant(name, [t.name for t in there]))
            if [t.name for t in there if t.role is Role.ADMIN] == [name]:
                return Declined("last_admin", f"{name!r} is the last admin token", "make another one first")
            rows.remove(db, name)
            self._note(db, by, "tokens.revoke", name, why, before=as_json(found))
            return found

        return await self._commit(change)

    async def first_start(self, file: Path) -> Path | None:
        """With no token in the store: make one and write it to the file (0600). The path, if one was made."""
        if self._by_digest:
            return None
        token = new_key(self._chance(32), TOKEN_PREFIX)
        record = TokenRecord(FIRST, digest(token), Role.ADMIN, self._now(), "the first start")

        def change(db: Database) -> None:
            # The file before the commit: a crash between them leaves a file nobody honours, and the next
            # start writes another; the other way round nobody would hold the token.
            write_secret(file, token + "\n")
            rows.add(db, record)
            self._note(db, Operator("llmgw", Role.ADMIN), "tokens.create", FIRST, "first start", after=as_json(record))

        await self._commit(change)
        return file

    async def _commit(self, change: Callable[[Database], T]) -> T:
        def whole(db: Database) -> tuple[T, Sequence[TokenRecord], int]:
            result = change(db)
            revision = rows.revision(db.conn) if isinstance(result, Declined) else rows.raise_revision(db.conn)
            return result, rows.every(db.conn), revision

        async with self._turn:
            result, there, revision = await self._store.write(whole)
            self._publish(there, revision)
        return result

    async def _reload(self) -> None:
        async with self._turn:
            revision = await self._store.read(rows.revision)
            self._publish(await self._store.read(rows.every), revision)

    def _publish(self, records: Sequence[TokenRecord], revision: int) -> None:
        self._by_digest = {r.digest: Operator(r.name, r.role) for r in records}
        self._revision = revision

    def _note(
        self, db: Database, by: Operator, what: str, name: str, why: str, before: Any = None, after: Any = None
    ) -> None:
        audit.note(db, audit.Act(self._now(), by.name, str(by.role), what, name, why, before, after))


def as_json(record: TokenRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "role": str(record.role),
        "created_at": record.created_at,
        "created_by": record.created_by,
    }
