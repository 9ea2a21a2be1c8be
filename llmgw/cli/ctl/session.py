"""Which gateway a ctl command speaks to, and how it prints."""

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
from attrs import define, field, fields_dict, frozen

from llmgw.cli.ctl.contexts import Contexts
from llmgw.cli.failure import Exit, Failure
from llmgw.store import lock
from llmgw.store.errors import StoreUnavailable
from llmgw.store.limits import StoreLimits
from llmgw.store.place import Place, place

F = TypeVar("F", bound=Callable[..., Any])
ADMIN_URL = "http://127.0.0.1:7442"
TABLE, JSON = "table", "json"


class Api(Protocol):
    """The admin API, over HTTP or on the store itself; answers are JSON values, refusals are Failures."""

    def ask(self, method: str, path: str, params: Mapping[str, Any] = ..., body: Any = None) -> Any: ...

    def stream(
        self, path: str, params: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AbstractContextManager[Iterator[bytes]]: ...

    def close(self) -> None: ...


@define
class Session:
    """The options of ``llmgw ctl``, and what follows from them."""

    output: str = TABLE
    context: str | None = None
    url: str | None = None
    token: str | None = None
    ca: str | None = None
    config: str | None = None
    data_dir: str | None = None
    _api: Api | None = field(default=None, init=False)

    def choose(self, **options: str | None) -> None:
        for name, value in options.items():
            if name in fields_dict(Session):
                setattr(self, name, value)

    @property
    def api(self) -> Api:
        if self._api is None:
            self._api = self._open()
            click.get_current_context().find_root().call_on_close(self._api.close)
        return self._api

    def get(self, path: str, **params: Any) -> Any:
        return self.api.ask("GET", path, {k: v for k, v in params.items() if v not in (None, False, "")})

    def post(self, path: str, body: Any) -> Any:
        return self.api.ask("POST", path, body=body)

    def put(self, path: str, body: Any) -> Any:
        return self.api.ask("PUT", path, body=body)

    def delete(self, path: str, **params: Any) -> Any:
        return self.api.ask("DELETE", path, {k: v for k, v in params.items() if v})

    def _open(self) -> Api:
        found = self.find()
        if isinstance(found, Listening):
            from llmgw.cli.ctl.http import HttpApi

            return HttpApi(found.urls, found.token, found.ca, found.also_ca)
        from llmgw.cli.ctl.direct import DirectApi

        return DirectApi(found, model_names(config_sections(self.config)) if self.config else None)

    def find(self) -> "Listening | Place":
        """A gateway that listens, or the place of its store while none runs here."""
        token = said_token(self.token)
        if self.url:
            return Listening(self.url, token or self._token_here(self.url), self.ca)
        named = None if self.data_dir or self.config else Contexts.read().chosen(self.context)
        if named:
            return Listening(named.url, token or revealed(named.token), self.ca or named.ca)
        return self._here(token)

    def _token_here(self, url: str) -> str:
        """The first token, if the URL is where the gateway on this machine says it listens."""
        where = self._place(config_sections(self.config).get("store", {}))
        try:
            ours = lock.held(where.lock) and lock.holder(where.lock).get("admin") == url.rstrip("/")
        except PermissionError:  # another user's: its token is none that we may use
            return ""
        return _first_token(where) if ours else ""

    def _here(self, token: str) -> "Listening | Place":
        where = self._place(config_sections(self.config).get("store", {}))
        if _runs(where):
            url = str(lock.holder(where.lock).get("admin") or ADMIN_URL)
            return Listening(url, token or _first_token(where), self.ca, _own_ca(where))
        meant = bool(self.data_dir or self.config or where.url)
        if not meant and not where.database.exists():
            hint = "start `llmgw server`, or say which: --url, --context, --config or --data-dir"
            raise Failure(f"no gateway runs here and {where.data_dir} holds no store", Exit.UNREACHABLE, hint)
        return where

    def _place(self, store: Mapping[str, Any]) -> Place:
        from llmgw.config.problems import Refused
        from llmgw.config.secrets import secret_of

        env = os.environ
        url = env.get("LLMGW_STORE__URL", str(store.get("url", "")))
        data_dir = self.data_dir or env.get("LLMGW_STORE__DATA_DIR") or str(store.get("data_dir", ""))
        try:
            # A folder that is named alone means the store in it.
            said = None if self.data_dir and not self.config else secret_of(url, env)
            return place(StoreLimits(url=said, data_dir=data_dir), env)
        except Refused as refused:
            raise Failure(f"store.url: {refused.what}", Exit.USAGE, refused.what_to_do) from None
        except StoreUnavailable as error:
            raise Failure(str(error), Exit.USAGE) from error


@frozen
class Listening:
    """``urls``: admin listeners with commas between. ``ca``: trusted instead of the system's, ``also_ca`` beside."""

    urls: str
    token: str = field(repr=False)
    ca: str | None = None
    also_ca: str | None = None


def output_option(command: F) -> F:
    """``-o json`` at the group and at each command; the innermost one said counts."""

    def remember(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
        if value:
            ctx.ensure_object(Session).output = value
        return value

    option = click.option(
        "-o",
        "--output",
        type=click.Choice([TABLE, JSON]),
        help="A table for people, or JSON.",
        expose_value=False,
        is_eager=True,
        callback=remember,
    )
    return option(command)


class CtlCommand(click.Command):
    """A command with ``-o``, whose failures are JSON too when its answers are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        output_option(self)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Failure as failure:
            failure.as_json = ctx.ensure_object(Session).output == JSON
            raise


class CtlGroup(click.Group):
    command_class = CtlCommand


class ListingGroup(CtlGroup):
    """A group that lists when no command of it is named: then it is a command itself, with ``-o``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("invoke_without_command", True)
        super().__init__(*args, **kwargs)
        output_option(self)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Failure as failure:
            failure.as_json = ctx.ensure_object(Session).output == JSON
            raise


def said_token(token: str | None) -> str:
    """The token somebody gave; one that is empty must not become another one, of this machine's gateway."""
    if token is None:
        return ""
    if shown := revealed(token):
        return shown
    where = f"the file {token[1:]} holds no token" if token.startswith("@") else "the token is empty"
    raise Failure(where, Exit.USAGE, "give one with --token or LLMGW_ADMIN_TOKEN, or leave --token out")


def revealed(token: str) -> str:
    """A token, or the one in the file that ``@FILE`` names."""
    if not token.startswith("@"):
        return sendable(token.strip())
    try:
        return sendable(Path(token[1:]).expanduser().read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"token file {token[1:]}: {error}", Exit.USAGE) from error


def sendable(token: str) -> str:
    if token.isascii() and (token.isprintable() or not token):
        return token
    hint = "tokens are one line of plain letters, digits and dashes; copy it again"
    raise Failure("the token has characters that no token has", Exit.USAGE, hint)


def not_empty(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """For arguments that become a step of a path, where an empty one would ask for something else."""
    if not value.strip():
        raise click.BadParameter("it is empty")
    return value


def config_sections(path: str | None) -> dict[str, Any]:
    """The file as it stands; what is wrong with it is check-config's to say."""
    if not path:
        return {}
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Failure(f"{path}: {error}", Exit.USAGE, f"`llmgw check-config {path}` says more") from error


def model_names(config: Mapping[str, Any]) -> set[str]:
    """Every name a client may use: models, their aliases, their endpoints' adapters."""
    names: set[str] = set()
    for model in config.get("models", []):
        names |= {model.get("name", ""), *model.get("aliases", [])}
        names |= {adapter for endpoint in model.get("endpoints", []) for adapter in endpoint.get("adapters", [])}
    return names


def _runs(where: Place) -> bool:
    """Whether a gateway does on this data directory."""
    try:
        return lock.held(where.lock)
    except PermissionError as error:
        hint = "run as the gateway's user or as root, or use --url with a token"
        raise Failure(f"{error.filename}: permission denied", Exit.FAILED, hint) from error


def _own_ca(where: Place) -> str | None:
    """The CA of `llmgw certs`, which may have signed the admin listener's certificate."""
    file = where.data_dir / "certs" / "ca.pem"
    return str(file) if os.access(file, os.R_OK) else None


def _first_token(where: Place) -> str:
    try:
        return where.admin_token.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        hint = "run as the gateway's user, or give --token"
        raise Failure(f"{where.admin_token}: {error.strerror}", Exit.FAILED, hint) from error


def nobody_runs(where: Place) -> Failure:
    hint = "start `llmgw server`, or name one that runs with --url or --context"
    return Failure(f"no gateway runs on {where.data_dir}", Exit.UNREACHABLE, hint)
