"""The management API, exactly what ``llmgw ctl`` and the console use."""

from typing import Any

import trio
from attrs import asdict
from quart import Blueprint, g, request

from llmgw.admin import cluster, feed, leadership, snapshot, targets, waiting
from llmgw.admin.applying import act_of, note_applied
from llmgw.admin.gatekeeping import (
    BATCH,
    Gatekeeper,
    Problem,
    body,
    done,
    explanation_json,
    flag,
    listing,
    number,
    seconds,
    text_in,
    why_asked,
    why_in,
)
from llmgw.admin.services import AdminServices, Applied
from llmgw.control import key_entries, tokens
from llmgw.control.keys import Imported
from llmgw.core.identity import Declined, Role
from llmgw.store import accounts, audit
from llmgw.store.audit import Act
from llmgw.telemetry.traffic import BOUNDS_S

_DAY_S = 86400.0
REQUESTS_MAX = 1_000
ACCOUNTS_MAX = 1_000  # each with up to 50 whole requests
FILE_NAME_MAX = 256


def management(services: AdminServices, keeper: Gatekeeper) -> Blueprint:
    api = Blueprint("management", __name__)
    _keys(api, services, keeper)
    _tokens(api, services, keeper)
    _fleet(api, services, keeper)
    _requests(api, services, keeper)
    waiting.add_routes(api, services, keeper)
    leadership.add_routes(api, services, keeper)
    return api


def of_the_cluster(services: AdminServices, keeper: Gatekeeper) -> Blueprint:
    """What only the leader decides, and knows best."""
    api = leadership.of_the_leader(services, keeper)

    @api.get("/models")
    @keeper.needs(Role.VIEWER)
    async def models() -> Any:
        return {"models": services.models()}

    _applying(api, services, keeper)
    cluster.add_routes(api, services, keeper)
    targets.add_routes(api, services, keeper)
    feed.add_routes(api, services, keeper)
    snapshot.add_routes(api, services, keeper)
    return api


def _keys(api: Blueprint, services: AdminServices, keeper: Gatekeeper) -> None:
    keys = services.keys

    @api.get("/keys")
    @keeper.needs(Role.VIEWER)
    async def list_keys() -> Any:
        return await listing("keys", await keys.list(), key_entries.as_json)

    @api.post("/keys")
    @keeper.needs(Role.OPERATOR)
    async def create_key() -> Any:
        asked = await body("tenant", "band", "models", "expires_at", "note", "new_tenant", "why")
        new_tenant, why = asked.pop("new_tenant", False), why_in(asked)
        asked.pop("why", None)
        if not isinstance(new_tenant, bool):
            raise Problem(400, "field", "new_tenant must be true or false")
        entry = done(key_entries.key_entry(asked))
        names = services.model_names()
        made = done(await keys.create(g.operator, entry, new_tenant=new_tenant, known_models=names, why=why))
        return {"key": made.secret_key, "record": key_entries.as_json(made.record)}, 201

    @api.post("/keys/import")
    @keeper.needs(Role.OPERATOR)
    async def import_keys() -> Any:
        asked = await body("entries", "why")
        entries, why = await _entries(asked.get("entries")), why_in(asked)
        names = services.model_names()
        brought: Imported = done(await keys.import_keys(g.operator, entries, known_models=names, why=why))
        shown = [key_entries.as_json(record) for record in brought.records]
        return {"records": shown, "new_tenants": list(brought.new_tenants)}, 201

    @api.delete("/keys/<path:id>")
    @keeper.needs(Role.OPERATOR)
    async def revoke_key(id: str) -> Any:
        record = done(await keys.revoke(g.operator, id, why_asked()))
        return {"record": key_entries.as_json(record)}

    @api.get("/tenants")
    @keeper.needs(Role.VIEWER)
    async def tenants() -> Any:
        found = [{"name": name, "created_at": at} for name, at in await keys.tenants()]
        return await listing("tenants", found)


async def _entries(raw: Any) -> list[key_entries.KeyEntry]:
    if not isinstance(raw, list) or not all(isinstance(one, dict) for one in raw):
        raise Problem(400, "field", "entries must be a list of objects")
    entries = []
    for place, one in enumerate(raw, start=1):
        parsed = key_entries.key_entry(one, with_key=True)
        if isinstance(parsed, Declined):
            raise Problem(400, parsed.code, f"entry {place}: {parsed.message}", parsed.hint)
        entries.append(parsed)
        if place % BATCH == 0:
            await trio.lowlevel.checkpoint()
    return entries


def _tokens(api: Blueprint, services: AdminServices, keeper: Gatekeeper) -> None:
    @api.get("/whoami")
    @keeper.needs(Role.VIEWER)
    async def whoami() -> Any:
        return {"name": g.operator.name, "role": str(g.operator.role)}

    @api.get("/tokens")
    @keeper.needs(Role.ADMIN)
    async def list_tokens() -> Any:
        return await listing("tokens", await services.tokens.list(), tokens.as_json)

    @api.post("/tokens")
    @keeper.needs(Role.ADMIN)
    async def create_token() -> Any:
        asked = await body("name", "role", "why")
        try:
            role = Role(text_in(asked, "role"))
        except ValueError:
            raise Problem(400, "field", "role must be viewer, operator or admin") from None
        made = done(await services.tokens.create(g.operator, text_in(asked, "name"), role, why_in(asked)))
        return {"token": made.token, "record": tokens.as_json(made.record)}, 201

    @api.delete("/tokens/<name>")
    @keeper.needs(Role.ADMIN)
    async def revoke_token(name: str) -> Any:
        gone = done(await services.tokens.revoke(g.operator, name, why_asked()))
        return {"record": tokens.as_json(gone)}

    @api.get("/audit")
    @keeper.needs(Role.VIEWER)
    async def audited() -> Any:
        limit = number("limit", 100, 10_000)
        acts = await services.store.read(lambda conn: audit.recent(conn, limit))
        return await listing("audit", acts, audit.as_json)


def _fleet(api: Blueprint, services: AdminServices, keeper: Gatekeeper) -> None:
    @api.get("/endpoints")
    @keeper.needs(Role.VIEWER)
    async def endpoints() -> Any:
        found, model = services.endpoints(), request.args.get("model", "")
        return {"endpoints": _endpoints_of(services, found, model) if model else found}

    @api.get("/status")
    @keeper.needs(Role.VIEWER)
    async def status() -> Any:
        return services.status()

    @api.get("/config")
    @keeper.needs(Role.VIEWER)
    async def config() -> Any:
        return services.config()


def _applying(api: Blueprint, services: AdminServices, keeper: Gatekeeper) -> None:
    @api.post("/apply")
    @keeper.needs(Role.OPERATOR)
    async def apply() -> Any:
        asked = await body("toml", "file", "why", "dry")
        if "toml" not in asked:
            raise Problem(400, "field", "toml is missing", "send the text of a config file")
        text, file, why = text_in(asked, "toml"), text_in(asked, "file"), why_in(asked)
        who, dry = g.operator, asked.get("dry", False)
        if not isinstance(dry, bool):
            raise Problem(400, "field", "dry must be true or false")
        applied = await services.apply(text, who, file[:FILE_NAME_MAX], why, dry)
        if dry:
            return _tried(applied)
        act = act_of(applied, services.now(), who.name, str(who.role), "config.apply", why)
        await note_applied(services.store, services.report, act, g.request_id)
        if applied.problems:
            message = "the config was not applied; the one before stays"
            raise Problem(422, "config", message, problems=list(applied.problems))
        return applied.as_json()


def _tried(applied: Applied) -> dict[str, Any]:
    if applied.problems:
        raise Problem(422, "config", "this config would be refused", problems=list(applied.problems))
    return {"dry": True, **applied.as_json()}


def _endpoints_of(services: AdminServices, found: list[dict[str, Any]], model: str) -> list[dict[str, Any]]:
    """A model's by any of its names; those that leave too, though their model may be gone already."""
    names = {model, *(m["name"] for m in services.models() if model in m.get("aliases", ()))}
    its = [e for e in found if e.get("model") in names or model in e.get("adapters", ())]
    if not its and model not in services.model_names():
        raise waiting.unknown(services, model)
    return its


def _requests(api: Blueprint, services: AdminServices, keeper: Gatekeeper) -> None:
    @api.get("/requests")
    @keeper.needs(Role.VIEWER)
    async def requests() -> Any:
        wanted = {
            "slow": flag("slow"),
            "failed": flag("failed"),
            "tenant": request.args.get("tenant", ""),
            "model": request.args.get("model", ""),
            "limit": number("limit", 50, REQUESTS_MAX),
        }
        return await listing("requests", services.requests(wanted))

    @api.get("/requests/running")
    @keeper.needs(Role.VIEWER)
    async def running_requests() -> Any:
        model, endpoint = request.args.get("model", ""), request.args.get("endpoint", "")
        return await listing("requests", services.running(model, endpoint, number("limit", 200, REQUESTS_MAX)))

    @api.delete("/requests/<id>")
    @keeper.needs(Role.OPERATOR)
    async def cancel_request(id: str) -> Any:
        why = why_asked()
        if not services.cancel(id, g.operator, why):
            raise Problem(404, "not_found", f"no request {id[:64]!r} runs", "`llmgw ctl requests --running` lists them")
        act = Act(services.now(), g.operator.name, str(g.operator.role), "requests.cancel", id, why)
        await note_applied(services.store, services.report, act, g.request_id)
        return {"cancelled": id}

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

    @api.get("/traffic")
    @keeper.needs(Role.VIEWER)
    async def traffic() -> Any:
        since, models = services.traffic()
        return await listing("models", models, since=since, ttft_bounds_s=BOUNDS_S)

    @api.get("/accounts")
    @keeper.needs(Role.VIEWER)
    async def stored_accounts() -> Any:
        since = seconds("since", services.now() - _DAY_S)
        model, limit = request.args.get("model", ""), number("limit", 200, ACCOUNTS_MAX)
        found = await services.store.read(lambda conn: accounts.between(conn, since, services.now(), model, limit))
        return await listing("accounts", found, asdict)


def _unknown_request(id: str) -> Problem:
    return Problem(
        404, "not_found", f"no request {id[:64]!r} is remembered", "the newest are kept: records.requests_max"
    )
