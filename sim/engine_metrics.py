"""The engine's `/metrics`, under vLLM's names."""

from sim.engine_model import Engine
from sim.first_tokens import FirstTokens

CONTENT_TYPE = b"text/plain; version=1.0.0; charset=utf-8"
_FINISHED = ("stop", "length", "abort", "error", "repetition")


def metrics(
    engine: Engine, model: str, started_at: float, finished: dict[str, int], first_tokens: FirstTokens
) -> bytes:
    """``started_at`` on the wall clock; ``finished``: requests by how they ended."""
    escaped = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    labels = ['engine="0"', f'model_name="{escaped}"']
    lines = [
        "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.",
        "# TYPE process_start_time_seconds gauge",
        f"process_start_time_seconds {started_at:.2f}",
    ]

    def say(name: str, kind: str, *samples: tuple[str, float]) -> None:
        family = name.removesuffix("_total")
        lines.append(f"# HELP vllm:{name} As vLLM counts it.")
        lines.append(f"# TYPE vllm:{name} {kind}")
        for more, value in samples:
            lines.append(f"vllm:{name}{{{_labels(labels, more)}}} {float(value)}")
        if kind == "counter":
            lines.append(f"# TYPE vllm:{family}_created gauge")
            for more, _ in samples:
                lines.append(f"vllm:{family}_created{{{_labels(labels, more)}}} {started_at}")

    counters, waiting = engine.counters, len(engine.waiting)
    say("num_requests_running", "gauge", ("", len(engine.running)))
    say("num_requests_waiting", "gauge", ("", waiting))
    say("num_requests_waiting_by_reason", "gauge", ('reason="capacity"', waiting), ('reason="deferred"', 0))
    say("kv_cache_usage_perc", "gauge", ("", engine.kv_usage))
    say("prefix_cache_queries_total", "counter", ("", counters.prefix_queries))
    say("prefix_cache_hits_total", "counter", ("", counters.prefix_hits))
    say("num_preemptions_total", "counter", ("", counters.preempted))
    say("prompt_tokens_total", "counter", ("", counters.prompt_tokens))
    say("prompt_tokens_cached_total", "counter", ("", counters.prefix_hits))
    say("generation_tokens_total", "counter", ("", counters.generation_tokens))
    ended = {**finished, "abort": counters.aborted}
    say("request_success_total", "counter", *((f'finished_reason="{r}"', ended.get(r, 0)) for r in _FINISHED))
    lines += _histogram("time_to_first_token_seconds", first_tokens, labels)
    lines.append(f'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{engine.blocks.total}"}} 1.0')
    return ("\n".join(lines) + "\n").encode()


def _histogram(name: str, times: FirstTokens, labels: list[str]) -> list[str]:
    buckets = times.up_to()
    common = _labels(labels, "")
    return [
        f"# HELP vllm:{name} As vLLM counts it.",
        f"# TYPE vllm:{name} histogram",
        *(f"""vllm:{name}_bucket{{{_labels(labels, f'le="{bound}"')}}} {float(count)}""" for bound, count in buckets),
        f"vllm:{name}_count{{{common}}} {float(buckets[-1][1])}",
        f"vllm:{name}_sum{{{common}}} {times.total_s}",
    ]


def _labels(common: list[str], more: str) -> str:
    """In the alphabetical order the client library has."""
    return ",".join(sorted([*common, *([more] if more else [])]))
