"""The listener for agents, for as long as the process runs: who does not lead says who does."""

import socket

import trio

from llmgw.daemon.terms import Terms
from llmgw.nodes.listener import AgentListener, listen_for_agents
from llmgw.tasks.sockets import joined_address


async def serve_agents(
    terms: Terms, held: socket.socket | None, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
) -> None:
    """Until cancelled; its address, empty without a certificate. ``held``: it is open already. Raises OSError."""
    identity, parts = terms.base.identity, terms.base.parts
    if identity is None:
        task_status.started("")
        return
    listener = await listen_for_agents(parts.config.agents.listen, held)
    task_status.started(joined_address(*listener.socket.getsockname()[:2]))
    async with listener:
        await AgentListener(terms.house, lambda: identity.context, parts.failed).serve(listener)
