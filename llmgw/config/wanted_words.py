"""Whether the words of [models.engine] can be a command: programs, folders, ports, variables and what is filled in."""

import re
from collections import Counter
from collections.abc import Iterator

from llmgw.config.problems import Problems
from llmgw.config.units import shown
from llmgw.control.nearest import nearest
from llmgw.core.engine_spec import EngineSpec
from llmgw.core.presets import PRESETS

_PORT = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
# {word} and {port:NAME}. Braces of JSON, of templates ({{ x }}) and of shells (${x}) are the engine's own.
_FILLED = re.compile(r"(?<![{$])\{([A-Za-z][A-Za-z0-9_]*|port:[^{}]*)\}(?!\})", re.ASCII)
_OURS = "LLMGW_"


def check_words(spec: EngineSpec, at: str, problems: Problems) -> None:
    for index, word in enumerate(spec.executable):
        if not word.strip():
            problems.add(f"{at}.executable[{index}]", "it is an empty word", "write the program, or take it out")
    if spec.cwd and not spec.cwd.startswith("/"):
        problems.add(f"{at}.cwd", f"{shown(spec.cwd)} is no absolute path", "write it like /srv/engine")
    _check_ports(spec, at, problems)
    _check_variables(spec, at, problems)
    known = known_words(spec)
    for place, text in _texts(spec):
        for word in _FILLED.findall(text):
            if word not in known:
                what = f"nobody fills in {{{shown(word)[1:-1]}}}"
                problems.add(f"{at}.{place}", what, _way_out(word, known))


def known_words(spec: EngineSpec) -> list[str]:
    """What is filled in where it stands in braces."""
    preset = PRESETS[spec.preset]
    ports = (f"port:{name}" for name in (*preset.ports, *spec.ports))
    key = ("key_file",) if preset.key_file and spec.api_key else ()
    return ["host", "port", "gpus", *key, *ports]


def _check_ports(spec: EngineSpec, at: str, problems: Problems) -> None:
    of_preset, times = PRESETS[spec.preset].ports, Counter(spec.ports)
    for index, name in enumerate(spec.ports):
        place = f"{at}.ports[{index}]"
        if not _PORT.fullmatch(name):
            problems.add(place, f"{shown(name)} is no name for a port", "write small letters, digits and _, like grpc")
        elif name in of_preset:
            problems.add(place, f"{spec.preset} has a port {name!r} already", "take it out, or give it another name")
        elif times[name] > 1 and spec.ports.index(name) != index:
            problems.add(place, f"{name!r} is there twice", "take one of them away")


def _check_variables(spec: EngineSpec, at: str, problems: Problems) -> None:
    for name in spec.env:
        if not name or "=" in name or "\0" in name:
            problems.add(f"{at}.env", f"{shown(name)} is no name of a variable", "write it like HF_HOME")
        elif name.startswith(_OURS):
            what = f"variables that begin with {_OURS} are the gateway's own"
            problems.add(f"{at}.env.{name}", what, "call it otherwise, or take it out")


def _texts(spec: EngineSpec) -> Iterator[tuple[str, str]]:
    """All that the agent fills in, each with its place."""
    yield from ((f"executable[{index}]", word) for index, word in enumerate(spec.executable))
    yield from ((f"args[{index}]", word) for index, word in enumerate(spec.args))
    yield from ((f"env.{name}", value) for name, value in spec.env.items())


def _way_out(word: str, known: list[str]) -> str:
    if word.startswith("port:"):
        name = word.removeprefix("port:")
        if _PORT.fullmatch(name):
            return f'write ports = ["{name}"] too, or one of {", ".join(f"{{{w}}}" for w in known if ":" in w)}'
    elif close := nearest(word, known):
        return f"did you mean {{{close}}}?"
    there = ", ".join(f"{{{one}}}" for one in known)
    return f"write what you mean; there are {there}"
