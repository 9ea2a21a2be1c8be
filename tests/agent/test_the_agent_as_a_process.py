"""`llmgw agent` as it runs on a node: a real process, real sockets and TLS, an engine that outlives it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from agent.daemon import AgentDaemon
from agent.places import Places
from llmgw.core.agent_settings import AgentSettings
from llmgw.core.shards import Launch, ShardSeen, ShardState
from tests.agent_links import AUTHORITY, ME, Leader, until

ID = "m-1.g1.r0"
LAUNCH = Launch(ID, (sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"), stop_grace_s=2.0)


@pytest.fixture
async def leader(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Leader]:
    leader = await Leader.make(tmp_path, nursery)
    leader.context = AUTHORITY.context("127.0.0.1")
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    leader.address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
    nursery.start_soon(leader.listener.serve, listener)
    yield leader
    assert leader.failures == []
    leader.store.close()


@contextmanager
def agent(
    folder: Path, leader: Leader, token: str = "", ports: str = "23100-23149", name: str = "node-1"
) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", "llmgw", "agent", "--no-gpus", "--data-dir", str(folder), "--name", name]
    command += ["--server", leader.address, *(["--join", token] if token else [])]
    env = {**os.environ, "LLMGW_AGENT__PORTS": ports, "LLMGW_AGENT__RECONNECT_MAX": "500ms"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def shard(leader: Leader) -> ShardSeen | None:
    node = leader.registry.nodes.get("node-1")
    report = node.report if node is not None and node.linked else None
    return next((one for one in report.shards if one.id == ID), None) if report else None


async def ended(process: "subprocess.Popen[str]") -> int:
    return await trio.to_thread.run_sync(process.wait)


async def test_an_engine_outlives_its_agent_and_is_adopted_by_the_next(leader, tmp_path):
    token = await leader.token()
    leader.registry.want("node-1", 1, [LAUNCH])
    with agent(tmp_path / "a", leader, token) as first:
        await until(lambda: (seen := shard(leader)) is not None and seen.pid)
        pid = shard(leader).pid
        assert not shard(leader).adopted
        await until(lambda: ID in leader.registry.nodes["node-1"].tails)
        assert "here" in (await leader.registry.ask_logs("node-1", ID)).text

        first.send_signal(signal.SIGTERM)
        assert await ended(first) == 0
    os.kill(pid, 0)
    await until(lambda: not leader.registry.linked())

    with agent(tmp_path / "a", leader) as second:
        await until(lambda: (seen := shard(leader)) is not None and seen.adopted)
        assert shard(leader).pid == pid
        assert shard(leader).state is ShardState.LOADING

        leader.registry.want("node-1", 2, [])
        await until(lambda: shard(leader) is None)
        second.send_signal(signal.SIGTERM)
        assert await ended(second) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_one_agent_a_folder(leader, tmp_path):
    with agent(tmp_path / "a", leader, await leader.token()):
        await until(lambda: leader.heard)
        with agent(tmp_path / "a", leader) as second:
            assert await ended(second) == 3
            assert "is used by another agent" in second.stderr.read()


def test_a_node_that_knows_no_control_plane_says_so(tmp_path):
    for more, says in [
        ([], "[agent] servers"),
        (["--server", "h"], "--server: 'h' is no address"),
        (["--name", "a b"], "no name for a node"),
        (["--server", "h:1", "--join", "foo"], "what was given as a join token is no join token (it begins with llmgw"),
        (["--server", "h:1", "--join", "llmgw-join-abc"], "is no join token (a part of it is missing"),
    ]:
        command = [sys.executable, "-m", "llmgw", "agent", "--no-gpus", "--data-dir", str(tmp_path), *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        assert done.returncode == 2, done.stderr
        assert says in done.stderr
        assert "Traceback" not in done.stderr


async def test_a_folder_keeps_the_name_it_joined_with(leader, tmp_path):
    with agent(tmp_path / "a", leader, await leader.token()) as first:
        await until(lambda: leader.heard)
        first.send_signal(signal.SIGTERM)
        assert await ended(first) == 0
    await until(lambda: not leader.registry.linked())

    with agent(tmp_path / "a", leader, name="w9") as second:
        await until(leader.registry.linked)
        assert list(leader.registry.linked()) == ["node-1"]
        second.send_signal(signal.SIGTERM)
        assert await ended(second) == 0
        said = second.stderr.read()

    assert said.count("joined as node-1 and stays node-1, not w9") == 1
    assert "node-1: 0 engines of" in said


async def test_the_log_has_the_whole_of_what_to_do(leader, tmp_path):
    token = await leader.token()
    with agent(tmp_path / "a", leader, token) as first:
        await until(lambda: leader.heard)
        first.send_signal(signal.SIGTERM)
        assert await ended(first) == 0
    await until(lambda: not leader.registry.linked())
    await leader.joining.remove(ME, "node-1")

    with agent(tmp_path / "a", leader, token) as second:
        said: list[str] = []
        with trio.fail_after(20):
            while not any("was removed" in line for line in said):
                said.append(await trio.to_thread.run_sync(second.stderr.readline))

    line = json.loads(said[-1])
    whole = " ".join(value for key, value in line.items() if key.startswith("state"))
    assert whole.startswith(
        f"refused by {leader.address}: node-1 was removed from the cluster; to come in again it needs"
    )
    assert whole.endswith("push each other out by turns")


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ({f"label-{n}": "x" for n in range(65)}, "65 labels are too many, 64 is the most"),
        ({"n" * 64: "x"}, "is no name for a label"),
        ({"": "x"}, "is no name for a label"),
        ({"zone": "x" * 256}, "the value of zone is too long: 256 characters, 255 is the most"),
        ({f"label-{n}": "x" * 200 for n in range(60)}, "bytes together, 8192 is the most"),
    ],
)
def test_labels_that_no_frame_would_hold_are_refused_at_the_start(labels, says, tmp_path):
    settings = AgentSettings(servers=("h:1",), name="node-1", labels=labels)
    with pytest.raises(ValueError, match=r"agent\.labels") as raised:
        AgentDaemon(settings, Places(tmp_path), None)
    assert says in str(raised.value)


def test_labels_within_the_bounds_are_taken(tmp_path):
    labels = {f"label-{n}": "x" * 100 for n in range(64)}
    assert AgentDaemon(AgentSettings(servers=("h:1",), name="node-1", labels=labels), Places(tmp_path), None).name
