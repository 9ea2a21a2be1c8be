"""TLS on both sides of a gateway: towards its clients, and towards an engine that speaks https."""

import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme
from attrs import frozen

from tests.journeys.clustering import block_of_ports
from tests.journeys.running import Engine, Gateway, House, config_of, wait_until
from tests.journeys.talking import chat, request

WITHIN_S = 1.0


@frozen
class Papers:
    """A certificate for 127.0.0.1 and who vouches for it."""

    ca: Path
    cert: Path
    key: Path

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    made = Papers(tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem")
    authority.cert_pem.write_to_path(made.ca)
    for pem in issued.cert_chain_pems:
        pem.write_to_path(made.cert, append=True)
    issued.private_key_pem.write_to_path(made.key)
    made.key.chmod(0o600)
    return made


@pytest.fixture
def engine(home: House) -> Engine:
    return home.engine(decode_rate=20)


@pytest.fixture
def gateway(home: House, engine: Engine, papers: Papers) -> Gateway:
    server = f'balancer_pause = 0\ntls_cert = "{papers.cert}"\ntls_key = "{papers.key}"'
    return home.gateway(config_of({"a": engine.url}, server=server))


@pytest.fixture
def client(gateway: Gateway, papers: Papers) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {gateway.make_key()}"}
    with httpx.Client(base_url=gateway.url, headers=headers, verify=papers.trusting(), trust_env=False) as made:
        yield made


def read_three(lines: Iterator[str]) -> list[str]:
    return [line for line, _ in zip((line for line in lines if line), range(3), strict=False)]


def aborted(engine: Engine, count: int) -> None:
    wait_until(lambda: engine.state()["aborted"] == count and engine.state()["running"] == 0, WITHIN_S, engine.state)


def test_plain_and_streamed_answers_and_large_bodies_come_through(client: httpx.Client):
    assert client.base_url.scheme == "https"
    plain = client.post("/v1/chat/completions", json=chat("x" * 20_000, max_tokens=4))
    assert plain.json()["usage"]["completion_tokens"] == 4
    with client.stream("POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=6)) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    refused = client.post("/v1/chat/completions", content=b"x" * 3_000_000)
    assert refused.status_code == 400


def test_a_client_that_closes_in_the_middle_of_a_stream_ends_the_engines_work(client: httpx.Client, engine: Engine):
    with client.stream("POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=2000)) as answer:
        read_three(answer.iter_lines())
    aborted(engine, 1)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_without_a_goodbye_does_too(
    gateway: Gateway, client: httpx.Client, engine: Engine, papers: Papers, stream: bool
):
    key = client.headers["authorization"].removeprefix("Bearer ")
    raw = socket.create_connection(gateway.address)
    with papers.trusting().wrap_socket(raw, server_hostname="127.0.0.1") as tls:
        tls.sendall(request(key, chat(stream=stream, max_tokens=2000)))
        if stream:
            assert tls.recv(65536).startswith(b"HTTP/1.1 200")
        wait_until(lambda: engine.state()["running"] == 1)
        # The descriptor goes; no close_notify is sent.
    aborted(engine, 1)


def test_plain_http_on_a_tls_listener_and_a_stranger_to_the_authority_get_nowhere(
    gateway: Gateway, client: httpx.Client
):
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(gateway.url.replace("https:", "http:") + "/health", trust_env=False)
    with pytest.raises(httpx.ConnectError):
        httpx.get(gateway.url + "/health", trust_env=False)
    assert client.get("/health").status_code == 200


def test_an_https_engine_is_reached_with_its_ca_and_hears_of_hang_ups(
    home: House, gateway: Gateway, client: httpx.Client, engine: Engine, papers: Papers
):
    """The first gateway is the second one's engine."""
    key = client.headers["authorization"].removeprefix("Bearer ")
    config = config_of({"behind": gateway.url}).replace(
        'engine = "sim"', f'engine = "openai"\nca = "{papers.ca}"\napi_key = "{key}"'
    )
    front = home.gateway(config, "front")
    headers = {"authorization": f"Bearer {front.make_key()}"}
    with httpx.Client(base_url=front.url, headers=headers, trust_env=False) as outside:
        assert outside.post("/v1/chat/completions", json=chat(max_tokens=3)).status_code == 200
        with outside.stream("POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=2000)) as answer:
            first = read_three(answer.iter_lines())[0]
            assert json.loads(first.removeprefix("data: "))["model"] == "sim-model"
    aborted(engine, 1)


def test_an_https_engine_that_nobody_vouches_for_is_unhealthy_and_says_why(home: House, gateway: Gateway):
    config = config_of({"behind": gateway.url})
    front = home.gateway_anywhere(config, "front")
    wait_until(lambda: front.endpoints()[0]["health"] == "unhealthy")
    assert "certificate" in front.endpoints()[0]["health_why"].lower()


def test_ctl_on_the_gateways_machine_trusts_the_authority_beside_the_store(home: House):
    """As two control planes have it: the admin listener is open to the network, with a certificate for its name."""
    certs, port = home.folder / "gw" / "certs", block_of_ports(1)
    for words in (["init"], ["server", "admin"]):
        assert home.running("certs", *words, "--dir", str(certs), "--host", "localhost").wait() == 0
    said = (
        f'advertise = "https://localhost:{port}"\ntls_cert = "{certs / "admin.pem"}"\ntls_key = "{certs / "admin.key"}"'
    )
    config = config_of({"a": "http://127.0.0.1:1"}).replace(
        '[admin]\nlisten = "127.0.0.1:0"',
        f'[agents]\nlisten = "127.0.0.1:0"\n[admin]\nlisten = "127.0.0.1:{port}"\n{said}',
    )
    gateway = home.gateway_anywhere(config)

    assert gateway.ctl("leader")["leader"]["addresses"]["admin"] == f"https://localhost:{port}"
    assert "CERTIFICATE_VERIFY_FAILED" in gateway.ctl_says("--url", f"https://127.0.0.1:{port}", "leader", code=6)
