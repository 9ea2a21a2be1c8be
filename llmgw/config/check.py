"""Whether settings that make sense alone make sense together."""

import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from attrs import frozen

from llmgw.config.addresses import clash, is_loopback, reaches, split_address
from llmgw.config.models import Written
from llmgw.config.problems import Problems, Refused
from llmgw.config.read import Read, default_of, settings_of, source_of
from llmgw.config.secrets import check_key_file
from llmgw.config.units import shown
from llmgw.config.urls import host_and_port
from llmgw.config.values import written
from llmgw.control.nearest import meant
from llmgw.core.bands import BandRule
from llmgw.core.identity import Band
from llmgw.core.joining import may_be_named
from llmgw.core.settings import Unit
from llmgw.store.errors import StoreUnavailable
from llmgw.store.opening import check_url
from llmgw.store.place import place

# A bound of zero would refuse or end everything.
ABOVE_ZERO = (
    "server.bodies_total_max", "server.head_within", "server.body_within", "server.idle_keepalive",
    "server.write_stall", "server.connections_max", "relay.dial", "relay.headers", "relay.first_token",
    "relay.idle", "relay.total", "breaker.open_max", "log.queue_max", "log.flush", "admission.overflow_after",
)  # fmt: skip
BANDS = tuple(band.value for band in Band)
# The first may not be more than the second.
NOT_ABOVE = (
    ("server.body_max", "server.bodies_total_max"),
    ("server.target_max", "server.head_max"),
    ("relay.dial", "relay.total"),
    ("relay.headers", "relay.total"),
    ("relay.first_token", "relay.total"),
    ("relay.idle", "relay.total"),
    ("breaker.open_for", "breaker.open_max"),
    ("probe.metrics", "admission.sample_stale"),
    ("cluster.period", "cluster.node_silent"),
    ("cluster.node_silent", "cluster.node_grace"),
    ("store.usage_batch_max", "store.usage_queue_max"),
)
# As a browser sends it: no path, no slash at the end, small letters.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._\[\]:-]+", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", re.ASCII)
# A probe that may hang for longer than this many rounds says nothing about now.
PROBE_ROUNDS_MAX = 10


@frozen
class Checking:
    """The settings as they will be, and where each was said."""

    built: Mapping[str, Any]  # the Config's fields
    read: Read
    problems: Problems
    environ: Mapping[str, str]

    def value(self, key: str) -> Any:
        section, _, name = key.partition(".")
        given = self.read.values[section]
        return given[name] if name in given else default_of(self._setting(key))

    def text(self, key: str) -> str:
        """``relay.total = "30min"``, and where it comes from if that is not the file."""
        place = self.read.places.get(key)
        source = f" (from {place})" if place else "" if self.is_given(key) else " (the default)"
        about = self._setting(key).metadata
        return f"{key} = {written(self.value(key), about['unit'], about['of'])}{source}"

    def refuse(self, key: str, what: str, what_to_do: str) -> None:
        place = self.read.places.get(key)
        self.problems.add(place or key, what, what_to_do, source_of(place) if place else "")

    def later(self, key: str, other: str) -> str:
        """Of two that contradict each other, the one somebody wrote."""
        return key if self.is_given(key) or not self.is_given(other) else other

    def _setting(self, key: str) -> Any:
        section, _, name = key.partition(".")
        return next(setting for setting in settings_of(section) if setting.name == name)

    def is_given(self, key: str) -> bool:
        section, _, name = key.partition(".")
        return name in self.read.values[section]


def check_sections(checking: Checking) -> None:
    for check in CHECKS:
        check(checking)


def _check_above_zero(checking: Checking) -> None:
    for key in ABOVE_ZERO:
        if checking.value(key) == 0:
            checking.refuse(key, "it is 0, which would let nothing through", "write more, or leave it out")


def _check_contradictions(checking: Checking) -> None:
    for less, more in NOT_ABOVE:
        if checking.value(less) > checking.value(more):
            key = checking.later(less, more)
            what = f"{checking.text(less)} is more than {checking.text(more)}"
            checking.refuse(key, what, f"lower {less} or raise {more}")


def _check_probe(checking: Checking) -> None:
    if checking.value("probe.timeout") > PROBE_ROUNDS_MAX * checking.value("probe.health"):
        key = checking.later("probe.timeout", "probe.health")
        what = f"{checking.text('probe.timeout')} is more than {PROBE_ROUNDS_MAX} times {checking.text('probe.health')}"
        checking.refuse(key, what, "lower probe.timeout or raise probe.health")


def _check_bands(checking: Checking) -> None:
    for key in ("ceilings", "floors", "ttl"):
        for name in checking.value(f"admission.{key}"):
            if name not in BANDS:
                checking.refuse(f"admission.{key}.{name}", "there is no such band", meant(name, BANDS))
    for key, what, way_out in wrong_rules(checking.built["admission"].rules()):
        checking.refuse(f"admission.{key}", what, way_out)
    _check_queue_bytes(checking)


def check_models(models: Sequence[Written], built: Mapping[str, Any], problems: Problems) -> None:
    """What models say of their bands, with what all have where they say nothing."""
    for written_model in models:
        own, where = written_model.model.bands, written_model.where
        for key, table in (("ceilings", own.ceilings), ("floors", own.floors), ("ttl", own.ttl)):
            for name in table:
                if name not in BANDS:
                    problems.add(f"{where}.{key}.{name}", "there is no such band", meant(name, BANDS))
        if own.ceilings or own.floors or own.ttl:
            for key, what, way_out in wrong_rules(built["admission"].rules(own)):
                problems.add(f"{where}.{key}", what, way_out)


def check_endpoints(models: Sequence[Written], checking: Checking) -> None:
    """A gateway that is its own engine would send a request round and round."""
    for written_model in models:
        for where, endpoint in zip(written_model.endpoint_places, written_model.model.endpoints, strict=True):
            host, port = host_and_port(endpoint.url)
            for key in ("server.listen", "admin.listen"):
                if host and reaches(checking.value(key), host, port):
                    what = f"{endpoint.url} is this gateway itself, {checking.text(key)}"
                    checking.problems.add(f"{where}.url", what, "name the engine's address, or give one another port")


def wrong_rules(rules: Sequence[BandRule]) -> Iterator[tuple[str, str, str]]:
    """Key, what is wrong with it, and what to do."""
    for upper, lower in pairwise(rules):
        if lower.ceiling > upper.ceiling:
            what = f"{lower.band.value} {lower.ceiling:g} is above {upper.band.value} {upper.ceiling:g}"
            yield "ceilings", what, "let no ceiling be above that of a higher band"
    for rule in rules:
        if rule.ceiling == 0 or rule.ttl_s == 0:
            key = "ceilings" if rule.ceiling == 0 else "ttl"
            yield f"{key}.{rule.band.value}", "it is 0, which would let nobody through", "write more"
    floors = sum(rule.floor for rule in rules)
    if floors >= 1:
        yield "floors", f"together they are {floors:g}, which leaves nothing to share out", "let their sum stay below 1"


def _check_queue_bytes(checking: Checking) -> None:
    held = checking.value("admission.queue_bytes_max") * len(BANDS)
    if held > checking.value("server.bodies_total_max") / 2:
        key = checking.later("admission.queue_bytes_max", "server.bodies_total_max")
        what = f"{len(BANDS)} bands of {checking.text('admission.queue_bytes_max')} are more than half of "
        what += checking.text("server.bodies_total_max")
        checking.refuse(key, what, "lower admission.queue_bytes_max or raise server.bodies_total_max")


def _check_listeners(checking: Checking) -> None:
    server, admin = checking.value("server.listen"), checking.value("admin.listen")
    if clash(server, admin):
        key = checking.later("admin.listen", "server.listen")
        what = f"{checking.text('admin.listen')} and {checking.text('server.listen')} are one address"
        checking.refuse(key, what, "give each its own port")
    if checking.value("server.no_auth") and not is_loopback(server):
        what = f"no_auth with {checking.text('server.listen')} lets anybody use the engines"
        checking.refuse("server.no_auth", what, "listen on 127.0.0.1 or take it out")
    if not is_loopback(admin) and not checking.value("admin.tls_cert"):
        what = f"{checking.text('admin.listen')} would send operators' tokens in the clear"
        checking.refuse("admin.listen", what, "listen on 127.0.0.1 or set admin.tls_cert and admin.tls_key")


def _check_agents_listener(checking: Checking) -> None:
    """It stands only once it has a certificate, so its default address is in nobody's way."""
    if checking.value("agents.tls_cert") or checking.is_given("agents.listen"):
        for other in ("server.listen", "admin.listen"):
            if clash(checking.value("agents.listen"), checking.value(other)):
                key = checking.later("agents.listen", other)
                what = f"{checking.text('agents.listen')} and {checking.text(other)} are one address"
                checking.refuse(key, what, "give each its own port")


def _check_agent(checking: Checking) -> None:
    for index, server in enumerate(checking.value("agent.servers")):
        try:
            split_address(server)
        except Refused as refused:
            checking.refuse(f"agent.servers[{index}]", refused.what, 'write it like "gateway.internal:7443"')
    name = checking.value("agent.name")
    if name and not may_be_named(name):
        checking.refuse("agent.name", f"{shown(name)} is no name for a node", "write letters, digits, '.', '_' or '-'")
    if not _is_port_range(checking.value("agent.ports")):
        checking.refuse("agent.ports", "it is no range of ports", 'write it like "20000-20999"')


def _is_port_range(text: str) -> bool:
    first, _, last = text.partition("-")
    ends = (first.strip(), (last or first).strip())
    return all(end.isdecimal() for end in ends) and 0 < int(ends[0]) <= int(ends[1]) <= 65535


def _check_origins(checking: Checking) -> None:
    """They are compared letter by letter, so one that no browser sends would never match."""
    for key, besides in (("server.cors_origins", ("*", "null")), ("admin.allowed_origins", ())):
        for index, origin in enumerate(checking.value(key)):
            if origin not in besides and not _ORIGIN.fullmatch(origin):
                what = f"{shown(origin)} is no origin that a browser sends"
                checking.refuse(f"{key}[{index}]", what, 'write it like "https://ops.example.com"')


def _check_hosts(checking: Checking) -> None:
    for index, host in enumerate(checking.value("admin.allowed_hosts")):
        if not _HOST.fullmatch(host):
            what = f"{shown(host)} is no host name"
            checking.refuse(f"admin.allowed_hosts[{index}]", what, 'write it like "ops.example.com", without a port')


def _check_tls(checking: Checking) -> None:
    for section in ("server", "admin", "agents"):
        cert, key = checking.value(f"{section}.tls_cert"), checking.value(f"{section}.tls_key")
        if bool(cert) != bool(key):
            has, lacks = ("tls_cert", "tls_key") if cert else ("tls_key", "tls_cert")
            checking.refuse(f"{section}.{has}", f"there is no {section}.{lacks} beside it", f"set {section}.{lacks}")
        elif cert and (why := _unloadable(cert, key)):
            what = f"{cert} and {key} are no certificate and its key ({why})"
            checking.refuse(f"{section}.tls_cert", what, "name existing PEM files that belong together")
        elif key:
            _check_key_file(checking, f"{section}.tls_key", Path(key))


def _check_key_file(checking: Checking, key: str, file: Path) -> None:
    try:
        check_key_file(file, checking.environ)
    except Refused as refused:
        checking.refuse(key, refused.what, refused.what_to_do)


def _unloadable(cert: str, key: str) -> str:
    try:
        # An empty password: an encrypted key is refused instead of asked for on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:  # SSLError is an OSError
        return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return ""


def _check_store(checking: Checking) -> None:
    try:
        check_url(place(checking.built["store"], checking.environ))
    except StoreUnavailable as error:  # its text has no password in it
        what, _, what_to_do = str(error).removeprefix("store.url: ").partition("; ")
        checking.refuse("store.url", what, what_to_do)


def _check_lease(checking: Checking) -> None:
    """A leader has time for one more renewal, and for a statement that hangs, before its trust ends."""
    if why := checking.built["lease"].problem():
        key = next((f"lease.{name}" for name in ("ttl", "renew", "call_within", "margin")
                    if checking.is_given(f"lease.{name}")), "lease.ttl")  # fmt: skip
        checking.refuse(key, why, "raise lease.ttl, or lower what is added up; the same on every control plane")


def _check_advertised(checking: Checking) -> None:
    for key in ("server.advertise", "admin.advertise"):
        said = checking.value(key)
        if said and not _ORIGIN.fullmatch(said.lower().rstrip("/")):
            checking.refuse(key, f"{said!r} is no URL that others could use", "write https://HOST:PORT")
    said = checking.value("agents.advertise")
    if said and not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}", said):
        checking.refuse("agents.advertise", f"{said!r} is no address that agents could use", "write HOST:PORT")


CHECKS: tuple[Callable[[Checking], None], ...] = (
    _check_above_zero,
    _check_contradictions,
    _check_probe,
    _check_bands,
    _check_listeners,
    _check_agents_listener,
    _check_agent,
    _check_origins,
    _check_hosts,
    _check_tls,
    _check_store,
    _check_lease,
    _check_advertised,
)


def secrets_of(section: str) -> Iterator[str]:
    return (setting.name for setting in settings_of(section) if setting.metadata["unit"] is Unit.SECRET)
