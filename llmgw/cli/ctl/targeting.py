"""What may be cordoned and drained, a node or a static endpoint written ``endpoint/ID``, and how that is asked."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click
from attrs import frozen

from llmgw.cli.ctl.session import JSON, Session
from llmgw.cli.ctl.show import print_json, say
from llmgw.cli.failure import Exit, Failure, printable
from llmgw.core.drain import Target

ENDPOINT = "endpoint/"
SUBJECT = "NODE|endpoint/ID"
DOTS = (".", "..")  # as a step of a path they lead elsewhere


@frozen
class Subject:
    """``name``: as the operator writes it."""

    name: str

    @property
    def is_endpoint(self) -> bool:
        return self.name.startswith(ENDPOINT)

    @property
    def path(self) -> str:
        """Raises Failure as ``check``."""
        self.check()
        return f"/{'endpoints' if self.is_endpoint else 'nodes'}/{quote(self.bare, safe='')}"

    def check(self) -> None:
        """Raises Failure for what can't be a name: its path would be another one."""
        if self.bare in DOTS or ("/" in self.bare and not self.is_endpoint):
            kind = "endpoint" if self.is_endpoint else "node"
            listed = f"`llmgw ctl {kind}s` lists them"
            raise Failure(f"no {kind} is called {self.bare!r}", Exit.NOT_FOUND, listed, "not_found")

    @property
    def bare(self) -> str:
        """As the gateway calls it."""
        return self.name.removeprefix(ENDPOINT)

    def command(self, verb: str, *options: str) -> str:
        """To be typed next."""
        return shlex.join(["llmgw", "ctl", verb, self.name, *options])


def replica_path(name: str) -> str:
    """Raises Failure for what can't be a name."""
    if name in DOTS or "/" in name:
        drains = f"an endpoint is drained: {Subject(name).command('drain')}" if name.startswith(ENDPOINT) else ""
        raise Failure(
            f"no replica {name!r} runs", Exit.NOT_FOUND, drains or "`llmgw ctl replicas` lists them", "not_found"
        )
    return f"/replicas/{quote(name, safe='')}"


def named(_ctx: click.Context, _param: click.Parameter, value: str | Sequence[str]) -> Any:
    """Names as subjects, each once."""
    names = [value] if isinstance(value, str) else list(dict.fromkeys(value))
    if any(not name.removeprefix(ENDPOINT).strip() for name in names):
        raise click.BadParameter("it is empty")
    found = tuple(Subject(name) for name in names)
    return found[0] if isinstance(value, str) else found


def aim(session: Session, subject: Subject, target: Target, why: str, **more: Any) -> Any:
    said = {name: value for name, value in more.items() if value not in (None, False)}
    return session.put(f"{subject.path}/target", {"target": str(target), "reason": why} | said)


def aim_each(session: Session, subjects: Sequence[Subject], target: Target, why: str) -> Exit:
    """One after another; one that is refused does not keep the others from it."""
    answers: list[Mapping[str, Any]] = []
    failures: list[Failure] = []
    for subject in subjects:
        try:
            answers.append(_told(session, aim(session, subject, target, why)))
        except Failure as failure:
            failures.append(failure)
            if failure.exit_code == Exit.UNREACHABLE:
                break
    if session.output == JSON:
        print_json({"targets": answers})
    for one in failures:
        one.as_json = session.output == JSON
        one.show()
    if failures:
        return Exit(failures[0].exit_code)
    unsure = [Subject(str(answer["node"])) for answer in answers if not answer["confirmed"]]
    for subject in unsure:
        say(f"not sure yet, do not touch {subject.name}; ask again: {subject.command('cordon')}")
    return Exit.BLOCKED if unsure else Exit.DONE


def _told(session: Session, answer: Mapping[str, Any]) -> Mapping[str, Any]:
    if session.output != JSON:
        click.echo(printable(str(answer["said"])))
    return answer
