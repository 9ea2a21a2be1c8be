"""What systemd would hear of a gateway and of an agent, and sockets that outlive a restart."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import trio

from tests.journeys.clustering import Cluster, cluster, model, until
from tests.journeys.running import House, Process, clean_environment, config_of, wait_until
from tests.journeys.talking import chat


class Manager:
    """The other end of $NOTIFY_SOCKET."""

    def __init__(self, path: str) -> None:
        self.path, self.heard = path, list[list[str]]()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(path)
        self._sock.settimeout(0.2)
        self._over = False
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._over:
            try:
                self.heard.append(self._sock.recv(4096).decode().split("\n"))
            except TimeoutError:
                continue

    def words(self) -> list[str]:
        """The first of each message, watchdogs apart, each once in a row."""
        found = [lines[0].partition("=")[0] for lines in self.heard if lines[0] != "WATCHDOG=1"]
        return [word for number, word in enumerate(found) if number == 0 or found[number - 1] != word]

    def signs(self) -> int:
        return sum(lines[0] == "WATCHDOG=1" for lines in self.heard)

    def close(self) -> None:
        self._over = True
        self._thread.join()
        self._sock.close()


@pytest.fixture
def manager(tmp_path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify"))
    yield made
    made.close()


def test_a_gateway_says_when_it_serves_reloads_and_stops_and_asks_for_time(home: House, manager: Manager):
    engine = home.engine(decode_rate=10)
    config = config_of({"a": engine.url}, server='balancer_pause = "500ms"')
    gateway = home.gateway(config, NOTIFY_SOCKET=manager.path, WATCHDOG_USEC="600000")
    wait_until(lambda: manager.signs() > 3)
    gateway.process.signal(signal.SIGHUP)
    wait_until(lambda: manager.words() == ["READY", "RELOADING", "READY"])
    body, head = chat(max_tokens=20), {"authorization": f"Bearer {gateway.make_key()}"}
    ask = threading.Thread(target=lambda: httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=head))
    ask.start()
    wait_until(lambda: engine.state()["running"] == 1)
    gateway.process.signal(signal.SIGTERM)
    assert gateway.process.wait() == 0
    ask.join()
    assert manager.words() == ["READY", "RELOADING", "READY", "STOPPING", "EXTEND_TIMEOUT_USEC"]
    extended = next(lines for lines in manager.heard if lines[0].startswith("EXTEND"))
    assert extended == ["EXTEND_TIMEOUT_USEC=15000000", "STATUS=stopping: 1 requests run"]


def test_a_loop_that_stands_still_gives_no_life_sign(home: House, manager: Manager):
    gateway = home.gateway_anywhere("", NOTIFY_SOCKET=manager.path, WATCHDOG_USEC="300000")
    wait_until(lambda: manager.signs() > 3)
    os.kill(gateway.pid, signal.SIGSTOP)
    wait_until(lambda: _is_stopped(gateway.pid))
    before = manager.signs()
    gateway_was_quiet = threading.Event()
    gateway_was_quiet.wait(1.0)  # more than three life signs
    assert manager.signs() <= before + 1
    os.kill(gateway.pid, signal.SIGCONT)
    wait_until(lambda: manager.signs() > before + 3)


def _is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


async def test_an_agent_says_that_its_engines_are_adopted(home: House, manager: Manager):
    with cluster(home, model(1)) as made:
        await until(made, lambda: made.serves(1))
        node = made.replicas()[0]["shards"][0]["node"]
        made.kill_agent(node)
        os.environ["NOTIFY_SOCKET"], os.environ["WATCHDOG_USEC"] = manager.path, "600000"
        try:
            made.start_agent(node)
        finally:
            del os.environ["NOTIFY_SOCKET"], os.environ["WATCHDOG_USEC"]
        await until(made, lambda: manager.signs() > 3)
        assert manager.heard[0] == ["READY=1", "STATUS=1 engines adopted"] or manager.heard[1][0] == "READY=1"
        os.kill(made.nodes[node].pid, signal.SIGTERM)
        await until(made, lambda: manager.words() == ["READY", "STOPPING"])
        assert _engines_live(made, node)


def _engines_live(made: Cluster, node: str) -> bool:
    return bool(made.nodes[node].engine_pids())


@contextmanager
def activated(sock: socket.socket, *arguments: str) -> Iterator[Process]:
    """``llmgw`` as systemd starts it, with a socket that it holds, at descriptor 3."""
    script = f'exec 3<&{sock.fileno()}; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=clients; exec "$@"'
    process = Process(
        subprocess.Popen(
            ["bash", "-c", script, "bash", sys.executable, "-m", "llmgw", *arguments],
            pass_fds=[sock.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True, env={**clean_environment(), "PYTHONUNBUFFERED": "1"},
        )
    )  # fmt: skip
    try:
        yield process
    finally:
        process.end()


async def test_who_comes_during_a_restart_waits_and_is_answered(home: House):
    engine = home.engine()
    config = home.write("gw.toml", config_of({"a": engine.url}, server="balancer_pause = 0"))
    said = ("server", "-c", str(config), "--data-dir", str(home.folder / "gw"), "--no-auth")
    with socket.create_server(("127.0.0.1", 0), backlog=512) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        async with trio.open_nursery() as nursery, httpx.AsyncClient(trust_env=False, timeout=30) as client:
            answers, over = list[int](), trio.Event()

            async def ask() -> None:
                while not over.is_set():
                    # Each on a connection of its own, as one that comes just then.
                    answer = await client.post(
                        f"{url}/v1/chat/completions", json=chat(max_tokens=1), headers={"connection": "close"}
                    )
                    answers.append(answer.status_code)

            for restart in range(3):
                with activated(sock, *said) as process:
                    await trio.to_thread.run_sync(process.said, "clients: ")
                    if restart == 0:
                        for _ in range(4):
                            nursery.start_soon(ask)
                    seen = len(answers)
                    with trio.fail_after(20):
                        while len(answers) < seen + 30:  # noqa: ASYNC110
                            await trio.sleep(0.02)
                    if restart == 2:
                        over.set()
                        await trio.sleep(0.2)
                    process.signal(signal.SIGTERM)
                    assert await trio.to_thread.run_sync(process.wait) == 0
    assert set(answers) == {200}
