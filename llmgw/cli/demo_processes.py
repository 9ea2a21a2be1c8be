"""The processes of a demo: started, found by what they announce, and ended with it."""

import importlib
import json
import os
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

READY_WITHIN_S = 30.0
STOP_WITHIN_S = 10.0


@contextmanager
def folder(wanted: Path | None) -> Iterator[Path]:
    if wanted is not None:
        wanted.mkdir(parents=True, exist_ok=True)
        yield wanted
        return
    with tempfile.TemporaryDirectory(prefix="llmgw-demo-") as made:
        yield Path(made)


class Processes:
    """What the demo started, and nothing else, ends with it."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Processes":
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

    def gateway(self, config: Path) -> tuple[str, str]:
        """The base URL for clients, and the admin's."""
        data = str(self._place / "data")
        self.start("gateway", "server", "--config", str(config), "--data-dir", data)
        return self.announced("gateway", "clients: "), self.announced("gateway", "admin: ")

    def wait(self) -> None:
        """Until one of them ends by itself."""
        while all(process.poll() is None for process in self._running.values()):
            time.sleep(0.5)
        raise Failure(f"a process ended; its log is in {self._place}", Exit.FAILED)

    def start(self, name: str, *words: str) -> None:
        with self._log(name).open("wb") as out:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "llmgw", *words],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C comes to us, and we stop them in order
            )

    def announced(self, name: str, before: str) -> str:
        """The word behind ``before``, on the line where the process says it."""
        until = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < until:
            for line in self._said(name).splitlines():
                if line.startswith(before):
                    return line.removeprefix(before).split()[0]
            if self._running[name].poll() is not None:
                break
            time.sleep(0.05)
        raise Failure(f"{name} did not start: {self._said(name).strip() or 'it said nothing'}", Exit.FAILED)

    def _said(self, name: str) -> str:
        return self._log(name).read_text(encoding="utf-8", errors="replace")

    def _log(self, name: str) -> Path:
        return self._place / f"{name}.log"


def ctl(place: Path, *words: str) -> Any:
    """The same command an operator would type."""
    argv = [sys.executable, "-m", "llmgw", "ctl", "--data-dir", str(place / "data"), "-o", "json", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise Failure(f"ctl {' '.join(words[:2])}: {done.stderr.strip() or done.stdout.strip()}", Exit.FAILED)
    return json.loads(done.stdout)


def make_key(place: Path) -> str:
    return str(ctl(place, "keys", "create", "--tenant", "demo", "--new-tenant", "--note", "demo")["key"])


def openai_client(base_url: str, key: str) -> Any:
    return openai().OpenAI(base_url=base_url, api_key=key, timeout=30, max_retries=1)


def openai() -> Any:
    """The package through which a demo speaks. Raises Failure."""
    try:
        return importlib.import_module("openai")
    except ImportError:
        raise Failure("the demo speaks through the openai package", Exit.FAILED, "pip install openai") from None


def say(what: str, text: str) -> None:
    click.echo(f"{what:>9}  {text}")
