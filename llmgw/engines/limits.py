"""The bounds of what speaks to engines; each has this name in the config."""

from attrs import frozen

from llmgw.core.settings import Unit, setting


@frozen
class ProbeLimits:
    """``[probe]``: how often an endpoint is asked, and what its answers mean."""

    metrics: float = setting(0.5, Unit.SECONDS, "between two scrapes of an engine's metrics", at_least=0.05)
    health: float = setting(2.0, Unit.SECONDS, "between two health checks", at_least=0.1)
    timeout: float = setting(2.0, Unit.SECONDS, "a probe that takes longer has failed", at_least=0.05)
    failures: int = setting(2, Unit.COUNT, "failed health checks in a row that take an endpoint out", at_least=1)
    successes: int = setting(1, Unit.COUNT, "good ones in a row that bring it back", at_least=1)
    canary: float = setting(
        10.0, Unit.SECONDS, "a replica without traffic is asked for one token this often", at_least=0.1
    )
    canary_within: float = setting(10.0, Unit.SECONDS, "and must have answered within this", at_least=0.1)
    answer_max: int = setting(4 * 1024**2, Unit.BYTES, "largest answer to a probe", at_least=1024)


@frozen
class ClientLimits:
    """``[engines]``: the connections to engines."""

    idle_max: float = setting(4.0, Unit.SECONDS, "an idle connection is retired (vLLM closes its own after 5 s)")
    idle_connections_max: int = setting(1024, Unit.COUNT, "idle connections kept per endpoint")
    head_max: int = setting(64 * 1024, Unit.BYTES, "longest response head", at_least=1024)
