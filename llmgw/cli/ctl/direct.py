"""The part of the admin API that needs no running gateway, on the store itself.

The data lock is taken for each question, so no daemon can start in the middle of a change.
"""

import getpass
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar
from urllib.parse import unquote

import trio

from llmgw.cli.ctl.session import nobody_runs
from llmgw.cli.ctl.show import say
from llmgw.cli.failure import BY_CODE, Exit, Failure
from llmgw.control import key_entries, tokens
from llmgw.control.key_entries import KeyEntry, key_entry
from llmgw.control.keys import Keys
from llmgw.control.tokens import Tokens
from llmgw.core.identity import Declined, Operator, Role
from llmgw.store import audit
from llmgw.store.errors import DataLocked, StoreMoved, StoreUnavailable
from llmgw.store.face import Store
from llmgw.store.opening import opened
from llmgw.store.place import Place

T = TypeVar("T")


class DirectApi:
    def __init__(self, where: Place, models: Collection[str] | None) -> None:
        self.where = where
        self.models = models
        self._me = Operator(f"{_user()} (no daemon)", Role.ADMIN)

    def ask(self, method: str, path: str, params: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        head, _, name = path.strip("/").partition("/")
        answer = self._answers().get((method, head, bool(name)))
        if answer is None:
            raise nobody_runs(self.where)
        fresh = not self.where.url and not self.where.database.exists()
        if fresh and method != "POST":  # a first key or token may make the store, a question or a typing error not
            hint = "check --data-dir or --config; `llmgw server` and `llmgw ctl keys create` make a new store"
            raise Failure(f"there is no store in {self.where.database.parent}", Exit.NOT_FOUND, hint)
        made = f"a new store was made in {self.where.database.parent}"
        try:
            told = self._told(answer, unquote(name), body or {}, params or {})
        except Failure as failure:
            if fresh and self.where.database.exists():
                failure.hint = "; ".join(filter(None, (failure.hint, made)))
            raise
        if fresh:
            say(made)
        return told

    def _told(self, answer: "_Answer", name: str, body: Any, params: Mapping[str, Any]) -> Any:
        try:
            return trio.run(self._on_the_store, answer, name, body, params)
        except DataLocked as error:
            raise Failure(str(error), Exit.RUNNING) from error
        except StoreMoved as error:
            raise Failure(str(error), Exit.USAGE) from error
        except StoreUnavailable as error:
            raise Failure(str(error), Exit.FAILED) from error

    def stream(
        self, path: str, params: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AbstractContextManager[Iterator[bytes]]:
        raise nobody_runs(self.where)

    def close(self) -> None:
        """Nothing stays open between two questions."""

    def _answers(self) -> "dict[tuple[str, str, bool], _Answer]":
        return {
            ("GET", "keys", False): self._keys,
            ("POST", "keys", False): self._create_key,
            ("POST", "keys", True): self._import_keys,
            ("DELETE", "keys", True): self._revoke_key,
            ("GET", "tenants", False): self._tenants,
            ("GET", "tokens", False): self._tokens,
            ("POST", "tokens", False): self._create_token,
            ("DELETE", "tokens", True): self._revoke_token,
            ("GET", "audit", False): self._audit,
        }

    async def _on_the_store(self, answer: "_Answer", name: str, body: Any, params: Mapping[str, Any]) -> Any:
        async with opened(self.where, starts=False) as store:
            return await answer(store, name, body, params)

    async def _keys(self, store: Store, _: str, body: Any, params: Mapping[str, Any]) -> Any:
        return {"keys": [key_entries.as_json(k) for k in await (await Keys.load(store)).list()]}

    async def _create_key(self, store: Store, _: str, body: Any, params: Mapping[str, Any]) -> Any:
        new_tenant, why = body.pop("new_tenant", False), body.pop("why", "")
        entry, keys = _good(key_entry(body)), await Keys.load(store)
        made = await keys.create(self._me, entry, new_tenant=new_tenant, known_models=self.models, why=why)
        created = _good(made)
        return {"key": created.secret_key, "record": key_entries.as_json(created.record)}

    async def _import_keys(self, store: Store, _: str, body: Any, params: Mapping[str, Any]) -> Any:
        entries: list[KeyEntry] = [_good(key_entry(raw, with_key=True)) for raw in body["entries"]]
        keys = await Keys.load(store)
        done = _good(await keys.import_keys(self._me, entries, known_models=self.models, why=body.get("why", "")))
        records = [key_entries.as_json(r) for r in done.records]
        return {"imported": len(records), "new_tenants": list(done.new_tenants), "records": records}

    async def _revoke_key(self, store: Store, name: str, body: Any, params: Mapping[str, Any]) -> Any:
        keys = await Keys.load(store)
        return {"record": key_entries.as_json(_good(await keys.revoke(self._me, name, params.get("why", ""))))}

    async def _tenants(self, store: Store, _: str, body: Any, params: Mapping[str, Any]) -> Any:
        found = await (await Keys.load(store)).tenants()
        return {"tenants": [{"name": name, "created_at": at} for name, at in found]}

    async def _tokens(self, store: Store, _: str, body: Any, params: Mapping[str, Any]) -> Any:
        return {"tokens": [tokens.as_json(t) for t in await (await Tokens.load(store)).list()]}

    async def _create_token(self, store: Store, _: str, body: Any, params: Mapping[str, Any]) -> Any:
        made = await (await Tokens.load(store)).create(self._me, body["name"], Role(body["role"]), body.get("why", ""))
        created = _good(made)
        return {"token": created.token, "record": tokens.as_json(created.record)}

    async def _revoke_token(self, store: Store, name: str, body: Any, params: Mapping[str, Any]) -> Any:
        revoked = await (await Tokens.load(store)).revoke(self._me, name, params.get("why", ""))
        return {"record": tokens.as_json(_good(revoked))}

    async def _audit(self, store: Store, _: str, body: Any, params: Mapping[str, Any]) -> Any:
        acts = await store.read(lambda conn: audit.recent(conn, int(params.get("limit", 100))))
        return {"audit": [audit.as_json(act) for act in acts]}


_Answer = Callable[[Store, str, Any, Mapping[str, Any]], Awaitable[Any]]


def _good(result: T | Declined) -> T:
    if isinstance(result, Declined):
        raise Failure(result.message, BY_CODE.get(result.code, Exit.FAILED), result.hint, result.code)
    return result


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"
