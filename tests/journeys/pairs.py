"""Two control planes on one PostgreSQL with nodes that know both: real processes, stopped, killed, started again."""

import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from attrs import define, field

from tests.journeys.clustering import (
    QUICK,
    Cluster,
    Node,
    Stack,
    block_of_ports,
    server_words,
)
from tests.journeys.running import Gateway, House, Process, running, wait_until

PORTS_EACH = 3


@define(eq=False)
class Pair:
    """``planes`` by name; each is a Cluster of its own gateway, and all share the nodes."""

    planes: dict[str, Cluster]
    nodes: dict[str, Node]
    stack: Stack
    started: dict[str, int] = field(factory=dict, init=False)

    # -- what is said of it ---------------------------------------------------------------------------

    def told(self, name: str) -> dict[str, Any]:
        """What a control plane says of leadership. Raises httpx.HTTPError."""
        found: dict[str, Any] = self.planes[name].get("/leader")
        return found

    def leader(self) -> str:
        """Whoever says that it leads and may act; empty: nobody does."""
        for name in self.planes:
            try:
                told = self.told(name)
            except httpx.HTTPError:
                continue
            if told["leads"] and told["acts"]:
                return name
        return ""

    def term_led(self) -> tuple[int, int]:
        """Of whoever leads; nobody's is below every other."""
        leader = self.leader()
        return self.term(leader) if leader else (-1, -1)

    @property
    def leading(self) -> Cluster:
        return self.planes[self.leader()]

    def other(self, name: str) -> str:
        (found,) = [one for one in self.planes if one != name]
        return found

    def term(self, name: str) -> tuple[int, int]:
        n, _, epoch = str(self.told(name)["leader"]["term"]).partition(".")
        return int(n), int(epoch)

    def serves(self, count: int) -> bool:
        leader = self.leader()
        return bool(leader) and self.planes[leader].serves(count)

    def arrived(self, name: str, for_s: float = 0.0) -> bool:
        """Every node has a link to that control plane, and has had it for so long."""
        try:
            shown = self.planes[name].get("/nodes")["nodes"]
        except httpx.HTTPError:
            return False
        links = [one["agent"] for one in shown if one["agent"]["linked"]]
        return len(links) == len(self.nodes) and all(link["link_age_s"] >= for_s for link in links)

    def shown(self) -> str:
        told = []
        for name, plane in self.planes.items():
            try:
                told.append(f"{name}: {self.told(name)}")
            except httpx.HTTPError as error:
                told.append(f"{name}: {error!r}")
            told.append(plane.shown())
        return "\n".join(told)

    def wait(self, condition: Callable[[], object], within_s: float = 30.0) -> None:
        wait_until(condition, within_s, self.shown)

    # -- what is done to it ---------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        return self.planes[name].gateway.process

    def stop(self, name: str) -> None:
        """As systemd does; it goes on until its requests have ended."""
        self.process(name).signal(signal.SIGTERM)

    def kill(self, name: str) -> None:
        self.stack.kill(self.process(name))

    def start(self, name: str, module: str = "llmgw") -> None:
        gateway = self.planes[name].gateway
        gateway.process = self.stack.start(*server_words(gateway.config, gateway.data_dir), module=module)
        gateway.process.said("admin: ")

    def kill_and_start_agent(self, name: str) -> None:
        plane = next(iter(self.planes.values()))
        plane.kill_agent(name)
        plane.start_agent(name)

    def ended(self, name: str) -> int:
        """Its exit code, once it has ended."""
        process = self.process(name)
        code = process.wait(30)
        self.stack.kill(process)
        return code

    def servers(self) -> str:
        return ",".join(f"127.0.0.1:{plane.agents_port}" for plane in self.planes.values())


@contextmanager
def pair(home: House, url: str, models: str, nodes: int = 2, more: str = QUICK, pause: str = "0s") -> Iterator[Pair]:
    """Both are up, and the first one leads; the nodes may not be there yet. ``pause``: server.balancer_pause."""
    stack, shared, planes = Stack(), dict[str, Node](), dict[str, Cluster]()
    built = Pair(planes, shared, stack)
    try:
        for name in ("gw-1", "gw-2"):
            planes[name] = _plane(home, stack, shared, name, url, models, more, pause, planes.get("gw-1"))
            if name == "gw-1":
                built.wait(lambda: built.leader() == "gw-1")
        for number in range(1, nodes + 1):
            planes["gw-1"].add(f"node-{number}", server=built.servers())
        yield built
    finally:
        for plane in planes.values():
            plane.close()


def _plane(
    home: House, stack: Stack, nodes: dict[str, Node], name: str, url: str, models: str, more: str, pause: str,
    first: Cluster | None,
) -> Cluster:  # fmt: skip
    port, data_dir = block_of_ports(PORTS_EACH), home.folder / name
    config = home.write(
        f"{name}.toml",
        f'[server]\nname = "{name}"\nlisten = "127.0.0.1:{port}"\nbalancer_pause = "{pause}"\n'
        f'[admin]\nlisten = "127.0.0.1:{port + 1}"\n[agents]\nlisten = "127.0.0.1:{port + 2}"\n'
        f'[store]\nurl = "{url}"\n{more}\n{models}',
    )
    if first is None:
        with running("certs", "init", "--dir", str(data_dir / "certs"), "--host", "127.0.0.1") as made:
            assert made.wait() == 0, made.lines
    else:
        shutil.copytree(first.gateway.data_dir / "certs", data_dir / "certs")
    process = stack.start(*server_words(config, data_dir))
    gateway = Gateway(process, data_dir, config, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}")
    process.said("agents: ")
    if first is not None:  # the first token was written where the store was first used
        (data_dir / "admin.token").write_text(first.gateway.token)
    return Cluster(home, gateway, port + 2, nodes, stack)
