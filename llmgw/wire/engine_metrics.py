"""What an engine's metrics text says of its load. One pass; foreign lines are skipped without being parsed.

Names: vLLM ``vllm/v1/metrics/loggers.py``, SGLang ``sglang/srt/metrics/collector.py``, llama.cpp
``tools/server/server-context.cpp``. The format is Prometheus' text format 0.0.4.
"""

import math
import re

from attrs import define, field

from llmgw.core.fleet import Engine
from llmgw.core.saturation import Sample

_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_LARGEST = 1e15  # a timestamp in milliseconds is 1e12
# Metric name -> what it means here; several names may mean the same (old and new).
_VLLM = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:num_requests_waiting_by_reason": "by_reason",
    "vllm:kv_cache_usage_perc": "kv",
    "vllm:gpu_cache_usage_perc": "kv_old",
    "vllm:lora_requests_info": "lora",
    "vllm:generation_tokens_total": "tokens",
    "process_start_time_seconds": "start",
}
_SGLANG = {
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:token_usage": "kv",
    "sglang:generation_tokens_total": "tokens",
    "process_start_time_seconds": "start",
}
_LLAMACPP = {
    "llamacpp:requests_processing": "running",
    "llamacpp:requests_deferred": "waiting",
    "llamacpp:tokens_predicted_total": "tokens",
    "llamacpp:kv_cache_usage_ratio": "kv",  # gone from newer builds
}
_NAMES: dict[Engine, dict[str, str]] = {
    Engine.VLLM: _VLLM,
    Engine.SIM: _VLLM,
    Engine.SGLANG: _SGLANG,
    Engine.LLAMACPP: _LLAMACPP,
    Engine.OPENAI: {},
}


@define
class _Seen:
    """Over all series: queues by data-parallel rank, the worst KV, the newest LoRA series."""

    queues: dict[str, dict[str, float]] = field(factory=dict)
    worst: dict[str, float] = field(factory=dict)
    lora_at: float = -1.0
    adapters: frozenset[str] = frozenset()
    adapters_max: int | None = None

    def queue(self, meaning: str) -> int | None:
        ranks = self.queues.get(meaning)
        return None if ranks is None else int(sum(ranks.values()))


def has_metrics(engine: Engine) -> bool:
    return bool(_NAMES[engine])


def read_metrics(engine: Engine, text: bytes, at: float) -> Sample:
    """A sample; what the text does not say is None. Raises ValueError with a sentence when it can't be read."""
    seen, names = _Seen(), _NAMES[engine]
    wanted = tuple(names)
    try:
        lines = text.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"the metrics are not UTF-8 at byte {error.start}") from None
    for line in lines:
        if line.startswith(wanted):
            _take(seen, engine, names, line)
    return Sample(
        at=at,
        running=seen.queue("running"),
        waiting=seen.queue("waiting"),
        waiting_capacity=seen.queue("capacity"),
        kv=seen.worst.get("kv", seen.worst.get("kv_old")),
        loaded_adapters=seen.adapters,
        adapters_max=seen.adapters_max,
        process_start=seen.worst.get("start"),
        tokens=seen.queue("tokens"),
    )


def _take(seen: _Seen, engine: Engine, names: dict[str, str], line: str) -> None:
    name, labels, text = _parted(line)
    meaning = names.get(name)
    if meaning is None:  # a longer name with a wanted one in front
        return
    value = _number(text, line)
    if math.isnan(value):  # legal, and says nothing
        return
    match meaning:
        case "running" | "waiting" | "tokens":
            _count(seen, meaning, engine, labels, value)
        case "by_reason":
            if _read(labels).get("reason") == "capacity":
                _count(seen, "capacity", engine, labels, value)
        case "lora":
            _lora(seen, labels, value)
        case _:
            seen.worst[meaning] = max(value, seen.worst.get(meaning, value))


def _count(seen: _Seen, meaning: str, engine: Engine, labels: str, value: float) -> None:
    """Each rank once: SGLang repeats a rank's queue for its tensor-parallel parts, and splits it by priority
    beside the total, whose priority is empty."""
    rank = labels
    if engine is Engine.SGLANG:
        found = _read(labels)
        if found.get("priority"):
            return
        rank = found.get("dp_rank", "")
    ranks = seen.queues.setdefault(meaning, {})
    ranks[rank] = max(value, ranks.get(rank, value))


def _lora(seen: _Seen, labels: str, at: float) -> None:
    """Its value is the time at which its labels were true. A waiting adapter is about to be loaded."""
    if at <= seen.lora_at:
        return
    found = _read(labels)
    listed = [*found.get("running_lora_adapters", "").split(","), *found.get("waiting_lora_adapters", "").split(",")]
    most = found.get("max_lora", "")
    seen.lora_at = at
    seen.adapters = frozenset(name.strip() for name in listed if name.strip())
    seen.adapters_max = int(most) if most.isdecimal() else None


def _parted(line: str) -> tuple[str, str, str]:
    """Name, labels, and the value with whatever follows it."""
    if "{" not in line:
        name, _, rest = line.partition(" ")
        return name, "", rest
    name, _, rest = line.partition("{")
    labels, closed, rest = rest.rpartition("}")
    if not closed:
        raise ValueError(f"the metrics have no closing brace in {line[:80]!r}")
    return name, labels, rest


def _number(text: str, line: str) -> float:
    """A timestamp behind the value is ignored."""
    try:
        value = float(text.split()[0])
    except (ValueError, IndexError):
        raise ValueError(f"the metrics have no number in {line[-80:]!r}") from None
    if not math.isnan(value) and not 0 <= value <= _LARGEST:
        raise ValueError(f"the metrics have an impossible number in {line[-80:]!r}")
    return value


def _read(labels: str) -> dict[str, str]:
    return {name: _ESCAPE.sub(_unescaped, value) for name, value in _LABEL.findall(labels)}


def _unescaped(escape: re.Match[str]) -> str:
    return "\n" if escape[1] == "n" else escape[1]
