"""``[agents]`` and ``[cluster]``: where nodes connect, and how long their silence may last."""

from attrs import frozen

from llmgw.core.settings import Unit, setting


@frozen
class AgentsLimits:
    """The listener for agents. It stands once it has a certificate."""

    listen: str = setting("0.0.0.0:7443", Unit.ADDRESS, "where agents connect, once there is a certificate")
    advertise: str = setting("", Unit.TEXT, "HOST:PORT as agents reach it; a standby sends them there")
    tls_cert: str = setting(
        "", Unit.PATH, "PEM file with the certificate chain; empty: certs/agents.pem in the data directory, if there"
    )
    tls_key: str = setting("", Unit.PATH, "PEM file with its private key; empty: certs/agents.key")
    ca: str = setting("", Unit.PATH, "PEM file with the CA that agents pin; empty: certs/ca.pem")
    renew: bool = setting(True, Unit.FLAG, "renew the certificate at two thirds of its life, if certs/ca.key is there")
    connections_max: int = setting(
        1024, Unit.COUNT, "open connections; beyond it the oldest that has not shown a credential goes", at_least=1
    )
    handshake_within: float = setting(
        10.0, Unit.SECONDS, "TLS, credential and first frame of a connection", at_least=0.1
    )
    write_stall: float = setting(10.0, Unit.SECONDS, "an agent that takes no byte for this long is cut", at_least=0.1)


@frozen
class ClusterLimits:
    """What leader and agents expect of each other."""

    period: float = setting(1.0, Unit.SECONDS, "between reports of a node", at_least=0.05, at_most=60)
    node_silent: float = setting(5.0, Unit.SECONDS, "without a frame: the link is closed, the node is unreachable")
    node_grace: float = setting(60.0, Unit.SECONDS, "unreachable for this long: its replicas are replaced")
    obey_within: float = setting(
        10.0, Unit.SECONDS, "what a node was told and has not taken in is withdrawn after this"
    )
    frame_max: int = setting(
        256 * 1024, Unit.BYTES, "longest frame of an agent", at_least=16 * 1024, at_most=4 * 1024**2
    )
    frames_per_second_max: int = setting(
        100, Unit.COUNT, "an agent may send, ten seconds' worth at once; beyond it the link is closed", at_least=50
    )
    bytes_per_second_max: int = setting(
        1024**2,
        Unit.BYTES,
        "an agent may send, ten seconds' worth at once; beyond it the link is closed",
        at_least=65536,
    )
    logs_within: float = setting(5.0, Unit.SECONDS, "a node must answer when its logs are asked for", at_least=0.1)
