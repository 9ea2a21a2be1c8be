"""``llmgw ctl leader``: who leads, since when, for how long that is sure; and handing it over."""

from typing import Any

import click

from llmgw.cli.ctl.keys import why_option
from llmgw.cli.ctl.session import JSON, ListingGroup, Session
from llmgw.cli.ctl.show import Column, print_json, spanned, table
from llmgw.cli.failure import Exit, Failure

COLUMNS = (Column("WHAT", "what"), Column("", "value"))
LEADS = ("leading", "suspended")


@click.group("leader", cls=ListingGroup)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Which control plane leads: who, term, since, how long the lease is good for, renewals."""
    if ctx.invoked_subcommand is None:
        _show(ctx.ensure_object(Session))


@command.command()
@why_option
@click.pass_obj
def resign(session: Session, why: str) -> None:
    """Hand over to another control plane. No request fails; engines and agents notice nothing.

    Whoever leads is asked, and stays out until another one has led, at most for one lease.ttl. With no other control
    plane up nobody leads until then. Exit code 75: nobody leads.
    """
    answer = session.post("/leader/resign", {"why": why})
    if session.output == JSON:
        print_json(answer)
        return
    out = f"that control plane stays out until another one has led, at most {answer['stays_out_s']:g} s"
    click.echo(f"term {answer['resigned']} is given back; {out}")
    if not answer.get("stand_by", ["?"]):  # before 0.6 that was not told
        click.echo("warning: nobody else was seen to stand by: until then nobody leads", err=True)
    click.echo("next: llmgw ctl leader")


def _show(session: Session) -> None:
    answer = session.get("/leader")
    if session.output == JSON:
        print_json(answer)
    elif answer["leader"] is None:
        raise Failure("nobody leads, as far as is known here", Exit.LOST_LEADERSHIP, "llmgw ctl explain leader")
    else:
        table(_rows(answer), COLUMNS)
    if answer["leader"] is None or answer["leader"]["state"] not in LEADS:
        raise SystemExit(int(Exit.LOST_LEADERSHIP))


def _rows(answer: dict[str, Any]) -> list[dict[str, str]]:
    leader = answer["leader"]
    leads = leader["state"] in LEADS  # else nobody is asked where its engines are
    named = {
        "leader": f"{leader['who']}" + (" (asked here)" if leader["here"] else ""),
        "state": leader["state"] + (", without an engine that serves" if leads and not leader["ready"] else ""),
        "term": leader["term"],
        "since": "-" if leader["since_s"] is None else spanned(leader["since_s"]),
        "good for": _good_for(leader["margin_s"]),
        "renewals": str(leader["renewals"]),
        **{name: leader["addresses"][key] for name, key in (("clients", "client"), ("operators", "admin"),
                                                            ("agents", "agents"))},
    }  # fmt: skip
    if "standbys" in answer:
        named["stands by"] = _standbys(answer)
    if answer["store_away_s"]:
        named["store"] = f"has not answered for {answer['store_away_s']:g} s"
    return [{"what": name, "value": value} for name, value in named.items()]


def _standbys(answer: dict[str, Any]) -> str:
    if answer["alone"]:
        return "nobody could (SQLite)"
    if answer["standbys"] is None:
        return "not known: the store was not read lately"
    return ", ".join(map(_standby, answer["standbys"])) or "nobody"


def _standby(one: dict[str, Any]) -> str:
    if not one["silent"]:
        return str(one["name"])
    heard_s = one["heard_s"]
    return f"{one['name']} (not heard{'' if heard_s is None else f' for {spanned(heard_s)}'})"


def _good_for(margin_s: float | None) -> str:
    if margin_s is None:
        return "as long as it lives (SQLite)"
    return f"{margin_s:g} s" if margin_s > 0 else f"- (for {spanned(-margin_s)})"
