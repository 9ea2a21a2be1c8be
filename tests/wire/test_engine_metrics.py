"""What an engine's metrics say of its load, from recorded and from awkward texts."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.fleet import Engine
from llmgw.core.saturation import Sample
from llmgw.wire.engine_metrics import has_metrics, read_metrics

RECORDED = Path(__file__).parent / "recorded"
LORA = b'vllm:lora_requests_info{max_lora="%b",running_lora_adapters="%b",waiting_lora_adapters="%b"} %b\n'
SGLANG = b"""# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 7.0
sglang:num_running_reqs_offline_batch{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 50.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 2.0
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.28
"""
LLAMACPP = b"""# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 4
"""


def vllm(text: bytes) -> Sample:
    return read_metrics(Engine.VLLM, text, 1.0)


def rank(name: bytes, engine: int, value: float) -> bytes:
    return b'%b{engine="%d",model_name="m"} %b\n' % (name, engine, str(value).encode())


def test_a_recorded_busy_vllm_is_read() -> None:
    sample = vllm((RECORDED / "vllm-0.32.0-metrics-busy.txt").read_bytes())
    assert sample == Sample(
        at=1.0, running=24, waiting=0, waiting_capacity=0, kv=0.004394799487273393, process_start=1.79600631233e9
    )


def test_a_recorded_idle_vllm_says_zero_which_is_not_unknown() -> None:
    sample = vllm((RECORDED / "vllm-0.32.0-metrics-idle.txt").read_bytes())
    assert (sample.running, sample.waiting, sample.waiting_capacity, sample.kv) == (0, 0, 0, 0.0)


def test_the_simulated_engine_speaks_vllm() -> None:
    text = rank(b"vllm:num_requests_running", 0, 3.0)
    assert read_metrics(Engine.SIM, text, 2.0) == Sample(at=2.0, running=3)


def test_g76_the_queues_of_data_parallel_ranks_are_summed_and_kv_is_the_worst() -> None:
    text = b"".join(
        rank(name, engine, value)
        for name, values in {
            b"vllm:num_requests_running": (5.0, 2.0),
            b"vllm:num_requests_waiting": (0.0, 4.0),
            b"vllm:kv_cache_usage_perc": (0.9, 0.1),
        }.items()
        for engine, value in enumerate(values)
    )
    sample = vllm(text)
    assert (sample.running, sample.waiting, sample.kv) == (7, 4, 0.9)


def test_g77_a_metric_that_vanished_is_unknown_while_others_still_come() -> None:
    with_kv = rank(b"vllm:num_requests_running", 0, 5.0) + rank(b"vllm:kv_cache_usage_perc", 0, 0.7)
    assert vllm(with_kv).kv == 0.7
    without = vllm(rank(b"vllm:num_requests_running", 0, 5.0))
    assert (without.running, without.waiting, without.waiting_capacity, without.kv) == (5, None, None, None)


def test_g78_names_are_exact_and_the_capacity_reason_is_kept_apart() -> None:
    sample = vllm(
        b'vllm:num_requests_waiting{engine="0"} 7.0\n'
        b'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 4.0\n'
        b'vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 3.0\n'
        b'vllm:num_requests_waiting_by_reason{engine="1",reason="capacity"} 1.0\n'
        b'vllm:num_requests_running_ever{engine="0"} 99.0\n'
    )
    assert (sample.waiting, sample.waiting_capacity, sample.running) == (7, 5, None)


def test_g78_both_names_of_kv_are_known_and_the_new_one_wins() -> None:
    old, new = b"vllm:gpu_cache_usage_perc 0.3\n", b"vllm:kv_cache_usage_perc 0.2\n"
    assert vllm(old).kv == 0.3
    assert vllm(new + old).kv == vllm(old + new).kv == 0.2


@pytest.mark.parametrize("newest_first", [True, False])
def test_g78_the_newest_lora_series_wins(newest_first: bool) -> None:
    series = [
        LORA % (b"4", b"sql,chat", b"law", b"1.7886264577368872e+09"),
        LORA % (b"4", b"old", b"", b"1.7886264546318772e+09"),
    ]
    sample = vllm(b"".join(series if newest_first else series[::-1]))
    assert sample.loaded_adapters == {"sql", "chat", "law"}
    assert sample.adapters_max == 4


def test_a_lora_series_without_adapters_lists_none() -> None:
    sample = vllm(LORA % (b"", b"", b"", b"1.0"))
    assert (sample.loaded_adapters, sample.adapters_max) == (frozenset(), None)


def test_sglang_is_read_under_its_names() -> None:
    assert read_metrics(Engine.SGLANG, SGLANG, 1.0) == Sample(at=1.0, running=7, waiting=2, kv=0.28)


def test_sglangs_tensor_parallel_parts_repeat_a_rank_and_are_counted_once() -> None:
    text = b"".join(
        b'sglang:num_running_reqs{dp_rank="%d",tp_rank="%d"} %d\n' % series
        for series in [(0, 0, 2), (0, 1, 2), (1, 2, 3), (1, 3, 3)]
    )
    assert read_metrics(Engine.SGLANG, text, 1.0).running == 5


def test_sglangs_queues_by_priority_are_in_the_total_already() -> None:
    text = b'sglang:num_queue_reqs{priority=""} 5.0\nsglang:num_queue_reqs{priority="10"} 9.0\n'
    assert read_metrics(Engine.SGLANG, text, 1.0).waiting == 5


def test_llamacpp_is_read_with_and_without_its_kv() -> None:
    assert read_metrics(Engine.LLAMACPP, LLAMACPP, 1.0) == Sample(at=1.0, running=1, waiting=4)
    assert read_metrics(Engine.LLAMACPP, LLAMACPP + b"llamacpp:kv_cache_usage_ratio 0.5\n", 1.0).kv == 0.5


def test_a_hosted_api_has_no_metrics() -> None:
    assert not has_metrics(Engine.OPENAI)
    assert read_metrics(Engine.OPENAI, b"vllm:num_requests_running 5\n", 1.0) == Sample(at=1.0)


def test_a_number_that_is_not_one_says_nothing_and_spoils_nothing() -> None:
    sample = vllm(b"vllm:kv_cache_usage_perc NaN\nvllm:num_requests_running 5\n")
    assert (sample.kv, sample.running) == (None, 5)


def test_labels_with_braces_spaces_and_escapes_and_a_timestamp_are_read() -> None:
    sample = vllm(
        b'vllm:num_requests_running{model_name="a } b { \\" c"} 5.0 1796006312000\r\n'
        b'vllm:lora_requests_info{max_lora="1",running_lora_adapters="a\\"b\\\\c"} 1.0\n'
    )
    assert sample.running == 5
    assert sample.loaded_adapters == {'a"b\\c'}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b'vllm:num_requests_running{engine="0', "no closing brace"),
        (b"vllm:num_requests_running", "no number"),
        (b"vllm:num_requests_running ", "no number"),
        (b'vllm:num_requests_running{engine="0"} many', "no number"),
        (b"vllm:num_requests_running -1", "impossible number"),
        (b"vllm:num_requests_running +Inf", "impossible number"),
        (b"vllm:num_requests_running 1e308", "impossible number"),
        (b"# caf\xe9\nvllm:num_requests_running 1", "not UTF-8"),
    ],
)
def test_a_malformed_text_is_refused_with_a_sentence(text: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^the metrics .*{sentence}"):
        vllm(text)


BEGINNINGS = [b"", b"# ", b"vllm:num_requests_running", b"vllm:lora_requests_info{", b"sglang:num_queue_reqs{"]
ENDS = [b"} 1", b" 1", b'dp_rank="0"} 2', b'a="b"} 1e400', b'max_lora="\xc2\xb2"} 1']
LINE = st.builds(bytes.__add__, st.sampled_from(BEGINNINGS), st.binary(max_size=30) | st.sampled_from(ENDS))


@given(st.sampled_from(Engine), st.lists(LINE))
def test_any_bytes_give_a_sample_or_a_value_error(engine: Engine, lines: list[bytes]) -> None:
    try:
        sample = read_metrics(engine, b"\n".join(lines), 1.0)
    except ValueError as error:
        assert str(error).startswith("the metrics ")  # noqa: PT017
    else:
        assert sample.at == 1.0


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=20))
def test_the_sum_is_that_of_all_ranks_in_any_number(values: list[int]) -> None:
    text = b"".join(rank(b"vllm:num_requests_waiting", engine, value) for engine, value in enumerate(values))
    assert vllm(text).waiting == sum(values)


def test_a_big_text_takes_less_than_a_few_milliseconds() -> None:
    foreign = b'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="tiny"} 0.0\n'
    text = foreign * 700 + (RECORDED / "vllm-0.32.0-metrics-busy.txt").read_bytes()  # 60 KB, as vLLM's
    took = []
    for _ in range(20):
        began = time.perf_counter()
        assert vllm(text).running == 24
        took.append(time.perf_counter() - began)
    assert min(took) < 0.003
