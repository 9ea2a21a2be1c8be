"""Packed bodies: the same bytes out wherever they are cut, under a cap, and never half a body for a whole one."""

import base64
import gzip
import json
import struct
import zlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.wire.coding import Corrupt, Decoder, TooLarge, decoded
from llmgw.wire.embeddings import floats_to_base64, looks_like_floats


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def two_members(data: bytes) -> bytes:
    half = len(data) // 2
    return gzip.compress(data[:half]) + gzip.compress(data[half:])


packers = st.sampled_from([gzip.compress, zlib.compress, raw_deflate, two_members])


@given(st.binary(max_size=300), packers, st.lists(st.integers(0, 1000), max_size=8))
def test_the_cut_makes_no_difference(data: bytes, pack: Any, places: list[int]) -> None:
    packed = pack(data)
    at = sorted({place % (len(packed) + 1) for place in places} | {0, len(packed)})
    decoder = Decoder(1000)

    out = b"".join(decoder.feed(packed[start:end]) for start, end in pairwise(at))
    decoder.end()

    assert out == data == decoded(packed, 1000)


@given(st.binary(min_size=1, max_size=300), packers, st.data())
def test_a_body_cut_short_is_never_taken_for_a_whole_one(data: bytes, pack: Any, drawn: st.DataObject) -> None:
    packed = pack(data)
    short = packed[: drawn.draw(st.integers(1, len(packed) - 1))]
    try:
        out = decoded(short, 1000)
    except Corrupt:
        return
    # Only where one gzip member ends and the next has not begun is a shorter body a whole one.
    assert pack is two_members
    assert short == gzip.compress(out)


@given(st.binary(max_size=100))
def test_whatever_the_bytes_there_is_an_answer(data: bytes) -> None:
    try:
        decoded(data, 1000)
    except (Corrupt, TooLarge):
        return


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, raw_deflate])
@pytest.mark.parametrize("size", [1, 1000, 1_000_000])
def test_the_cap_is_exact_and_a_bomb_is_not_unpacked(pack: Any, size: int) -> None:
    packed = pack(bytes(size))
    assert len(decoded(packed, size)) == size
    with pytest.raises(TooLarge):
        decoded(packed, size - 1)
    with pytest.raises(TooLarge):
        trickled(packed, size - 1)


def trickled(packed: bytes, most: int) -> None:
    decoder = Decoder(most)
    for at in range(len(packed)):
        decoder.feed(packed[at : at + 1])


def test_a_bomb_of_many_members_is_no_way_round_the_cap() -> None:
    with pytest.raises(TooLarge):
        decoded(gzip.compress(bytes(600)) * 2, 1000)


def test_rubbish_behind_the_end_is_corrupt() -> None:
    with pytest.raises(Corrupt):
        decoded(gzip.compress(b"x") + b"rubbish!", 1000)


# -- embeddings -------------------------------------------------------------------------------------

float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.lists(float32, max_size=6), max_size=4))
def test_a_vector_survives_the_change_exactly(vectors: list[list[float]]) -> None:
    answer = {"data": [{"embedding": v, "index": i} for i, v in enumerate(vectors)], "model": "m", "usage": {"x": 1}}

    made = json.loads(floats_to_base64(json.dumps(answer).encode()))

    for item, vector in zip(made["data"], vectors, strict=True):
        packed = base64.b64decode(item["embedding"], validate=True)
        assert list(struct.unpack(f"<{len(packed) // 4}f", packed)) == vector
    assert {k: v for k, v in made.items() if k != "data"} == {"model": "m", "usage": {"x": 1}}


OTHER = [
    b"", b"[]", b"{}", b'{"data":7}', b'{"data":[7]}', b'{"data":[{}]}', b'{"data":[{"embedding":["x"]}]}',
    b'{"data":[{"embedding":[1e300]}]}', b'{"data":[{"embedding":[[1.0]]}]}', b"[" * 100_000, b"\xff",
]  # fmt: skip


@pytest.mark.parametrize("body", OTHER)
def test_an_answer_of_another_shape_is_left_as_it_is(body: bytes) -> None:
    assert floats_to_base64(body) == body


def test_floats_are_told_from_base64_by_their_bracket() -> None:
    assert looks_like_floats(b'{"data": [{"embedding" : [0.1')
    assert not looks_like_floats(b'{"data":[{"embedding":"AAAA"}]}')
    assert not looks_like_floats(b"")
