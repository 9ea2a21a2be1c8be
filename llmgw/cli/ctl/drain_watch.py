"""Following a drain to its end: a line whenever the picture changes, over a control plane that goes and comes."""

import json
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

import click
from attrs import define

from llmgw.cli.ctl.drain_shown import DRAINED, Status, asked, drain_of, is_over, progress
from llmgw.cli.ctl.session import JSON, Session
from llmgw.cli.ctl.show import say, spanned
from llmgw.cli.ctl.targeting import Subject
from llmgw.cli.failure import Exit, Failure, printable

EVERY_S = 1.0
QUIET_S = 30.0  # a line after so long, though nothing has changed
AWAY_S = 120.0  # a control plane that is away may come back within this
UNDONE = "undone"
SHOWN_MAX = 2  # sentences of one line
# What grows by itself in a sentence, like the age of a request, changes no picture.
_SECONDS = re.compile(r"\d+(\.\d+)? s\b")


@define
class Following:
    session: Session
    subject: Subject
    picture: Any = None
    shown_at: float = 0.0
    away_since: float | None = None
    away_clock: str = ""
    said: frozenset[str] = frozenset()  # what it waited on in the last line

    def run(self) -> Exit:
        """Until it is over. Raises Failure where it is undone meanwhile, and where nobody answers any more."""
        while True:
            try:
                status = self._look()
                self._answers()
            except Failure as failure:
                self._away(failure)
            else:
                self._show(status)
                if is_over(status):
                    return self._end(status)
            time.sleep(EVERY_S)

    def _look(self) -> Status:
        status = drain_of(self.session, self.subject)
        if status is None or status["state"] == UNDONE:
            raise Failure(self._undone(), Exit.FAILED, f"drain it again: {self.subject.command('drain')}", UNDONE)
        return status

    def _undone(self) -> str:
        says = f"the drain of {self.subject.name} was undone meanwhile"
        if self.subject.is_endpoint:
            return says
        try:
            target = self.session.get(self.subject.path)["node"]["target"]
        except Failure as failure:
            if failure.exit_code != Exit.NOT_FOUND:
                raise
            return f"{self.subject.name} was removed meanwhile"
        return f"{says}: it is {asked(target)}"

    # -- a control plane that is away ---------------------------------------------------------------------

    def _away(self, failure: Failure) -> None:
        if failure.exit_code != Exit.UNREACHABLE and failure.code != "store_unavailable":
            raise failure
        now = time.monotonic()
        if self.away_since is None:
            self.away_since, self.away_clock = now, time.strftime("%H:%M:%S")
            say(f"since {self.away_clock}: {failure.message}; asking again for up to {spanned(AWAY_S)}")
        if now - self.away_since >= AWAY_S:
            again = f"the drain goes on once it is back; follow it again: {self.subject.command('drain', '--watch')}"
            raise Failure(f"{failure.message}, since {self.away_clock}", Exit.UNREACHABLE, again) from failure

    def _answers(self) -> None:
        if self.away_since is not None:
            say(f"it answers again, after {spanned(time.monotonic() - self.away_since)}")
            self.away_since = None

    # -- what is shown ------------------------------------------------------------------------------------

    def _show(self, status: Status) -> None:
        picture, now, on = _picture(status), time.monotonic(), list(map(str, status["waits_on"]))
        if picture == self.picture and now - self.shown_at < QUIET_S:
            return
        said, self.said = self.said, frozenset(map(_still, on))
        self.picture, self.shown_at = picture, now
        if self.session.output == JSON:
            key = "endpoint" if self.subject.is_endpoint else "node"
            click.echo(json.dumps({key: self.subject.bare, "drain": status}, ensure_ascii=False))
        elif not is_over(status):
            news = in_short([one for one in on if _still(one) not in said] or on, len(on))
            line = f"{time.strftime('%H:%M:%S')}  {progress(self.subject, status)}" + (f": {news}" if news else "")
            click.echo(printable(line))
        sys.stdout.flush()

    def _end(self, status: Status) -> Exit:
        if self.session.output != JSON:
            click.echo(printable(str(status["said"] or f"{self.subject.name} is {status['state']}")))
        return Exit.DONE if status["state"] == DRAINED else Exit.BLOCKED


def _picture(status: Status) -> Any:
    waits_on = [_still(str(sentence)) for sentence in status["waits_on"]]
    same = {name: value for name, value in status.items() if name not in ("left_s", "waits_on")}
    return same, waits_on, is_over(status)


def _still(sentence: str) -> str:
    return _SECONDS.sub("", sentence)


def in_short(news: Sequence[str], of: int) -> str:
    """What a line has room for, and how many there are besides."""
    more = of - len(news[:SHOWN_MAX])
    return "; ".join([*news[:SHOWN_MAX], *([f"and {more} more"] if more else [])])
