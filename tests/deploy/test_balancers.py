"""The examples in deploy/ha/: their programs understand them, and clients reach nothing but clients' doors."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import trustme
import yaml

HA = Path(__file__).parents[2] / "deploy" / "ha"
NGINX = [HA / "nginx.conf", HA.parent / "nginx.conf"]


def has(program: str) -> str:
    """Where Debian puts it, if it is there; tests that need it are skipped otherwise, saying so."""
    return shutil.which(program, path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin") or ""


def checked(*words: str) -> tuple[int, str]:
    said = subprocess.run(words, capture_output=True, text=True, timeout=30, start_new_session=True)
    return said.returncode, said.stdout + said.stderr


@pytest.mark.skipif(not has("haproxy"), reason="there is no haproxy here: apt-get install haproxy")
def test_haproxy_understands_its_example():
    code, said = checked(has("haproxy"), "-c", "-f", str(HA / "haproxy.cfg"))
    assert (code, "warning" in said.lower()) == (0, False), said


@pytest.mark.skipif(not has("nginx"), reason="there is no nginx here: apt-get install nginx")
@pytest.mark.parametrize("file", NGINX, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_nginx_understands_its_examples(file, tmp_path):
    text = file.read_text().replace("listen 443", "listen 8443")  # which nobody but root may try
    made = trustme.CA().issue_cert("llm.example.com")
    made.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "tls.pem"))
    for path in ("/etc/llmgw/tls.crt", "/etc/llmgw/tls.key"):  # as the file says
        text = text.replace(path, str(tmp_path / "tls.pem"))
    (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/nginx.pid;\nerror_log stderr;\n" + text)
    code, said = checked(has("nginx"), "-t", "-c", str(tmp_path / "nginx.conf"))
    assert code == 0, said


@pytest.mark.skipif(not has("keepalived"), reason="there is no keepalived here: apt-get install keepalived")
@pytest.mark.parametrize(("add", "fine"), [("", True), ("\nnot_a_word {\n}\n", False)], ids=["as it is", "spoiled"])
def test_keepalived_understands_its_example(add, fine, tmp_path):
    file = tmp_path / "keepalived.conf"
    file.write_text((HA / "keepalived.conf.example").read_text() + add)
    code, said = checked(has("keepalived"), "-t", "-f", str(file))
    # Debian's 2.2.7 ends itself by SIGTERM after a check that found nothing.
    complaints = [line for line in said.splitlines() if line.strip() not in ("", "Terminated") and "eth0" not in line]
    assert (code in (0, -15, 143) and not complaints) == fine, (code, said)


def envoy() -> dict:
    return yaml.safe_load((HA / "envoy.yaml").read_text())["static_resources"]


def test_envoy_asks_ready_and_sends_nobody_to_who_is_not():
    [cluster] = envoy()["clusters"]
    [check] = cluster["health_checks"]
    assert check["http_health_check"]["path"] == "/ready"
    assert cluster["common_lb_config"]["healthy_panic_threshold"] == {"value": 0}
    assert cluster["close_connections_on_host_health_failure"] is False


@pytest.mark.parametrize("file", [f for f in sorted(HA.iterdir()) if f.suffix != ".md"], ids=lambda file: file.name)
def test_only_clients_doors_stand_in_them(file):
    text = re.sub(r"#.*", "", file.read_text())
    assert not re.search(r"\b744[23]\b", text)
    assert "/health" not in text.replace("/health-check", "")


@pytest.mark.parametrize("file", ["haproxy.cfg", "envoy.yaml", "keepalived.conf.example"])
def test_whether_there_is_somewhere_to_send_a_request_is_what_is_asked(file):
    assert "/ready" in re.sub(r"#.*", "", (HA / file).read_text())
