"""Engines as real processes: they start, are seen, end whole, and nothing of them is left."""

import os
import signal
import socket
import stat
import sys

import pytest

from agent import cgroups, spawning
from agent.places import Places
from llmgw.core.shards import Fetch, Launch, ShardState
from tests.agent.engine_scripts import (
    DEAF,
    DOUBLE_FORK,
    FIRST_PORT,
    FORKS,
    SERVES,
    SLEEP,
    FakeGpus,
    command_line,
    end_all,
    launch,
    lives,
    node,
    ours,
    program,
    read_json,
)

HAS_LEAVES = cgroups.base("", "probe") is not None
both_ways = pytest.mark.parametrize(
    "leaves",
    [
        pytest.param(True, id="cgroup", marks=pytest.mark.skipif(not HAS_LEAVES, reason="no writable cgroup v2 here")),
        pytest.param(False, id="marks"),
    ],
)


@both_ways
async def test_an_engine_starts_and_stops(tmp_path, leaves):
    async with node(tmp_path, leaves=leaves) as here:
        here.want(launch())
        running = await here.wait_for(ShardState.LOADING)
        assert lives(running.pid)
        await here.log_says("up")

        here.want()
        stopped = await here.wait_for(ShardState.STOPPED)

        assert stopped.exit.signal == signal.SIGTERM
        assert not ours(str(tmp_path)) - {os.getpid()}


@both_ways
async def test_a_stop_ends_children_that_ignore_their_parents_death(tmp_path, leaves):
    """C1, in sessions of their own and forked twice."""
    async with node(tmp_path, leaves=leaves) as here:
        here.want(launch(source=FORKS))
        await here.wait_for(ShardState.LOADING)
        await here.log_says("up")
        log = await here.log_says("child", times=2)
        children = [int(line.split()[1]) for line in log.splitlines() if line.startswith("child")]
        assert len(children) == 2

        here.want()
        await here.wait_for(ShardState.STOPPED)

        assert not any(map(lives, children))


@both_ways
async def test_a_crash_ends_the_children_too_and_is_releasing_until_the_memory_is_back(tmp_path, leaves):
    gpus = FakeGpus(held="8.0 GiB on GPU-a held by 77")
    async with node(tmp_path, gpus, leaves=leaves, release_within=0.2) as here:
        here.want(launch(source=FORKS))
        pid = (await here.wait_for(ShardState.LOADING)).pid
        await here.log_says("child", times=2)
        os.kill(pid, signal.SIGKILL)

        late = await here.until(lambda shard: "more than" in shard.why)
        assert late.state is ShardState.RELEASING
        assert "8.0 GiB on GPU-a held by 77" in late.why
        assert late.exit.signal == signal.SIGKILL
        assert here.engines.parts.ports.of("m-1.g1.r0")

        gpus.held = None
        failed = await here.wait_for(ShardState.FAILED)
        assert str(failed.exit) == "killed by signal 9"
        assert not here.engines.parts.ports.of("m-1.g1.r0")


async def test_an_engine_that_forks_and_exits_has_ended_and_its_child_with_it(tmp_path):
    async with node(tmp_path, leaves=False) as here:
        here.want(launch(source=DOUBLE_FORK))
        failed = await here.wait_for(ShardState.FAILED)

        assert failed.exit.code == 0
        daemon = int((await here.log_says("daemon")).split()[1])
        assert not lives(daemon)


async def test_an_engine_that_ignores_sigterm_is_killed_after_its_grace(tmp_path):
    async with node(tmp_path) as here:
        here.want(launch(source=DEAF, stop_grace_s=0.2))
        await here.wait_for(ShardState.LOADING)
        await here.log_says("up")

        here.want()
        stopped = await here.wait_for(ShardState.STOPPED)

        assert stopped.exit.signal == signal.SIGKILL


async def test_an_engine_that_exits_at_once_is_failed_with_its_code_and_is_not_started_again(tmp_path):
    async with node(tmp_path) as here:
        here.want(launch(source="print('no luck'); raise SystemExit(3)"))
        failed = await here.wait_for(ShardState.FAILED)
        assert (failed.exit.code, failed.why) == (3, "exited with 3")
        assert "no luck" in await here.log_says("no luck")

        here.want(launch(source="print('no luck'); raise SystemExit(3)"))
        assert here.one().state is ShardState.FAILED


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@pytest.mark.parametrize(
    ("code", "more", "says"),
    [
        (127, {"argv": ("/no/such/engine",)}, "/no/such/engine: No such file or directory"),
        (127, {"argv": ("no-such-engine",)}, "no-such-engine: No such file or directory in PATH"),
        (127, {"argv": ("{here}/script",)}, "{here}/script: No such file or directory: the file is there, what its"),
        (126, {"argv": ("{here}/plain",)}, "{here}/plain: Permission denied: it is not executable"),
        (126, {"argv": ("{here}",)}, "{here}: Permission denied: it is a folder"),
        (126, {"argv": ("{here}/garbage",)}, "{here}/garbage: Exec format error"),
        (127, {"cwd": "/no/such/folder"}, "cwd /no/such/folder: No such file or directory"),
        pytest.param(127, {"user": "nobody-here"}, "user 'nobody-here': unknown", marks=AS_ROOT),
    ],
)
async def test_an_engine_that_cannot_be_started_says_what_is_wrong(code, more, says, tmp_path):
    for name, text, mode in (("script", "#!/no/such/sh\n", 0o755), ("plain", "x", 0o644), ("garbage", "\0", 0o755)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    more = {"argv": program(SLEEP), **more}
    more["argv"] = tuple(word.replace("{here}", str(tmp_path)) for word in more["argv"])
    says = "can't be started: " + says.replace("{here}", str(tmp_path))
    async with node(tmp_path / "data") as here:
        here.want(Launch("m-1.g1.r0", **more))
        failed = await here.wait_for(ShardState.FAILED)

        assert failed.exit.code == code
        assert failed.why.startswith(says)
        assert f"llmgw: {says}" in await here.log_says("can't be started")


async def test_why_it_could_not_be_started_is_bounded_and_outlives_the_agent(tmp_path):
    name = "/no/" + "\u00fc" * 900
    async with node(tmp_path, end=False) as here:
        here.want(Launch("m-1.g1.r0", (name,)))
        await here.wait_for(ShardState.FAILED)
    async with node(tmp_path) as here:
        failed = await here.wait_for(ShardState.FAILED)
        assert failed.why.startswith("can't be started: /no/")
        assert len(failed.why) < 300


async def test_a_command_of_its_own_that_is_missing_is_told_from_a_program_that_is(tmp_path):
    async with node(tmp_path) as here:
        here.want(Launch("m-1.g1.r0", ("/bin/sh", "-c", "no-such-command")))
        failed = await here.wait_for(ShardState.FAILED)
        assert failed.why == "exited with 127: as if a command of its own is missing"


async def test_its_end_is_forgotten_only_once_reported_and_no_longer_wanted(tmp_path):
    async with node(tmp_path) as here:
        here.want(launch(source="raise SystemExit(3)"))
        await here.wait_for(ShardState.FAILED)
        here.want()
        assert here.one().state is ShardState.FAILED

        here.engines.reported(here.engines.seen())
        here.want()

        assert here.engines.seen() == ()
        assert not (tmp_path / "engines" / "m-1.g1.r0").exists()


@both_ways
async def test_words_in_braces_are_filled_and_the_key_is_in_the_environment_alone(tmp_path, leaves):
    source = (
        "import os, sys, time\nprint(sys.argv[1:], os.environ['AT'], os.environ['KEY'], flush=True)\ntime.sleep(600)"
    )
    wanted = launch(
        "m-1.g1.r0", source, "{host}", "{port}", "{port:dist}", '{"a": 1}', ports=("http", "dist"),
        gpus=("GPU-a", "GPU-b"), env={"AT": "{gpus}"}, key="s3cret-of-generation-1", key_env="KEY",
    )  # fmt: skip
    async with node(tmp_path, leaves=leaves) as here:
        here.want(wanted)
        seen = await here.wait_for(ShardState.LOADING)
        http, dist = seen.ports["http"], seen.ports["dist"]
        log = await here.log_says("GPU-a")

        assert log.startswith(f"['127.0.0.1', '{http}', '{dist}', '{{\"a\": 1}}'] GPU-a,GPU-b [key]\n")
        folder = tmp_path / "engines" / "m-1.g1.r0"
        for file in folder.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
            if file.name != "out.log":
                assert b"s3cret" not in file.read_bytes(), file
        assert "s3cret" not in command_line(seen.pid)
        assert "s3cret" not in repr(here.engines.seen())


async def test_an_engine_inherits_none_of_the_agents_descriptors(tmp_path):
    """Nor the shim's: a lock or a pipe that lives on in an engine would outlive who it speaks for."""
    source = "import os, time\nprint(sorted(map(int, os.listdir('/proc/self/fd')))[:-1], flush=True)\ntime.sleep(600)"
    async with node(tmp_path) as here:
        leaked = os.dup(0)
        os.set_inheritable(leaked, True)
        here.want(launch(source=source))
        await here.wait_for(ShardState.LOADING)
        os.close(leaked)
        assert (await here.log_says("]")).strip() == "[0, 1, 2]"


async def test_stop_is_answered_in_every_phase(tmp_path):
    """C42: what it held is free again, whether it waited for memory, for files, or was loading."""
    gpus = FakeGpus({"GPU-a": 100})
    fetch = Fetch(str(tmp_path / "model"), program(SLEEP))
    async with node(tmp_path / "data", gpus) as here:
        here.want(
            launch("memory.g1.r0", gpus=("GPU-a",), need_mib=200),
            launch("files.g1.r0", files=fetch),
            launch("loading.g1.r0"),
        )
        await here.until(lambda shard: "needs 0.2 GiB" in shard.why, "memory.g1.r0")
        await here.until(lambda shard: "fetching" in shard.why, "files.g1.r0")
        await here.wait_for(ShardState.LOADING, "loading.g1.r0")

        here.want()
        for id in ("memory.g1.r0", "files.g1.r0", "loading.g1.r0"):
            await here.wait_for(ShardState.STOPPED, id)
            assert here.engines.parts.ports.of(id) == ()
        assert not ours(str(tmp_path / "data")) - {os.getpid()}


async def test_it_waits_for_memory_that_comes_back_late_and_says_for_what(tmp_path):
    """C9: absolute, so memory that came back before we looked will do as well."""
    gpus = FakeGpus({"GPU-a": 1024, "GPU-b": 30 * 1024})
    async with node(tmp_path, gpus) as here:
        here.want(launch(gpus=("GPU-a", "GPU-b"), need_mib=21 * 1024))
        waiting = await here.until(lambda shard: shard.why)
        assert waiting.state is ShardState.STARTING
        assert waiting.why == "needs 21.0 GiB: GPU-a has 1.0 GiB free"

        gpus.free["GPU-a"] = 22 * 1024
        await here.wait_for(ShardState.LOADING)


async def test_memory_that_stays_away_is_a_failure_with_the_reason(tmp_path):
    async with node(tmp_path, FakeGpus({"GPU-a": None})) as here:
        here.want(launch(gpus=("GPU-a",), need_mib=1024, memory_within_s=0.2))
        failed = await here.wait_for(ShardState.FAILED)
        assert failed.why == "needs 1.0 GiB: GPU-a has an unknown amount free, after 0.2 s"


async def test_ten_at_once_get_ports_of_their_own_and_a_thirteenth_a_clear_error(tmp_path):
    """C5."""
    async with node(tmp_path) as here:
        here.engines.parts.ports.last = here.engines.parts.ports.first + 11
        many = [launch(f"m-{n}.g1.r0") for n in range(12)]
        here.want(*many)
        seen = [await here.wait_for(ShardState.LOADING, one.id) for one in many]
        assert len({shard.ports["http"] for shard in seen}) == 12

        here.want(*many, launch("m-12.g1.r0"))
        failed = await here.wait_for(ShardState.FAILED, "m-12.g1.r0")
        assert f"{FIRST_PORT}-{FIRST_PORT + 11} has no free port: 12 of 12 are reserved by m-0.g1.r0" in failed.why


async def test_a_port_lent_to_somebody_is_left_to_them_and_is_no_crash(tmp_path):
    """C6: bound between the reservation and the start."""
    gpus = FakeGpus({"GPU-a": 0})
    async with node(tmp_path, gpus, ports="41000-41099") as here:  # which the kernel lends, as it comes
        here.want(launch(gpus=("GPU-a",), need_mib=1))
        first = (await here.until(lambda shard: shard.ports)).ports["http"]
        with socket.socket() as somebody:
            somebody.bind(("127.0.0.1", first))
            gpus.free["GPU-a"] = 10
            running = await here.wait_for(ShardState.LOADING)

            assert running.ports["http"] != first
            assert f"port {first} was taken by somebody else" in running.why
            assert any("ip_local_reserved_ports" in line for line in here.said)
            assert here.engines.parts.ports.of("m-1.g1.r0") == (running.ports["http"],)


async def test_every_port_an_engine_opens_is_reserved(tmp_path):
    """C7."""
    async with node(tmp_path) as here:
        here.want(*(
            launch(f"m-{n}.g1.r0", SERVES, "{host}", "{port}", "{port:dist}", ports=("http", "dist")) for n in range(3)
        ))  # fmt: skip
        for n in range(3):
            await here.wait_for(ShardState.LOADING, f"m-{n}.g1.r0")
            await here.log_says("up", f"m-{n}.g1.r0")
        ports = [port for shard in here.engines.seen() for port in shard.ports.values()]
        assert len(set(ports)) == 6


async def test_a_stranger_on_an_engines_port_hides_it(tmp_path):
    """Whoever answers there would be sent the key."""
    async with node(tmp_path) as here:
        here.want(launch())
        running = await here.wait_for(ShardState.LOADING)
        with socket.socket() as stranger:
            stranger.bind(("127.0.0.1", running.ports["http"]))
            stranger.listen()
            hidden = await here.until(lambda shard: not shard.ports)
            assert f"port {running.ports['http']} (http) is listened on by somebody else" in hidden.why
        await here.until(lambda shard: shard.ports)


async def test_an_engine_that_listens_on_its_port_is_told_with_it(tmp_path):
    async with node(tmp_path) as here:
        here.want(launch("m-1.g1.r0", SERVES, "{host}", "{port}"))
        await here.wait_for(ShardState.LOADING)
        await here.log_says("up")
        used = await here.until(lambda shard: shard.memory_mib)
        assert used.ports
        assert used.progress > 0
        assert here.engines.instance_of(used.pid) == "m-1.g1.r0"


async def test_what_cannot_be_written_down_is_not_started(tmp_path):
    """F46: a folder that takes nothing."""
    async with node(tmp_path) as here:
        (tmp_path / "engines").rmdir()
        (tmp_path / "engines").write_text("in the way")
        here.want(launch())
        failed = await here.wait_for(ShardState.FAILED)
        assert "can't be started" in failed.why
        assert not ours(str(tmp_path)) - {os.getpid()}


async def test_an_engine_whose_state_cannot_be_written_never_runs(tmp_path):
    """F46, a moment later: the shim is there, the disk is not."""
    async with node(tmp_path) as here:
        folder = tmp_path / "engines" / "m-1.g1.r0"
        (folder / "state.json.new").mkdir(parents=True)
        here.want(launch(source=f"open({str(tmp_path / 'ran')!r}, 'w')"))
        failed = await here.wait_for(ShardState.FAILED)
        assert "not started: IsADirectoryError" in failed.why
        assert not (tmp_path / "ran").exists()


async def test_a_changed_launch_under_one_id_is_refused_and_the_engine_runs_on(tmp_path):
    async with node(tmp_path) as here:
        here.want(launch())
        pid = (await here.wait_for(ShardState.LOADING)).pid
        here.want(launch(cwd="/tmp"))
        assert "refused: it was started with other settings" in here.one().why
        assert lives(pid)


async def test_an_id_that_is_no_name_is_refused(tmp_path):
    async with node(tmp_path) as here:
        here.want(launch("../../etc"))
        assert here.one("../../etc").why == "refused: its id is no name for a folder"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
async def test_an_engine_runs_as_the_user_it_is_given(tmp_path):
    async with node(tmp_path) as here:
        source = f"import os\nprint(os.getuid(), os.getgid(), os.getgroups(), os.environ['HOME'], flush=True)\n{SLEEP}"
        here.want(launch(source=source, user="nobody"))
        await here.wait_for(ShardState.LOADING)
        assert (await here.log_says("]")).startswith("65534 65534 [65534] /nonexistent")


async def test_a_long_log_is_cut_and_its_end_stays_readable(tmp_path):
    source = (
        "import time\nfor n in range(400): print('line', n, 'x' * 40, flush=True)\n"
        "import os\n"
        "while os.fstat(1).st_size > 8192: time.sleep(0.01)\n"
        "print('last', flush=True)\ntime.sleep(600)"
    )
    async with node(tmp_path, log_max=8192) as here:
        here.want(launch(source=source))
        await here.wait_for(ShardState.LOADING)
        log = await here.log_says("last")
        assert "line 399" in log
        assert (tmp_path / "engines" / "m-1.g1.r0" / "out.log").stat().st_size < 8192


async def test_leaving_ends_no_engine(tmp_path):
    async with node(tmp_path, end=False) as here:
        here.want(launch())
        pid = (await here.wait_for(ShardState.LOADING)).pid
    try:
        assert lives(pid)
        state = read_json(tmp_path / "engines" / "m-1.g1.r0" / "state.json")
        assert state["pid"] == pid
    finally:
        end_all(Places(tmp_path))


async def test_a_shim_that_says_nothing_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(spawning, "WORD_WITHIN_S", 0.3)
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    wanted = launch()
    monkeypatch.setattr(sys, "executable", str(silent))
    async with node(tmp_path) as here:
        here.want(wanted)
        failed = await here.wait_for(ShardState.FAILED)
        assert "its shim said nothing within 0.3 s" in failed.why
        assert not ours(str(tmp_path)) - {os.getpid()}


@both_ways
async def test_a_killed_shim_takes_nobody_along_and_the_end_is_without_a_status(tmp_path, leaves):
    async with node(tmp_path, leaves=leaves) as here:
        here.want(launch(source=FORKS))
        running = await here.wait_for(ShardState.LOADING)
        await here.log_says("up")
        state = read_json(tmp_path / "engines" / "m-1.g1.r0" / "state.json")
        os.kill(state["shim_pid"], signal.SIGKILL)
        assert lives(running.pid)

        os.kill(running.pid, signal.SIGKILL)
        lost = await here.wait_for(ShardState.LOST)
        assert lost.why == "gone without an exit status"
        assert not ours(str(tmp_path)) - {os.getpid()}
