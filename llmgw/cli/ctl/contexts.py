"""The gateways ctl knows by name: ``~/.config/llmgw/contexts.toml``, for its owner alone."""

import json
import os
import re
import tomllib
from pathlib import Path

from attrs import define, field, frozen

from llmgw.cli.failure import Exit, Failure
from llmgw.store.secret_file import write_secret
from llmgw.wire.admin_answers import base_url

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


@frozen
class Named:
    url: str
    token: str = field(default="", repr=False)
    ca: str | None = None


@define
class Contexts:
    path: Path
    named: dict[str, Named]
    current: str | None = None

    @classmethod
    def read(cls) -> "Contexts":
        base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        path = Path(base) / "llmgw" / "contexts.toml"
        try:
            if path.stat().st_mode & 0o077:
                raise Failure(f"{path} is readable by others", Exit.USAGE, f"chmod 600 {path}")
            said = tomllib.loads(path.read_text(encoding="utf-8"))
            named = {name: Named(**each) for name, each in said.get("contexts", {}).items()}
        except FileNotFoundError:
            return cls(path, {})
        except (OSError, ValueError, TypeError) as error:
            raise Failure(f"{path}: {error}", Exit.USAGE, "correct or remove it") from error
        return cls(path, named, said.get("current"))

    def chosen(self, name: str | None) -> Named | None:
        """The one asked for, else the one in use; None when there is neither."""
        name = name or self.current
        return self.find(name) if name else None

    def find(self, name: str) -> Named:
        if name not in self.named:
            raise Failure(f"no context is called {name!r}", Exit.NOT_FOUND, "`llmgw ctl context list` names them")
        return self.named[name]

    def write(self) -> None:
        # A JSON string without surrogates or DEL is a TOML basic string.
        lines = [f"current = {_text(self.current)}"] if self.current else []
        for name, each in sorted(self.named.items()):
            lines += ["", f"[contexts.{_text(name)}]", f"url = {_text(each.url)}", f"token = {_text(each.token)}"]
            lines += [f"ca = {_text(each.ca)}"] if each.ca else []
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_secret(self.path, "\n".join(lines) + "\n")
        except OSError as error:
            raise Failure(f"{self.path}: {error.strerror}") from error


def admin_url(text: str) -> str:
    """The URL without what we add to it. Raises Failure."""
    url = base_url(text)
    if url is None:
        raise Failure(f"{text!r} is no admin URL", Exit.USAGE, "it looks like https://host:7442")
    return url


def admin_urls(text: str) -> list[str]:
    """Each of several with commas between, once. Raises Failure."""
    return list(dict.fromkeys(admin_url(one.strip()) for one in text.split(",")))


def _text(value: str) -> str:
    if not value.isprintable():
        raise Failure(f"{value!r} has characters that don't print", Exit.USAGE)
    return json.dumps(value, ensure_ascii=False)
