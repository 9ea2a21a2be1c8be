"""What an engine's metrics text says of its load. One pass; foreign lines are skipped without being parsed.

Names: vLLM ``vllm/v1/metrics/loggers.py``, SGLang ``sglang/srt/metrics/collector.py``, llama.cpp
``tools/server/server-context.cpp``. The format is Prometheus' text format 0.0.4.
"""

import re
from collections.abc import Iterable

from attrs import define, field

from llmgw.core.fleet import Engine
from llmgw.core.saturation import Sample

_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
# Metric name -> what it means here; several names may mean the same (old and new).
_VLLM = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:num_requests_waiting_by_reason": "by_reason",
    "vllm:kv_cache_usage_perc": "kv",
    "vllm:gpu_cache_usage_perc": "kv_old",
    "vllm:lora_requests_info": "lora",
    "process_start_time_seconds": "start",
}
_SGLANG = {
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:token_usage": "kv",
    "process_start_time_seconds": "start",
}
_LLAMACPP = {
    "llamacpp:requests_processing": "running",
    "llamacpp:requests_deferred": "waiting",
    "llamacpp:kv_cache_usage_ratio": "kv",
}
_NAMES: dict[Engine, dict[str, str]] = {
    Engine.VLLM: _VLLM,
    Engine.SIM: _VLLM,
    Engine.SGLANG: _SGLANG,
    Engine.LLAMACPP: _LLAMACPP,
    Engine.OPENAI: {},
}
_PREFIXES = {
    Engine.VLLM: ("vllm:num_req", "vllm:kv_c", "vllm:gpu_c", "vllm:lora", "process_start"),
    Engine.SIM: ("vllm:num_req", "vllm:kv_c", "vllm:gpu_c", "vllm:lora", "process_start"),
    Engine.SGLANG: ("sglang:num_", "sglang:token_u", "process_start"),
    Engine.LLAMACPP: ("llamacpp:requests_", "llamacpp:kv_"),
}


@define
class _Seen:
    """Over all data-parallel ranks: queues are summed, KV is the worst, the newest LoRA series wins."""

    running: float | None = None
    waiting: float | None = None
    capacity: float | None = None
    kv: float | None = None
    kv_old: float | None = None
    lora_at: float = -1.0
    adapters: frozenset[str] = field(default=frozenset())
    adapters_max: int | None = None
    start: float | None = None


def has_metrics(engine: Engine) -> bool:
    return bool(_NAMES[engine])


def read_metrics(engine: Engine, text: bytes, at: float) -> Sample:
    """A sample; what the text does not say is None. Raises ValueError with a sentence when it can't be read."""
    seen = _Seen()
    names, prefixes = _NAMES[engine], _PREFIXES.get(engine, ())
    try:
        for line in _lines(text, prefixes):
            _take(seen, names, line)
    except (ValueError, IndexError) as error:
        raise ValueError(f"the metrics text can't be read: {error}") from None
    return Sample(
        at=at,
        running=_whole(seen.running),
        waiting=_whole(seen.waiting),
        waiting_capacity=_whole(seen.capacity),
        kv=seen.kv if seen.kv is not None else seen.kv_old,
        loaded_adapters=seen.adapters,
        adapters_max=seen.adapters_max,
        process_start=seen.start,
    )


def _lines(text: bytes, prefixes: tuple[str, ...]) -> Iterable[str]:
    return (line for line in text.decode("utf-8").splitlines() if line.startswith(prefixes)) if prefixes else ()


def _take(seen: _Seen, names: dict[str, str], line: str) -> None:
    name, labels, value = _parsed(line)
    meaning = names.get(name)
    if meaning is None:
        return
    match meaning:
        case "running" | "waiting":
            setattr(seen, meaning, (getattr(seen, meaning) or 0.0) + value)
        case "by_reason" if dict(_LABEL.findall(labels)).get("reason") == "capacity":
            seen.capacity = (seen.capacity or 0.0) + value
        case "kv" | "kv_old":
            before = getattr(seen, meaning)
            setattr(seen, meaning, value if before is None else max(before, value))
        case "lora" if value > seen.lora_at:
            _lora(seen, dict(_LABEL.findall(labels)), value)
        case "start":
            seen.start = value if seen.start is None else max(seen.start, value)


def _lora(seen: _Seen, labels: dict[str, str], at: float) -> None:
    """Its value is the time at which its labels were true."""
    listed = labels.get("running_lora_adapters", "") + "," + labels.get("waiting_lora_adapters", "")
    seen.lora_at = at
    seen.adapters = frozenset(name.strip() for name in listed.split(",") if name.strip())
    most = labels.get("max_lora", "")
    seen.adapters_max = int(most) if most.isdigit() else None


def _parsed(line: str) -> tuple[str, str, float]:
    """Name, labels, value; a timestamp behind the value is ignored."""
    if "{" in line:
        name, _, rest = line.partition("{")
        labels, closed, rest = rest.rpartition("}")
        if not closed:
            raise ValueError(f"no closing brace in {line[:80]!r}")
    else:
        name, _, rest = line.partition(" ")
        labels = ""
    value = float(rest.split()[0])
    if value != value:
        raise ValueError(f"NaN in {line[:80]!r}")
    return name, labels, value


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
