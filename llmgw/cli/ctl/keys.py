"""``llmgw ctl keys``: what clients show to be let in."""

import time
from typing import Any, TextIO
from urllib.parse import quote

import click

from llmgw.cli.ctl.keyfile import FORMATS, read_keys
from llmgw.cli.ctl.session import JSON, CtlGroup, Session, not_empty
from llmgw.cli.ctl.show import Column, listed, print_json, say, show
from llmgw.cli.ctl.when import ends_at
from llmgw.control.key_entries import as_entry
from llmgw.core.identity import SHOWN, WHY_MAX, Band, digest

COLUMNS = (
    Column("ID", "id"),
    Column("KEY", "shown"),
    Column("TENANT", "tenant"),
    Column("BAND", "band"),
    Column("MODELS", "models_shown"),
    Column("STATE", "state"),
    Column("CREATED", "created_at", "time"),
    Column("EXPIRES", "expires_at", "time"),
    Column("NOTE", "note"),
)


def short_why(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """As the admin API wants it; also where the store is written without one."""
    if len(value) > WHY_MAX:
        raise click.BadParameter(f"it has {len(value)} characters, and may have {WHY_MAX}")
    return value


why_option = click.option(
    "-m", "--why", default="", metavar="WHY", callback=short_why, help="The reason, for the audit."
)


@click.group("keys", cls=CtlGroup)
def command() -> None:
    """Clients' keys: create, list, revoke, import. A change counts at once, without a restart."""


@command.command()
@click.option("--tenant", required=True, help="Who pays.")
@click.option("--band", type=click.Choice([str(b) for b in Band]), default=str(Band.GOLD), show_default=True)
@click.option("--model", "models", multiple=True, help="A model it may use; repeat for more. Without: every model.")
@click.option("--expires", metavar="30d|DATE", help="When it ends: 12h, 30d, 1y, 2030-01-31. Without: never.")
@click.option("--note", default="", help="What it is for.")
@click.option("--new-tenant", is_flag=True, help="Make the tenant if it is not there.")
@why_option
@click.pass_obj
def create(session: Session, /, expires: str | None, models: tuple[str, ...], why: str, **asked: Any) -> None:
    """Make a key. It is printed once, alone, on standard output."""
    body = asked | {"models": list(models), "expires_at": ends_at(expires, time.time())} | ({"why": why} if why else {})
    made = session.post("/keys", body)
    if session.output == JSON:
        print_json(made)
        return
    record = made["record"]
    click.echo(made["key"])
    say(f"{record['id']}: tenant {record['tenant']}, band {record['band']}. The key is not shown again.")


@command.command("list")
@click.option("--tenant", help="Only this tenant's.")
@click.option("--all", "everything", is_flag=True, help="Revoked and expired ones too.")
@click.pass_obj
def list_keys(session: Session, tenant: str | None, everything: bool) -> None:
    """The keys there are, by the characters that may be shown."""
    answer = session.get("/keys")
    rows = [_row(k) for k in listed(answer, "keys")]
    found = [r for r in rows if (everything or r["state"] == "live") and tenant in (None, r["tenant"])]
    ids = {r["id"] for r in found}
    show(session, {"keys": [k for k in listed(answer, "keys") if k["id"] in ids]}, found, COLUMNS)


@command.command()
@click.argument("key", callback=not_empty)
@why_option
@click.pass_obj
def revoke(session: Session, key: str, why: str) -> None:
    """End a key: by its id, the beginning of it, what `list` shows of it, or the key itself.

    New requests are refused at once; streams that run go on to their end.
    """
    answer = session.delete(f"/keys/{quote(_name(key), safe='')}", why=why)
    record = answer.get("record", answer)
    if session.output == JSON:
        print_json(answer)
        return
    click.echo(f"{record.get('id', key)} revoked")


@command.command("import")
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option("--format", "form", type=click.Choice(FORMATS), help="Without: by the file's ending; - is JSON lines.")
@why_option
@click.pass_obj
def import_keys(session: Session, file: TextIO, form: str | None, why: str) -> None:
    """Bring keys along from elsewhere, so that nobody has to change theirs. All of them or none.

    Fields: key (the key itself, or sha256: and 64 hexadecimal digits) and tenant are needed; band, models,
    expires_at (a date, or seconds since 1970) and note are not. Tenants that are not there are made.

    \b
    JSON lines  {"key": "sk-abc…", "tenant": "research", "band": "silver", "models": ["llama"]}
    CSV         key,tenant,band,models,expires_at,note      models separated by spaces
    TOML        [[keys]]
                key = "sha256:9f86…"
                tenant = "research"
    """
    entries = read_keys(file.name if file.name != "<stdin>" else "-", _text(file), form)
    body: dict[str, Any] = {"entries": [as_entry(e) for e in entries]} | ({"why": why} if why else {})
    answer = session.post("/keys/import", body)
    if session.output == JSON:
        print_json(answer)
        return
    made = answer.get("new_tenants") or []
    number = "1 key" if len(entries) == 1 else f"{len(entries)} keys"
    click.echo(f"{number} imported" + (f"; new tenants: {', '.join(made)}" if made else ""))


def _text(file: TextIO) -> str:
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{file.name} is not UTF-8 text ({error})") from error


def _name(key: str) -> str:
    """Never a whole key in a URL: its digest says as much."""
    whole = len(key) > SHOWN + 1 and not key.startswith(("key_", "sha256:"))
    return f"sha256:{digest(key).hex()}" if whole else key


def _row(key: Any) -> dict[str, Any]:
    over = key.get("expires_at") is not None and key["expires_at"] <= time.time()
    state = "revoked" if key.get("revoked_at") is not None else "expired" if over else "live"
    return {**key, "state": state, "models_shown": key.get("models") or "every"}
