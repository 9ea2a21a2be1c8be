"""The real binding (pynvml) in its child process, on a library that says what a test wants."""

import os
import signal
from pathlib import Path

import pytest
import trio

from agent.driver_child import LEFT_MOST, DriverChild
from agent.inventory import NotAnswered
from llmgw.core.gpu_reading import Holder, Reading
from tests.agent.fake_driver import FakeDriver

CARD = "gpu GPU-a A100 40960 1000 ecc=0 pending=0 failed=0 recovery=0 energy=5000 reasons=0 temperature=61 mig=0"
OTHER = "gpu GPU-b L4 24576 512 temperature=40"


async def read(driver: FakeDriver) -> Reading:
    with trio.fail_after(20):
        return await driver.child.read()


async def test_it_tells_of_each_card_what_the_driver_knows(fake_driver: FakeDriver):
    fake_driver.says(CARD, OTHER, "proc GPU-a 12 700 c", "proc GPU-a 13 -1 c", "proc GPU-a 12 800 g")
    reading = await read(fake_driver)
    first, second = reading.gpus
    assert (reading.driver, reading.trouble) == ("570.1", "")
    assert (first.uuid, first.index, first.model) == ("GPU-a", 0, "A100")
    assert (first.total_mib, first.used_mib) == (40960, 1000)
    assert first.holders == (Holder(12, 800), Holder(13, None))
    assert (first.temperature_c, first.power_w, first.utilisation) == (61, 123.456, 0.87)
    assert (first.ecc_uncorrected, first.remap_pending, first.remap_failed) == (0, False, False)
    assert (first.recovery, first.energy_mj, first.slowed, first.sliced) == ("none", 5000, "", False)
    assert (second.ecc_uncorrected, second.remap_pending, second.recovery) == (None, None, None)
    assert first.untold == second.untold == {}


async def test_what_is_wrong_with_a_card_is_told(fake_driver: FakeDriver):
    fake_driver.says(
        "gpu GPU-a A100 40960 1000 ecc=3 pending=1 failed=1 recovery=1 energy=5 reasons=192 temperature=95 mig=0"
    )
    (card,) = (await read(fake_driver)).gpus
    assert (card.ecc_uncorrected, card.remap_pending, card.remap_failed) == (3, True, True)
    assert (card.recovery, card.slowed) == ("GPU reset", "thermal, power brake")


async def test_an_older_driver_that_lacks_functions_is_no_failure(old_driver: FakeDriver):
    old_driver.says(CARD, "proc GPU-a 12 700 c")
    (card,) = (await read(old_driver)).gpus
    assert (card.total_mib, card.used_mib, card.temperature_c) == (40960, 1000, 61)
    assert card.holders == (Holder(12, 700),)
    assert (card.power_w, card.utilisation, card.ecc_uncorrected, card.recovery, card.energy_mj) == (None,) * 5
    assert card.untold == {}


async def test_a_failure_to_tell_is_not_taken_for_an_answer(fake_driver: FakeDriver):
    fake_driver.says(CARD, "error nvmlDeviceGetTotalEccErrors 999", "error nvmlDeviceGetMemoryInfo 15")
    (card,) = (await read(fake_driver)).gpus
    assert (card.ecc_uncorrected, card.total_mib, card.used_mib) == (None, None, None)
    assert card.untold == {"ecc": "Unknown Error", "memory": "GPU is lost"}


async def test_a_lost_card_does_not_hide_the_others(fake_driver: FakeDriver):
    fake_driver.says(CARD, OTHER, "error nvmlDeviceGetHandleByIndex_v2 15 GPU-a")
    reading = await read(fake_driver)
    assert [card.uuid for card in reading.gpus] == ["GPU-b"]
    assert reading.trouble == "GPU 0: GPU is lost"


async def test_errors_are_heard_once_and_by_card(fake_driver: FakeDriver):
    fake_driver.says(CARD, OTHER)
    assert (await read(fake_driver)).xids == ()
    fake_driver.says(CARD, OTHER, "xid GPU-b 79", "xid GPU-a 13")
    assert [(xid.uuid, xid.code) for xid in (await read(fake_driver)).xids] == [("GPU-b", 79), ("GPU-a", 13)]
    assert (await read(fake_driver)).xids == ()


async def test_an_error_of_a_card_that_can_no_longer_be_asked_is_heard_too(fake_driver: FakeDriver):
    fake_driver.says(CARD)
    await read(fake_driver)
    fake_driver.says(CARD, "error nvmlDeviceGetHandleByIndex_v2 15", "error nvmlDeviceGetUUID 15", "xid GPU-a 79")
    reading = await read(fake_driver)
    assert reading.gpus == ()
    assert [(xid.uuid, xid.code) for xid in reading.xids] == [("GPU-a", 79)]


async def test_a_slice_has_its_own_memory_and_not_its_cards(fake_driver: FakeDriver):
    """C13."""
    fake_driver.says(
        CARD.replace("mig=0", "mig=1"), "slice GPU-a MIG-1 20096 300", "slice GPU-a MIG-2 9856 0", "proc MIG-1 9 250 c"
    )
    card, first, second = (await read(fake_driver)).gpus
    assert (card.uuid, card.sliced, card.total_mib) == ("GPU-a", True, 40960)
    assert [(s.uuid, s.total_mib, s.used_mib, s.slice_of) for s in (first, second)] == [
        ("MIG-1", 20096, 300, "GPU-a"),
        ("MIG-2", 9856, 0, "GPU-a"),
    ]
    assert first.holders == (Holder(9, 250),)
    assert first.model == "A100 slice 0"


async def test_cards_in_another_order_keep_their_uuid_and_change_their_index(fake_driver: FakeDriver):
    """C12."""
    fake_driver.says(CARD, OTHER)
    before = {card.uuid: card.index for card in (await read(fake_driver)).gpus}
    fake_driver.says(OTHER, CARD)
    after = {card.uuid: card.index for card in (await read(fake_driver)).gpus}
    assert (before, after) == ({"GPU-a": 0, "GPU-b": 1}, {"GPU-a": 1, "GPU-b": 0})


@pytest.mark.parametrize(("code", "says"), [(9, "kernel module is not loaded"), (18, "version mismatch")])
async def test_a_library_without_its_driver_is_a_node_without_gpus_and_a_reason(
    fake_driver: FakeDriver, code: int, says: str
):
    fake_driver.says(f"error nvmlInitWithFlags {code}")
    reading = await read(fake_driver)
    assert reading.gpus == ()
    assert says in reading.trouble
    fake_driver.says(CARD)
    assert len((await read(fake_driver)).gpus) == 1


async def test_no_library_is_a_node_without_gpus_and_a_reason(tmp_path: Path):
    child = DriverChild(env={"LD_LIBRARY_PATH": str(tmp_path)})
    try:
        with trio.fail_after(20):
            reading = await child.read()
    finally:
        child.close()
    if reading.driver:
        pytest.skip("this machine has a driver")
    assert reading == Reading(trouble="no NVIDIA driver: libnvidia-ml.so.1 is not there")


async def test_a_call_that_hangs_ends_the_child_and_not_the_one_who_asked(fake_driver: FakeDriver):
    """C15, with the real clock: only so long as it takes to give up."""
    fake_driver.says(CARD)
    await read(fake_driver)
    hung = fake_driver.child.pid
    fake_driver.says(CARD, "hang nvmlDeviceGetMemoryInfo")
    with trio.move_on_after(0.05) as scope:
        await fake_driver.child.read()
    assert scope.cancelled_caught
    assert hung is not None
    with trio.fail_after(5):
        await gone(hung)
    with pytest.raises(NotAnswered, match="asked again in 1 s"):
        await fake_driver.child.read()


async def gone(pid: int) -> None:
    """Ended; its parent may not have looked yet."""
    fd = os.pidfd_open(pid)
    try:
        await trio.lowlevel.wait_readable(fd)
    finally:
        os.close(fd)


async def test_a_child_that_was_killed_is_replaced_after_a_pause(fake_driver: FakeDriver):
    fake_driver.says(CARD)
    await read(fake_driver)
    first = fake_driver.child.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    with pytest.raises(NotAnswered, match=r"failed: (it ended \(signal 9\)|.*Broken pipe)"):
        await read(fake_driver)
    fake_driver.child.forgive()
    assert len((await read(fake_driver)).gpus) == 1
    assert fake_driver.child.pid != first


async def test_a_child_that_fails_says_why():
    child = DriverChild(("/bin/sh", "-c", "read line; echo '!ValueError: no such thing'"))
    with pytest.raises(NotAnswered, match=r"failed: ValueError: no such thing$"):
        await child.read()
    child.close()


async def test_a_child_that_can_not_be_started_is_said(autojump_clock: trio.testing.MockClock):
    child = DriverChild(("/nowhere/python",))
    with pytest.raises(NotAnswered, match=r"/nowhere/python: No such file"):
        await child.read()


async def test_a_child_that_talks_nonsense_or_without_end_is_ended():
    for said, why in (("echo nonsense; cat", "malformed"), ("yes | tr -d '\\n'", "more than 4194304 bytes")):
        child = DriverChild(("/bin/sh", "-c", said))
        try:
            with trio.fail_after(20), pytest.raises(NotAnswered, match=why):
                await child.read()
            assert child.pid is None
        finally:
            child.close()


async def test_children_that_do_not_die_are_counted_and_at_some_number_no_other_is_started(fake_driver: FakeDriver):
    """A process that hangs in the kernel ignores SIGKILL; here SIGSTOP stands for it, with the kill left out."""
    child = fake_driver.child
    fake_driver.says(CARD, "hang nvmlInitWithFlags")
    child.kill = lambda process: process.send_signal(signal.SIGSTOP)
    for n in range(LEFT_MOST):
        with trio.move_on_after(0.01):
            await child.read()
        assert child.left == n + 1
        child.forgive()
    with pytest.raises(NotAnswered, match="3 processes hang in the driver"):
        await child.read()
    child.kill = lambda process: process.kill()
