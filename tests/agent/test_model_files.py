"""Model files: there, or fetched by one command at a time, or a reason why not."""

import os
import sys
from functools import partial

import pytest
import trio

from agent.files import MARK, NoFiles, ensure, is_there, present
from llmgw.core.shards import Fetch
from tests.polling import until

COUNTS = """
import pathlib, sys, time
target = pathlib.Path(sys.argv[1])
with open(str(target) + '.runs', 'a') as runs: runs.write('run\\n')
while not pathlib.Path(str(target) + '.go').exists(): time.sleep(0.01)
target.write_text('weights')
"""


def fetch(path, source=COUNTS, **more):
    return Fetch(str(path), (sys.executable, "-I", "-S", "-c", source, str(path)), **more)


@pytest.fixture
def model(tmp_path):
    return tmp_path / "models" / "m"


@pytest.fixture
def get(tmp_path):
    """ensure, with what a fetch needs of the agent; ``said`` collects what it waits for."""
    said = []

    async def run(wanted):
        await ensure(wanted, os.environ, tmp_path / "out.log", "", said.append)

    run.said = said
    return run


async def test_files_that_are_there_are_not_fetched(model, get):
    model.mkdir(parents=True)
    await get(fetch(model, "raise SystemExit(1)"))


async def test_files_that_are_not_there_and_have_no_command_are_a_reason(model, get):
    with pytest.raises(NoFiles, match="is not on this node, and no command to fetch it was given"):
        await get(Fetch(str(model)))


async def test_two_at_once_fetch_once(model, get):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(get, fetch(model))
        nursery.start_soon(get, fetch(model))
        await until(lambda: f"somebody else fetches {model}" in get.said)
        assert not is_there(str(model))
        model.with_name("m.go").touch()
    assert model.with_name("m.runs").read_text() == "run\n"
    assert present([str(model), "/no/such"]) == (str(model),)


async def test_a_command_that_fails_is_a_reason_and_what_it_left_does_not_count(model, get):
    half = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('half'); raise SystemExit(7)"
    with pytest.raises(NoFiles, match="ended with 7"):
        await get(fetch(model, half))
    assert model.exists()
    assert not is_there(str(model))

    await get(fetch(model, "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('all')"))
    assert model.read_text() == "all"
    assert is_there(str(model))


async def test_a_command_that_ends_well_and_brings_nothing_is_a_reason(model, get):
    with pytest.raises(NoFiles, match="ended with 0, yet"):
        await get(fetch(model, "pass"))


async def test_a_command_that_is_not_there_is_a_reason(model, get):
    with pytest.raises(NoFiles, match="No such file"):
        await get(Fetch(str(model), ("/no/such/command",)))


async def test_it_takes_no_longer_than_it_may_and_its_command_ends(model, get):
    with pytest.raises(NoFiles, match=r"did not come within 0\.3 s"):
        await get(fetch(model, within_s=0.3))
    model.with_name("m.go").touch()
    await get(fetch(model))  # the lock is free: nobody works there any more
    assert model.with_name("m.runs").read_text() == "run\n" * 2


async def test_the_lock_lives_as_long_as_the_command_though_its_agent_was_killed(model, get, tmp_path):
    script = (
        "import os, sys, trio; from pathlib import Path; from functools import partial\n"
        "from agent.files import ensure; from llmgw.core.shards import Fetch\n"
        f"trio.run(partial(ensure, {fetch(model)!r}, os.environ, Path({str(tmp_path / 'log')!r}), '', print))"
    )
    agent = await trio.lowlevel.open_process([sys.executable, "-c", script])
    runs = model.with_name("m.runs")
    await until(lambda: runs.exists() and runs.read_text(), 20)
    agent.kill()
    await agent.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(get, fetch(model))
        await until(lambda: f"somebody else fetches {model}" in get.said)
        assert runs.read_text() == "run\n"
        model.with_name("m.go").touch()
    # Nobody wrote down that the first one ended well, so the command had a second word.
    assert runs.read_text() == "run\n" * 2
    assert model.with_name("m" + MARK).read_text() == ""


async def test_a_cancelled_fetch_ends_its_command(model, get):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(get, fetch(model))
        await until(lambda: model.with_name("m.runs").exists())
        nursery.cancel_scope.cancel()
    with trio.fail_after(5):
        model.with_name("m.go").touch()
        await partial(get, fetch(model))()
