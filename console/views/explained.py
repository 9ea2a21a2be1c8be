"""An explanation as lines: the verdict, what it rests on and how old that is, the candidates, what would change it."""

from collections.abc import Iterator

from console.shown import Cell, Line, Tone, line, plain, spanned
from console.views.fitting import fitted, hanging
from console.views.read import Json, amount, flag, part, rows, text, words

CHOSEN, NOT_CHOSEN = Cell("✓ ", Tone.GOOD), Cell("✗ ", Tone.DIM)


def explained(said: Json, width: int) -> tuple[Line, ...]:
    """``said``: of any ``GET /explain/…``."""
    return tuple(fitted(one, width) for one in _lines(said, width))


def _lines(said: Json, width: int) -> Iterator[Line]:
    yield from hanging(Cell(""), text(said, "subject", "?"), width, Tone.STRONG)
    yield from hanging(Cell("  "), text(said, "verdict", "no verdict"), width)
    yield from _under("because", [fact(one) for one in rows(said, "because")], width)
    candidates = rows(said, "candidates")
    if candidates:
        yield line(Cell("candidates", Tone.DIM))
        for one in candidates:
            yield from _candidate(one, width)
    yield from _under("what would change it", list(words(said, "would_change_it")), width)
    if text(said, "next_command"):
        yield line(Cell("next", Tone.DIM))
        yield from hanging(Cell("  $ ", Tone.DIM), text(said, "next_command"), width)


def _under(title: str, told: list[str], width: int) -> Iterator[Line]:
    if told:
        yield line(Cell(title, Tone.DIM))
        for one in told:
            yield from hanging(Cell("  · ", Tone.DIM), one, width)


def fact(one: Json) -> str:
    age = amount(one, "age_s")
    return text(one, "text", "?") + ("" if age is None else f" ({spanned(age)} ago)")


def _candidate(one: Json, width: int) -> Iterator[Line]:
    chosen = flag(one, "chosen")
    mark = CHOSEN if chosen else NOT_CHOSEN
    yield from hanging(
        Cell(f"  {mark.text}", mark.tone), text(one, "name", "?"), width, Tone.STRONG if chosen else Tone.PLAIN
    )
    for reason in words(one, "reasons"):
        yield from hanging(Cell("      "), reason, width, Tone.DIM if chosen else Tone.WARN)
    scores = scored(one)
    if scores:
        told = ", ".join(f"{name} {value:.2f}" for name, value in scores)
        yield from hanging(Cell("      "), told, width, Tone.DIM)


def scored(one: Json) -> list[tuple[str, float]]:
    scores = part(one, "scores")
    return [(plain(name).text, value) for name in scores if (value := amount(scores, name)) is not None]
