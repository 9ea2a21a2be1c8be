"""Which keys exist, and who changed them: the operator's side of ``core.identity``.

The ring is a snapshot in memory, replaced whole after each committed write; the request road reads it
and nothing else. Refusals are ``Declined`` values; StoreUnavailable is raised when the disk says no.
"""

import os
import time
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn, TypeVar

import trio
from attrs import define, evolve, field, frozen

from llmgw.control.key_entries import KeyEntry, as_json, digest_in, imported, nothing_imported, unfit
from llmgw.control.nearest import meant
from llmgw.core.identity import Declined, KeyRecord, KeyRing, Operator, digest, new_id, new_key, shown
from llmgw.store import audit
from llmgw.store import keys as rows
from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Database, Store

T = TypeVar("T")
Changed = tuple[T, Sequence[KeyRecord]]  # what to answer, and the records that are different now
FOLLOW_S = 0.5  # a change another process made is seen within this
PREFIX_MIN = 6  # fewer characters of a key name nothing


@frozen
class Created:
    """A key just made: the only moment its plaintext exists."""

    record: KeyRecord
    secret_key: str = field(repr=False)


@frozen
class Imported:
    records: tuple[KeyRecord, ...]
    new_tenants: tuple[str, ...]


@define(eq=False)
class Keys:
    """Made by ``await Keys.load(store)``; ``follow`` is a service."""

    _store: Store = field(repr=False)
    _now: Callable[[], float] = field(repr=False)
    _chance: Callable[[int], bytes] = field(repr=False)
    ring: KeyRing = field(factory=KeyRing, init=False)
    _stale_since: float | None = field(default=None, init=False)
    # From a write to its publication nobody else publishes, so an older ring never follows a newer one.
    _turn: trio.Lock = field(factory=trio.Lock, init=False, repr=False)

    @classmethod
    async def load(
        cls,
        store: Store,
        now: Callable[[], float] = time.time,
        chance: Callable[[int], bytes] = os.urandom,
    ) -> "Keys":
        """Raises StoreUnavailable: a gateway that knows no key has nothing to serve."""
        keys = cls(store, now, chance)
        await keys._reload()
        return keys

    async def follow(self, every_s: float = FOLLOW_S) -> NoReturn:
        """Service: take up what another process changed; while the store is away, go on with what is known."""
        while True:
            await trio.sleep(every_s)
            try:
                if await self._store.read(rows.revision) != self.ring.revision:
                    await self._reload()
                self._stale_since = None
            except StoreUnavailable:
                if self._stale_since is None:
                    self._stale_since = trio.current_time()

    @property
    def stale(self) -> bool:
        """The store can't be read: the ring is what was last known."""
        return self._stale_since is not None

    @property
    def stale_s(self) -> float:
        return 0.0 if self._stale_since is None else trio.current_time() - self._stale_since

    async def create(
        self,
        by: Operator,
        asked: KeyEntry,
        *,
        new_tenant: bool = False,
        known_models: Collection[str] | None = None,
        why: str = "",
    ) -> Created | Declined:
        """A new key, on disk and in the ring when this returns. ``known_models`` None: names aren't checked."""
        if problem := unfit(asked, self._now(), known_models):
            return problem
        secret_key = new_key(self._chance(32))
        record = KeyRecord(
            new_id(self._chance(16)),
            digest(secret_key),
            shown(secret_key),
            asked.tenant,
            asked.band,
            asked.models,
            self._now(),
            asked.expires_at,
            note=asked.note,
        )

        def change(db: Database) -> Changed[Created | Declined]:
            if not new_tenant and (problem := _unknown_tenant(db, record.tenant)):
                return problem, []
            self._add(db, by, "keys.create", [record], why)
            return Created(record, secret_key), [record]

        return await self._commit(change)

    async def list(self) -> Sequence[KeyRecord]:
        """Every key ever made, oldest first, revoked ones too."""
        return await self._store.read(rows.every)

    async def tenants(self) -> Sequence[tuple[str, float]]:
        """Name, when made (wall-clock seconds)."""
        return await self._store.read(rows.tenants)

    async def revoke(self, by: Operator, id_or_prefix: str, why: str = "") -> KeyRecord | Declined:
        """Refused to every new request when this returns; running streams go on.

        Takes an id, the beginning of one, the shown characters, the whole key or
        ``sha256:<hex>`` of it. Revoking twice is fine.
        """

        def change(db: Database) -> Changed[KeyRecord | Declined]:
            found = _the_one(db, id_or_prefix)
            if isinstance(found, Declined) or found.revoked_at is not None:
                return found, []
            revoked = evolve(found, revoked_at=self._now())
            rows.revoke(db, found.id, self._now())
            self._note(db, by, "keys.revoke", revoked, why, before=found)
            return revoked, [revoked]

        return await self._commit(change)

    async def import_keys(
        self,
        by: Operator,
        entries: Sequence[KeyEntry],
        *,
        known_models: Collection[str] | None = None,
        why: str = "",
    ) -> Imported | Declined:
        """Keys brought from elsewhere, all or none; tenants they name are made."""
        ids = [new_id(self._chance(16)) for _ in entries]
        records = imported(entries, ids, self._now(), known_models)
        if isinstance(records, Declined):
            return records

        def change(db: Database) -> Changed[Imported | Declined]:
            if problem := _already_here(db, records):
                return problem, []
            had = {name for name, _ in rows.tenants(db.conn)}
            self._add(db, by, "keys.import", records, why)
            return Imported(tuple(records), tuple(sorted({r.tenant for r in records} - had))), records

        return await self._commit(change)

    async def _commit(self, change: Callable[[Database], Changed[T]]) -> T:
        def whole(db: Database) -> tuple[T, Sequence[KeyRecord], int]:
            result, changed = change(db)
            return result, changed, rows.raise_revision(db.conn) if changed else 0

        async with self._turn:
            result, changed, revision = await self._store.write(whole)
            if changed:
                self._publish(changed, revision)
        return result

    def _publish(self, changed: Sequence[KeyRecord], revision: int) -> None:
        ring = dict(self.ring.by_digest)
        for record in changed:
            if record.revoked_at is None:
                ring[record.digest] = record
            else:
                ring.pop(record.digest, None)
        # Somebody else's change lies between: keep the old number, and ``follow`` reads everything again.
        seen = revision if revision == self.ring.revision + 1 else self.ring.revision
        self.ring = KeyRing(ring, seen)

    async def _reload(self) -> None:
        async with self._turn:
            records, revision = await self._store.read(rows.unrevoked)
            self.ring = KeyRing({r.digest: r for r in records}, revision)

    def _add(self, db: Database, by: Operator, what: str, records: Sequence[KeyRecord], why: str) -> None:
        rows.add_tenants(db, {r.tenant for r in records}, self._now())
        rows.add(db, records)
        for record in records:
            self._note(db, by, what, record, why)

    def _note(
        self, db: Database, by: Operator, what: str, after: KeyRecord, why: str, before: KeyRecord | None = None
    ) -> None:
        shows = as_json(before) if before else None
        audit.note(db, audit.Act(self._now(), by.name, str(by.role), what, after.id, why, shows, as_json(after)))


def _unknown_tenant(db: Database, tenant: str) -> Declined | None:
    known = [name for name, _ in rows.tenants(db.conn)]
    if tenant in known:
        return None
    hint = f"{meant(tenant, known)}; to make it, say --new-tenant (new_tenant: true)"
    return Declined("unknown_tenant", f"no tenant is called {tenant!r}", hint)


def _the_one(db: Database, text: str) -> KeyRecord | Declined:
    whole = rows.by_digest(db.conn, digest_in(text) or digest(text))
    enough = len(text) >= PREFIX_MIN and text.isprintable()
    found = [whole] if whole else rows.matching(db.conn, text) if enough else []
    match found:
        case [record]:
            return record
        case []:
            return Declined("not_found", f"no key {shown(text)!r}", "`llmgw ctl keys list` names them")
        case _:
            some = ", ".join(r.id for r in found[:5])
            return Declined("ambiguous", f"{len(found)} keys begin like that: {some}", "give a whole id")


def _already_here(db: Database, records: Sequence[KeyRecord]) -> Declined | None:
    there = [(n, rows.by_digest(db.conn, r.digest)) for n, r in enumerate(records, start=1)]
    problems = [f"entry {n}: is here already as {had.id} of {had.tenant!r}" for n, had in there if had]
    return nothing_imported(problems, "duplicate") if problems else None
