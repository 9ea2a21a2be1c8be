"""Processes of llmgw for journeys: started, found by what they announce, and always ended."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import httpx
from attrs import define, field
from prometheus_client.parser import text_string_to_metric_families

STARTS_WITHIN_S = 20.0
ENDS_WITHIN_S = 20.0
UNADMITTED = '[admission]\nmode = "off"\n'  # more at once than an engine is believed to run
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@define(eq=False)
class Process:
    """A process in a group of its own, and every line it has said."""

    popen: "subprocess.Popen[str]"
    lines: list[str] = field(factory=list, init=False)
    _news: threading.Condition = field(factory=threading.Condition, init=False)
    _reader: threading.Thread = field(init=False)
    _over: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.popen.pid

    def said(self, words: str, within_s: float = STARTS_WITHIN_S, after: int = 0) -> str:
        """The first line with these words, past the first ``after`` lines; waits for it."""
        deadline = time.monotonic() + within_s
        with self._news:
            while True:
                found = next((line for line in self.lines[after:] if words in line), None)
                if found is not None:
                    return found
                left = deadline - time.monotonic()
                if self._over or left <= 0:
                    raise AssertionError(f"{words!r} was not said:\n" + "\n".join(self.lines[-40:]))
                self._news.wait(left)

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def wait(self, within_s: float = ENDS_WITHIN_S) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        code = self.popen.wait(within_s)
        self._reader.join(5)
        return code

    def end(self) -> None:
        """Whatever state it is in: afterwards its group is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(ENDS_WITHIN_S)
        self._reader.join(5)
        cast(Any, self.popen.stdout).close()

    def descriptors(self) -> list[str]:
        """What its descriptors point to, sockets as socket:[inode]."""
        folder, found = Path(f"/proc/{self.pid}/fd"), []
        for name in os.listdir(folder):
            try:
                found.append(os.readlink(folder / name))
            except FileNotFoundError:
                continue  # closed while we looked
        return found

    def _read(self) -> None:
        for line in cast(Iterable[str], self.popen.stdout):
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()


@contextmanager
def running(*arguments: str, module: str = "llmgw", **env: str) -> Iterator[Process]:
    """``llmgw`` with these arguments; its output is in ``lines``."""
    process = Process(
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**clean_environment(), "PYTHONUNBUFFERED": "1", **env},
        )
    )
    try:
        yield process
    finally:
        process.end()


def clean_environment() -> dict[str, str]:
    """Ours, without settings or proxies that would reach into a test."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LLMGW_", "OPENAI_", "ANTHROPIC_")) and not name.lower().endswith("_proxy")
    }


@define(eq=False)
class Engine:
    process: Process
    url: str

    def state(self) -> dict[str, Any]:
        return cast(dict[str, Any], httpx.get(f"{self.url}/sim/state", trust_env=False).raise_for_status().json())

    def fault(self, **said: Any) -> None:
        httpx.post(f"{self.url}/sim/faults", json=said, trust_env=False).raise_for_status()

    def no_faults(self) -> None:
        httpx.delete(f"{self.url}/sim/faults", trust_env=False).raise_for_status()


@define(eq=False)
class Gateway:
    process: Process
    data_dir: Path
    config: Path
    url: str
    admin_url: str

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").removeprefix("https://").rpartition(":")
        return host, int(port)

    @cached_property
    def token(self) -> str:
        return (self.data_dir / "admin.token").read_text().strip()

    def admin(self, method: str, path: str, token: str | None = None, **more: Any) -> httpx.Response:
        """``token`` None: the first one, of an admin; empty: none."""
        said = self.token if token is None else token
        headers = {"authorization": f"Bearer {said}"} if said else {}
        return httpx.request(method, self.admin_url + path, headers=headers, trust_env=False, timeout=20, **more)

    def make_key(self, tenant: str = "acme", **more: Any) -> str:
        asked = {"tenant": tenant, "new_tenant": True, **more}
        return str(self.admin("POST", "/admin/v1/keys", json=asked).raise_for_status().json()["key"])

    def ctl(self, *arguments: str) -> Any:
        """What ``llmgw ctl … -o json`` prints. Raises AssertionError with its words."""
        return json.loads(self.ctl_says(*arguments, "-o", "json"))

    def ctl_says(self, *arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "llmgw", "ctl", "--data-dir", str(self.data_dir), *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=30, env=clean_environment())
        assert ran.returncode == code, f"exit {ran.returncode}: {ran.stderr}{ran.stdout}"
        return ran.stdout if code == 0 else ran.stderr

    def metrics(self) -> Samples:
        """Every sample by its name and labels."""
        text = self.admin("GET", "/metrics").raise_for_status().text
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def endpoints(self) -> list[dict[str, Any]]:
        answer = self.admin("GET", "/admin/v1/endpoints").raise_for_status()
        return cast(list[dict[str, Any]], answer.json()["endpoints"])

    def log(self) -> list[dict[str, Any]]:
        """The JSON lines it has logged."""
        return [json.loads(line) for line in list(self.process.lines) if line.startswith("{")]


def values(samples: Samples, name: str, **labels: str) -> list[float]:
    """All samples of this name that carry these labels."""
    wanted = set(labels.items())
    return [value for (found, carried), value in samples.items() if found == name and wanted <= carried]


@define(eq=False)
class House:
    """Starts engines and gateways; all of them end when the house does."""

    folder: Path
    _stack: ExitStack

    def engine(self, *models: str, **options: object) -> Engine:
        (engine,) = self.engines(1, *models, **options)
        return engine

    def engines(self, count: int, *models: str, **options: object) -> list[Engine]:
        """Several at once; ``decode_rate=100`` is ``--decode-rate 100``."""
        said = [part for model in models or ("sim-model",) for part in ("--model", model)]
        for name, value in options.items():
            said += [f"--{name.replace('_', '-')}", str(value)]
        started = [self._stack.enter_context(running("sim", "engine", "--port", "0", *said)) for _ in range(count)]
        return [Engine(one, one.said("listening on ").split()[-1]) for one in started]

    def gateway(self, config: str, name: str = "gw", **env: str) -> Gateway:
        """Started on free ports; returns once it has somewhere to send a request."""
        gateway = self.gateway_anywhere(config, name, **env)
        wait_until(lambda: gateway.admin("GET", "/ready", token="").status_code == 200)
        return gateway

    def gateway_anywhere(self, config: str, name: str = "gw", **env: str) -> Gateway:
        file, data_dir = self.write(f"{name}.toml", config), self.folder / name
        process = self._stack.enter_context(running("server", "-c", str(file), "--data-dir", str(data_dir), **env))
        clients = process.said("clients: ").split()[-1].removesuffix("/v1")
        return Gateway(process, data_dir, file, clients, process.said("admin:   ").split()[-1])

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.write_text(text)
        return file

    def running(self, *arguments: str, **env: str) -> Process:
        return self._stack.enter_context(running(*arguments, **env))


@contextmanager
def house(folder: Path) -> Iterator[House]:
    with ExitStack() as stack:
        yield House(folder, stack)


def config_of(
    endpoints: dict[str, str], model: str = "sim-model", server: str = "balancer_pause = 0", more: str = ""
) -> str:
    """A config on free ports: endpoint ids and their URLs, lines of [server], and whatever else."""
    listed = "".join(
        f'[[models.endpoints]]\nid = "{id}"\nurl = "{url}"\nengine = "sim"\n' for id, url in endpoints.items()
    )
    listeners = f'[server]\nlisten = "127.0.0.1:0"\n{server}\n[admin]\nlisten = "127.0.0.1:0"\n'
    return f'{listeners}{more}\n[[models]]\nname = "{model}"\naliases = ["gpt-4o"]\n{listed}'


def wait_until(condition: Callable[[], object], within_s: float = 10.0, why: Callable[[], object] = str) -> None:
    """Poll from outside a loop; bounded. ``why`` is asked when it never came true."""
    deadline = time.monotonic() + within_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s:g} s: {why()}")
        pause.wait(0.02)
