"""``llmgw ctl admission``: what it does, or in shadow mode would do."""

from typing import Any

import click

from llmgw.cli.ctl.session import JSON, CtlCommand, Session
from llmgw.cli.ctl.show import Column, drawn, listed, print_json
from llmgw.cli.ctl.when import span_s

COLUMNS = (
    Column("MODEL", "model"),
    Column("BAND", "band"),
    Column("REQUESTS", "requests"),
    Column("WAIT P50", "wait_p50_s", "seconds"),
    Column("WAIT P99", "wait_p99_s", "seconds"),
    Column("503", "would_503"),
    Column("504", "would_504"),
    Column("FIRST P50", "first_token_alone_p50_s", "seconds"),
    Column("FIRST P99", "first_token_alone_p99_s", "seconds"),
    Column("BEHIND", "behind"),
    Column("P50", "first_token_behind_p50_s", "seconds"),
    Column("P99", "first_token_behind_p99_s", "seconds"),
)


@click.group("admission")
def command() -> None:
    """What admission does, or in shadow mode would do."""


@command.command("report", cls=CtlCommand)
@click.option("--since", default="24h", show_default=True, metavar="SPAN", help="How far back: 30min, 24h, 7d.")
@click.argument("model", required=False)
@click.pass_obj
def report(session: Session, since: str, model: str | None) -> None:
    """What admission would have done: for `mode = "shadow"` in [admission], which holds nobody.

    By pool and band: how long requests would have waited, how many would have been refused (503: no room
    to wait, 504: waited too long), and how long their first token really took: FIRST with nobody of a lower
    band in front of them in the engine's queue, BEHIND with somebody. Times are the bounds of buckets.
    """
    answer = session.get("/admission/report", since_s=span_s(since, "--since"), model=model)
    if session.output == JSON:
        print_json(answer)
        return
    click.echo(_drawn(answer))


def _drawn(answer: Any) -> str:
    pools = listed(answer, "pools")
    texts = [] if answer.get("mode") == "shadow" else [f"admission is {answer.get('mode')}: nothing is reckoned now"]
    if not pools:
        return "\n".join(
            [*texts, 'nothing was reckoned in that time; set mode = "shadow" in [admission] and wait a while']
        )
    texts.append(drawn([{"model": pool["model"], **band} for pool in pools for band in pool["bands"]], COLUMNS))
    for pool in pools:
        texts.append(f"\n{pool['model']}: {pool['verdict']}")
        texts += [
            f"  others waited {one['waited_behind_s']:g} s behind {one['band']} of tenant {one['tenant']}"
            for one in pool["culprits"]
        ]
    return "\n".join(texts)
