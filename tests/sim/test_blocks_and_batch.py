"""The engine's arithmetic: blocks are conserved, the queue is fair, leaving frees."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from sim.blocks import BLOCK_TOKENS, Blocks, Lease, block_hashes, blocks_for, tokens_of
from sim.engine_model import Engine, EngineShape, Sequence, State

PREFIXES = st.sampled_from([b"", b"a" * 64, b"a" * 128, b"a" * 64 + b"b" * 64, b"c" * 192])
PROMPTS = st.builds(lambda prefix, tail: prefix + tail, PREFIXES, st.binary(max_size=80))


def whole(blocks: Blocks) -> bool:
    return blocks.free + blocks.used + blocks.cached == blocks.total and min(blocks.free, blocks.used) >= 0


@given(st.integers(1, 12), st.lists(st.tuples(st.sampled_from("ltgf"), PROMPTS, st.integers(0, 20)), max_size=60))
def test_blocks_are_conserved_whatever_is_leased_grown_and_released(total: int, acts: list[tuple[str, bytes, int]]):
    blocks, leases = Blocks(total), list[Lease]()
    for act, prompt, n in acts:
        if act in "lt" and (lease := blocks.lease(block_hashes(prompt), tokens_of(prompt))) is not None:
            assert lease.size == blocks_for(tokens_of(prompt))
            leases.append(lease)
        elif act == "g" and leases:
            before = blocks.free + blocks.cached
            assert blocks.grow(leases[n % len(leases)]) == (before > 0)
        elif act == "f" and leases:
            blocks.release(leases.pop(n % len(leases)), computed=n)
        assert whole(blocks)
    for lease in leases:
        blocks.release(lease, computed=0)
    assert whole(blocks)
    assert blocks.used == 0


def test_a_prefix_that_was_computed_is_found_again_and_one_that_was_not_is_free():
    blocks, prompt = Blocks(10), b"p" * 64 * 3
    blocks.release(blocks.lease(block_hashes(prompt), 48) or pytest.fail("no room"), computed=2)
    assert (blocks.cached, blocks.free) == (2, 8)
    again = blocks.lease(block_hashes(prompt), 48)
    assert again is not None
    assert again.hit == 2


def test_the_last_token_of_a_known_prompt_is_computed_again():
    blocks, hashes = Blocks(10), block_hashes(b"p" * 64 * 3)
    blocks.release(blocks.lease(hashes, 48) or pytest.fail("no room"), computed=3)
    again = blocks.lease(hashes, 48)
    assert again is not None
    assert again.hit == 2


def test_the_prefix_used_longest_ago_is_evicted_first():
    blocks, old, new = Blocks(2), block_hashes(b"o" * 64), block_hashes(b"n" * 64)
    for hashes in (old, new):
        blocks.release(blocks.lease(hashes, 16) or pytest.fail("no room"), computed=1)
    blocks.lease(block_hashes(b"x" * 64), 16)
    assert (blocks.known(old), blocks.known(new)) == (0, 1)


def test_sequences_share_the_blocks_of_a_common_prefix():
    blocks, hashes = Blocks(4), block_hashes(b"s" * 64 * 3)
    assert blocks.lease(hashes, 49)
    assert blocks.used == 4
    assert blocks.lease(hashes, 48)
    assert blocks.used == 4


@given(
    st.integers(1, 4),
    st.integers(4, 12),
    st.lists(st.tuples(PROMPTS, st.integers(0, 40), st.integers(0, 30)), min_size=1, max_size=12),
)
def test_an_engine_serves_or_frees_everything(slots: int, blocks: int, asked: list[tuple[bytes, int, int]]):
    """Some leave early, some by pre-emption start over; in the end every block and slot is free."""
    shape = EngineShape(slots=slots, blocks=blocks, prefill_rate=200, decode_rate=100, step=0.1)
    engine = Engine(shape)
    inside = [engine.sequence(prompt, wants) for prompt, wants, _ in asked if fits(shape, prompt, wants)]
    leave_at = [at for prompt, wants, at in asked if fits(shape, prompt, wants)]
    sequences = [context.__enter__() for context in inside]
    for tick in range(400):
        for context, sequence, at in zip(inside, sequences, leave_at, strict=True):
            if at == tick and sequence.state in (State.WAITING, State.RUNNING) and at % 3 == 0:
                context.__exit__(None, None, None)
        engine.tick(0.1)
        assert whole(engine.blocks)
        assert len(engine.running) <= slots
        assert engine.blocks.used == 0 or engine.running
    assert all(sequence.state in (State.DONE, State.GONE) for sequence in sequences)
    assert all(s.made == s.wants for s in sequences if s.state is State.DONE)
    assert (engine.blocks.used, len(engine.waiting), len(engine.running)) == (0, 0, 0)


def fits(shape: EngineShape, prompt: bytes, wants: int) -> bool:
    return max(1, tokens_of(prompt)) + wants <= shape.longest


@given(st.lists(st.tuples(st.integers(1, 150), st.integers(1, 20)), min_size=1, max_size=15))
def test_who_came_first_starts_first(asked: list[tuple[int, int]]):
    engine = Engine(EngineShape(slots=2, blocks=16, prefill_rate=1000, decode_rate=100, step=0.1))
    started: list[Sequence] = []
    contexts = [engine.sequence(bytes([n]) * size, wants) for n, (size, wants) in enumerate(asked)]
    queue = [context.__enter__() for context in contexts]
    for _ in range(300):
        waiting = set(engine.waiting)
        engine.tick(0.1)
        started += [s for s in queue if s in waiting and s not in engine.waiting and s not in started]
    assert started == queue


def test_a_sequence_that_leaves_gives_its_slot_to_the_next():
    engine = Engine(EngineShape(slots=1))
    with engine.sequence(b"one", 50) as one:
        two_context = engine.sequence(b"two", 50)
        two = two_context.__enter__()
        engine.tick(0.02)
        assert (one.state, two.state) == (State.RUNNING, State.WAITING)
    assert engine.blocks.used == 0
    engine.tick(0.02)
    assert two.state is State.RUNNING
    two_context.__exit__(None, None, None)
    assert (engine.counters.aborted, engine.blocks.used) == (2, 0)


def test_what_cannot_fit_is_not_taken():
    engine = Engine(EngineShape(blocks=2))
    with pytest.raises(ValueError, match="context"), engine.sequence(b"x", 2 * BLOCK_TOKENS):
        pass


async def test_tokens_come_at_the_rates_of_the_engine(autojump_clock: Callable[..., object]):
    engine = Engine(EngineShape(prefill_rate=1000, decode_rate=50, step=0.02))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        began = trio.current_time()
        with engine.sequence(b"p" * 4 * 500, 101) as sequence:
            assert await sequence.tokens() == 1
            first = trio.current_time() - began
            assert await sequence.all_tokens() == 100
            rest = trio.current_time() - began - first
        nursery.cancel_scope.cancel()
    assert first == pytest.approx(0.5, abs=0.05)
    assert rest == pytest.approx(2.0, abs=0.05)


async def test_a_batch_with_a_bound_shares_it(autojump_clock: Callable[..., object]):
    engine = Engine(EngineShape(decode_rate=50, batch_rate=100))
    took_s = dict[int, float]()
    for size in (1, 2, 8):
        async with trio.open_nursery() as ticking:
            ticking.start_soon(engine.run)
            began = trio.current_time()
            async with trio.open_nursery() as batch:
                for _ in range(size):
                    batch.start_soon(whole_answer, engine)
            took_s[size] = trio.current_time() - began
            ticking.cancel_scope.cancel()
    assert took_s == {1: pytest.approx(2, abs=0.1), 2: pytest.approx(2, abs=0.1), 8: pytest.approx(8, abs=0.3)}


async def whole_answer(engine: Engine) -> None:
    with engine.sequence(b"p", 100) as sequence:
        await sequence.all_tokens()


async def test_a_cancelled_wait_frees_the_sequence(autojump_clock: Callable[..., object]):
    engine = Engine(EngineShape())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        with trio.move_on_after(1), engine.sequence(b"p" * 640, 8000) as sequence:
            while True:
                await sequence.tokens()
        assert (engine.counters.aborted, engine.blocks.used, len(engine.running)) == (1, 0, 0)
        assert engine.blocks.cached == 10
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("others", [0, 7])
async def test_a_prefill_reckoned_by_time_takes_that_long_whatever_else_runs(
    autojump_clock: Callable[..., object], others: int
) -> None:
    engine = Engine(EngineShape(slots=8, prefill_s=0.2, decode_rate=50, step=0.02))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run)
        with ExitStack() as held:
            for _ in range(others):
                held.enter_context(engine.sequence(b"x" * 4000, 100))
            await trio.sleep(1.0)
            began = trio.current_time()
            with engine.sequence(b"hello", 3) as sequence:
                await sequence.tokens()
                assert trio.current_time() - began == pytest.approx(0.2, abs=0.03)
        nursery.cancel_scope.cancel()
