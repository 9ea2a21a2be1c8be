"""Who may come in: join tokens, and the nodes that joined with one. Digests in the store, a snapshot in memory."""

import hmac
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import trio
from attrs import define, evolve, field, frozen

from llmgw.control.nearest import meant
from llmgw.core.drain import Aim, Drain, Target
from llmgw.core.identity import Declined, Operator, Role, digest, new_key
from llmgw.core.joining import (
    CREDENTIAL_PREFIX,
    JOIN_PREFIX,
    Admitted,
    Joined,
    JoinToken,
    JoinTokenRecord,
    NodeRecord,
    Unwelcome,
    may_be_named,
    new_join_token,
    read_join_token,
)
from llmgw.store import audit
from llmgw.store import join_tokens as tokens
from llmgw.store import nodes as rows
from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Database, Written
from llmgw.wire.agent_joining import JoinAsked

T = TypeVar("T")
FOLLOW_S = 0.5
VALID_S = 24 * 3600.0
VALID_MAX_S = 365 * 24 * 3600.0
TOKENS_MAX = 1000
NODES_MAX = 5000  # removed ones included
OLD_S = 30 * 24 * 3600.0  # tokens that were over for so long are forgotten
NOT_OURS = "this credential is not known here; join again with a token from `llmgw ctl nodes invite`"
NO_JOIN = "this join token is not known here; ask for one with `llmgw ctl nodes invite`"


_IN_USE = (
    "a node {name} is linked now: give this machine another --name, or stop the agent on that one first"
    " (its engines run on, and are adopted by whoever joins as {name})"
)


@frozen
class Invited:
    record: JoinTokenRecord
    token: JoinToken = field(repr=False)  # its text is shown once


def _nothing(node: str, why: str) -> None: ...


@define(eq=False)
class Joining:
    """Made by ``await Joining.load(store, ca)``; ``follow`` is a service.

    ``ca`` gives the digits of the CA that agents pin, empty without one. ``on_ended`` hears at once of a node
    whose credential counts no more, with the reason: its link must end.
    """

    _store: Written = field(repr=False)
    _ca: Callable[[], str] = field(repr=False)
    _now: Callable[[], float] = field(repr=False)
    _chance: Callable[[int], bytes] = field(repr=False)
    on_ended: Callable[[str, str], None] = field(default=_nothing, repr=False)
    is_linked: Callable[[str], bool] = field(default=lambda name: False, repr=False)  # a node of that name, now
    nodes: Mapping[str, NodeRecord] = field(factory=dict, init=False)  # those that belong here, by name
    _by_credential: Mapping[bytes, Admitted | Unwelcome] = field(factory=dict, init=False, repr=False)
    _tokens: Mapping[str, JoinTokenRecord] = field(factory=dict, init=False, repr=False)
    _revision: int = field(default=0, init=False)
    _turn: trio.Lock = field(factory=trio.Lock, init=False, repr=False)

    @classmethod
    async def load(
        cls,
        store: Written,
        ca: Callable[[], str],
        now: Callable[[], float] = time.time,
        chance: Callable[[int], bytes] = os.urandom,
    ) -> "Joining":
        joining = cls(store, ca, now, chance)
        await joining.read_again()
        return joining

    # -- the door ---------------------------------------------------------------------------------------

    def authenticate(self, credential: str) -> Admitted | Unwelcome:
        """Whose credential that is. Compared by digest, so its timing tells nothing."""
        return self._by_credential.get(digest(credential), Unwelcome(NOT_OURS))

    def may_ask_for_ca(self, public: str) -> Unwelcome | None:
        """``public``: a join token without its secret."""
        record = self._tokens.get(public.removeprefix(JOIN_PREFIX)) if public.startswith(JOIN_PREFIX) else None
        why = record.why_not(self._now()) if record else NO_JOIN
        return Unwelcome(why) if why else None

    async def join(self, text: str, asked: JoinAsked) -> Joined | Unwelcome:
        """A node comes in, or comes again: then its old credential counts no more, and all else of it stays."""
        token = read_join_token(text)
        if token is None or token.id not in self._tokens:
            return Unwelcome(NO_JOIN)
        if not may_be_named(asked.node):
            return Unwelcome(f"{asked.node[:80]!r} is no name for a node: 1 to 63 letters, digits, '.', '_' or '-'")
        if self.is_linked(asked.node):
            return Unwelcome(_IN_USE.format(name=asked.node))
        credential = new_key(self._chance(32), CREDENTIAL_PREFIX)
        node = NodeRecord(
            asked.node, digest(credential), self._now(), token.id, dict(asked.labels), asked.address, asked.boot,
            asked.version,
        )  # fmt: skip

        def change(db: Database) -> Joined | Unwelcome:
            why = self._why_not(db, token, node.name)
            if why:
                return Unwelcome(why)
            again = rows.find(db.conn, node.name)
            tokens.use(db, token.id)
            rows.save(db, node)
            self._note(db, Operator(f"join token {token.id}", Role.ADMIN), "nodes.join", node.name, "",
                       before=as_json(again) if again else None, after=as_json(node))  # fmt: skip
            return Joined(self._store.cluster_id, node.name, credential)

        try:
            return await self._commit(change)
        except StoreUnavailable as error:
            return Unwelcome(f"nobody can join now: {error}")

    def _why_not(self, db: Database, token: JoinToken, name: str) -> str:
        record = tokens.find(db.conn, token.id)
        if record is None or not hmac.compare_digest(record.digest, digest(token.secret)):
            return NO_JOIN
        full = rows.find(db.conn, name) is None and len(rows.every(db.conn, removed=True)) >= NODES_MAX
        return record.why_not(self._now()) or (
            f"there are {NODES_MAX} nodes, which is all there may be" if full else ""
        )

    # -- operators --------------------------------------------------------------------------------------

    async def invite(
        self, by: Operator, valid_s: float = VALID_S, uses_max: int = 0, why: str = ""
    ) -> Invited | Declined:
        """A new join token; shown once."""
        ca = self._ca()
        if not ca:
            return Declined("no_ca", "there is no CA that agents could pin", "run `llmgw certs init` and restart")
        if not 0 < valid_s <= VALID_MAX_S or uses_max < 0:
            return Declined("invalid", "a join token is valid for up to a year, and for 0 (any number) or more uses")
        token = new_join_token(self._chance(32), self._chance(32), ca)
        now = self._now()
        record = JoinTokenRecord(token.id, digest(token.secret), now, by.name, now + valid_s, uses_max=uses_max)

        def change(db: Database) -> Invited | Declined:
            tokens.forget(db, now - OLD_S)
            if len(tokens.every(db.conn)) >= TOKENS_MAX:
                return Declined("too_many", f"there are {TOKENS_MAX} join tokens", "revoke some")
            tokens.add(db, record)
            self._note(db, by, "nodes.invite", token.id, why, after=token_as_json(record))
            return Invited(record, token)

        return await self._commit(change)

    async def invitations(self) -> Sequence[JoinTokenRecord]:
        return await self._store.read(tokens.every)

    async def revoke(self, by: Operator, id: str, why: str = "") -> JoinTokenRecord | Declined:
        """Nobody joins with it any more; who did stays."""

        def change(db: Database) -> JoinTokenRecord | Declined:
            short = id.removeprefix(JOIN_PREFIX)
            found = tokens.find(db.conn, short)
            if found is None:
                there = [token.id for token in tokens.every(db.conn)]
                return Declined("not_found", f"no join token has the id {short!r}", meant(short, there))
            tokens.revoke(db, short, self._now())
            self._note(db, by, "nodes.revoke_invitation", short, why, before=token_as_json(found))
            return evolve(found, revoked_at=found.revoked_at or self._now())

        return await self._commit(change)

    async def remove(self, by: Operator, name: str, why: str = "") -> NodeRecord | Declined:
        """Its link ends and it is refused by name; its engines run on until somebody stops them there."""

        def change(db: Database) -> NodeRecord | Declined:
            found = rows.find(db.conn, name)
            if found is None or found.removed_at is not None:
                there = [node.name for node in rows.every(db.conn)]
                return Declined("not_found", f"no node is called {name!r}", meant(name, there))
            rows.remove(db, name, self._now(), why)
            self._note(db, by, "nodes.remove", name, why, before=as_json(found))
            return found

        return await self._commit(change)

    async def give_up(self, by: Operator, name: str, why: str = "") -> NodeRecord | Declined:
        """It will not come back: what ran there counts as lost, and its claims are let go."""

        def change(db: Database) -> NodeRecord | Declined:
            found = rows.find(db.conn, name)
            if found is None or found.removed_at is not None:
                there = [node.name for node in rows.every(db.conn)]
                return Declined("not_found", f"no node is called {name!r}", meant(name, there))
            rows.give_up(db, name, self._now())
            self._note(db, by, "nodes.lost", name, why, before=as_json(found))
            return evolve(found, given_up_at=self._now())

        return await self._commit(change)

    async def aim(
        self, by: Operator, name: str, target: str, why: str, drain: Drain | None, again: Aim | None = None
    ) -> None:
        """What is asked of a node; it must be there. ``again``: what was asked before and holds again."""
        asked = again or Aim(Target(target), by.name, self._now(), why)

        def change(db: Database) -> None:
            before = rows.find(db.conn, name)
            rows.aim(db, name, target, asked.by, asked.at, asked.why, drain)
            self._note(db, by, "nodes.target", name, why, before=before.target if before else None, after=target)

        await self._commit(change)

    async def note_drain(self, name: str, drain: Drain) -> None:
        """How far it has got."""

        def change(db: Database) -> None:
            rows.note_drain(db, name, drain)

        await self._commit(change)

    async def came_back(self, name: str) -> None:
        """One that was given up reports again."""

        def change(db: Database) -> None:
            rows.give_up(db, name, None)

        await self._commit(change)

    # -- the snapshot -----------------------------------------------------------------------------------

    async def follow(self, every_s: float = FOLLOW_S) -> NoReturn:
        """Service: take up what another process changed."""
        while True:
            await trio.sleep(every_s)
            try:
                if await self._store.read(rows.revision) != self._revision:
                    await self.read_again()
            except StoreUnavailable:
                continue  # go on with what is known; Keys.stale tells of it

    async def _commit(self, change: Callable[[Database], T]) -> T:
        def whole(db: Database) -> tuple[T, "_Rows"]:
            result = change(db)
            revision = (
                rows.revision(db.conn) if isinstance(result, Declined | Unwelcome) else rows.raise_revision(db.conn)
            )
            return result, (revision, rows.every(db.conn, removed=True), tokens.every(db.conn))

        async with self._turn:
            result, there = await self._store.write(whole)
            self._publish(*there)
        return result

    async def read_again(self) -> None:
        """Take up what another process changed. Raises StoreUnavailable."""
        async with self._turn:
            revision = await self._store.read(rows.revision)
            there = await self._store.read(lambda conn: rows.every(conn, removed=True))
            self._publish(revision, there, await self._store.read(tokens.every))

    def _publish(self, revision: int, there: Sequence[NodeRecord], invited: Sequence[JoinTokenRecord]) -> None:
        known: dict[bytes, Admitted | Unwelcome] = {}
        for node in there:
            if node.replaced is not None:
                known[node.replaced] = Unwelcome(f"{node.name} has joined again since, with another credential")
        for node in there:
            gone = node.removed_at is not None
            known[node.credential] = Unwelcome(_removed(node.name, node.removed_why)) if gone else Admitted(node.name)
        before = {name: known.get(node.credential) for name, node in self.nodes.items()}
        self.nodes = {node.name: node for node in there if node.removed_at is None}
        self._by_credential, self._revision = known, revision
        self._tokens = {token.id: token for token in invited}
        for name, said in before.items():
            if isinstance(said, Unwelcome):
                self.on_ended(name, said.why)

    def _note(
        self, db: Database, by: Operator, what: str, name: str, why: str, before: Any = None, after: Any = None
    ) -> None:
        audit.note(db, audit.Act(self._now(), by.name, str(by.role), what, name, why, before, after))


_Rows = tuple[int, Sequence[NodeRecord], Sequence[JoinTokenRecord]]


def _removed(name: str, why: str) -> str:
    return f"{name} was removed from the cluster" + (f" ({why})" if why else "")


def as_json(node: NodeRecord) -> dict[str, Any]:
    """Without its credential."""
    shown = ("name", "joined_at", "joined_with", "address", "boot", "version", "target", "target_by", "target_at",
             "target_why", "seen_at", "given_up_at")  # fmt: skip
    return {key: getattr(node, key) for key in shown} | {"labels": dict(node.labels)}


def token_as_json(token: JoinTokenRecord) -> dict[str, Any]:
    shown = ("id", "created_at", "created_by", "expires_at", "revoked_at", "uses_max", "uses")
    return {key: getattr(token, key) for key in shown}
