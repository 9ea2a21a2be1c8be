"""The management API, exactly what ``llmgw ctl`` and the console use."""

from typing import Any

from attrs import asdict
from quart import Blueprint, g, request

from llmgw.admin.gatekeeping import Gatekeeper, Problem, body, flag, number
from llmgw.admin.services import AdminServices
from llmgw.control import key_entries, tokens
from llmgw.control.keys import Imported
from llmgw.core.explain import Explanation
from llmgw.core.identity import Declined, Role
from llmgw.store import accounts, audit

_STATUS = {"not_found": 404, "ambiguous": 409, "duplicate": 409}
_DAY_S = 86400.0


def management(services: AdminServices, keeper: Gatekeeper) -> Blueprint:
    api = Blueprint("management", __name__)
    _keys(api, services, keeper)
    _tokens(api, services, keeper)
    _fleet(api, services, keeper)
    _requests(api, services, keeper)
    return api


def _keys(api: Blueprint, services: AdminServices, keeper: Gatekeeper) -> None:
    keys = services.keys

    @api.get("/keys")
    @keeper.needs(Role.VIEWER)
    async def list_keys() -> Any:
        return {"keys": [key_entries.as_json(record) for record in await keys.list()]}

    @api.post("/keys")
    @keeper.needs(Role.OPERATOR)
    async def create_key() -> Any:
        asked = await body("tenant", "band", "models", "expires_at", "note", "new_tenant", "why")
        new_tenant, why = asked.pop("new_tenant", False) is True, str(asked.pop("why", ""))
        entry = done(key_entries.key_entry(asked))
        names = services.model_names()
        made = done(await keys.create(g.operator, entry, new_tenant=new_tenant, known_models=names, why=why))
        return {"key": made.secret_key, "record": key_entries.as_json(made.record)}, 201

    @api.post("/keys/import")
    @keeper.needs(Role.OPERATOR)
    async def import_keys() -> Any:
        asked = await body("entries", "why")
        raw = asked.get("entries")
        if not isinstance(raw, list) or not all(isinstance(one, dict) for one in raw):
            raise Problem(400, "field", "entries must be a list of objects")
        entries = [done(key_entries.key_entry(one, with_key=True)) for one in raw]
        names = services.model_names()
        brought: Imported = done(
            await keys.import_keys(g.operator, entries, known_models=names, why=str(asked.get("why", "")))
        )
        shown = [key_entries.as_json(record) for record in brought.records]
        return {"records": shown, "new_tenants": list(brought.new_tenants)}, 201

    @api.delete("/keys/<path:id>")
    @keeper.needs(Role.OPERATOR)
    async def revoke_key(id: str) -> Any:
        record = done(await keys.revoke(g.operator, id, request.args.get("why", "")))
        return {"record": key_entries.as_json(record)}

    @api.get("/tenants")
    @keeper.needs(Role.VIEWER)
    async def tenants() -> Any:
        return {"tenants": [{"name": name, "created_at": at} for name, at in await keys.tenants()]}


def _tokens(api: Blueprint, services: AdminServices, keeper: Gatekeeper) -> None:
    @api.get("/tokens")
    @keeper.needs(Role.ADMIN)
    async def list_tokens() -> Any:
        return {"tokens": [tokens.as_json(record) for record in await services.tokens.list()]}

    @api.post("/tokens")
    @keeper.needs(Role.ADMIN)
    async def create_token() -> Any:
        asked = await body("name", "role", "why")
        try:
            role = Role(asked.get("role", ""))
        except ValueError:
            raise Problem(400, "field", "role must be viewer, operator or admin") from None
        name, why = str(asked.get("name", "")), str(asked.get("why", ""))
        made = done(await services.tokens.create(g.operator, name, role, why))
        return {"token": made.token, "record": tokens.as_json(made.record)}, 201

    @api.delete("/tokens/<name>")
    @keeper.needs(Role.ADMIN)
    async def revoke_token(name: str) -> Any:
        gone = done(await services.tokens.revoke(g.operator, name, request.args.get("why", "")))
        return {"record": tokens.as_json(gone)}

    @api.get("/audit")
    @keeper.needs(Role.VIEWER)
    async def audited() -> Any:
        limit = number("limit", 100, 10_000)
        acts = await services.store.read(lambda conn: audit.recent(conn, limit))
        return {"audit": [audit.as_json(act) for act in acts]}


def _fleet(api: Blueprint, services: AdminServices, keeper: Gatekeeper) -> None:
    @api.get("/models")
    @keeper.needs(Role.VIEWER)
    async def models() -> Any:
        return {"models": services.models()}

    @api.get("/endpoints")
    @keeper.needs(Role.VIEWER)
    async def endpoints() -> Any:
        return {"endpoints": services.endpoints()}

    @api.get("/status")
    @keeper.needs(Role.VIEWER)
    async def status() -> Any:
        return services.status()

    @api.get("/config")
    @keeper.needs(Role.VIEWER)
    async def config() -> Any:
        return services.config()

    @api.post("/apply")
    @keeper.needs(Role.OPERATOR)
    async def apply() -> Any:
        asked = await body("toml", "why")
        text = asked.get("toml")
        if not isinstance(text, str):
            raise Problem(400, "field", "toml must be the text of a config file")
        applied = await services.apply(text, g.operator)
        if applied.problems:
            raise Problem(
                422, "config", "the config was not applied; the one before stays", problems=list(applied.problems)
            )
        return {"revision": applied.revision, "changes": list(applied.changes)}


def _requests(api: Blueprint, services: AdminServices, keeper: Gatekeeper) -> None:
    @api.get("/requests")
    @keeper.needs(Role.VIEWER)
    async def requests() -> Any:
        wanted = {
            "slow": flag("slow"),
            "failed": flag("failed"),
            "tenant": request.args.get("tenant", ""),
            "model": request.args.get("model", ""),
            "limit": number("limit", 50, 10_000),
        }
        return {"requests": services.requests(wanted)}

    @api.get("/requests/<id>")
    @keeper.needs(Role.VIEWER)
    async def one_request(id: str) -> Any:
        record = services.request(id)
        if record is None:
            raise _unknown_request(id)
        return {"request": record}

    @api.get("/requests/<id>/explanation")
    @keeper.needs(Role.VIEWER)
    async def explanation(id: str) -> Any:
        explained = services.explain_request(id)
        if explained is None:
            raise _unknown_request(id)
        return explanation_json(explained)

    @api.get("/accounts")
    @keeper.needs(Role.VIEWER)
    async def stored_accounts() -> Any:
        try:
            since = float(request.args.get("since", services.now() - _DAY_S))
        except ValueError:
            raise Problem(400, "query", "since must be seconds since 1970") from None
        model, limit = request.args.get("model", ""), number("limit", 200, 10_000)
        found = await services.store.read(lambda conn: accounts.between(conn, since, services.now(), model, limit))
        return {"accounts": [asdict(one) for one in found]}


def explanation_json(explained: Explanation) -> dict[str, Any]:
    return {**asdict(explained), "sentence": str(explained)}


def done(result: Any) -> Any:
    """What was made; a refusal becomes an answer."""
    if isinstance(result, Declined):
        raise Problem(_STATUS.get(result.code, 400), result.code, result.message, result.hint)
    return result


def _unknown_request(id: str) -> Problem:
    return Problem(
        404, "not_found", f"no request {id[:64]!r} is remembered", "the newest are kept: records.requests_max"
    )
