"""A cluster of real processes for journeys: a control plane and nodes that can be killed and started again in place.

Engines outlive their agents by design, so at the end they are looked for by the mark in their environment and ended
one by one.
"""

import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import trio
from attrs import define, field

from agent.proc import AGENT, environ, pids
from sim.gpus import SimFolder
from tests.journeys.running import Gateway, House, Process, running, wait_until
from tests.journeys.talking import Clients, chat, complete
from tests.sim.engine_talk import Answer

MODEL = "sim-model"
LONG_S = 30.0
PORTS = range(12_000, 30_000)  # below those that the kernel lends to outgoing connections
ENGINE = [sys.executable, "-m", "llmgw", "sim", "engine"]
QUICK = """
[cluster]
period = "300ms"
[replica]
healthy_min = "1s"
restart_backoff = "100ms"
restart_backoff_max = "300ms"
"""


def model(
    replicas: int = 2,
    name: str = MODEL,
    executable: Sequence[str] = ENGINE,
    endpoints: Mapping[str, str] | None = None,
    engine: str = "",
    gpu_memory: str = "20GiB",
    **said: Any,
) -> str:
    """One [[models]] that agents run; ``engine``: more lines of it, ``said``: its args, as ``decode_rate=50``."""
    args = [part for key, value in said.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    quoted = ", ".join(f'"{word}"' for word in executable), ", ".join(f'"{word}"' for word in args)
    table = (
        f'[models.engine]\npreset = "sim"\nexecutable = [{quoted[0]}]\nargs = [{quoted[1]}]\n'
        f'gpus = 1\ngpu_memory = "{gpu_memory}"\n{engine}\n'
    )
    static = "".join(
        f'[[models.endpoints]]\nid = "{id}"\nurl = "{url}"\nengine = "sim"\n' for id, url in (endpoints or {}).items()
    )
    return f'[[models]]\nname = "{name}"\naliases = ["alias-of-{name}"]\nreplicas = {replicas}\n{static}{table}'


@define(eq=False)
class Node:
    """A machine with simulated GPUs; its agent is ``process``."""

    name: str
    folder: Path
    said: list[str]  # to `llmgw sim node`
    process: Process | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def gpus(self) -> SimFolder:
        return SimFolder(self.folder / "gpus")

    @property
    def scope(self) -> str:
        return str(self.folder.resolve())

    def engine_pids(self) -> set[int]:
        """Everything that ever was an engine's, by the mark that the agent gave it; shims are among them."""
        return {pid for pid in pids() if environ(pid).get(AGENT) == self.scope}


@define(eq=False)
class Cluster:
    """Every process in it is on the same ports and folders however often it is started."""

    home: House
    gateway: Gateway
    agents_port: int
    nodes: dict[str, Node]
    _stack: "Stack"
    _admin: httpx.Client = field(factory=lambda: httpx.Client(trust_env=False, timeout=10), init=False)

    # -- what is said of it ---------------------------------------------------------------------------

    def get(self, path: str, **query: Any) -> Any:
        """Of the management API. Raises httpx.HTTPError, as while the control plane is away."""
        head = {"authorization": f"Bearer {self.gateway.token}"}
        answer = self._admin.get(f"{self.gateway.admin_url}/admin/v1{path}", params=query, headers=head)
        return answer.raise_for_status().json()

    def replicas(self, of: str = MODEL) -> list[dict[str, Any]]:
        return cast(list[dict[str, Any]], self.get("/replicas", model=of)["replicas"])

    def node(self, name: str) -> dict[str, Any]:
        return cast(dict[str, Any], self.get(f"/nodes/{name}")["node"])

    def serving(self, of: str = MODEL) -> list[dict[str, Any]]:
        return [one for one in self.replicas(of) if one["in_pool"]]

    def serves(self, count: int, of: str = MODEL) -> bool:
        """So many replicas, each in the pool, and none besides."""
        try:
            found = self.replicas(of)
        except httpx.HTTPError:
            return False
        return len(found) == count and all(one["in_pool"] and one["up_to_date"] for one in found)

    def running(self, of: str = MODEL) -> dict[str, tuple[int, int]]:
        """By shard: its engine's pid and generation."""
        return {
            shard["id"]: (shard["pid"], one["generation"])
            for one in self.replicas(of)
            for shard in one["shards"]
            if shard["pid"]
        }

    def events(self, kind: str = "", subject: str = "") -> list[dict[str, Any]]:
        return cast(list[dict[str, Any]], self.get("/events", kind=kind, subject=subject, limit=1000)["events"])

    def ready(self) -> bool:
        try:
            return self._admin.get(f"{self.gateway.url}/ready", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def shown(self) -> str:
        """For whoever reads why a wait was in vain."""
        try:
            told = [
                f"{one['name']} g{one['generation']} {one['state']}: {one['why']}"
                for one in self.get("/replicas")["replicas"]
            ]
        except httpx.HTTPError as error:
            told = [repr(error)]
        return "\n".join([*told, *self.gateway.process.lines[-15:]])

    # -- what is done to it ---------------------------------------------------------------------------

    def wait(self, condition: Callable[[], object], within_s: float = LONG_S) -> None:
        wait_until(condition, within_s, self.shown)

    def add(self, name: str, *more: str, server: str = "", gpus: int = 1) -> Node:
        """A node joins. ``server``: the control planes that it knows, with commas between."""
        folder, first = self.home.folder / name, block_of_ports(20)
        servers = (server or f"127.0.0.1:{self.agents_port}").split(",")
        said = ["--dir", str(folder), "--name", name, *(word for one in servers for word in ("--server", one))]
        said += ["--gpus", str(gpus), "--ports", f"{first}-{first + 19}", *more]
        node = self.nodes[name] = Node(name, folder, said)
        asked = self.gateway.admin("POST", "/admin/v1/invitations", json={"why": "a journey"})
        node.process = self._stack.start("sim", "node", *said, "--join", asked.raise_for_status().json()["token"])
        return node

    def kill_agent(self, name: str) -> None:
        self._stack.kill(self.nodes[name].process)

    def start_agent(self, name: str, module: str = "llmgw") -> None:
        node = self.nodes[name]
        node.process = self._stack.start("sim", "node", *node.said, module=module)

    def kill_control_plane(self) -> None:
        self._stack.kill(self.gateway.process)

    def start_control_plane(self) -> None:
        gateway = self.gateway
        gateway.process = self._stack.start(*server_words(gateway.config, gateway.data_dir))

    def apply(self, config: str, how: str = "ctl") -> None:
        """``ctl`` brings it, or SIGHUP has the file read again."""
        if how == "ctl":
            file = self.gateway.config.with_name("applied.toml")
            file.write_text(config)
            self.gateway.ctl("apply", str(file))
        else:
            self.gateway.config.write_text(config)
            self.gateway.process.signal(signal.SIGHUP)

    def close(self) -> None:
        """Whoever could start an engine first; then the engines, one by one, by their own numbers."""
        self._admin.close()
        self._stack.close()
        for node in self.nodes.values():
            wait_until(partial(_ended, node), 10)


def _ended(node: Node) -> bool:
    left = node.engine_pids()
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not left


@define(eq=False)
class Stack:
    """The processes started; whatever is left ends with it."""

    _open: list[tuple[Process, Any]] = field(factory=list, init=False)

    def start(self, *arguments: str, module: str = "llmgw") -> Process:
        made = running(*arguments, module=module)
        process = made.__enter__()
        self._open.append((process, made))
        return process

    def kill(self, process: Process | None) -> None:
        """kill -9, and its lines are closed."""
        (found,) = [pair for pair in self._open if pair[0] is process]
        self._open.remove(found)
        found[1].__exit__(None, None, None)

    def close(self) -> None:
        for process, _ in list(self._open):
            self.kill(process)


def server_words(config: Path, data_dir: Path) -> tuple[str, ...]:
    return ("server", "-c", str(config), "--data-dir", str(data_dir))


@contextmanager
def cluster(
    home: House, models: str, nodes: int = 2, more: str = QUICK, name: str = "gw", ca_of: Cluster | None = None
) -> Iterator[Cluster]:
    """A control plane with so many nodes; it may not serve yet. ``ca_of``: agents of that one trust this one too."""
    first = block_of_ports(3)
    data_dir = home.folder / name
    config = home.write(f"{name}.toml", config_at(first, models, more))
    if ca_of is not None:
        shutil.copytree(ca_of.gateway.data_dir / "certs", data_dir / "certs")
    with running("certs", "init", "--dir", str(data_dir / "certs"), "--host", "127.0.0.1") as made:
        assert made.wait() == 0, made.lines
    stack = Stack()
    process = stack.start(*server_words(config, data_dir))
    gateway = Gateway(process, data_dir, config, f"http://127.0.0.1:{first}", f"http://127.0.0.1:{first + 1}")
    built = Cluster(home, gateway, first + 2, {}, stack)
    try:
        process.said("agents: ")
        for number in range(1, nodes + 1):
            built.add(f"node-{number}")
        yield built
    finally:
        built.close()


def config_at(first: int, models: str, more: str = QUICK) -> str:
    """The whole file; ``first``: of its three ports."""
    return (
        f'[server]\nlisten = "127.0.0.1:{first}"\nbalancer_pause = 0\n[admin]\nlisten = "127.0.0.1:{first + 1}"\n'
        f'[agents]\nlisten = "127.0.0.1:{first + 2}"\n{more}\n{models}'
    )


def config_of(found: Cluster, models: str, more: str = QUICK) -> str:
    return config_at(found.gateway.address[1], models, more)


_next_port = PORTS.start + os.getpid() * 61 % 12_000


def block_of_ports(count: int) -> int:
    """The first of so many that nobody uses now; none is handed out twice."""
    global _next_port
    while True:
        first, _next_port = _next_port, _next_port + count
        if _next_port >= PORTS.stop:
            _next_port = PORTS.start
        elif all(map(_is_free, range(first, first + count))):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


# -- clients ----------------------------------------------------------------------------------------------


@define(eq=False)
class Asked:
    """One request and what came of it; ``answer`` None: the connection broke."""

    began_at: float
    ended_at: float
    answer: Answer | None


@define(eq=False)
class Traffic:
    """Requests one after another in a few places, until told to end."""

    clients: Clients
    tokens: int = 5
    stream: bool = False
    name: str = MODEL
    after_failure_s: float = 0.0  # until the next try
    asked: list[Asked] = field(factory=list, init=False)
    over: bool = field(default=False, init=False)
    places: int = field(default=0, init=False)  # that are not at their end

    async def run(self, place: int, after_s: float = 0.0) -> None:
        self.places += 1
        await trio.sleep(after_s)
        while not self.over:
            began = trio.current_time()
            try:
                answer = await self.clients.ask(
                    chat(f"place {place}", model=self.name, stream=self.stream, max_tokens=self.tokens)
                )
            except (trio.BrokenResourceError, OSError):
                answer = None
            self.asked.append(Asked(began, trio.current_time(), answer))
            if not self.good(self.asked[-1]):
                await trio.sleep(self.after_failure_s)
        self.places -= 1

    def failed(self) -> list[Asked]:
        return [one for one in self.asked if not self.good(one)]

    def good(self, one: Asked) -> bool:
        if self.stream:
            return complete(one.answer, self.tokens)
        return one.answer is not None and one.answer.status == 200 and one.answer.whole

    async def more(self, answers: int = 20, within_s: float = 20) -> None:
        """Wait for that many more answers."""
        wanted = len(self.asked) + answers
        with trio.fail_after(within_s):
            while len(self.asked) < wanted:  # noqa: ASYNC110 -- a client that is told of each would be slower
                await trio.sleep(0.02)


def begin(traffic: Traffic, nursery: trio.Nursery, places: int = 4, apart_s: float = 0.0) -> Traffic:
    """``apart_s``: between the first requests, so that the streams don't all end together."""
    for place in range(places):
        nursery.start_soon(traffic.run, place, place * apart_s)
    return traffic


async def until(found: Cluster, condition: Callable[[], object], within_s: float = LONG_S) -> None:
    """Looked at between the clients' turns, so that they go on meanwhile."""
    deadline = trio.current_time() + within_s
    while not condition():
        if trio.current_time() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {found.shown()}")
        await trio.sleep(0.05)
