"""`llmgw sim engine` as a process: ready, signals, death, children."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from attrs import frozen


@frozen
class Running:
    process: "subprocess.Popen[str]"
    url: str

    def fault(self, **said: Any) -> None:
        httpx.post(f"{self.url}/sim/faults", json=said).raise_for_status()

    def ends_within_a_second_of(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=1)

    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def running() -> Iterator[Running]:
    command = [sys.executable, "-m", "llmgw", "sim", "engine", "--model", "a", "--model", "b/c", "--decode-rate", "500"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert said.startswith("listening on http://127.0.0.1:")
            yield Running(process, said.split()[-1])
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well_within_a_second_even_with_streams_open(running: Running, number: int):
    asked = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{running.url}/v1/chat/completions", json=asked) as answer:
        next(answer.iter_lines())
        assert running.ends_within_a_second_of(number) == 0


def test_it_lists_its_models_and_answers_for_each(running: Running):
    listed = httpx.get(f"{running.url}/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["a", "b/c"]
    answer = httpx.post(f"{running.url}/v1/completions", json={"model": "b/c", "prompt": "x"})
    assert answer.json()["model"] == "b/c"
    running.ends_within_a_second_of(signal.SIGTERM)


def test_death_in_the_middle_of_a_stream_takes_the_process(running: Running):
    running.fault(die_after_events=3)
    lines = []
    asked = {"prompt": "x", "stream": True}
    with (
        httpx.stream("POST", f"{running.url}/v1/completions", json=asked) as answer,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        lines.extend(line for line in answer.iter_lines() if line)
    assert len(lines) == 3
    assert running.process.wait(timeout=1) == 137


@pytest.mark.parametrize(("way", "ends"), [("reset", httpx.ReadError), ("cut", httpx.RemoteProtocolError)])
def test_a_stream_is_reset_or_closed_after_its_events(running: Running, way: str, ends: type[Exception]):
    running.fault(**{f"{way}_after_events": 3})
    lines = []
    asked = {"prompt": "x", "stream": True}
    with httpx.stream("POST", f"{running.url}/v1/completions", json=asked) as answer, pytest.raises(ends):
        lines.extend(line for line in answer.iter_lines() if line)
    assert len(lines) == 3
    assert httpx.get(f"{running.url}/health").status_code == 200


def test_it_ignores_sigterm_when_told_to(running: Running):
    running.fault(ignore_sigterm=True)
    running.process.send_signal(signal.SIGTERM)
    assert httpx.get(f"{running.url}/health").status_code == 200
    assert running.process.poll() is None
    assert running.ends_within_a_second_of(signal.SIGINT) == 0


def test_its_children_outlive_it_and_end_when_the_fault_is_cleared(running: Running):
    running.fault(fork_children=2)
    assert len(running.children()) == 2
    httpx.delete(f"{running.url}/sim/faults").raise_for_status()
    assert running.children() == []
    running.fault(fork_children=1)
    (child,) = running.children()
    running.ends_within_a_second_of(signal.SIGTERM)
    os.kill(child, signal.SIGKILL)  # raises, were it gone already
