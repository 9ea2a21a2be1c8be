"""``llmgw ctl nodes``: the machines whose agents run engines, who may join, and who has to go."""

import socket
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

import click

from llmgw.cli.ctl.drain_shown import Status, asked, drain_of, shown_with
from llmgw.cli.ctl.keys import why_option
from llmgw.cli.ctl.node_shown import print_node
from llmgw.cli.ctl.session import JSON, CtlCommand, Session, not_empty
from llmgw.cli.ctl.show import Column, drawn, formed, listed, print_json, say, show
from llmgw.cli.ctl.targeting import Subject
from llmgw.cli.ctl.watching import WatchGroup, shown
from llmgw.cli.ctl.when import span_s
from llmgw.core.drain import Target

NODES = (
    Column("NODE", "name"),
    Column("STATE", "state"),
    Column("TARGET", "target_shown"),
    Column("GPUS", "gpus_shown"),
    Column("MEMORY", "memory_shown"),
    Column("REPLICAS", "replicas_shown"),
    Column("WHY", "why_shown"),
    Column("SEEN", "heard_age_s", "age"),
    Column("AGENT", "agent.version"),
)
INVITATIONS = (
    Column("ID", "id"),
    Column("CREATED", "created_at", "time"),
    Column("BY", "created_by"),
    Column("EXPIRES", "expires_at", "time"),
    Column("USED", "uses"),
    Column("OF", "uses_max_shown"),
    Column("REVOKED", "revoked_at", "time"),
)
TOKEN_FILE = "/etc/llmgw/join.token"
REPLICAS_SHOWN = 3
WILDCARDS = {"0.0.0.0", "::"}


@click.group("nodes", cls=WatchGroup)
@click.option("--unhealthy", is_flag=True, help="Only those that something is wrong with.")
@click.pass_context
def command(ctx: click.Context, unhealthy: bool, watch: float | None, count: int | None) -> None:
    """The nodes of the cluster; without a command they are listed.

    GPUS: usable ones of all. MEMORY, of its GPUs in GiB: claimed, ours as measured, foreign, of all there is.
    WHY: what is wrong with it, else why nothing new lands there.
    """
    if ctx.invoked_subcommand is None:
        session: Session = ctx.obj
        ask = partial(session.get, "/nodes", unhealthy="true" if unhealthy else None)
        shown(session, watch, count, ask, partial(_ill if unhealthy else _drawn, session))
    elif unhealthy or watch is not None or count is not None:
        raise click.UsageError("--unhealthy and --watch go with the list, not with a command of it")


@command.command("show", cls=CtlCommand)
@click.argument("node", callback=not_empty)
@click.pass_obj
def show_node(session: Session, node: str) -> None:
    """All that is known of one: each GPU, what speaks against it and what clears that, claims, who else is there."""
    found = session.get(f"/nodes/{quote(node, safe='')}")
    if session.output == JSON:
        print_json(found)
    else:
        drained = found["node"]["target"]["target"] == Target.DRAINED
        print_node(found["node"], drain_of(session, Subject(node)) if drained else None)


@command.command()
@click.option("--valid", default="24h", show_default=True, metavar="SPAN", help="How long: 30min, 24h, 7d.")
@click.option("--uses", type=click.IntRange(1), help="How many nodes may join with it. Without: any number.")
@why_option
@click.pass_obj
def invite(session: Session, valid: str, uses: int | None, why: str) -> None:
    """Make a join token, with which nodes come in. It is printed once, alone, on standard output.

    It is a secret: whoever has it can run a node here until it expires or is revoked.
    """
    valid_s = span_s(valid, "--valid")
    made = session.post("/invitations", {"valid_s": valid_s, "uses_max": uses or 0} | ({"why": why} if why else {}))
    if session.output == JSON:
        print_json(made)
        return
    click.echo(made["token"])
    for line in _advice(made, _server(session, str(made.get("server") or "")), valid):
        say(line)


@command.command()
@click.pass_obj
def invitations(session: Session) -> None:
    """The join tokens there are, by id."""
    answer = session.get("/invitations")
    rows = [{**one, "uses_max_shown": one.get("uses_max") or "any number"} for one in listed(answer, "invitations")]
    show(session, answer, rows, INVITATIONS)


@command.command("revoke-invitation")
@click.argument("id", callback=not_empty)
@why_option
@click.pass_obj
def revoke(session: Session, id: str, why: str) -> None:
    """Nobody joins with that token any more; nodes that did stay."""
    answer = session.delete(f"/invitations/{quote(id, safe='')}", why=why)
    if session.output == JSON:
        print_json(answer)
        return
    click.echo(f"{answer['record']['id']} revoked")


@command.command()
@click.argument("node", callback=not_empty)
@click.option("--yes", is_flag=True, help="Do not ask.")
@why_option
@click.pass_obj
def remove(session: Session, node: str, yes: bool, why: str) -> None:
    """Take a node out of the cluster: its link ends and its credential counts no more.

    Its engines run on until somebody stops them there. It may join again with a new token, and adopts them then.
    """
    path = f"/nodes/{quote(node, safe='')}"
    runs = session.get(path)["node"].get("shards") or []
    left = (
        f"{_counted(len(runs), 'engine')} will run on there, unwatched: {formed(runs)}" if runs else "it runs nothing"
    )
    if not yes:
        click.confirm(f"remove {node}? {left}", abort=True, err=True)
    answer = session.delete(path, why=why)
    if session.output == JSON:
        print_json(answer)
        return
    click.echo(f"{node} removed")
    if runs:
        say(left)


@command.command()
@click.argument("node", callback=not_empty)
@why_option
@click.pass_obj
def lost(session: Session, node: str, why: str) -> None:
    """Say that a node will not come back: what ran there counts as lost and is replaced elsewhere at once.

    If it reports again all the same, it is taken back.
    """
    answer = session.post(f"/nodes/{quote(node, safe='')}/lost", {"why": why})
    if session.output == JSON:
        print_json(answer)
        return
    click.echo(f"{node} is given up")


# -- how they look ----------------------------------------------------------------------------------------


def _ill(session: Session, answer: Any) -> str:
    if not listed(answer, "nodes") and (well := len(listed(session.get("/nodes"), "nodes"))):
        return f"every node is well ({_counted(well, 'node')})"
    return _drawn(session, answer)


def _drawn(session: Session, answer: Any) -> str:
    nodes = listed(answer, "nodes")
    if not nodes:
        return "no nodes; one joins with `llmgw ctl nodes invite`"
    drains = _drains(session) if any(node["target"]["target"] == Target.DRAINED for node in nodes) else {}
    return drawn([_row(node, drains.get(node["name"])) for node in nodes], NODES)


def _drains(session: Session) -> dict[str, Status]:
    return {one["subject"]: one["drain"] for one in listed(session.get("/drains"), "drains")}


def _row(node: Mapping[str, Any], drain: Status | None) -> dict[str, Any]:
    cards = [gpu for gpu in node.get("gpus", []) if not gpu.get("sliced")]
    replicas = node.get("replicas") or []
    more = f", and {len(replicas) - REPLICAS_SHOWN} more" if len(replicas) > REPLICAS_SHOWN else ""
    return {
        **node,
        "target_shown": shown_with(node, drain),
        "gpus_shown": f"{sum(bool(gpu['usable']) for gpu in cards)}/{len(cards)}" if cards else "",
        "memory_shown": _memory(node) if cards else "",
        "replicas_shown": ", ".join(replicas[:REPLICAS_SHOWN]) + more,
        "why_shown": _why(node),
    }


def _memory(node: Mapping[str, Any]) -> str:
    claimed, ours, foreign, total = (
        formed(node["gpu_memory"][f"{what}_mib"], "gib") for what in ("claimed", "ours", "foreign", "total")
    )
    return f"{claimed} / {ours} / {foreign} of {total}"


def _why(node: Mapping[str, Any]) -> str:
    """Everything that is wrong, or that keeps new replicas away."""
    against = [
        f"GPU {gpu['index']}: {one['cause']}: {one['says']}"
        for gpu in node.get("gpus", [])
        for one in gpu.get("evidence", [])
        if one["severity"] == "excluded"
    ]
    driver = [f"GPU driver: {node['driver']}"] if node.get("driver") else []
    nothing = node.get("nothing_lands_because") or ""
    lands = [f"nothing lands here because {nothing}"] if nothing and nothing != node.get("trouble") else []
    if not lands and node["target"]["target"] != Target.SCHEDULABLE:  # the trouble stands before what was asked
        lands = [asked(node["target"])]
    return "; ".join([*filter(None, [node.get("trouble")]), *driver, *against, *lands])


def _server(session: Session, said: str) -> str:
    """Where agents connect, as another machine may reach it; a listener on every address says none."""
    host, _, port = said.rpartition(":")
    if host.strip("[]") not in WILDCARDS:
        return said
    asked = urlsplit(getattr(session.api, "url", "")).hostname or ""
    here = asked in ("", "localhost", "::1") or asked.startswith("127.")
    name = socket.gethostname() if here else asked
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def _advice(made: Mapping[str, Any], server: str, valid: str) -> list[str]:
    record = made["record"]
    uses = record.get("uses_max")
    often = f"for {_counted(uses, 'node')}" if uses else "for any number of nodes"
    secret = f"{record['id']}: valid for {valid}, {often}. It is a secret, and is not shown again."
    if not server:
        return [
            secret,
            "Agents can't connect yet: agents.listen has no certificate (`llmgw certs init`, then restart).",
        ]
    return [
        secret,
        f"On the node, in {TOKEN_FILE} (mode 0600), and then:",
        f"  llmgw agent --server {server} --join @{TOKEN_FILE}",
        "or in its llmgw.toml:",
        "  [agent]",
        f'  servers = ["{server}"]',
        f'  join_token = "@{TOKEN_FILE}"',
        "Only the first start needs the token.",
    ]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
