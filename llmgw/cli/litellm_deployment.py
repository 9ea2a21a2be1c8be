"""One entry of LiteLLM's ``model_list`` as an endpoint: which engine, where, and what is lost on the way."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from llmgw.cli.litellm_advice import not_carried
from llmgw.config.problems import Refused
from llmgw.config.urls import host_port, url_of
from llmgw.config.values import quoted
from llmgw.core.fleet import Engine

FROM_ENVIRONMENT = "os.environ/"
ENGINES = {"hosted_vllm": Engine.VLLM, "vllm": Engine.VLLM}
# Whoever speaks OpenAI's API at an address the config names.
COMPATIBLE = frozenset(
    "openai custom_openai openai_like litellm_proxy text-completion-openai llamafile lm_studio".split()
)
HOSTED = {
    "openai": "https://api.openai.com",
    "text-completion-openai": "https://api.openai.com",
    "deepseek": "https://api.deepseek.com",
    "fireworks_ai": "https://api.fireworks.ai/inference",
    "groq": "https://api.groq.com/openai",
    "mistral": "https://api.mistral.ai",
    "openrouter": "https://openrouter.ai/api",
    "together_ai": "https://api.together.xyz",
}
OPENAI_NAMES = ("gpt-", "chatgpt-", "o1", "o3", "o4", "text-embedding-")
# What people write where an engine wants no key.
NO_KEY = frozenset(["", "none", "null", "empty", "dummy", "fake", "fake-key", "sk-fake", "no-key", "not-needed", "na"])
CARRIED = frozenset(["model", "api_base", "base_url", "api_key", "max_parallel_requests", "custom_llm_provider"])
SAYS_NOTHING = frozenset(["id", "mode", "base_model"])  # of model_info
_ODD = re.compile(r"[^A-Za-z0-9._:-]+", re.ASCII)
_NO_CREDENTIAL = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z0-9_]{1,100}", re.ASCII)


class NotCarried(Exception):
    """Why an entry has no counterpart here, and what to do about it."""

    def __init__(self, why: str, what_to_do: str) -> None:
        super().__init__(f"{why}, not carried: {what_to_do}")


@frozen
class Deployment:
    id: str
    lines: tuple[str, ...]  # of TOML
    notes: tuple[str, ...]
    credential: str = ""  # the name its key is to be found under; empty: it needs none


def deployment_of(
    name: str, entry: Mapping[str, Any], taken: set[str], environ: Mapping[str, str], credentials: Mapping[str, str]
) -> Deployment:
    """``credentials`` are the names given so far, each with the key as LiteLLM has it. Raises NotCarried."""
    params = entry.get("litellm_params")
    if not isinstance(params, dict) or not isinstance(params.get("model"), str):
        raise NotCarried("it has no litellm_params.model", "mend it there")
    provider, served_as = _provider(params)
    url, engine = _place(provider, params, environ)
    info = entry["model_info"] if isinstance(entry.get("model_info"), dict) else {}
    identity = _identity(name, url, info.get("id"), taken)
    lines = [f"id = {quoted(identity)}", f"url = {quoted(url)}", f"engine = {quoted(engine)}"]
    if served_as != name:
        lines.append(f"served_as = {quoted(served_as)}")
    capacity = params.get("max_parallel_requests")
    if isinstance(capacity, int) and not isinstance(capacity, bool) and capacity > 0:
        lines.append(f"capacity = {capacity}")
    notes = list(_notes(provider, engine, url, params, entry, info))
    credential = _credential(params.get("api_key"), identity, credentials)
    if credential:
        says = _where_to_put(params["api_key"], credential)
        lines += [f"# {says}", f"api_key = {quoted('@' + credential)}"]
        notes.insert(0, f"api_key: {says}")
    return Deployment(identity, tuple(lines), tuple(notes), credential)


def _provider(params: Mapping[str, Any]) -> tuple[str, str]:
    """The provider, and the model's name there."""
    model: str = params["model"]
    if not model.isprintable():
        raise NotCarried("the model's name has characters that can't be shown", "mend it there")
    if isinstance(params.get("custom_llm_provider"), str):
        provider = params["custom_llm_provider"]
        return provider, model.removeprefix(f"{provider}/")
    provider, slash, rest = model.partition("/")
    if slash and (provider in ENGINES or provider in COMPATIBLE or provider in HOSTED):
        if not rest or "*" in rest:
            raise NotCarried(f"{model!r} stands for many models", "write each with its own [[models]]")
        return provider, rest
    if not slash and model.startswith(OPENAI_NAMES):
        return "openai", model
    if slash:
        raise NotCarried(f"{provider!r} does not speak OpenAI's API", "ask it through something that does")
    raise NotCarried(f"the provider of {model!r} is not said", f"write it as provider/{model} there")


def _place(provider: str, params: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str, Engine]:
    base = params.get("api_base") or params.get("base_url")
    engine = ENGINES.get(provider, Engine.OPENAI)
    if base is None:
        if provider not in HOSTED:
            raise NotCarried("it has no api_base", "write one there, or the endpoint here")
        return HOSTED[provider], engine
    if isinstance(base, str) and base.startswith(FROM_ENVIRONMENT):
        variable = base.removeprefix(FROM_ENVIRONMENT)
        base = environ.get(variable)
        if base is None:
            raise NotCarried(f"its api_base is in ${variable}, which is not set here", "set it and import again")
    try:
        return url_of(str(base)), engine
    except Refused as refused:
        raise NotCarried(refused.what, refused.what_to_do) from None


def _identity(name: str, url: str, given: object, taken: set[str]) -> str:
    """A free id: the given one, host:port, or that with the model's name and a number."""
    place = _ODD.sub("-", host_port(url))
    wishes = [given] if isinstance(given, str) and given and not _ODD.search(given) and len(given) <= 64 else []
    wishes += [place[:64], f"{place[:24]}-{_ODD.sub('-', name)[-32:]}"]
    for wish in wishes:
        if wish not in taken:
            return wish
    return next(free for n in range(2, len(taken) + 3) if (free := f"{wishes[-1]}-{n}") not in taken)


def _credential(raw: object, identity: str, credentials: Mapping[str, str]) -> str:
    """The name for a key: its variable's, else the endpoint's id; one key has one name, two keys have two."""
    if raw is None or str(raw).lower() in NO_KEY:
        return ""
    key = str(raw)
    if given := next((name for name, known in credentials.items() if known == key), ""):
        return given
    variable = _variable(key)
    wish = variable if _VARIABLE.fullmatch(variable) else _NO_CREDENTIAL.sub("-", identity).lstrip(".") or "key"
    if wish not in credentials:
        return wish
    return next(free for n in range(2, len(credentials) + 3) if (free := f"{wish}-{n}") not in credentials)


def _where_to_put(raw: object, credential: str) -> str:
    variable = _variable(str(raw))
    source = f"the value of ${variable}" if _VARIABLE.fullmatch(variable) else "the key"
    path = f"/etc/llmgw/{credential}"
    return f'put {source} into {path} (chmod 600), then add LoadCredential={credential}:{path} or write "@{path}"'


def _variable(key: str) -> str:
    return key.removeprefix(FROM_ENVIRONMENT) if key.startswith(FROM_ENVIRONMENT) else ""


def _notes(
    provider: str,
    engine: Engine,
    url: str,
    params: Mapping[str, Any],
    entry: Mapping[str, Any],
    info: Mapping[str, Any],
) -> Iterator[str]:
    if provider in COMPATIBLE and engine is Engine.OPENAI and url not in HOSTED.values():
        yield 'if vLLM, SGLang or llama.cpp answers there, set engine = "vllm", "sglang" or "llamacpp": it has metrics'
    lost = [str(key) for key in params.keys() - CARRIED]
    lost += [f"model_info.{key}" for key in info.keys() - SAYS_NOTHING]
    lost += [str(key) for key in entry.keys() - {"model_name", "litellm_params", "model_info"}]
    yield from not_carried(lost)
