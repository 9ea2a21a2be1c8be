"""One frozen Config out of a TOML file, the defaults and the environment; or every reason why not."""

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from llmgw.config.check import Checking, check_endpoints, check_models, check_sections, secrets_of
from llmgw.config.models import Written, read_models
from llmgw.config.names import check_names
from llmgw.config.problems import ConfigError, Problem, Problems, Refused
from llmgw.config.read import MODELS, SECTIONS, build_sections, misspelt_variables, read_sections, source_of
from llmgw.config.settings import AdminSettings, GpuSettings, ListenSettings
from llmgw.core.agent_settings import AgentSettings
from llmgw.core.bands import AdmissionLimits
from llmgw.core.breaker import BreakerLimits
from llmgw.core.drain import DrainLimits
from llmgw.core.engine_spec import Want
from llmgw.core.fleet import Engine, Fleet, fleet_of
from llmgw.core.lease_facts import LeaseLimits
from llmgw.core.replicas import ReplicaLimits
from llmgw.core.scheduling import Weights
from llmgw.engines.limits import ClientLimits, ProbeLimits
from llmgw.gateway.limits import DoorLimits, RecordLimits, RelayLimits
from llmgw.nodes.limits import AgentsLimits, ClusterLimits
from llmgw.store.limits import StoreLimits
from llmgw.store.place import has_password
from llmgw.telemetry.log import LogLimits

FILE_MAX = 4 * 1024**2
NO_FILE = "(no file)"


@frozen
class Config:
    """Everything the process was told, each room's part as its own value."""

    listen: ListenSettings = field(factory=ListenSettings)
    door: DoorLimits = field(factory=DoorLimits)
    admin: AdminSettings = field(factory=AdminSettings)
    relay: RelayLimits = field(factory=RelayLimits)
    records: RecordLimits = field(factory=RecordLimits)
    probe: ProbeLimits = field(factory=ProbeLimits)
    engines: ClientLimits = field(factory=ClientLimits)
    admission: AdmissionLimits = field(factory=AdmissionLimits)
    weights: Weights = field(factory=Weights)
    breaker: BreakerLimits = field(factory=BreakerLimits)
    replica: ReplicaLimits = field(factory=ReplicaLimits)
    drain: DrainLimits = field(factory=DrainLimits)
    lease: LeaseLimits = field(factory=LeaseLimits)
    gpu: GpuSettings = field(factory=GpuSettings)
    cluster: ClusterLimits = field(factory=ClusterLimits)
    agents: AgentsLimits = field(factory=AgentsLimits)
    agent: AgentSettings = field(factory=AgentSettings)
    store: StoreLimits = field(factory=StoreLimits)
    log: LogLimits = field(factory=LogLimits)
    fleet: Fleet = field(factory=Fleet)
    wants: tuple[Want, ...] = ()  # what agents shall run
    models: tuple[Mapping[str, Any], ...] = ()  # [[models]] as it was written
    warnings: tuple[Problem, ...] = ()  # it works, and is probably not what was meant
    file: Path | None = None


def load(path: Path | None, environ: Mapping[str, str], text: str | None = None) -> Config:
    """The file's content, or ``text`` instead of it. Raises ConfigError with everything that is wrong."""
    return load_revision(path, environ, text, revision=0)


def load_revision(
    path: Path | None,
    environ: Mapping[str, str],
    text: str | None,
    revision: int,
    named: str = "",
    models: Sequence[Mapping[str, Any]] | None = None,
) -> Config:
    """``named``: what problems call the text, if it is not the file's. ``models``: [[models]] in place of its own."""
    problems = Problems(named or (str(path) if path else NO_FILE))
    tree = _tree(path, text, problems)
    if models is not None:
        tree[MODELS] = list(models)
    read = read_sections(tree, environ, problems)
    written = read_models(tree, environ, problems)
    check_names(written, problems)
    built = build_sections(read)
    checking = Checking(built, read, problems, environ)
    check_sections(checking)
    check_models(written, built, problems)
    check_endpoints(written, checking)
    if problems.found:
        raise ConfigError(tuple(problems.found))
    warned = _warnings(built, written, tree, path if text is None else None, problems.file, read.places)
    warnings = (*warned, *misspelt_variables(environ))
    return Config(
        **built,
        fleet=fleet_of(tuple(w.model for w in written), revision),
        wants=tuple(w.want for w in written if w.want is not None),
        models=tuple(tree.get(MODELS, ())),
        warnings=warnings,
        file=path,
    )


def _tree(path: Path | None, text: str | None, problems: Problems) -> dict[str, Any]:
    """The file as TOML has it; nothing of a file that is no TOML can be judged, so that ends it."""
    with problems.at(""):
        if text is None:
            text = read_text(path) if path else ""
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise Refused(f"it is no TOML: {error}", "mend that line first") from None
        except RecursionError:
            raise Refused("it is nested too deeply", "write it flatter") from None
        except ValueError:  # a number of thousands of digits
            raise Refused("it holds a number that is far too long", "mend that number first") from None
    raise ConfigError(tuple(problems.found))


def read_text(path: Path) -> str:
    """A config file's content; raises Refused."""
    try:
        # Not blocking: a FIFO in the file's place must not hold a start or a reload.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Refused("it is no plain file", "name the config file")
            content = file.read(FILE_MAX + 1)
    except OSError as error:
        raise Refused(f"it can't be read ({error.strerror})", "check the path and its owner") from None
    if len(content) > FILE_MAX:
        raise Refused(f"it is longer than {FILE_MAX} bytes", "name the config file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused(f"it is not UTF-8 at byte {error.start}", "save it as UTF-8") from None


def _warnings(
    built: Mapping[str, Any],
    models: Sequence[Written],
    tree: Mapping[str, Any],
    path: Path | None,
    file: str,
    places: Mapping[str, str],
) -> Iterator[Problem]:
    if not models:
        yield Problem(file, MODELS, "there are no models", "add a [[models]] with an endpoint")
    for written in models:
        if not written.model.endpoints and written.want is None:
            way_out = "add a [[models.endpoints]], or a [models.engine]"
            yield Problem(file, f"{written.where}.endpoints", "nothing serves this model", way_out)
    if built["listen"].no_auth:
        place = places.get("server.no_auth")
        where = (source_of(place), place) if place else (file, "server.no_auth")
        yield Problem(*where, "no key is asked for", "take it out before anybody relies on this")
    total, limits = built["relay"].total, built["admission"]
    for rule in limits.rules():
        if rule.ttl_s > total:
            what = f"{rule.band.value} may wait longer than relay.total lets a whole request take"
            yield Problem(file, "admission.ttl", what, "lower it or raise relay.total")
    vllm = [e.id for written in models for e in written.model.endpoints if e.engine is Engine.VLLM]
    if built["engines"].idle_max >= 5 and vllm:
        what = f"vLLM closes an idle connection after 5 s, and a request to {vllm[0]} may meet that"
        yield Problem(file, "engines.idle_max", what, "stay below 5s unless your engines wait longer")
    if path is not None and _open_to_others(path):
        for key in _plain_secrets(tree):
            yield Problem(file, key, "a secret stands in a file that others can read", f"run chmod 600 {path}")


def _open_to_others(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & 0o077)
    except OSError:  # gone since it was read
        return False


def _plain_secrets(tree: Mapping[str, Any]) -> Iterator[str]:
    for section in SECTIONS:
        table = tree.get(section, {})
        yield from (f"{section}.{name}" for name in secrets_of(section) if _is_secret(section, name, table.get(name)))
    for i, model in enumerate(tree.get(MODELS, [])):
        for j, endpoint in enumerate(model.get("endpoints", [])):
            if _is_plain(endpoint.get("api_key")):
                yield f"{MODELS}[{i}].endpoints[{j}].api_key"


def _is_secret(section: str, name: str, raw: object) -> bool:
    """A URL may lead to a store without a password in it."""
    plain = _is_plain(raw)
    return plain and has_password(str(raw)) if (section, name) == ("store", "url") else plain


def _is_plain(raw: object) -> bool:
    return isinstance(raw, str) and raw != "" and not raw.startswith("@")
