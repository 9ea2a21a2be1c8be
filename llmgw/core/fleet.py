"""What we believe of models and endpoints: who answers to a name, and where else it may go.

A fleet is a frozen value; a reload makes another one with a higher revision.
"""

from collections.abc import Mapping
from enum import StrEnum

from attrs import field, frozen

from llmgw.core.bands import PoolBands
from llmgw.core.secret import Secret


class Engine(StrEnum):
    """What stands behind a URL; decides metrics, health rule and when response headers come."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    OPENAI = "openai"  # hosted: no metrics, no health route
    SIM = "sim"


class FallbackOn(StrEnum):
    """Why a request may leave for a fallback model."""

    UNREACHABLE = "unreachable"
    SERVER_ERROR = "5xx"
    RATE_LIMITED = "429"
    TIMEOUT = "timeout"
    NO_ENDPOINT = "no_endpoint"
    SATURATED = "saturated"


FALLBACK_DEFAULT = frozenset({FallbackOn.UNREACHABLE, FallbackOn.SERVER_ERROR, FallbackOn.NO_ENDPOINT})


@frozen
class Fallback:
    model: str
    on: frozenset[FallbackOn] = FALLBACK_DEFAULT


@frozen
class Endpoint:
    """One base URL that answers for a model. ``url`` has no trailing slash and no ``/v1``."""

    id: str
    model: str
    url: str
    engine: Engine = Engine.VLLM
    api_key: Secret | None = None
    ca: str | None = None  # path of a PEM bundle that replaces the system's for this endpoint
    served_as: str = ""  # the name the engine knows; empty: the model's own name
    capacity: int | None = None  # requests it runs at once, where the operator knows better
    max_in_flight: int | None = None  # requests of ours it may have at once, whatever it could run
    adapters: frozenset[str] = frozenset()  # LoRA adapters it can serve, by the name clients ask for
    inject_usage: bool = True  # some hosted APIs refuse stream_options
    replica: str = ""  # whose rank 0 it is; empty: static

    @property
    def engine_name(self) -> str:
        return self.served_as or self.model


@frozen
class Model:
    name: str
    aliases: tuple[str, ...] = ()
    fallback: tuple[Fallback, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    context_max: int | None = None  # tokens, shown to clients as max_model_len
    bands: PoolBands = field(factory=PoolBands)  # how its pool admits, where it is not as all do
    adapters: frozenset[str] = frozenset()  # of the engines that agents run; an endpoint names its own
    run_by_agents: bool = False  # its replicas come and go; without any it is not that nobody wanted it served


@frozen
class Asked:
    """What a client's model name means here: the model, and the LoRA adapter if the name is one."""

    model: Model
    adapter: str | None = None


@frozen
class Fleet:
    """Every model by name, and every name a client may use."""

    models: Mapping[str, Model] = field(factory=dict)
    revision: int = 0
    _names: Mapping[str, Asked] = field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        names: dict[str, Asked] = {}
        for model in self.models.values():
            for adapters in (*(endpoint.adapters for endpoint in model.endpoints), model.adapters):
                for adapter in sorted(adapters):
                    names.setdefault(adapter, Asked(model, adapter))
        for model in self.models.values():
            for alias in model.aliases:
                names[alias] = Asked(model)
            names[model.name] = Asked(model)
        object.__setattr__(self, "_names", names)

    def resolve(self, name: str) -> Asked | None:
        """The model a client means by a name, alias or adapter; None when nobody answers to it."""
        return self._names.get(name)

    @property
    def names(self) -> Mapping[str, Asked]:
        return self._names

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(e for m in self.models.values() for e in m.endpoints)


def fleet_of(models: tuple[Model, ...], revision: int = 0) -> Fleet:
    return Fleet({m.name: m for m in models}, revision)


def differences(before: Fleet, after: Fleet) -> tuple[str, ...]:
    """What a reload changes, one sentence each; endpoints by id, models by name."""
    old, new = {e.id: e for e in before.endpoints}, {e.id: e for e in after.endpoints}
    said = [f"model {name} added" for name in after.models if name not in before.models]
    said += [f"model {name} removed" for name in before.models if name not in after.models]
    said += [f"endpoint {id} added" for id in new if id not in old]
    said += [f"endpoint {id} removed: it finishes what it has" for id in old if id not in new]
    said += [f"endpoint {id} changed" for id in new if id in old and old[id] != new[id]]
    for name, model in after.models.items():
        was = before.models.get(name)
        if was is not None and was != model:
            said += _changes_of(was, model)
    return tuple(said)


def _changes_of(was: Model, model: Model) -> list[str]:
    said = []
    if (was.aliases, was.fallback) != (model.aliases, model.fallback):
        said.append(f"model {model.name}: aliases or fallback changed")
    if was.bands != model.bands:
        said.append(f"model {model.name}: ceilings, floors or ttl changed")
    if was.context_max != model.context_max:
        said.append(f"model {model.name}: context_max: {was.context_max or 'none'} -> {model.context_max or 'none'}")
    ids, old = [e.id for e in model.endpoints], [e.id for e in was.endpoints]
    if ids != old and sorted(ids) == sorted(old):
        said.append(f"model {model.name}: the order of its endpoints changed")
    return said
