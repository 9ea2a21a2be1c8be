"""The settings that belong to no room below: where the two listeners stand, and how models are written."""

from collections.abc import Mapping

from attrs import frozen

from llmgw.core.engine_spec import OnFull, Strategy
from llmgw.core.fleet import Engine
from llmgw.core.presets import PRESETS
from llmgw.core.secret import Secret
from llmgw.core.settings import Unit, setting


@frozen
class ListenSettings:
    """``[server]``: the client listener."""

    name: str = setting("", Unit.TEXT, "of this control plane, for people; empty: the host's name")
    listen: str = setting("127.0.0.1:7440", Unit.ADDRESS, "where clients connect")
    advertise: str = setting("", Unit.TEXT, "its URL as others reach it; empty: made of listen, or of the host's name")
    tls_cert: str = setting("", Unit.PATH, "PEM file with the certificate chain; empty: no TLS")
    tls_key: str = setting("", Unit.PATH, "PEM file with its private key")
    no_auth: bool = setting(False, Unit.FLAG, "ask for no key: for trials only, refused off loopback")
    cors_origins: tuple[str, ...] = setting(
        ("*",), Unit.LIST, 'web pages that may call from a browser; "*": any, keys still apply; []: none'
    )


@frozen
class AdminSettings:
    """``[admin]``: the operators' listener."""

    listen: str = setting("127.0.0.1:7442", Unit.ADDRESS, "where operators connect; off loopback only with TLS")
    advertise: str = setting("", Unit.TEXT, "its URL as others reach it; a standby sends operators there")
    tls_cert: str = setting("", Unit.PATH, "PEM file with the certificate chain; empty: no TLS")
    tls_key: str = setting("", Unit.PATH, "PEM file with its private key")
    allowed_hosts: tuple[str, ...] = setting(
        (), Unit.LIST, "Host names accepted besides loopback and the listen address (against DNS rebinding)"
    )
    allowed_origins: tuple[str, ...] = setting((), Unit.LIST, "web origins accepted besides our own")
    metrics_token: Secret | None = setting(  # noqa: RUF009 -- it makes a field, which is not shared
        None, Unit.SECRET, "opens /metrics and nothing else; empty: open on loopback, operators' tokens elsewhere"
    )
    profile_seconds_max: int = setting(60, Unit.COUNT, "longest /debug/profile in seconds", at_least=1, at_most=3600)


@frozen
class GpuSettings:
    """``[gpu]``"""

    on_excluded: str = setting(
        "move", Unit.TEXT, "a replica that runs on a GPU with an error that matters: replace it elsewhere, or say so",
        choices=("move", "report"),
    )  # fmt: skip


@frozen
class ModelSettings:
    """``[[models]]``, without its fallback and its endpoints."""

    name: str = setting("", Unit.TEXT, "what clients ask for")
    aliases: tuple[str, ...] = setting((), Unit.LIST, "other names for it")
    context_max: int | None = setting(None, Unit.COUNT, "tokens, shown to clients as max_model_len", at_least=1)
    ceilings: Mapping[str, float] = setting(
        None, Unit.TABLE, "of this model's pool, in place of admission.ceilings", of=Unit.RATIO, factory=dict
    )
    floors: Mapping[str, float] = setting(
        None, Unit.TABLE, "of this model's pool, in place of admission.floors", of=Unit.RATIO, factory=dict
    )
    ttl: Mapping[str, float] = setting(
        None, Unit.TABLE, "of this model's pool, in place of admission.ttl", of=Unit.SECONDS, factory=dict
    )


@frozen
class EndpointSettings:
    """``[[models.endpoints]]``"""

    url: str = setting("", Unit.TEXT, "http:// or https:// address; a trailing /v1 is taken off")
    id: str = setting("", Unit.TEXT, "its name in metrics, logs and ctl; empty: host:port of the url")
    engine: str = setting(
        "vllm", Unit.TEXT, "what answers there; openai: hosted, without metrics", choices=tuple(Engine)
    )
    api_key: Secret | None = setting(  # noqa: RUF009 -- it makes a field, which is not shared
        None, Unit.SECRET, "sent to it as a bearer token; empty: none"
    )
    ca: str = setting("", Unit.PATH, "PEM bundle that replaces the system's for this endpoint")
    served_as: str = setting("", Unit.TEXT, "the model's name there; empty: the model's own")
    capacity: int | None = setting(None, Unit.COUNT, "requests it runs at once, where you know better", at_least=1)
    max_in_flight: int | None = setting(
        None, Unit.COUNT, "most requests of ours there at once, whatever it could run", at_least=1
    )
    adapters: tuple[str, ...] = setting((), Unit.LIST, "LoRA adapters it serves, by the names clients ask for")
    inject_usage: bool = setting(True, Unit.FLAG, "false for a hosted API that refuses stream_options")


@frozen
class EngineSettings:
    """``[models.engine]``: how engines of this model are made, where agents run them."""

    preset: str = setting(
        "vllm", Unit.TEXT, "kind of engine; program: anything that speaks the API", choices=tuple(PRESETS)
    )
    executable: tuple[str, ...] = setting((), Unit.LIST, "the program and its first words; empty: the preset's")
    model: str = setting(
        "", Unit.TEXT, "what the engine loads: a path on the node, or a name it knows; empty: the model's"
    )
    args: tuple[str, ...] = setting((), Unit.LIST, "more words, after the preset's; {host} {port} {gpus} are filled in")
    env: Mapping[str, str] = setting(None, Unit.TABLE, "environment variables", of=Unit.TEXT, factory=dict)
    user: str = setting("", Unit.TEXT, "whose process it is; empty: the agent's own user")
    cwd: str = setting("", Unit.PATH, "where it is started; empty: its own folder")
    ports: tuple[str, ...] = setting((), Unit.LIST, "names of more ports it opens, each filled in as {port:NAME}")
    fetch: tuple[str, ...] = setting(
        (), Unit.LIST, "command that brings the files to the path in model; empty: they are there"
    )
    fetch_within: float = setting(3600.0, Unit.SECONDS, "how long that may take", at_least=1)
    shards: int = setting(1, Unit.COUNT, "processes of one replica, on one node or several", at_least=1, at_most=64)
    gpus: int = setting(0, Unit.COUNT, "GPUs of each shard", at_least=0, at_most=64)
    gpu_memory: int = setting(0, Unit.BYTES, "needed free on each GPU; 0: the whole card")
    exclusive: bool = setting(True, Unit.FLAG, "nobody else's claim on its GPUs; false shares them by gpu_memory")
    memory: int = setting(0, Unit.BYTES, "host memory of each shard")
    served_as: str = setting("", Unit.TEXT, "the name it serves the model as; empty: the model's own")
    speaks: str = setting(
        "", Unit.TEXT, "whose metrics and manners a program has; empty: the preset's", choices=("", *Engine)
    )
    api_key: bool = setting(True, Unit.FLAG, "give each generation a key of its own, which it asks for")
    capacity: int | None = setting(None, Unit.COUNT, "requests it runs at once, where you know better", at_least=1)
    max_in_flight: int | None = setting(None, Unit.COUNT, "most requests of ours there at once", at_least=1)
    adapters: tuple[str, ...] = setting((), Unit.LIST, "LoRA adapters it serves, by the names clients ask for")
    start_within: float | None = setting(
        None, Unit.SECONDS, "no progress for this long ends a start; replica.start_within unless said"
    )
    stop_grace: float | None = setting(
        None, Unit.SECONDS, "from asking it to end to ending it; the preset's unless said"
    )


@frozen
class PlacementSettings:
    """``[models.placement]``"""

    selector: Mapping[str, str] = setting(None, Unit.TABLE, "labels a node must have", of=Unit.TEXT, factory=dict)
    nodes: tuple[str, ...] = setting((), Unit.LIST, "these nodes only; empty: any")
    strategy: str = setting("spread", Unit.TEXT, "over nodes, or onto few of them", choices=tuple(Strategy))
    apart_from: tuple[str, ...] = setting((), Unit.LIST, "models it must not share a node with")
    one_per_node: bool = setting(False, Unit.FLAG, "no two replicas of it on one node")
    on_full: str = setting(
        "wait", Unit.TEXT, "a change whose replacement fits nowhere: wait, or stop the running one first",
        choices=tuple(OnFull),
    )  # fmt: skip
