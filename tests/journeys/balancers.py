"""HAProxy with the example that deploy/ha/ has, in front of the control planes of a pair."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from tests.journeys.clustering import block_of_ports
from tests.journeys.running import clean_environment, wait_until

EXAMPLE = Path(__file__).parents[2] / "deploy" / "ha" / "haproxy.cfg"
PROGRAM = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin")
STATE = re.compile(r'haproxy_server_status\{proxy="llmgw",server="(gw-\d)",state="UP"\} (\d)')


class Balancer:
    """``address`` is where clients connect."""

    def __init__(self, port: int, numbers: int) -> None:
        self.address = ("127.0.0.1", port)
        self._numbers = f"http://127.0.0.1:{numbers}/metrics"

    def up(self) -> set[str]:
        """The servers that it sends requests to."""
        text = httpx.get(self._numbers, trust_env=False, timeout=5).text
        return {name for name, value in STATE.findall(text) if value == "1"}

    def answers(self) -> bool:
        with suppress(httpx.HTTPError):
            return bool(self.up())
        return False


@contextmanager
def haproxy(folder: Path, servers: Sequence[str]) -> Iterator[Balancer]:
    """``servers``: host:port of each client listener, in order."""
    assert PROGRAM is not None
    port = block_of_ports(2)
    text = EXAMPLE.read_text().replace("bind :8080", f"bind 127.0.0.1:{port}")
    text = text.replace("127.0.0.1:8405", f"127.0.0.1:{port + 1}").replace("maxconn 20000", "maxconn 2000")
    for number, address in enumerate(servers, start=11):
        text, found = re.subn(rf"192\.0\.2\.{number}:7440", address, text)
        assert found == 1
    file = folder / "haproxy.cfg"
    file.write_text(text)
    with (folder / "haproxy.log").open("wb") as log:
        process = subprocess.Popen([PROGRAM, "-f", str(file)], stdout=log, stderr=log, env=clean_environment())
    try:
        made = Balancer(port, port + 1)
        wait_until(made.answers, 20)
        yield made
    finally:
        process.kill()
        process.wait(10)
