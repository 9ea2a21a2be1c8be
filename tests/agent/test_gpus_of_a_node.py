"""What an agent tells of its GPUs, on simulated ones: C9, C12 to C15 and C40 as far as a node has a part in them."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, evolve, field

from agent.gpu_memory import TOLERANCE_MIB, why_not_back
from agent.gpus import Gpus, process_name
from agent.inventory import Inventory
from llmgw.core.agent_settings import AgentSettings
from llmgw.core.gpu_reading import Holder, Sample
from llmgw.core.gpus import Gpu
from sim.gpus import FOLDER, SimFolder, SimInventory, claim, give_back, gpus_of

A, B = "GPU-sim-0", "GPU-sim-1"
OURS = "llama-3.g7.r0"
WALL = 1_800_000_000.0


async def at_once(act: Callable[..., Any], *of: Any) -> Any:
    return act(*of)


@define(eq=False)
class Node:
    """An agent's GPUs, and the hands that play hardware and engines."""

    path: Path
    folder: SimFolder = field(init=False)
    living: dict[int, str] = field(factory=dict, init=False)  # pid -> instance
    said: list[str] = field(factory=list, init=False)
    boot: str = field(default="boot-1", init=False)
    later_s: float = field(default=0.0, init=False)  # of the wall clock alone
    gpus: Gpus = field(init=False)

    def wall(self) -> float:
        return WALL + trio.current_time() + self.later_s

    def __attrs_post_init__(self) -> None:
        self.folder = SimFolder(self.path / "sim")
        self.folder.make(gpus_of(2, 24 * 1024))
        self.agent_starts()

    def agent_starts(self, inventory: Inventory | None = None) -> None:
        self.gpus = Gpus(
            AgentSettings(gpu_within=10.0, gpu_every=1.0),
            inventory or SimInventory(self.folder.path, alive=self.living.__contains__, wall=self.wall),
            lambda pid: self.living.get(pid, ""),
            self.boot,
            self.path / "gpus.json",
            self.wall,
            name_of=lambda pid: f"program-{pid}",
            say=self.said.append,
            run_blocking=at_once,
        )

    def engine(self, pid: int, mib: int, *uuids: str, instance: str = OURS) -> None:
        self.living[pid] = instance
        claim(mib, {FOLDER: str(self.folder.path), "CUDA_VISIBLE_DEVICES": ",".join(uuids)}, pid)

    def exits(self, pid: int) -> None:
        del self.living[pid]

    async def seen(self, uuid: str = A) -> Gpu:
        await self.gpus.read()
        return next(gpu for gpu in self.gpus.seen() if gpu.uuid == uuid)

    async def back(self, *pids: int) -> str | None:
        await self.gpus.read()
        return self.gpus.memory_back(OURS, pids, [A])


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def causes(gpu: Gpu) -> list[str]:
    return [e.cause for e in gpu.evidence]


async def test_memory_is_three_numbers_and_the_largest_holders_are_named(node: Node):
    """C40: 24 GiB, of which 4 are ours and 2 foreign, leave 18."""
    node.engine(10, 4096, A)
    node.folder.foreign(A, 2048, pid=99)
    gpu = await node.seen()
    assert (gpu.total_mib, gpu.ours_mib, gpu.foreign_mib) == (24576, 4096, 2048)
    assert node.gpus.free_mib(A) == 18 * 1024
    assert [(p.pid, p.mib, p.name, p.instance) for p in gpu.processes] == [
        (10, 4096, "program-10", OURS),
        (99, 2048, "program-99", ""),
    ]
    assert node.gpus.mib_of(OURS) == {A: 4096}
    assert node.gpus.free_mib("GPU-unknown") is None


async def test_memory_that_returns_three_seconds_after_the_exit_is_waited_for(
    node: Node, autojump_clock: trio.testing.MockClock
):
    """C9."""
    node.folder.set(evolve(node.folder.state, returns_after_s=3.0))
    await node.gpus.read()
    node.gpus.note_launch(OURS, [A])
    node.engine(10, 20 * 1024, A)
    assert await node.back(10) == "its GPU memory is read anew"
    assert await node.back(10) == f"20.0 GiB on {A} held by 10"
    node.exits(10)
    assert await node.back(10) == f"20.0 GiB on {A} held by nobody who is listed, 0.0 GiB before its start"
    assert node.gpus.free_mib(A) == 4096
    await trio.sleep(2.9)
    assert await node.back(10) is not None
    await trio.sleep(0.2)
    assert await node.back(10) is None
    assert node.gpus.free_mib(A) == 24576


async def test_memory_that_was_back_before_the_exit_is_not_waited_for(node: Node):
    """C9: what is free now counts, not a change that has happened already."""
    await node.gpus.read()
    node.gpus.note_launch(OURS, [A])
    node.engine(10, 20 * 1024, A)
    await node.gpus.read()
    give_back({FOLDER: str(node.folder.path)}, 10)
    await node.gpus.read()
    node.exits(10)
    node.gpus.memory_back(OURS, [10], [A])
    assert await node.back(10) is None


async def test_an_end_is_not_judged_by_a_reading_from_before_it(node: Node, autojump_clock: trio.testing.MockClock):
    """An engine that started and crashed between two readings would seem to hold nothing."""
    node.folder.set(evolve(node.folder.state, returns_after_s=3.0))
    await node.gpus.read()
    node.gpus.note_launch(OURS, [A])
    node.engine(10, 20 * 1024, A)
    node.exits(10)
    assert node.gpus.memory_back(OURS, [10], [A]) == "its GPU memory is read anew"
    await trio.sleep(1)
    assert "held by nobody who is listed" in str(await node.back(10))


async def test_what_the_memory_was_before_a_start_outlives_the_agent(
    node: Node, autojump_clock: trio.testing.MockClock
):
    node.folder.change(A, reserved_mib=500)
    await node.gpus.read()
    node.gpus.note_launch(OURS, [A])
    await node.gpus.read()
    node.folder.change(A, reserved_mib=5000)  # an engine in a container: its processes are never listed
    node.agent_starts()
    await node.gpus.read()
    node.gpus.note_launch(OURS, [A])  # adopted: the first word stands
    assert await node.back() == "its GPU memory is read anew"
    await trio.sleep(1)
    assert "4.9 GiB" in str(await node.back())
    node.folder.change(A, reserved_mib=500)
    assert await node.back() is None


async def test_memory_of_a_card_that_has_gone_is_not_waited_for(node: Node):
    node.engine(10, 1024, A)
    await node.gpus.read()
    node.folder.remove(A)
    assert await node.back(10) is None


@pytest.mark.parametrize(
    ("used", "holders", "before", "why"),
    [
        (1000, (), 1000, None),
        (1000 + TOLERANCE_MIB, (), 1000, None),
        (1001 + TOLERANCE_MIB, (), 1000, "held by nobody who is listed"),
        (9000, (Holder(5, 8000),), 1000, None),  # somebody else's, and listed
        (9000, (Holder(7, 8000),), 1000, "held by 7"),
        (9000, (Holder(5, None),), 1000, None),  # nobody can tell whose the rest is
        (9000, (Holder(7, None),), 1000, "held by 7"),
        (9000, (), None, None),
    ],
)
def test_whether_memory_is_back(used: int, holders: tuple[Holder, ...], before: int | None, why: str | None):
    found = why_not_back(Sample(A, 0, total_mib=24576, used_mib=used, holders=holders), {7}, before)
    assert found == why if why is None else why in str(found)


async def test_a_gpu_is_its_uuid_whatever_its_index(node: Node):
    """C12."""
    node.folder.xid(A, 13)
    await node.gpus.read()
    node.folder.xid(A, 79)
    assert (await node.seen(A)).index == 0
    node.folder.reorder()
    node.agent_starts()
    gpu = await node.seen(A)
    assert (gpu.index, causes(gpu)) == (1, ["xid 79"])
    assert causes(await node.seen(B)) == []


async def test_a_slice_is_as_large_as_it_is_and_its_card_is_not_for_use(node: Node):
    """C13."""
    node.folder.change(A, total_mib=40960, slices={"MIG-1": 20096})
    node.engine(10, 5000, "MIG-1")
    card, part, _ = (await node.seen(A), *[g for g in node.gpus.seen() if g.uuid != A])
    assert (card.sliced, part.uuid, part.slice_of, part.total_mib, part.ours_mib) == (True, "MIG-1", A, 20096, 5000)
    assert node.gpus.free_mib("MIG-1") == 15096


async def test_errors_become_evidence_that_outlives_the_agent_and_not_the_reboot(node: Node):
    """C14."""
    await node.gpus.read()
    for code in (13, 79):
        node.folder.xid(A, code)
    gpu = await node.seen()
    assert ([e.cause for e in gpu.excluded], causes(gpu)) == (["xid 79"], ["xid 79", "xid 13"])
    node.agent_starts()
    assert causes(await node.seen()) == ["xid 79", "xid 13"]
    node.boot = "boot-2"
    node.agent_starts()
    assert causes(await node.seen()) == ["xid 13"]
    node.later_s = 24 * 3600.0
    assert causes(await node.seen()) == []


async def test_a_reset_clears_what_it_mends(node: Node):
    await node.gpus.read()
    node.folder.xid(A, 119)
    assert causes(await node.seen()) == ["xid 119"]
    node.folder.reset(A)
    assert causes(await node.seen()) == []


async def test_an_operator_clears_evidence(node: Node):
    await node.gpus.read()
    node.folder.xid(A, 79)
    await node.gpus.read()
    assert not node.gpus.clear(B, "xid 79")
    assert node.gpus.clear(A, "xid 79")
    assert causes(await node.seen()) == []
    assert not node.gpus.clear(A, "xid 79")


async def test_a_card_that_was_taken_out_is_missing_until_an_operator_forgets_it(node: Node):
    await node.gpus.read()
    node.folder.remove(A)
    gpu = await node.seen()
    assert (causes(gpu), gpu.total_mib, gpu.read_age_s) == (["missing"], 24576, None)
    assert node.gpus.free_mib(A) is None
    node.agent_starts()
    assert causes(await node.seen()) == ["missing"]
    assert node.gpus.clear(A, "missing")
    assert [gpu.uuid for gpu in node.gpus.seen()] == [B]


async def test_a_card_off_the_bus_is_missing_with_the_drivers_words(node: Node):
    await node.gpus.read()
    node.folder.change(A, lost=True)
    gpu = await node.seen()
    assert gpu.excluded[0].says == "the driver does not list it (GPU 0: GPU is lost)"
    assert node.gpus.driver == "GPU 0: GPU is lost"


async def test_a_driver_that_hangs_makes_telemetry_old_and_nothing_else(
    node: Node, autojump_clock: trio.testing.MockClock
):
    """C15: whoever asks for what is known never waits; what is known says how old it is."""
    node.engine(10, 4096, A)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.gpus.run)
        await node.gpus.wait_tried()
        (fine, _) = node.gpus.seen()
        assert (fine.evidence, node.gpus.driver, node.gpus.free_mib(A)) == ((), "", 20480)
        node.folder.hang(600)
        await trio.sleep(45)
        (stale, _) = node.gpus.seen()
        assert stale.read_age_s == pytest.approx(45, abs=1)
        assert [e.says for e in stale.excluded] == [f"the driver has not answered for {stale.read_age_s:.0f} s"]
        assert (stale.ours_mib, stale.total_mib) == (4096, 24576)
        assert node.gpus.free_mib(A) is None
        assert node.gpus.driver.startswith(f"it has not answered for {stale.read_age_s:.0f} s: no answer within 10 s")
        assert node.gpus.memory_back(OURS, [10], [A]) == f"not known: {node.gpus.driver}"
        node.folder.hang(0)
        await trio.sleep(15)
        (again, _) = node.gpus.seen()
        assert (again.evidence, node.gpus.driver) == ((), "")
        nursery.cancel_scope.cancel()
    assert [line.split(":")[0] for line in node.said] == ["GPUs"] * 3  # fine, silent, fine: once each


async def test_before_the_driver_has_answered_what_is_remembered_is_told_and_excluded(node: Node):
    await node.gpus.read()
    node.folder.hang(600)
    node.agent_starts()
    assert [(g.uuid, g.read_age_s, causes(g)) for g in node.gpus.seen()] == [
        (A, None, ["driver silent"]),
        (B, None, ["driver silent"]),
    ]
    assert node.gpus.driver == "not asked yet"


async def test_a_node_without_a_driver_says_so_once(node: Node):
    node.folder.set(evolve(node.folder.state, trouble="no NVIDIA driver: libnvidia-ml.so.1 is not there"))
    for _ in range(3):
        await node.gpus.read()
    assert node.gpus.seen() == ()
    assert node.gpus.driver == "no NVIDIA driver: libnvidia-ml.so.1 is not there"
    assert node.said == ["GPUs: no NVIDIA driver: libnvidia-ml.so.1 is not there"]


async def test_a_reading_that_fails_is_not_a_healthy_one(node: Node):
    await node.gpus.read()
    node.folder.set(evolve(node.folder.state, fails="the process that asks the driver failed"))
    gpu = await node.seen()
    assert causes(gpu) == ["driver silent"]
    assert "the process that asks the driver failed" in node.gpus.driver


async def test_a_node_that_is_not_to_look_for_gpus_has_none_and_nothing_to_complain_of(
    autojump_clock: trio.testing.MockClock,
):
    gpus = Gpus(AgentSettings(gpus=False), None)
    with trio.move_on_after(5):
        await gpus.run()
    assert (gpus.seen(), gpus.driver, gpus.free_mib(A), gpus.memory_back(OURS, [1], [])) == ((), "", None, None)


async def test_a_memory_of_garbage_is_set_aside(node: Node):
    (node.path / "gpus.json").write_text("{")
    node.agent_starts()
    assert causes(await node.seen()) == []
    assert (node.path / "gpus.json.bad").exists()


async def test_a_disk_that_is_full_is_said_and_stops_nothing(node: Node):
    async def full(*_: Any) -> Awaitable[None]:
        raise OSError(28, "No space left on device")

    node.gpus.run_blocking = full
    assert (await node.seen()).total_mib == 24576
    assert node.said[-1] == f"{node.path / 'gpus.json'}: No space left on device"


def test_a_process_is_named_as_the_kernel_does():
    assert process_name(1) != ""
    assert process_name(2**22 + 1) == ""
