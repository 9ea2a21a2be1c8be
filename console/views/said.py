"""What a dialog tells: what an act would do, and what came of it."""

from collections.abc import Iterator

from console.acts import Values
from console.model import Picture
from console.shown import Line, Tone, line, plain, spanned
from console.views.drains import plan_lines
from console.views.fitting import hanging
from console.views.read import Json, amount, count, flag, part, rows, text, words

Answer = Json | Exception  # a refusal, or nobody who answered
CONFIRMS = frozenset({"cordon", "drain"})  # acts that hold only once the node has said so


def before(
    verb: str, subject: str, picture: Picture, values: Values, looked: Json | None, width: int
) -> tuple[Line, ...]:
    """How things stand before an act, as far as its dry run does not tell it."""
    match verb:
        case "scale":
            return tuple(_scaling(picture.models.get(subject), values, width))
        case "drain" if looked is not None and (grace := text(part(looked, "drain"), "grace")):
            return (line(plain(f"drain.grace is {grace}", Tone.DIM)),)
        case "resign" if looked is not None:
            return tuple(_who_takes_over(looked, width))
    return ()


def _scaling(model: Json | None, values: Values, width: int) -> Iterator[Line]:
    if model is None:
        return
    run = part(model, "replicas")
    now = f"{count(run, 'serving')} serve, {count(run, 'desired')} wanted"
    how = "as the config says" if amount(run, "scaled") is None else "an operator's number"
    yield from hanging(plain("now  "), f"{now} ({how})", width)
    if values.get("replicas", "").strip() == "0":
        yield from hanging(plain("! ", Tone.BAD), "0 ends every replica: requests for it are refused", width, Tone.BAD)


def _who_takes_over(leader: Json, width: int) -> Iterator[Line]:
    if flag(leader, "alone"):
        yield from hanging(plain("! ", Tone.BAD), "nobody else could lead: the store is SQLite", width, Tone.BAD)
    elif leader.get("standbys", ()) is None:
        told = "who stands by is not known: the store was not read lately"
        yield from hanging(plain("? ", Tone.WARN), told, width, Tone.WARN)
    elif "standbys" not in leader:  # before 0.6 it was not told
        return
    elif ready := [text(one, "name", "?") for one in rows(leader, "standbys") if not flag(one, "silent")]:
        yield from hanging(plain("now  "), f"{', '.join(ready)} {'stands' if len(ready) == 1 else 'stand'} by", width)
    else:
        told = "nobody stands by: nobody leads until this one takes the lead again, after lease.ttl"
        yield from hanging(plain("! ", Tone.BAD), told, width, Tone.BAD)


def dry_run(subject: str, answer: Answer, width: int) -> tuple[Line, ...]:
    if isinstance(answer, Exception):
        return tuple(_refused(subject, answer, width))
    if part(answer, "plan") or part(answer, "error") or text(answer, "refused"):
        return plan_lines(answer, width)
    return tuple(_would_move(subject, answer, width))


def _would_move(subject: str, answer: Json, width: int) -> Iterator[Line]:
    why, to = text(answer, "why"), ", ".join(words(answer, "to"))
    if to:
        yield from hanging(plain("  "), f"{subject} would go to {to}" + (f": {why}" if why else ""), width)
    else:
        told = f"{subject}: what would happen is not told; ask for it with `llmgw ctl`"
        yield from hanging(plain("? ", Tone.WARN), told, width, Tone.WARN)


def unanswered(silent_s: float | None, width: int) -> tuple[Line, ...]:
    """Before an act, while nobody answers; None: somebody does."""
    if silent_s is None:
        return ()
    told = f"nobody has answered for {spanned(silent_s)}: all of this is from before"
    return hanging(plain("! ", Tone.WARN), told, width, Tone.WARN)


def asking(subject: str, seconds: float, width: int) -> tuple[Line, ...]:
    """While the answer to an act is waited for."""
    whom = f" for {subject}" if subject else ""
    return hanging(plain("… ", Tone.BUSY), f"asked{whom}, no answer yet: {spanned(seconds)}", width)


def outcome(verb: str, subject: str, answer: Answer, width: int) -> tuple[Line, ...]:
    if isinstance(answer, Exception):
        return tuple(
            _perhaps_done(subject, answer, width) if _may_be_done(answer) else _refused(subject, answer, width)
        )
    return tuple(_done(verb, subject, answer, width))


def _done(verb: str, subject: str, answer: Json, width: int) -> Iterator[Line]:
    confirmed = answer.get("confirmed")
    unsure = confirmed is False or (verb in CONFIRMS and confirmed is not True)
    told = text(answer, "said") or _in_words(verb, subject, answer)
    blocked = text(part(answer, "drain"), "state") == "blocked"
    mark, tone = ("? ", Tone.WARN) if unsure else ("! ", Tone.WARN) if blocked else ("✓ ", Tone.GOOD)
    yield from hanging(plain(mark, tone), told, width)
    left = sum(flag(move, "blocked") for move in rows(part(answer, "plan"), "moves"))
    if left:
        told = f"{left} of its replicas {'has' if left == 1 else 'have'} no place elsewhere yet; the drain says why"
        yield from hanging(plain("! "), told, width, Tone.WARN)
    if unsure:
        told = f"not sure yet: do not touch {subject}; ask again"
        yield from hanging(plain("  "), told, width, Tone.WARN)


def _in_words(verb: str, subject: str, answer: Json) -> str:
    match verb:
        case "cancel":
            return f"{text(answer, 'cancelled', subject)} is cancelled"
        case "scale":
            return _scaled(text(answer, "model", subject), answer)
        case "restart":
            return f"asked for: {', '.join(words(answer, 'replicas')) or subject} will be replaced"
        case "resign":
            most = amount(answer, "stays_out_s")
            until = "until another leads" + ("" if most is None else f", at most {spanned(most)}")
            return f"term {text(answer, 'resigned', '-')} is given back; it stays out {until}"
        case "move":
            return f"{subject} goes to {', '.join(words(answer, 'to')) or 'another node'}, its replacement first"
        case "cordon" | "drain":
            return f"{verb} of {subject}: asked for"
    return f"{verb} of {subject}: done"


def _scaled(model: str, answer: Json) -> str:
    wanted = text(answer, "replicas", "-")
    how = "" if text(answer, "scaled") else ", as the config says"
    return f"{model}: {wanted} {'replica' if wanted == '1' else 'replicas'} wanted now{how}"


def _refused(subject: str, error: Exception, width: int) -> Iterator[Line]:
    yield from hanging(plain("✗ ", Tone.BAD), f"{subject}: {error}" if subject else str(error), width, Tone.BAD)
    if hint := getattr(error, "hint", ""):
        yield from hanging(plain("  "), str(hint), width, Tone.DIM)


def _may_be_done(error: Exception) -> bool:
    return getattr(error, "unsent", True) is False


def _perhaps_done(subject: str, error: Exception, width: int) -> Iterator[Line]:
    """It was sent, and nobody answered: it may have been done all the same."""
    yield from hanging(plain("? ", Tone.WARN), f"{subject}: {error}" if subject else str(error), width, Tone.WARN)
    told = f"nobody knows whether it was done: look at {subject or 'the leader'} before you ask again"
    yield from hanging(plain("  "), told, width, Tone.WARN)
