"""What to do about a setting of LiteLLM's that has no counterpart here, by its name."""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

NOTHING_LIKE_IT = "there is nothing like it here"
# The first that matches; within an entry of model_list, "model_info." stands before that table's names.
ADVICE: Mapping[str, str] = {
    "rpm": "endpoints have no rate limits here; set capacity, the requests one runs at once",
    "tpm": "endpoints have no rate limits here; set capacity, the requests one runs at once",
    "weight": "requests go where there is room; [scheduling] weighs the reasons",
    "order": "requests go where there is room; put the second choice into a model of its own, as a fallback",
    "routing_strategy*": "requests go where there is room; [scheduling] weighs the reasons",
    "timeout": "deadlines are the same for all models, see [relay]",
    "stream_timeout": "deadlines are the same for all models, see [relay]",
    "max_retries": "retries are the same for all models, see relay.attempts_max",
    "num_retries": "retries are the same for all models, see relay.attempts_max",
    "retry_*": "see relay.attempts_max and relay.retry_budget",
    "allowed_fails*": "see [breaker]",
    "cooldown_time": "see [breaker]",
    "disable_cooldowns": "see [breaker]",
    "model_info.max_tokens": "set context_max on the model, if clients should see it",
    "model_info.max_input_tokens": "set context_max on the model, if clients should see it",
    "model_info.supports_*": "what a model can do is left to its engine",
    "*cost_per_*": "this version knows no prices",
    "*budget*": "this version knows no budgets",
    "max_parallel_requests": "set capacity on endpoints whose bound you know",
    "default_fallbacks": "give each model its own fallback",
    "*_fallbacks": "a fallback can't be chosen by what a prompt holds; let clients name the other model",
    "drop_params": "fields of a request pass as they are",
    "modify_params": "fields of a request pass as they are",
    "temperature": "let clients send it",
    "top_p": "let clients send it",
    "max_tokens": "let clients send it",
    "extra_*": "let clients send it",
    "*headers*": "let clients send it",
    "*callback*": "see [log], and /metrics on the admin listener",
    "*verbose*": "see [log], and /metrics on the admin listener",
    "json_logs": "see [log], and /metrics on the admin listener",
    "alert*": "alert on /metrics of the admin listener",
    "*cache*": "answers are not cached here",
    "redis*": "no Redis is needed; leave it out",
    "database_*": "keys and usage are in [store]; bring keys with `llmgw ctl keys import`",
    "*_in_db": "models are in this file alone",
    "environment_variables": "set them where the service starts",
    "include": "import those files too, and join what comes out",
}


def not_carried(names: Iterable[str]) -> Iterator[str]:
    """A sentence for each piece of advice, with the names that it is for."""
    by_advice: dict[str, list[str]] = {}
    for name in sorted(names):
        by_advice.setdefault(advice_for(name), []).append(name)
    for advice, together in by_advice.items():
        yield f"not carried: {', '.join(together)}: {advice}"


def advice_for(name: str) -> str:
    return next((advice for pattern, advice in ADVICE.items() if fnmatchcase(name, pattern)), NOTHING_LIKE_IT)
