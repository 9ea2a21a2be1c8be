"""``llmgw ctl drain``: what runs on a node goes elsewhere, replacements first; an endpoint gets no new requests."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import click

from llmgw.cli.ctl.drain_shown import blocked_in, counted, is_over, print_begun, print_plan
from llmgw.cli.ctl.drain_watch import Following
from llmgw.cli.ctl.keys import why_option
from llmgw.cli.ctl.session import JSON, CtlCommand, Session
from llmgw.cli.ctl.show import print_json, say
from llmgw.cli.ctl.targeting import SUBJECT, Subject, aim, named
from llmgw.cli.ctl.when import span_s
from llmgw.cli.failure import Exit, printable
from llmgw.config.units import seconds_of
from llmgw.core.drain import AtDeadline, Target

INTERRUPTED = 130  # as shells say of what Ctrl-C ended


@click.command("drain", cls=CtlCommand)
@click.argument("subject", metavar=SUBJECT, callback=named)
@click.option(
    "--grace",
    metavar="SPAN",
    help="It is over after this, from now on: 90s, 10min, 2h. Without: as it was asked before, else drain.grace.",
)
@click.option("--at-deadline", type=click.Choice([str(one) for one in AtDeadline]),
              help="What becomes of what could not go elsewhere by then. Without: as it was asked "
              "before, else stop.")  # fmt: skip
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only say what it would do; exit code 5 if something can go nowhere, 1 if it would be refused.",
)
@click.option("--watch", is_flag=True, help="Follow it to its end; Ctrl-C leaves it running.")
@why_option
@click.pass_context
def command(ctx: click.Context, /, subject: Subject, watch: bool, **asked: Any) -> None:
    """Bring every replica on a node elsewhere, the new one first, and place nothing new there.

    It is asked for when this returns, and goes on by itself; asked again it goes on all the same, and --watch
    follows one that is under way. A static endpoint, endpoint/ID, gets no new requests and finishes what it has.
    `llmgw ctl uncordon` undoes it at any step.

    With --watch, exit code 0: no process is left there (or no request, of an endpoint). 5: it ended blocked. 1: it was
    undone meanwhile.
    """
    if watch and asked["dry_run"]:
        raise click.UsageError("--dry-run does nothing that --watch could follow")
    grace_s = None if asked["grace"] is None else span_s(asked["grace"], "--grace")
    session, goes_on = ctx.ensure_object(Session), "may have begun"
    more = {"grace": grace_s, "at_deadline": asked["at_deadline"], "dry_run": asked["dry_run"]}
    try:
        answer = aim(session, subject, Target.DRAINED, asked["why"], **more)
        if asked["dry_run"]:
            ctx.exit(_planned(session, subject, answer, grace_s, asked))
        goes_on = "goes on"
        ctx.exit(_begun(session, subject, answer, watch))
    except KeyboardInterrupt:
        if asked["dry_run"]:
            raise
        again, undo = subject.command("drain", "--watch"), subject.command("uncordon")
        click.echo(err=True)  # so that it begins a line
        say(f"the drain of {subject.name} {goes_on}; follow it again: {again}; undo it: {undo}")
        ctx.exit(INTERRUPTED)


def _begun(session: Session, subject: Subject, answer: Any, watch: bool) -> Exit:
    if session.output != JSON:
        print_begun(subject, answer)
    elif not watch:
        print_json(answer)
    if watch and (session.output == JSON or not is_over(answer["drain"])):
        return Following(session, subject).run()
    if session.output != JSON and not is_over(answer["drain"]):
        if blocked := [] if subject.is_endpoint else blocked_in(answer["plan"]):
            say(_blocked(subject, blocked, answer["drain"]["at_deadline"]))
            say(f"what is in the way: llmgw ctl explain placement {blocked[0]['model']}")
        say(f"it goes on by itself; follow it: {subject.command('drain', '--watch')}")
        say(f"undo it: {subject.command('uncordon')}")
    return Exit.DONE


def _planned(session: Session, subject: Subject, answer: Any, grace_s: int | None, asked: dict[str, Any]) -> Exit:
    plan, refused = answer["plan"], answer["refused"]
    blocked = blocked_in(plan)
    exit_code = Exit.FAILED if refused else Exit.BLOCKED if blocked else Exit.DONE
    if session.output == JSON:
        print_json(answer)
        return exit_code
    print_plan(subject, plan)
    if takes := _takes(session, plan, grace_s, asked, refused):
        click.echo("\n" + printable(takes))
    if blocked:
        click.echo(printable(_blocked(subject, blocked, asked["at_deadline"])))
    if refused:
        asked = asked | {"grace": _enough(plan["estimate_s"])}
    options = [word for name in ("grace", "at_deadline", "why") if asked[name] for word in _option(name, asked[name])]
    say(f"next: {subject.command('drain', *options, '--watch')}")
    return exit_code


def _enough(estimate_s: float) -> str:
    """A grace that leaves requests as much time again."""
    return f"{max(1, math.ceil(2 * estimate_s / 60))}min"


def _blocked(subject: Subject, blocked: Sequence[Mapping[str, Any]], at_deadline: str | None) -> str:
    keeps = at_deadline == AtDeadline.KEEP
    if subject.is_endpoint:
        then = "it stays in service" if keeps else "it is taken out all the same, unless --at-deadline keep"
        return f"it serves on until another endpoint does; at the end of the grace {then}"
    then = "kept" if keeps else "stopped, unless --at-deadline keep"
    serve = "it serves" if len(blocked) == 1 else "they serve"
    return f"{counted(len(blocked), 'replica')} can go nowhere now: {serve} on until there is room; at the end {then}"


def _option(name: str, value: str) -> tuple[str, str]:
    return "-m" if name == "why" else f"--{name.replace('_', '-')}", value


def _takes(session: Session, plan: Any, grace_s: int | None, asked: dict[str, Any], refused: str) -> str:
    estimate_s = float(plan["estimate_s"])
    moving = any(move["to"] for move in plan["moves"])
    takes = f"takes about {estimate_s:.0f} s without what requests need; " if moving else ""
    if grace_s is not None:
        over = estimate_s > grace_s
        return f"{takes}--grace is {asked['grace']}" + (", too short for all of it" if over else "")
    written = session.get("/config").get("drain", {}).get("grace")
    if written is None:
        return takes.removesuffix("; ")
    over = estimate_s > seconds_of(written)
    hint = ": it is refused without --grace or --at-deadline" if refused else ""
    return f"{takes}drain.grace is {written}" + (f", too short for all of it{hint}" if over else "")
