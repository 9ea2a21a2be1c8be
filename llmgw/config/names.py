"""Whether every name in ``[[models]]`` means one thing, and every fallback leads somewhere and ends."""

from collections.abc import Iterator, Mapping, Sequence

from llmgw.config.models import Written
from llmgw.config.problems import Problems
from llmgw.control.nearest import meant


def check_names(models: Sequence[Written], problems: Problems) -> None:
    _check_ids(models, problems)
    _check_models_and_aliases(models, problems)
    _check_adapters(models, problems)
    _check_fallbacks(models, problems)
    _check_apart_from(models, problems)


def _check_ids(models: Sequence[Written], problems: Problems) -> None:
    seen: dict[str, str] = {}
    for written in models:
        for place, endpoint in zip(written.endpoint_places, written.model.endpoints, strict=True):
            if endpoint.id and endpoint.id in seen:
                what = f"{endpoint.id!r} is the id of {seen[endpoint.id]} too"
                problems.add(f"{place}.id", what, "give one of them another id")
            seen.setdefault(endpoint.id, place)


def _check_models_and_aliases(models: Sequence[Written], problems: Problems) -> None:
    seen: dict[str, str] = {}
    for written in models:
        if first := seen.get(written.model.name):
            what = f"{written.model.name!r} is the name of {first.removesuffix('.name')} too"
            problems.add(f"{written.where}.name", what, "put the endpoints under one model")
        seen.setdefault(written.model.name, f"{written.where}.name")
    for written in models:
        for index, alias in enumerate(written.model.aliases):
            place = f"{written.where}.aliases[{index}]"
            if alias in seen:
                problems.add(place, f"{alias!r} is already {seen[alias]}", "take one of them away")
            seen.setdefault(alias, place)


def _check_adapters(models: Sequence[Written], problems: Problems) -> None:
    """An adapter may stand on several endpoints of one model; it is no other name for anything."""
    taken = _model_names(models)
    owner: dict[str, tuple[str, str]] = {}
    for written in models:
        for place, adapters in _adapters_of(written):
            for adapter in sorted(adapters):
                key = f"{place}.adapters"
                if adapter in taken:
                    problems.add(key, f"adapter {adapter!r} is already {taken[adapter]}", "take one of them away")
                first, first_place = owner.setdefault(adapter, (written.where, key))
                if first != written.where:
                    what = f"adapter {adapter!r} belongs to another model in {first_place}"
                    problems.add(key, what, "give each its own name")


def _adapters_of(written: Written) -> Iterator[tuple[str, frozenset[str]]]:
    for place, endpoint in zip(written.endpoint_places, written.model.endpoints, strict=True):
        yield place, endpoint.adapters
    yield f"{written.where}.engine", written.model.adapters


def _model_names(models: Sequence[Written]) -> dict[str, str]:
    names: dict[str, str] = {}
    for written in models:
        names.setdefault(written.model.name, f"{written.where}.name")
        for index, alias in enumerate(written.model.aliases):
            names.setdefault(alias, f"{written.where}.aliases[{index}]")
    return names


def _check_fallbacks(models: Sequence[Written], problems: Problems) -> None:
    answers = _who_answers(models)
    by_name = {written.model.name: written for written in models}
    looped: set[frozenset[str]] = set()
    for written in models:
        for place, fallback in zip(written.fallback_places, written.model.fallback, strict=True):
            if fallback.model not in answers:
                problems.add(place, f"nobody answers to {fallback.model!r}", meant(fallback.model, answers))
                continue
            way = _way_back(by_name, answers, written.model.name, answers[fallback.model])
            if way and (circle := frozenset((written.model.name, *way))) not in looped:
                looped.add(circle)
                back = by_name[way[-1]]
                what = f"it loops: {' → '.join([written.model.name, *way, written.model.name])}"
                problems.add(place, what, f"take it out, or the way back in {back.where}.fallback")


def _who_answers(models: Sequence[Written]) -> dict[str, str]:
    answers: dict[str, str] = {}
    for written in models:
        model = written.model
        adapters = (adapter for _, its in _adapters_of(written) for adapter in its)
        for name in (model.name, *model.aliases, *adapters):
            answers.setdefault(name, model.name)
    return answers


def _way_back(by_name: Mapping[str, Written], answers: Mapping[str, str], home: str, start: str) -> list[str]:
    """Models passed from ``start`` until the next is ``home``; empty if it never is."""
    if start == home:
        return [home]
    came_from: dict[str, str] = {start: ""}
    waiting = [start]
    while waiting:
        name = waiting.pop(0)
        for following in _following(by_name[name], answers):
            if following == home:
                return _path(came_from, name)
            if following not in came_from:
                came_from[following] = name
                waiting.append(following)
    return []


def _following(written: Written, answers: Mapping[str, str]) -> Iterator[str]:
    yield from (answers[f.model] for f in written.model.fallback if f.model in answers)


def _path(came_from: Mapping[str, str], end: str) -> list[str]:
    path = [end]
    while came_from[path[0]]:
        path.insert(0, came_from[path[0]])
    return path


def _check_apart_from(models: Sequence[Written], problems: Problems) -> None:
    """What keeps away from a model that is not there keeps away from nothing, and nobody would notice."""
    there = {written.model.name for written in models}
    for written in models:
        for index, other in enumerate(written.want.rules.apart_from if written.want else ()):
            if other not in there:
                place = f"{written.where}.placement.apart_from[{index}]"
                problems.add(place, f"no model is called {other!r}", meant(other, there))
