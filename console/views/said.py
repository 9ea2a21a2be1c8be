"""What a dialog tells: what an act would do, and what came of it."""

from collections.abc import Iterator, Mapping
from typing import Any

from console.shown import Line, Tone, clean, line, plain
from console.views.drains import plan_lines
from console.views.fitting import hanging

Json = Mapping[str, Any]
Answer = Json | Exception  # a refusal, or nobody who answered


def dry_run(subject: str, answer: Answer, width: int) -> tuple[Line, ...]:
    if isinstance(answer, Exception):
        return tuple(_refused(subject, answer, width))
    if "plan" in answer:
        return plan_lines(answer, width)
    return tuple(_would_move(subject, answer, width))


def _would_move(subject: str, answer: Json, width: int) -> Iterator[Line]:
    why, to = str(answer.get("why", "")), ", ".join(map(str, answer.get("to", ())))
    yield from hanging(plain("  "), f"{subject} would go to {to}" + (f": {why}" if why else ""), width)


def outcome(verb: str, subject: str, answer: Answer, width: int) -> tuple[Line, ...]:
    if isinstance(answer, Exception):
        return tuple(_refused(subject, answer, width))
    return tuple(_done(verb, subject, answer, width))


def _done(verb: str, subject: str, answer: Json, width: int) -> Iterator[Line]:
    unsure = answer.get("confirmed") is False
    told = str(answer.get("said") or _in_words(verb, subject, answer))
    yield from hanging(plain("? " if unsure else "✓ ", Tone.WARN if unsure else Tone.GOOD), told, width)
    if unsure:
        yield line(plain(f"  not sure yet: do not touch {clean(subject)}; ask again", Tone.WARN))


def _in_words(verb: str, subject: str, answer: Json) -> str:
    match verb:
        case "cancel":
            return f"{answer.get('cancelled', subject)} is cancelled"
        case "scale":
            return f"{answer.get('model', subject)} has {answer.get('replicas')} replicas wanted now"
        case "restart":
            return f"asked for: {', '.join(map(str, answer.get('replicas', ())))} will be replaced"
        case "resign":
            return f"term {answer.get('resigned')} is given back; that control plane stays out for a while"
        case "move":
            return f"{subject} goes to {', '.join(map(str, answer.get('to', ())))}, its replacement first"
    return f"{verb} of {subject}: done"


def _refused(subject: str, error: Exception, width: int) -> Iterator[Line]:
    yield from hanging(plain("✗ ", Tone.BAD), f"{subject}: {error}" if subject else str(error), width, Tone.BAD)
    if hint := getattr(error, "hint", ""):
        yield from hanging(plain("  "), str(hint), width, Tone.DIM)
