"""How a command fails: one line, what to do next, and an exit code that scripts can rely on."""

import json
from enum import IntEnum
from typing import IO, Any

import click


class Exit(IntEnum):
    DONE = 0
    FAILED = 1  # refused or failed, the reason is printed
    USAGE = 2  # bad usage or config
    RUNNING = 3  # already running
    NOT_FOUND = 4
    BLOCKED = 5
    UNREACHABLE = 6
    LOST_LEADERSHIP = 75


# What a refusal's code means to a script; every other one is FAILED.
BY_CODE = {
    "invalid": Exit.USAGE,
    "invalid_config": Exit.USAGE,
    "not_found": Exit.NOT_FOUND,
    "already_running": Exit.RUNNING,
    "blocked": Exit.BLOCKED,
}


class Failure(click.ClickException):
    """Raised by commands; ``problems`` are printed a line each after the message."""

    def __init__(
        self, message: str, exit: Exit = Exit.FAILED, hint: str = "", code: str = "", problems: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.exit_code = int(exit)  # type: ignore[misc]  # a constant only by default
        self.hint = hint
        self.code = code
        self.problems = problems
        self.as_json = False

    def show(self, file: IO[Any] | None = None) -> None:
        if self.as_json:
            error = {"message": self.message, "code": self.code, "hint": self.hint, "problems": list(self.problems)}
            click.echo(json.dumps({"error": error}), err=True, file=file)
            return
        line = f"llmgw: {self.message}" + (f"; {self.hint}" if self.hint else "")
        click.echo("\n".join([printable(line), *map(printable, self.problems)]), err=True, file=file)


def printable(text: str) -> str:
    """Without what could move a terminal's cursor: it may come from an engine or a client."""
    return "".join(c if c.isprintable() else " " for c in text)
