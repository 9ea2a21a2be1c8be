"""Durations, sizes and addresses as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.config.addresses import clash, is_loopback, split_address
from llmgw.config.problems import Refused
from llmgw.config.units import bytes_of, seconds_of, text_of_bytes, text_of_seconds


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("250ms", 0.25), ("30s", 30), ("5min", 300), ("1h", 3600), ("2d", 172800), ("1.5h", 5400), ("7", 7), (0.5, 0.5)],
)
def test_a_duration_is_read_in_every_unit(written, seconds):
    assert seconds_of(written) == seconds


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("512", 512),
        ("64KiB", 65536),
        ("1GiB", 2**30),
        ("64MB", 64_000_000),
        ("1.5KiB", 1536),
        (10, 10),
        ("3 MiB", 3 << 20),
    ],
)
def test_a_size_is_read_in_every_unit(written, size):
    assert bytes_of(written) == size


@pytest.mark.parametrize(
    "nonsense", ["", "s", "-1s", "1m", "1e3", "5 parsecs", "٣s", "1s1s", "nan", True, None, [], -1, float("inf")]
)
def test_what_is_no_duration_is_refused_with_an_example(nonsense):
    with pytest.raises(Refused) as refused:
        seconds_of(nonsense)
    assert refused.value.what_to_do.startswith(("write it like", "write one of ms, s, min"))


@pytest.mark.parametrize("nonsense", ["", "KiB", "-1", "64kb", "0.3B", 1.5, True, None, float("nan"), "1s"])
def test_what_is_no_size_is_refused_with_an_example(nonsense):
    with pytest.raises(Refused) as refused:
        bytes_of(nonsense)
    assert refused.value.what_to_do.startswith("write ")


@pytest.mark.parametrize("read", [seconds_of, bytes_of])
@pytest.mark.parametrize(
    "huge",
    [
        pytest.param(x, id=f"huge{i}")
        for i, x in enumerate(["9" * 18 + "d", "9" * 18 + "TiB", 10**400, 1e308, 16**5000])
    ],
)
def test_what_no_clock_and_no_memory_holds_is_refused(read, huge):
    with pytest.raises(Refused):
        read(huge)


@given(st.integers(0, 10**12))
def test_a_size_reads_back_as_it_was_written(size):
    assert bytes_of(text_of_bytes(size)) == size


@given(st.integers(0, 10**9).map(lambda millis: millis / 1000) | st.floats(0, 10**6))
def test_a_duration_reads_back_as_it_was_written(seconds):
    assert seconds_of(text_of_seconds(seconds)) == pytest.approx(seconds, abs=1e-9)


def test_an_address_is_a_host_and_a_port():
    assert split_address("127.0.0.1:7440") == ("127.0.0.1", 7440)
    assert split_address("[::1]:0") == ("::1", 0)
    assert split_address("gpu-1.lan:80") == ("gpu-1.lan", 80)


@pytest.mark.parametrize(
    "nonsense", ["", "7440", ":7440", "localhost", "::1:7440", "[::g]:1", "h:65536", "h:-1", "h:1 ", "http://h:1"]
)
def test_what_is_no_address_is_refused(nonsense):
    with pytest.raises(Refused):
        split_address(nonsense)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("localhost.example.com:1", False),
    ],
)
def test_only_this_machine_reaches_loopback(address, loopback):
    assert is_loopback(address) is loopback


def test_two_listeners_clash_on_one_port_of_one_host():
    assert clash("127.0.0.1:1", "127.0.0.1:1")
    assert clash("0.0.0.0:1", "127.0.0.1:1")
    assert clash("127.0.0.1:1", "[::]:1")
    assert clash("localhost:1", "127.0.0.1:1")
    assert clash("[::1]:1", "[0:0::1]:1")
    assert not clash("localhost:1", "[::1]:1")
    assert not clash("127.0.0.1:1", "127.0.0.2:1")
    assert not clash("127.0.0.1:1", "127.0.0.1:2")
    assert not clash("127.0.0.1:0", "127.0.0.1:0")
