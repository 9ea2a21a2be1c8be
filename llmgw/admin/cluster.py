"""Nodes, replicas, what is wanted, and why: the cluster's part of the management API."""

from typing import Any

from quart import Blueprint, g, request

from llmgw.admin.applying import act_of, note_applied
from llmgw.admin.gatekeeping import (
    Gatekeeper,
    Problem,
    body,
    done,
    explanation_json,
    flag,
    listing,
    number,
    text_in,
    why_asked,
    why_in,
)
from llmgw.admin.leadership import not_leading
from llmgw.admin.services import AdminServices, ClusterServices
from llmgw.control import joining, node_views
from llmgw.control.nearest import meant
from llmgw.core.explain import Explanation
from llmgw.core.identity import Role
from llmgw.store import decisions

DECISIONS_MAX = 1000
HISTORY_MAX = 500
LOG_MAX = 1024**2
LOG_USUAL = 64 * 1024
SHARD_MAX = 1024
NODES_AT_ONCE = 25  # each with all that is known of its GPUs


def add_routes(api: Blueprint, services: AdminServices, keeper: Gatekeeper) -> None:
    cluster = services.cluster
    _nodes(api, cluster, keeper)
    _joining(api, cluster, keeper)
    _replicas(api, cluster, keeper)
    _explanations(api, services, keeper)
    _desired(api, services, keeper)


def _nodes(api: Blueprint, cluster: ClusterServices, keeper: Gatekeeper) -> None:
    @api.get("/nodes")
    @keeper.needs(Role.VIEWER)
    async def nodes() -> Any:
        found, unhealthy = node_views.nodes_json(cluster.cluster), flag("unhealthy")
        return await listing("nodes", (one for one in found if not (unhealthy and one["healthy"])), batch=NODES_AT_ONCE)

    @api.get("/nodes/<name>")
    @keeper.needs(Role.VIEWER)
    async def node(name: str) -> Any:
        found = node_views.node_json(cluster.cluster, name)
        if found is None:
            raise unknown_node(cluster, name)
        return {"node": found}

    @api.delete("/nodes/<name>")
    @keeper.needs(Role.OPERATOR)
    async def remove(name: str) -> Any:
        gone = done(await cluster.joining.remove(g.operator, name, why_asked()))
        return {"node": joining.as_json(gone)}

    @api.post("/nodes/<name>/lost")
    @keeper.needs(Role.OPERATOR)
    async def lost(name: str) -> Any:
        why = why_in(await body("why"))
        given_up = done(await cluster.joining.give_up(g.operator, name, why))
        said = f"{name} was given up by {g.operator.name}" + (f": {why}" if why else "")
        cluster.events.tell("node.lost", name, said)
        cluster.cluster.wake()
        return {"node": joining.as_json(given_up)}

    @api.post("/nodes/<name>/gpus/<which>/clear")
    @keeper.needs(Role.OPERATOR)
    async def clear_gpu(name: str, which: str) -> Any:
        asked = await body("cause", "why")
        cause, why = text_in(asked, "cause"), why_in(asked)
        if not cause:
            raise Problem(400, "field", "cause is missing", "write it as it is shown, like xid 79")
        return {"gpu": done(await cluster.acting.clear_gpu(g.operator, name, which, cause, why)), "cause": cause}


def _joining(api: Blueprint, cluster: ClusterServices, keeper: Gatekeeper) -> None:
    @api.get("/invitations")
    @keeper.needs(Role.ADMIN)
    async def invitations() -> Any:
        return await listing("invitations", await cluster.joining.invitations(), joining.token_as_json)

    @api.post("/invitations")
    @keeper.needs(Role.ADMIN)
    async def invite() -> Any:
        asked = await body("valid_s", "uses_max", "why")
        valid_s, uses = asked.get("valid_s", joining.VALID_S), asked.get("uses_max", 0)
        if not isinstance(valid_s, int | float) or isinstance(valid_s, bool):
            raise Problem(400, "field", "valid_s must be a number of seconds")
        if not isinstance(uses, int) or isinstance(uses, bool):
            raise Problem(400, "field", "uses_max must be a whole number; 0: any number")
        made = done(await cluster.joining.invite(g.operator, float(valid_s), uses, why_in(asked)))
        record = joining.token_as_json(made.record)
        return {"token": made.token.text, "record": record, "server": cluster.agent_address()}, 201

    @api.delete("/invitations/<id>")
    @keeper.needs(Role.ADMIN)
    async def revoke(id: str) -> Any:
        gone = done(await cluster.joining.revoke(g.operator, id, why_asked()))
        return {"record": joining.token_as_json(gone)}


def _replicas(api: Blueprint, cluster: ClusterServices, keeper: Gatekeeper) -> None:
    @api.get("/replicas")
    @keeper.needs(Role.VIEWER)
    async def replicas() -> Any:
        model = request.args.get("model", "")
        found = node_views.replicas_json(cluster.cluster, model)
        if not model:
            return await listing("replicas", found)
        its = list(found)
        if not its and model not in cluster.desired.wants:
            raise _unknown_replica(cluster, model)
        return await listing("replicas", its)

    @api.get("/replicas/<name>/logs")
    @keeper.needs(Role.VIEWER)
    async def logs(name: str) -> Any:
        rank, most = number("shard", 0, SHARD_MAX, least=0), number("bytes", LOG_USUAL, LOG_MAX)
        row = cluster.cluster.rows.get(name)
        if row is None:
            raise _unknown_replica(cluster, name)
        found = node_views.find_shard(cluster.cluster, name, rank)
        if found is None:
            there = ", ".join(str(shard.rank) for shard in row.shards)
            hint = f"it has {there}" if there else f"it has no place now; llmgw ctl explain placement {name}"
            raise Problem(404, "not_found", f"{name} has no shard {rank}", hint)
        node, instance = found
        answer = await cluster.cluster.registry.ask_logs(node, instance, most)
        age_s = None if answer.age_ms is None else round(answer.age_ms / 1000, 1)
        told: dict[str, Any] = {"instance": instance, "node": node, "text": answer.text, "age_s": age_s}
        told["error"] = answer.error
        if answer.error and (tail := node_views.tail_of(cluster.cluster, node, instance)) is not None:
            told |= {"text": tail[0], "age_s": round(tail[1], 1)}
        return told

    @api.post("/restart/<path:subject>")
    @keeper.needs(Role.OPERATOR)
    async def restart(subject: str) -> Any:
        why = why_in(await body("why"))
        return {"replicas": list(done(await cluster.acting.restart(g.operator, subject, why)))}, 202

    @api.get("/decisions")
    @keeper.needs(Role.VIEWER)
    async def decided() -> Any:
        limit, subject = number("limit", 50, DECISIONS_MAX), request.args.get("subject", "")
        found = await cluster.store.read(lambda conn: decisions.recent(conn, limit, subject))
        return await listing("decisions", found, _decision)


def _decision(one: decisions.Decision) -> dict[str, Any]:
    return {"id": one.id, "at": one.at, "kind": one.kind, "subject": one.subject, "model": one.model,
            "verdict": one.verdict}  # fmt: skip


def _explanations(api: Blueprint, services: AdminServices, keeper: Gatekeeper) -> None:
    cluster = services.cluster

    @api.get("/explain/placement/<path:subject>")
    @keeper.needs(Role.VIEWER)
    async def explain_placement(subject: str) -> Any:
        said = done(await cluster.explaining.placement(subject, request.args.get("what_if", "")))
        return explanation_json(said) if isinstance(said, Explanation) else said

    @api.get("/explain/node/<name>")
    @keeper.needs(Role.VIEWER)
    async def explain_node(name: str) -> Any:
        return explanation_json(done(cluster.explaining.node(name)))

    @api.get("/explain/gpu/<name>/<which>")
    @keeper.needs(Role.VIEWER)
    async def explain_gpu(name: str, which: str) -> Any:
        leader = services.leadership.standby_of()
        if leader is not None:  # nodes tell of their GPUs to the leader alone, and none of it is stored
            raise not_leading(leader.name, leader.admin)
        return explanation_json(done(cluster.explaining.gpu(name, which)))


def _desired(api: Blueprint, services: AdminServices, keeper: Gatekeeper) -> None:
    cluster = services.cluster

    @api.get("/history")
    @keeper.needs(Role.VIEWER)
    async def history() -> Any:
        found = await cluster.desired.history(number("limit", 50, HISTORY_MAX))
        return await listing("revisions", found, cluster.revision_json)

    @api.post("/rollback")
    @keeper.needs(Role.OPERATOR)
    async def rollback() -> Any:
        asked = await body("revision", "why")
        number_ = asked.get("revision")
        if not isinstance(number_, int) or isinstance(number_, bool):
            raise Problem(400, "field", "revision must be a number", "`llmgw ctl history` lists them")
        who, why = g.operator, why_in(asked)
        to = done(await cluster.desired.find(number_))
        applied = await cluster.roll_back(to, who, why)
        act = act_of(applied, services.now(), who.name, str(who.role), "config.rollback", why)
        await note_applied(services.store, services.report, act, g.request_id)
        if applied.problems:
            message = f"revision {number_} can't be put in force; the one before stays"
            raise Problem(422, "config", message, problems=list(applied.problems))
        return applied.as_json()

    @api.put("/models/<path:model>/scale")
    @keeper.needs(Role.OPERATOR)
    async def scale(model: str) -> Any:
        asked = await body("replicas", "why")
        replicas = asked.get("replicas")
        whole = isinstance(replicas, int) and not isinstance(replicas, bool)
        if "replicas" not in asked or not (whole or replicas is None):
            raise Problem(400, "field", "replicas must be a whole number, or null for what is written")
        want = done(await cluster.desired.scale(g.operator, model, replicas, why_in(asked)))
        said = f"{model} is scaled to {want.replicas} by {g.operator.name}"
        if replicas is None:
            said = f"{model} has {want.replicas} again, as is written, says {g.operator.name}"
        cluster.events.tell("model.scaled", model, said, replicas=want.replicas)
        return {"model": model, "replicas": want.replicas, "scaled": want.scaled, "min": want.least, "max": want.most}


def _unknown_replica(cluster: ClusterServices, name: str) -> Problem:
    there = [*cluster.cluster.rows, *cluster.desired.wants]
    hint = meant(name, there) if there else "no model has a [models.engine]"
    return Problem(404, "not_found", f"agents run no replica or model {name[:128]!r}", hint)


def unknown_node(cluster: ClusterServices, name: str) -> Problem:
    there = list(cluster.joining.nodes)
    hint = meant(name, there) if there else "there are none: llmgw ctl nodes invite"
    return Problem(404, "not_found", f"no node is called {name[:128]!r}", hint)
