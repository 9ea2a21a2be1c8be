"""``llmgw ctl events``: what happened in the cluster, and what happens."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click
from attrs import define

from llmgw.cli.ctl.session import JSON, CtlCommand, Session
from llmgw.cli.ctl.show import listed, print_json, say
from llmgw.cli.failure import Exit, Failure, printable
from llmgw.wire.event_feed import NotEvents, Told, events_in

LISTED = 50
PAUSE_S, PAUSE_MAX_S = 0.2, 5.0
MISSED = "missed"


@click.command("events", cls=CtlCommand)
@click.option("--follow", "-f", is_flag=True, help="Go on and print them as they happen; Ctrl-C ends.")
@click.option("--since", type=click.IntRange(0), metavar="N", help="Those after this number.")
@click.option("--kind", default="", metavar="PREFIX", help="Only kinds that begin so: node, replica.failed, …")
@click.option("--subject", default="", help="Only of this node, replica or model.")
@click.option("--limit", type=click.IntRange(1, 10_000), help=f"The latest so many; {LISTED} unless said.")
@click.option("--count", type=click.IntRange(1), help="With --follow: end after this many.")
@click.pass_obj
def command(session: Session, /, follow: bool, count: int | None, **asked: Any) -> None:
    """What happened: a line an event, oldest first. With --follow and -o json one JSON object a line.

    With --follow it begins with what happens from now on, or after --since, or with the latest of --limit. When
    the gateway goes away, it is asked again until it is back, and nothing it remembers is left out.
    """
    if not follow:
        if count is not None:
            raise click.UsageError("--count goes with --follow")
        _list(session, asked)
        return
    try:
        _Following(session, asked, count).run()
    except KeyboardInterrupt:
        click.echo(err=True)  # so that the shell's prompt begins a line


def _list(session: Session, asked: Mapping[str, Any]) -> None:
    answer = _asked(session, {**asked, "limit": asked["limit"] or LISTED})
    if session.output == JSON:
        print_json(answer)
        return
    for event in listed(answer, "events"):
        click.echo(_line(event))
    if answer.get("missed"):
        _say_missed(answer["missed"])


def _asked(session: Session, asked: Mapping[str, Any]) -> Any:
    since = asked["since"]
    return session.get("/events", **{**asked, "since": None if since is None else str(since)})


@define
class _Following:
    """One reader: where it is in the feed, over as many connections as it takes."""

    session: Session
    asked: Mapping[str, Any]
    count: int | None
    at: str = ""  # id of the last event
    shown: int = 0
    pause_s: float = PAUSE_S

    def run(self) -> None:
        self._begin()
        away = False
        while not self._done:
            try:
                for told in self._connection():
                    if away:
                        say("it answers again")
                    away = False
                    self._take(told)
                    if self._done:
                        return
                why = "the gateway ended the stream"
            except NotEvents as error:
                why = str(error)
            except Failure as failure:
                if failure.exit_code != Exit.UNREACHABLE:
                    raise
                why = failure.message
            if not away:
                say(f"{why}; asking again until it is back")
            away = True
            time.sleep(self.pause_s)
            self.pause_s = min(PAUSE_MAX_S, self.pause_s * 2)

    @property
    def _done(self) -> bool:
        return self.count is not None and self.shown >= self.count

    def _begin(self) -> None:
        """The end of what is remembered is where we go on, so that a link lost before the first event loses none."""
        since, limit = self.asked["since"], self.asked["limit"]
        if since is not None and limit is None:
            self.at = str(since)
            return
        answer = _asked(self.session, {**self.asked, "limit": limit or 1})
        if limit is not None:
            for event in listed(answer, "events"):
                self._show(event)
                if self._done:
                    return
            if answer["missed"]:
                _say_missed(answer["missed"])
        self.at = str(answer["last"])

    def _connection(self) -> Iterator[Told]:
        params = {name: self.asked[name] for name in ("kind", "subject") if self.asked[name]}
        headers = {"accept": "text/event-stream", "last-event-id": self.at}
        with self.session.api.stream("/events", {"follow": "true", **params}, headers) as chunks:
            yield Told()  # it answers
            yield from events_in(chunks)

    def _take(self, told: Told) -> None:
        if told.kind == MISSED and not told.id:
            _say_missed(told.data.get("missed"))
        elif told.data is not None:
            self._show(told.data)
        if told.id:
            self.at, self.pause_s = told.id, PAUSE_S

    def _show(self, event: Mapping[str, Any]) -> None:
        click.echo(json.dumps(event, ensure_ascii=False) if self.session.output == JSON else _line(event))
        sys.stdout.flush()
        self.shown += 1


def _say_missed(missed: Any) -> None:
    how_many = f"up to {missed} events are" if missed else "these are other events than before: some may be"
    say(f"{how_many} not remembered any more; `llmgw ctl nodes` and `llmgw ctl replicas` show how things stand")


def _line(event: Mapping[str, Any]) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(event["at"])))
    return printable(f"{event['seq']:>6}  {at}  {event['kind']:<18}  {_told(event)}")


def _told(event: Mapping[str, Any]) -> str:
    """Many sentences name their subject already."""
    sentence, subject = str(event["sentence"]), str(event.get("subject") or "")
    begins = sentence.partition(" ")[0].rstrip(":")
    return sentence if not subject or subject in sentence or begins in subject else f"{subject}: {sentence}"
