"""``[agent]``: how an agent finds its leader and what it may do on its node."""

from collections.abc import Mapping

from attrs import frozen

from llmgw.core.settings import Unit, setting


@frozen
class AgentSettings:
    servers: tuple[str, ...] = setting((), Unit.LIST, "host:port of each control plane's agent listener")
    name: str = setting("", Unit.TEXT, "this node's name; empty: the host's name")
    data_dir: str = setting(
        "", Unit.PATH, "where engines are written down; empty: /var/lib/llmgw-agent or ~/.llmgw-agent"
    )
    join_token: str = setting(
        "", Unit.TEXT, "from `llmgw ctl nodes invite`, for the first start; @FILE reads it from there"
    )
    ca: str = setting(
        "", Unit.PATH, "PEM file with the control planes' CA; empty: the one that came with the join token"
    )
    server_name: str = setting("", Unit.TEXT, "name expected in the server's certificate; empty: the host asked")
    address: str = setting(
        "", Unit.TEXT, "where the control plane reaches this node's engines; empty: seen on the link"
    )
    labels: Mapping[str, str] = setting(
        None, Unit.TABLE, "what placement.selector may ask for", of=Unit.TEXT, factory=dict
    )
    ports: str = setting("20000-20999", Unit.TEXT, "ports that engines get, first-last")
    gpus: bool = setting(True, Unit.FLAG, "look for GPUs; false: a node of memory and cores")
    gpu_every: float = setting(1.0, Unit.SECONDS, "between readings of the GPUs", at_least=0.05)
    gpu_within: float = setting(10.0, Unit.SECONDS, "the driver must answer, or its child is ended", at_least=0.1)
    memory_reserved: int = setting(1024**3, Unit.BYTES, "host memory kept for the system")
    release_within: float = setting(
        60.0, Unit.SECONDS, "processes and GPU memory must be gone after an end; then it is said"
    )
    adopt_within: float = setting(10.0, Unit.SECONDS, "all engines must be looked at when the agent starts")
    log_max: int = setting(64 * 1024**2, Unit.BYTES, "an engine's log before it is rotated", at_least=4096)
    tail_max: int = setting(
        8 * 1024, Unit.BYTES, "an engine's last lines that are sent unasked", at_least=256, at_most=65536
    )
    silent: float = setting(5.0, Unit.SECONDS, "no frame from the leader: the link is made anew", at_least=0.5)
    reconnect_max: float = setting(10.0, Unit.SECONDS, "longest pause between tries of a link", at_least=0.1)
    cgroup: str = setting(
        "", Unit.PATH, "cgroup v2 folder for engines; empty: the agent's own if it may, else process groups"
    )
