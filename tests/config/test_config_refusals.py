"""What a config is refused for: each row a file, and the key, the fact and the advice that come back."""

import pytest

from llmgw.config import ConfigError, load
from llmgw.config.read import SECTIONS

ONE = '[[models]]\nname = "a"\n[[models.endpoints]]\nurl = "http://h:1"\n'
TWO = ONE + '[[models]]\nname = "b"\n[[models.endpoints]]\nurl = "http://h:2"\n'


def problems_of(text: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load(None, environ or {}, text)
    return [str(problem).removeprefix("(no file):") for problem in refused.value.problems]


ROWS = {
    "unknown setting": ("[relay]\ntotl = 1", ["relay.totl:", "did you mean 'total'?"]),
    "unknown section": ("[servr]\n", ["servr:", "did you mean 'server'?"]),
    "setting of another section": ("[relay]\nbody_max = 1", ["relay.body_max:", "it belongs to [server]"]),
    "section that is a value": ("relay = 3", ["relay:", "write [relay] on a line by itself"]),
    "too little": ("[relay]\nattempts_max = 0", ["relay.attempts_max: 0 is too little", "write 1 or more"]),
    "too much": ("[relay]\nretry_budget = 1.5", ["relay.retry_budget: 1.5 is too much", "write 1.0 or less"]),
    "below zero": ("[server]\nper_ip_max = -1", ["server.per_ip_max: -1 is too little"]),
    "not a number": ("[relay]\nretry_budget = nan", ["relay.retry_budget:", "is no number"]),
    "number in quotes": ('[relay]\nattempts_max = "3"', ["relay.attempts_max: '3' is no whole number"]),
    "flag in quotes": ('[log]\nrequests = "no"', ["log.requests:", "without quotes"]),
    "bad unit": ('[relay]\ntotal = "3 weeks"', ["relay.total: 'weeks' is no unit", "ms, s, min, h, d"]),
    "bad choice": ('[log]\nlevel = "loud"', ["log.level: 'loud' is not known", "one of debug, info, warning, error"]),
    "bad address": ('[server]\nlisten = "7440"', ["server.listen:", 'write it like "127.0.0.1:7440"']),
    "list that is text": ('[server]\ncors_origins = "*"', ["server.cors_origins:", 'write it like ["a", "b"]']),
    "zero deadline": ("[relay]\ndial = 0", ["relay.dial: it is 0"]),
    "broken TOML": ("[relay\n", ["it is no TOML:", "line 1"]),
    "nested too deeply": ("a = " + "[" * 100_000, ["nested too deeply"]),
    "number without an end": ("[relay]\nattempts_max = " + "9" * 5000, ["it holds a number that is far too long"]),
    "number too long to be shown": ("[server]\nheaders_max = 0x" + "f" * 5000, ["server.headers_max:", "far too much"]),
    "share without an end": ("[relay]\nretry_budget = 0x" + "f" * 5000, ["relay.retry_budget:", "is no number"]),
    "longer than the kernel counts": ('[server]\nwrite_stall = "30d"', ["server.write_stall:", 'write "1d" or less']),
    "origin without a scheme": ('[admin]\nallowed_origins = ["a.b"]', ["admin.allowed_origins[0]: 'a.b' is no origin"]),
    "any origin for operators": ('[admin]\nallowed_origins = ["*"]', ["admin.allowed_origins[0]: '*' is no origin"]),
    "origin with a slash": ('[server]\ncors_origins = ["*", "https://a.b/"]', ["server.cors_origins[1]:", "no origin"]),
    "host with a port": ('[admin]\nallowed_hosts = ["a.b:1"]', ["admin.allowed_hosts[0]:", "without a port"]),
    "localhost is 127.0.0.1": ('[server]\nlisten = "localhost:7442"', ["server.listen:", "its own port"]),
    "a band that is none": (
        "[admission]\nceilings = {platin = 1}",
        ["admission.ceilings.platin:", "did you mean 'platinum'?"],
    ),
    "a ceiling above a higher band's": (
        "[admission]\nceilings = {bronze = 0.97}",
        ["admission.ceilings:", "bronze 0.97 is above silver 0.95"],
    ),
    "a model's own ceiling above a higher band's": (
        '[[models]]\nname = "m"\nceilings = {bronze = 0.99}',
        ["models[0].ceilings:", "bronze 0.99 is above silver 0.95"],
    ),
    "a model's band that is none": (
        '[[models]]\nname = "m"\nfloors = {brozne = 0.1}',
        ["models[0].floors.brozne:", "did you mean 'bronze'?"],
    ),
    "samples that are stale before the next": (
        '[probe]\nmetrics = "5s"',
        ["probe.metrics:", 'admission.sample_stale = "2s" (the default)'],
    ),
    "a floor below nothing": (
        "[admission]\nfloors = {bronze = -0.1}",
        ["admission.floors:", "bronze: -0.1 is too little"],
    ),
    "a ceiling that is no number": (
        "[admission]\nceilings = {gold = inf}",
        ["admission.ceilings:", "gold: inf is no number"],
    ),
    "a ceiling of nothing": ("[admission]\nceilings = {bronze = 0}", ["admission.ceilings.bronze:", "it is 0"]),
    "floors that are everything": (
        "[admission]\nfloors = {gold = 0.5, bronze = 0.5}",
        ["admission.floors:", "below 1"],
    ),
    "queues that hold half of all bodies": (
        '[admission]\nqueue_bytes_max = "200MiB"',
        ["admission.queue_bytes_max:", 'server.bodies_total_max = "1GiB" (the default)'],
    ),
    "bodies": ('[server]\nbody_max = "2GiB"', ["server.body_max:", 'server.bodies_total_max = "1GiB" (the default)']),
    "target in head": ('[server]\ntarget_max = "64KiB"', ["server.target_max:", "server.head_max"]),
    "relay.idle": ('[relay]\nidle = "1h"', ["relay.idle:", 'relay.total = "30min" (the default)', "lower relay.idle"]),
    "relay.headers": ('[relay]\nheaders = "1h"', ["relay.headers:", "relay.total"]),
    "relay.total": ('[relay]\ntotal = "90s"', ["relay.total: relay.first_token", "raise relay.total"]),
    "breaker": ('[breaker]\nopen_for = "2min"', ["breaker.open_for:", "breaker.open_max"]),
    "probe": ('[probe]\ntimeout = "1min"', ["probe.timeout:", "probe.health"]),
    "one address": ('[admin]\nlisten = "127.0.0.1:7440"', ["admin.listen:", "server.listen", "its own port"]),
    "admin in the clear": ('[admin]\nlisten = "0.0.0.0:7442"', ["admin.listen:", "in the clear", "admin.tls_cert"]),
    "no keys in public": ('[server]\nno_auth = true\nlisten = "[::]:7440"', ["server.no_auth:", "[::]:7440"]),
    "half of TLS": ('[server]\ntls_cert = "/x"', ["server.tls_cert: there is no server.tls_key", "set server.tls_key"]),
    "TLS files missing": ('[admin]\ntls_cert = "/x"\ntls_key = "/y"', ["admin.tls_cert:", "No such file"]),
    "store": ('[store]\nurl = "mysql://u:pw@h/d"', ["store.url:", "'mysql'"]),
    "nameless model": ("[[models]]\n", ["models[0].name: a name is missing"]),
    "odd name": ('[[models]]\nname = "a/../b"', ["models[0].name:", "no two dots in a row"]),
    "odd alias": ('[[models]]\nname = "a"\naliases = ["b c"]', ["models[0].aliases[0]: 'b c'"]),
    "models are a table": ('[models]\nname = "a"', ["models: it is no list", "[[models]]"]),
    "unknown model setting": ('[[models]]\nname = "a"\nfalback = []', ["models[0].falback:", "'fallback'"]),
    "no url": ('[[models]]\nname = "a"\n[[models.endpoints]]\n', ["models[0].endpoints[0].url:"]),
    "engine": (ONE + 'engine = "vlm"', ["models[0].endpoints[0].engine: 'vlm'", "one of vllm, sglang"]),
    "capacity": (ONE + "capacity = 0", ["models[0].endpoints[0].capacity: 0 is too little"]),
    "ca": (ONE + 'ca = "/nowhere.pem"', ["models[0].endpoints[0].ca: /nowhere.pem is no PEM bundle"]),
    "odd id": (ONE + 'id = "a b"', ["models[0].endpoints[0].id: 'a b'"]),
    "same id": (TWO + 'id = "h:1"', ["models[1].endpoints[0].id: 'h:1'", "models[0].endpoints[0]"]),
    "same model": (ONE + '[[models]]\nname = "a"', ["models[1].name: 'a'", "models[0]"]),
    "alias is a model": (TWO.replace('"a"', '"a"\naliases = ["b"]'), ["models[0].aliases[0]: 'b'", "models[1].name"]),
    "alias twice": (
        '[[models]]\nname = "a"\naliases = ["x"]\n[[models]]\nname = "b"\naliases = ["x"]',
        ["models[1].aliases[0]: 'x'", "models[0].aliases[0]"],
    ),
    "alias of itself": ('[[models]]\nname = "a"\naliases = ["a"]', ["models[0].aliases[0]: 'a'", "models[0].name"]),
    "adapter is a model": (TWO + 'adapters = ["a"]', ["models[1].endpoints[0].adapters:", "models[0].name"]),
    "adapter of two models": (
        ONE + 'adapters = ["x"]\n[[models]]\nname = "b"\n[[models.endpoints]]\nurl = "http://h:2"\nadapters = ["x"]',
        ["models[1].endpoints[0].adapters:", "models[0].endpoints[0].adapters"],
    ),
    "fallback to nobody": (
        TWO.replace('"a"', '"aa"\nfallback = ["bb"]'),
        ["models[0].fallback[0]: nobody answers to 'bb'", "did you mean 'b'?"],
    ),
    "fallback to itself": ('[[models]]\nname = "a"\nfallback = ["a"]', ["models[0].fallback[0]: it loops: a → a"]),
    "fallback for nothing": ('[[models]]\nname = "a"\nfallback = [{model = "b", on = []}]', ["models[0].fallback[0]:"]),
    "fallback reason": (
        '[[models]]\nname = "a"\nfallback = [{model = "b", on = ["500"]}]',
        ["models[0].fallback[0]: '500' is no reason", "unreachable, 5xx, 429"],
    ),
    "fallback key": ('[[models]]\nname = "a"\nfallback = [{model = "b", n = 1}]', ["models[0].fallback[0]:", "'n'"]),
}


@pytest.mark.parametrize("row", ROWS)
def test_it_is_refused_with_its_place_and_with_advice(row):
    text, expected = ROWS[row]

    problems = problems_of(text)

    assert any(all(part in problem for part in expected) for problem in problems), problems


def test_every_problem_is_told_at_once():
    assert len(problems_of('[relay]\ndial = "x"\nidl = 1\n[log]\nlevel = "loud"\n[[models]]\n')) == 4


def test_a_loop_of_three_is_told_once_and_with_the_way():
    loop = "".join(f'[[models]]\nname = "{a}"\nfallback = ["{b}"]\n' for a, b in ("ab", "bc", "ca"))

    assert problems_of(loop) == [
        "models[0].fallback[0]: it loops: a → b → c → a, take it out, or the way back in models[2].fallback"
    ]


def test_a_loop_through_an_alias_is_a_loop():
    text = '[[models]]\nname = "a"\nfallback = ["bee"]\n[[models]]\nname = "b"\naliases = ["bee"]\nfallback = ["a"]'

    assert "a → b → a" in problems_of(text)[0]


@pytest.mark.parametrize(
    "url",
    ["h:1", "ftp://h:1", "http://", "http://:1", "http://h:", "http://h:0", "http://h:99999", "http://h/a?b=1",
     "http://h/#x", "http://h/a/../b", "http://h//b", "http://h\\b", "http://h h", "http://[::1", "http://ü:1"],
)  # fmt: skip
def test_a_url_that_is_no_base_is_refused(url):
    assert problems_of(ONE.replace('"http://h:1"', f"'{url}'"))[0].startswith("models[0].endpoints[0].url: ")


def test_no_password_is_ever_shown():
    secret = "hunter2"
    text = f'{ONE}api_key = "{secret}\\n"\n[store]\nurl = "mysql://u:{secret}@h/d"\n'
    text = text.replace("http://h:1", f"http://u:{secret}@h:1")

    problems = problems_of(text, {"LLMGW_ADMIN__METRICS_TOKEN": f"{secret}\x7f"})

    assert len(problems) == 4
    assert secret not in str(problems)


ITSELF = '[server]\nlisten = "{listen}"\n[[models]]\nname = "m"\n[[models.endpoints]]\nurl = "{url}"\n'


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1:7440", "http://127.0.0.1:7440/v1"),
        ("127.0.0.1:7440", "http://LocalHost:7440"),
        ("localhost:7440", "http://127.0.0.1:7440"),
        ("[::1]:7440", "http://localhost:7440"),
        ("[::1]:7440", "http://[0:0::1]:7440"),
        ("0.0.0.0:7440", "https://localhost:7440"),
        ("[::]:80", "http://127.0.0.1"),
        ("10.0.0.5:7440", "http://10.0.0.5:7440"),
        ("0.0.0.0:7440", "http://0.0.0.0:7440"),
    ],
)
def test_an_endpoint_that_is_the_gateway_itself_is_refused_naming_both_places(listen, url):
    [problem] = problems_of(ITSELF.format(listen=listen, url=url))

    assert problem.startswith("models[0].endpoints[0].url: ")
    assert f'is this gateway itself, server.listen = "{listen}"' in problem


def test_the_gateways_own_address_by_default_or_for_operators_is_no_engine_either():
    [default] = problems_of(ONE.replace("http://h:1", "http://localhost:7440"))
    [operators] = problems_of(ONE.replace("http://h:1", "http://localhost:7442"))

    assert 'server.listen = "127.0.0.1:7440" (the default)' in default
    assert 'admin.listen = "127.0.0.1:7442" (the default)' in operators


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1:7440", "http://127.0.0.2:7440"),
        ("127.0.0.1:7440", "http://[::1]:7440"),
        ("127.0.0.1:7440", "http://127.0.0.1:8000"),
        ("127.0.0.1:0", "http://127.0.0.1:8000"),
        ("10.0.0.5:7440", "http://localhost:7440"),
    ],
)
def test_an_engine_beside_the_gateway_is_none_of_it(listen, url):
    assert load(None, {}, ITSELF.format(listen=listen, url=url)).fleet.models


def test_a_section_that_resembles_none_is_told_all_there_are():
    [in_file] = problems_of("[zzzzzz]\n")
    [in_environment] = problems_of("", {"LLMGW_ZZZZZZ__TOTAL": "1"})

    assert in_file == f"zzzzzz: there is no such section, there are: {', '.join(sorted([*SECTIONS, 'models']))}"
    assert in_environment.endswith(f"there is no section 'zzzzzz', there are: {', '.join(sorted(SECTIONS))}")
