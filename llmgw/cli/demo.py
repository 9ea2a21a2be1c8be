"""``llmgw demo``: three simulated engines and a gateway, a key, two questions, and why they went where they went."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from llmgw.cli.failure import Exit, Failure

ENGINES = 3
READY_WITHIN_S = 30.0
STOP_WITHIN_S = 10.0
MODEL = "demo-model"
QUESTION = "Why do platform engineers like short answers?"


@click.command("demo")
@click.option("--once", is_flag=True, help="End after the two answers instead of staying up.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Where clients connect; 0: any free port.")
@click.option("--dir", "folder", type=click.Path(file_okay=False, path_type=Path),
              help="Where config, store and logs go; kept afterwards. Default: a temporary folder.")  # fmt: skip
def command(once: bool, port: int, folder: Path | None) -> None:
    """Three simulated engines and a gateway on this machine, and a real client that talks to them.

    Everything listens on 127.0.0.1 and ends with this command.
    """
    with _folder(folder) as place, _Processes(place) as processes:
        urls = [processes.engine(number) for number in range(1, ENGINES + 1)]
        config = _config(place, urls, port)
        base_url, admin_url = processes.gateway(config)
        key = _key(place)
        _say("gateway", f"{base_url}  (admin {admin_url}, files in {place})")
        _say("key", f"{key[:16]}…  made with `llmgw ctl keys create --tenant demo`")
        _ask(base_url, key, place)
        if once:
            return
        _stay(base_url, key, place, processes)


def _ask(base_url: str, key: str, place: Path) -> None:
    """One plain and one streamed question through the openai package."""
    client = _openai(base_url, key)
    plain = client.chat.completions.create(
        model="gpt-4o-mini", max_tokens=12, messages=[{"role": "user", "content": QUESTION}]
    )
    _say("asked", QUESTION)
    _say("answer", plain.choices[0].message.content.strip())
    _say("why", _explained(place, plain._request_id))
    click.echo(f"{'streamed':>9}  ", nl=False)
    stream = client.chat.completions.create(
        model="gpt-4o-mini", max_tokens=16, stream=True, messages=[{"role": "user", "content": QUESTION + " Stream."}]
    )
    request_id = stream.response.headers["x-request-id"]
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            click.echo(chunk.choices[0].delta.content, nl=False)
    click.echo()
    _say("why", _explained(place, request_id))


def _stay(base_url: str, key: str, place: Path, processes: "_Processes") -> None:
    body = json.dumps({"model": "gpt-4o-mini", "stream": True, "messages": [{"role": "user", "content": "hello"}]})
    click.echo("\nIt stays up. Try it from another terminal:\n")
    click.echo(f"  curl -N {base_url}/chat/completions \\\n    -H 'Authorization: Bearer {key}' \\\n    -d '{body}'\n")
    click.echo(f"  {sys.executable} -m llmgw ctl --data-dir {place / 'data'} requests\n")
    click.echo("Press Ctrl-C to stop everything.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        processes.wait()
    except KeyboardInterrupt:
        click.echo("\nstopping")


def _explained(place: Path, request_id: str) -> str:
    explained = _ctl(place, "explain", "request", request_id)
    chosen = [one for one in explained["candidates"] if one["chosen"]]
    scores = ", ".join(f"{name} {value:g}" for name, value in chosen[0]["scores"].items() if value) if chosen else ""
    return str(explained["verdict"]) + (f"; chosen by {scores}" if scores else "")


def _key(place: Path) -> str:
    return str(_ctl(place, "keys", "create", "--tenant", "demo", "--new-tenant", "--note", "demo")["key"])


def _ctl(place: Path, *words: str) -> Any:
    """The same command an operator would type."""
    argv = [sys.executable, "-m", "llmgw", "ctl", "--data-dir", str(place / "data"), "-o", "json", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise Failure(f"ctl {' '.join(words[:2])}: {done.stderr.strip() or done.stdout.strip()}", Exit.FAILED)
    return json.loads(done.stdout)


def _openai(base_url: str, key: str) -> Any:
    try:
        from openai import OpenAI
    except ImportError:
        raise Failure("the demo speaks through the openai package", Exit.FAILED, "pip install openai") from None
    return OpenAI(base_url=base_url, api_key=key, timeout=30, max_retries=1)


def _config(place: Path, urls: list[str], port: int) -> Path:
    lines = [
        "[server]",
        f'listen = "127.0.0.1:{port}"',
        "balancer_pause = 0  # nobody balances in front of a demo",
        "",
        "[admin]",
        'listen = "127.0.0.1:0"',
        "",
        "[[models]]",
        f'name = "{MODEL}"',
        'aliases = ["gpt-4o-mini"]',
    ]
    for number, url in enumerate(urls, 1):
        lines += ["", "[[models.endpoints]]", f'id = "engine-{number}"', f'url = "{url}"', 'engine = "sim"']
    file = place / "llmgw.toml"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@contextmanager
def _folder(wanted: Path | None) -> Iterator[Path]:
    if wanted is not None:
        wanted.mkdir(parents=True, exist_ok=True)
        yield wanted
        return
    with tempfile.TemporaryDirectory(prefix="llmgw-demo-") as made:
        yield Path(made)


class _Processes:
    """What the demo started, and nothing else, ends with it."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "_Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.terminate()
        until = time.monotonic() + STOP_WITHIN_S
        for process in self._running.values():
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def engine(self, number: int) -> str:
        log = self._start(f"engine-{number}", "sim", "engine", "--port", "0", "--model", MODEL, "--decode-rate", "60")
        return self._announced(f"engine-{number}", log, "listening on ")

    def gateway(self, config: Path) -> tuple[str, str]:
        """The base URL for clients, and the admin's."""
        data = str(self._place / "data")
        log = self._start("gateway", "server", "--config", str(config), "--data-dir", data)
        return self._announced("gateway", log, "clients: "), self._announced("gateway", log, "admin: ")

    def wait(self) -> None:
        """Until one of them ends by itself."""
        while all(process.poll() is None for process in self._running.values()):
            time.sleep(0.5)
        raise Failure(f"a process ended; its log is in {self._place}", Exit.FAILED)

    def _start(self, name: str, *words: str) -> Path:
        log = self._place / f"{name}.log"
        with log.open("wb") as out:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "llmgw", *words],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C comes to us, and we stop them in order
            )
        return log

    def _announced(self, name: str, log: Path, before: str) -> str:
        until = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < until:
            for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith(before):
                    return line.removeprefix(before).split()[0]
            if self._running[name].poll() is not None:
                break
            time.sleep(0.05)
        said = log.read_text(encoding="utf-8", errors="replace").strip()
        raise Failure(f"{name} did not start: {said or 'it said nothing'}", Exit.FAILED)


def _say(what: str, text: str) -> None:
    click.echo(f"{what:>9}  {text}")
