"""What the screens in docs/console.md are taken of: the demo of a cluster, its clients, and a terminal before it.

Each is real: ``llmgw demo --cluster`` in a folder of its own, requests over HTTP, the console in tmux.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from attrs import define, field

from llmgw.cli.demo_processes import ctl
from sim.gpus import SimFolder

LLMGW = (sys.executable, "-m", "llmgw")
COLUMNS, ROWS = 100, 30
BETWEEN_S = 0.1  # two looks
UP_WITHIN_S, SEEN_WITHIN_S, ENDS_WITHIN_S = 120.0, 60.0, 60.0
ANNOUNCED = re.compile(r"^(clients|admin|agents):\s+(?:https?://)?(127\.0\.0\.1:\d+)", re.MULTILINE)
ANY_PORT = re.compile(r'127\.0\.0\.1:0(?=")')


class NotSeen(Exception):
    """What was waited for did not come; with what was there instead."""


def wait(until: Callable[[], object], instead: Callable[[], str], within_s: float = SEEN_WITHIN_S) -> None:
    """Raises NotSeen."""
    deadline = time.monotonic() + within_s
    while not until():
        if time.monotonic() > deadline:
            raise NotSeen(f"not within {within_s:g} s:\n{instead()}")
        time.sleep(BETWEEN_S)


# -- the cluster ------------------------------------------------------------------------------------------


@define(eq=False)
class Demo:
    """``place``: its folder, which must be empty."""

    place: Path
    _process: "subprocess.Popen[bytes]" = field(init=False)
    _server: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def env(self) -> Mapping[str, str]:
        """The demo is a context of ``llmgw`` there, and of nobody else's."""
        ours = {"XDG_CONFIG_HOME": str(self.place / "config"), "LC_ALL": "C.UTF-8"}
        return {name: value for name, value in os.environ.items() if not name.startswith("LLMGW_")} | ours

    def start(self) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        argv = [*LLMGW, "demo", "--cluster", "--dir", str(self.place)]
        with (self.place / "demo.log").open("wb") as out:
            self._process = subprocess.Popen(argv, stdout=out, stderr=out, env=self.env, start_new_session=True)
        wait(lambda: "Press Ctrl-C" in self.said or self._process.poll() is not None, lambda: self.said, UP_WITHIN_S)

    @property
    def said(self) -> str:
        return (self.place / "demo.log").read_text(encoding="utf-8", errors="replace")

    @property
    def client(self) -> tuple[str, str]:
        """Where clients connect, and the demo's key."""
        found = re.search(r"^clients: (\S+), key (\S+)$", self.said, re.MULTILINE)
        if found is None:
            raise NotSeen(self.said)
        return found[1], found[2]

    @property
    def admin_url(self) -> str:
        return f"http://{self._ports()['admin']}"

    @property
    def token(self) -> str:
        return (self.place / "data" / "admin.token").read_text(encoding="utf-8").strip()

    def make_key(self, tenant: str, band: str) -> str:
        return str(ctl(self.place, "keys", "create", "--tenant", tenant, "--new-tenant", "--band", band)["key"])

    def gpus(self, node: str) -> SimFolder:
        return SimFolder(self.place / node / "gpus")

    def home(self, replica: str) -> tuple[str, str]:
        """The node and the GPU of its first shard."""
        shard = next(one["shards"][0] for one in self.replicas() if one["name"] == replica)
        return str(shard["node"]), str(shard["gpus"][0])

    def serving(self) -> list[str]:
        return sorted(str(one["name"]) for one in self.replicas() if one["serving"])

    def replicas(self) -> list[dict[str, Any]]:
        """Those that leave too."""
        found: list[dict[str, Any]] = ctl(self.place, "replicas")["replicas"]
        return found

    # -- a control plane that dies -----------------------------------------------------------------------

    def kill_server(self) -> None:
        """The demo would end with it, so it stands still from now on. Its config says the ports that it had."""
        ports = self._ports()
        listens = iter([ports["clients"], ports["admin"], ports["agents"]])
        config = self.place / "llmgw.toml"
        config.write_text(ANY_PORT.sub(lambda _: next(listens), config.read_text(encoding="utf-8")), encoding="utf-8")
        os.kill(self._process.pid, signal.SIGSTOP)
        os.kill(self._pid_of_server(), signal.SIGKILL)

    def _ports(self) -> dict[str, str]:
        log = (self.place / "gateway.log").read_text(encoding="utf-8", errors="replace")
        return dict(ANNOUNCED.findall(log))

    def _pid_of_server(self) -> int:
        """Of the children of the demo the one that serves."""
        for child in Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split():
            if b"\0server\0" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        raise NotSeen("the demo runs no server")

    def start_server(self) -> None:
        argv = [*LLMGW, "server", "--config", str(self.place / "llmgw.toml"), "--data-dir", str(self.place / "data")]
        with (self.place / "gateway.log").open("ab") as out:
            self._server = subprocess.Popen(argv, stdout=out, stderr=out, env=self.env, start_new_session=True)

    def stop(self) -> None:
        """Ctrl-C, which ends its engines too; then the server, where it was started anew."""
        os.kill(self._process.pid, signal.SIGINT)
        os.kill(self._process.pid, signal.SIGCONT)
        self._process.wait(ENDS_WITHIN_S)
        if self._server is not None:
            self._server.terminate()
            self._server.wait(ENDS_WITHIN_S)


@contextmanager
def demo(place: Path) -> Iterator[Demo]:
    made = Demo(place)
    made.start()
    try:
        yield made
    finally:
        made.stop()


# -- clients ----------------------------------------------------------------------------------------------


@contextmanager
def streams(base_url: str, key: str, count: int, tokens: int, apart_s: float = 0.0) -> Iterator[None]:
    """So many clients, each with one stream after another; they begin ``apart_s`` apart."""
    stop = threading.Event()
    body = {"model": "demo-model", "stream": True, "max_tokens": tokens, "ignore_eos": True}
    body["messages"] = [{"role": "user", "content": "Tell me more."}]

    def ask(begins_in_s: float) -> None:
        stop.wait(begins_in_s)
        with httpx.Client(trust_env=False, timeout=600, headers={"authorization": f"Bearer {key}"}) as client:
            while not stop.is_set():
                try:
                    with client.stream("POST", f"{base_url}/chat/completions", json=body) as answer:
                        for _ in answer.iter_raw():
                            if stop.is_set():
                                break
                except httpx.HTTPError:
                    stop.wait(1)  # its gateway was killed, which is what is shown

    workers = [threading.Thread(target=ask, args=(number * apart_s,), daemon=True) for number in range(count)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        stop.set()
        for worker in workers:
            worker.join(ENDS_WITHIN_S)


# -- the terminal -----------------------------------------------------------------------------------------


@define(eq=False)
class Terminal:
    """tmux with a server of its own, so that nobody else's sessions are in the way."""

    path: Path  # of its socket
    env: Mapping[str, str]

    def open(self, *argv: str) -> None:
        size = ("-x", str(COLUMNS), "-y", str(ROWS))
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, *argv)

    def press(self, *keys: str) -> None:
        """By tmux's names: Enter, Escape, Down."""
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    def say(self, command: str) -> None:
        self.type(command)
        self.press("Enter")

    @property
    def text(self) -> str:
        return self._tmux("capture-pane", "-p")

    def until(self, *words: str, without: str = "") -> str:
        """What stands there once it has all of that, wherever lines are folded, and stands still. Raises NotSeen."""
        looks = ["", self.text]

        def there() -> bool:
            looks[:] = [looks[1], self.text]
            flat = " ".join(looks[1].split())
            return all(one in flat for one in words) and not (without and without in flat) and looks[0] == looks[1]

        wait(there, lambda: f"{words}, without {without!r}:\n{looks[1]}")
        return looks[1]

    def close(self) -> None:
        self._tmux("kill-server")

    def _tmux(self, *words: str) -> str:
        argv = ["tmux", "-u", "-S", str(self.path), *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True, env=self.env).stdout


@contextmanager
def terminal(path: Path, env: Mapping[str, str], *argv: str) -> Iterator[Terminal]:
    made = Terminal(path, env)
    made.open(*argv)
    try:
        yield made
    finally:
        made.close()
