"""``llmgw ctl``: ask and tell a running gateway, or its store while none runs."""

import click

from llmgw.cli.ctl.choosing import gateway_options, said_options
from llmgw.cli.ctl.session import Session, output_option
from llmgw.cli.lazy import LazyGroup

COMMANDS = {
    "status": ("llmgw.cli.ctl.status", "What the gateway says of itself."),
    "keys": ("llmgw.cli.ctl.keys", "Clients' keys: create, list, revoke, import."),
    "tenants": ("llmgw.cli.ctl.tenants", "Who pays."),
    "models": ("llmgw.cli.ctl.models", "Models and who answers for them."),
    "endpoints": ("llmgw.cli.ctl.endpoints", "Endpoints and what is known of them."),
    "gpus": ("llmgw.cli.ctl.gpus", "Say that a GPU is well again."),
    "pools": ("llmgw.cli.ctl.pools", "How full each pool is, and what makes it so."),
    "queues": ("llmgw.cli.ctl.queues", "Who waits for which pool, and how long."),
    "admission": ("llmgw.cli.ctl.admission", "What admission would do, in shadow mode."),
    "requests": ("llmgw.cli.ctl.requests", "Recent requests."),
    "cancel": ("llmgw.cli.ctl.cancel", "End one request that runs."),
    "explain": ("llmgw.cli.ctl.explain", "Why something happened."),
    "explain-placement": ("llmgw.cli.ctl.explain_placement", "The same as explain placement."),
    "nodes": ("llmgw.cli.ctl.nodes", "Machines with agents: list, show, invite, remove."),
    "replicas": ("llmgw.cli.ctl.replicas", "What agents run, and how it does."),
    "cordon": ("llmgw.cli.ctl.cordon", "Place nothing new on a node."),
    "uncordon": ("llmgw.cli.ctl.uncordon", "Take back a cordon or a drain."),
    "drain": ("llmgw.cli.ctl.drain", "Empty a node, replacements first; or take an endpoint out of service."),
    "drains": ("llmgw.cli.ctl.drains", "What is drained, and how far that has got."),
    "move": ("llmgw.cli.ctl.move", "A replica to another node, its replacement first."),
    "purge": ("llmgw.cli.ctl.purge", "Wait no more for a replica that does not stop."),
    "logs": ("llmgw.cli.ctl.logs", "The end of an engine's log."),
    "restart": ("llmgw.cli.ctl.restart", "Replace a replica, or all of a model one by one."),
    "scale": ("llmgw.cli.ctl.scale", "Another number of replicas than is written."),
    "decisions": ("llmgw.cli.ctl.decisions", "Where replicas were placed, and where they could not be."),
    "events": ("llmgw.cli.ctl.events", "What happened, and what happens."),
    "leader": ("llmgw.cli.ctl.leader", "Which control plane leads, and the hand-over to another."),
    "diff": ("llmgw.cli.ctl.diff", "What applying a config file would do."),
    "apply": ("llmgw.cli.ctl.apply", "Give the running gateway a config file's models and limits."),
    "history": ("llmgw.cli.ctl.history", "What was applied, revision by revision."),
    "rollback": ("llmgw.cli.ctl.rollback", "The models of an earlier revision again."),
    "tokens": ("llmgw.cli.ctl.tokens", "Operators' tokens: create, list, revoke."),
    "audit": ("llmgw.cli.ctl.audit", "What operators did."),
    "context": ("llmgw.cli.ctl.context", "The gateways ctl knows by name."),
}


@click.group("ctl", cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@gateway_options
@output_option
@click.pass_context
def command(ctx: click.Context, /, **options: str | None) -> None:
    """Ask and tell a running gateway.

    Which one: --url, else --context, else the context in use, else the gateway on this machine, found by
    its data directory. Keys, tokens, tenants and the audit are also there while no gateway runs: then ctl
    works on the store itself.

    Exit codes: 0 done, 1 refused or failed, 2 bad usage or config, 3 already running, 4 not found,
    5 blocked, 6 not reachable, 75 no control plane leads.
    """
    ctx.ensure_object(Session).choose(**said_options(ctx, options))
