"""`llmgw sim engine` as an agent starts it: memory, shards, slow starts, ends of all kinds."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import trio
from attrs import frozen

from agent.spawning import filled
from llmgw.core.engine_spec import EngineSpec as EngineWanted
from llmgw.core.presets import First, launch
from sim.gpus import FOLDER, SimFolder, SimInventory, gpus_of
from sim.loading import Loading, LoadingSpec
from sim.serving import EngineSpec
from tests.sim.engine_talk import engine

A = "GPU-sim-0"


@frozen
class Started:
    process: "subprocess.Popen[str]"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    @property
    def url(self) -> str:
        return self.line().removeprefix("listening on ")


Start = Callable[..., Started]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts engines; each ends with its whole group."""
    with ExitStack() as stack:

        def begin(*args: str, **env: str) -> Started:
            command = [sys.executable, "-m", "llmgw", "sim", "engine", *args]
            process = stack.enter_context(
                subprocess.Popen(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                    env={**os.environ, **env},
                )
            )
            stack.callback(_end_group, process.pid)
            return Started(process)

        yield begin


def _end_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.fixture
def folder(tmp_path: Path) -> SimFolder:
    folder = SimFolder(tmp_path / "gpus")
    folder.make(gpus_of(2, 24 * 1024))
    return folder


def env_of(folder: SimFolder, *uuids: str) -> dict[str, str]:
    return {FOLDER: str(folder.path), "CUDA_VISIBLE_DEVICES": ",".join(uuids)}


async def used(folder: SimFolder) -> int | None:
    return (await SimInventory(folder.path).read()).gpus[0].used_mib


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def test_it_holds_gpu_memory_as_long_as_it_lives(start: Start, folder: SimFolder):
    one = start("--gpu-memory", "5000", **env_of(folder, A))
    assert one.url
    (card, other) = (await SimInventory(folder.path).read()).gpus
    assert [(h.pid, h.mib) for h in card.holders] == [(one.process.pid, 5000)]
    assert other.used_mib == 0
    one.process.kill()
    one.process.wait()
    assert await used(folder) == 0


async def test_it_gives_its_memory_back_before_it_ends_in_peace(start: Start, folder: SimFolder):
    one = start("--gpu-memory", "5000", **env_of(folder, A))
    assert one.url
    one.process.terminate()
    assert one.process.wait() == 0
    assert not list(folder.path.glob("proc-*"))


def test_it_fails_where_there_is_too_little_memory(start: Start, folder: SimFolder):
    folder.foreign(A, 20_000)
    one = start("--gpu-memory", "5000", **env_of(folder, A))
    assert "GPU-sim-0 has 4576 MiB free, 5000 MiB are needed" in one.line()
    assert one.process.wait() == 1


async def test_children_that_outlive_it_keep_its_memory(start: Start, folder: SimFolder):
    """C1."""
    one = start("--gpu-memory", "5000", "--children", "2", **env_of(folder, A))
    assert one.url
    one.process.kill()
    one.process.wait()
    assert await used(folder) == 5000


def test_it_ends_at_its_start_or_later_when_told_to(start: Start):
    assert start("--exit-at-start", "7").process.wait() == 7
    assert start("--exit-after", "0").process.wait() == 1


def test_it_ignores_sigterm_from_its_start_when_told_to(start: Start):
    one = start("--ignore-sigterm")
    url = one.url
    one.process.terminate()
    assert httpx.get(f"{url}/health").status_code == 200
    one.process.send_signal(signal.SIGINT)
    assert one.process.wait() == 0


def test_it_listens_where_else_it_is_told_to_and_fails_where_it_can_not(start: Start):
    """C7."""
    port = free_port()
    one = start("--also-port", str(port))
    assert one.url
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    other = start("--also-port", str(port))
    assert f"127.0.0.1:{port}: Address already in use" in other.process.communicate()[0]
    assert other.process.returncode == 1


def test_its_key_comes_from_the_environment(start: Start):
    url = start("--api-key-env", "KEY_OF_MINE", KEY_OF_MINE="secret").url
    asked = {"prompt": "x", "max_tokens": 1}
    assert httpx.post(f"{url}/v1/completions", json=asked).status_code == 401
    allowed = {"authorization": "Bearer secret"}
    assert httpx.post(f"{url}/v1/completions", json=asked, headers=allowed).status_code == 200


def test_shards_are_healthy_together_and_rank_0_makes_no_token_once_another_is_gone(start: Start):
    """C20."""
    peer = f"127.0.0.1:{free_port()}"
    first = start("--rank", "0", "--peer", peer)
    url = first.url
    assert httpx.get(f"{url}/health").status_code == 503
    second = start("--rank", "1", "--peer", peer)
    assert second.line() == f"rank 1 has joined {peer}"
    asked = {"prompt": "x", "max_tokens": 1}
    for _ in range(100):  # the join is told from both ends at once
        if httpx.get(f"{url}/health").status_code == 200:
            break
    assert httpx.post(f"{url}/v1/completions", json=asked).status_code == 200
    second.process.kill()
    second.process.wait()
    assert httpx.get(f"{url}/health").status_code == 200
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/completions", json=asked, timeout=0.3)


def test_the_preset_starts_three_shards_that_find_each_other(start: Start, folder: SimFolder):
    spec = EngineWanted(preset="sim", shards=3, gpus=1, gpu_memory_mib=8000, api_key=True)
    ports = {"http": free_port(), "peer": free_port()}
    began = []
    for rank in range(3):
        first = First("127.0.0.1", ports) if rank else None
        made = launch(spec, "m", "m-1", 7, rank, (A,), "secret", first)
        words = {"host": "127.0.0.1", "gpus": A, "port": "0"}
        words |= {"port": str(ports["http"]), "port:peer": str(ports["peer"])} if not rank else {}
        argv = [filled(arg, words) for arg in made.argv]
        began.append(start(*argv[3:], **env_of(folder, A), **{made.key_env: made.key}))
    assert argv[:3] == ["llmgw", "sim", "engine"]
    url = began[0].url
    assert {began[1].line(), began[2].line()} == {f"rank {n} has joined 127.0.0.1:{ports['peer']}" for n in (1, 2)}
    allowed = {"authorization": "Bearer secret"}
    asked = {"model": "m", "prompt": "x", "max_tokens": 1}
    answers = (httpx.post(f"{url}/v1/completions", json=asked, headers=allowed).status_code for _ in range(100))
    assert 200 in answers
    assert httpx.post(f"{url}/v1/completions", json=asked).status_code == 401


def test_a_shard_whose_first_is_gone_waits_for_ever(start: Start):
    peer = f"127.0.0.1:{free_port()}"
    second = start("--rank", "1", "--peer", peer)
    first = start("--rank", "0", "--peer", peer)
    assert second.line() == f"rank 1 has joined {peer}"
    first.process.kill()
    assert second.line() == f"rank 1 waits for {peer}, which has gone"
    assert second.process.poll() is None
    second.process.terminate()
    assert second.process.wait() == 0


def test_shards_without_a_place_to_meet_are_refused(start: Start):
    assert "shards need --peer" in start("--rank", "1").process.communicate()[0]


async def test_it_is_healthy_at_1_second_and_completes_at_20(autojump_clock: trio.testing.MockClock):
    """C18."""
    async with engine(EngineSpec(loading=LoadingSpec(ready_after_s=20, health_after_s=1))) as talk:
        assert (await talk.ask("GET", "/health")).status == 503
        assert (await talk.post("/v1/completions", {"prompt": "x"})).status == 503
        await trio.sleep(1.1)
        assert (await talk.ask("GET", "/health")).status == 200
        answer = await talk.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
        assert answer.status == 200
        assert trio.current_time() >= 20


async def test_by_default_it_is_healthy_when_it_is_ready(autojump_clock: trio.testing.MockClock):
    async with engine(EngineSpec(loading=LoadingSpec(ready_after_s=5))) as talk:
        await trio.sleep(4.9)
        assert (await talk.ask("GET", "/health")).status == 503
        await trio.sleep(0.2)
        assert (await talk.ask("GET", "/health")).status == 200


def test_an_engine_that_waits_for_nothing_is_ready_from_the_start():
    assert Loading().healthy
