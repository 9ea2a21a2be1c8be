"""What a running process takes over from a config: read again at SIGHUP, or brought by an operator."""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio
from attrs import define

from llmgw.admin.applying import act_of, first_of, note_applied
from llmgw.admin.services import Applied
from llmgw.config import Config, ConfigError, Reloaded, reload
from llmgw.config.load import load_revision, read_text
from llmgw.config.problems import Problem, Refused
from llmgw.control.desired import Desired, scales_that_stay
from llmgw.control.events import Events
from llmgw.core.identity import Operator
from llmgw.daemon.parts import Parts
from llmgw.store.desired import Revision
from llmgw.store.errors import StoreUnavailable
from llmgw.store.face import Store
from llmgw.store.leader import NotLeading

SIGNAL = "signal"  # who a SIGHUP is in the log and in the audit
NO_FILE = "nothing to reload: started without a config file"
SENT = "the config that was sent"
OTHERWISE = (
    "these are not those in force, which are revision {revision} of the store",
    "`llmgw ctl diff {file}` shows what differs; `llmgw ctl apply {file}`, or SIGHUP to the leader, applies them",
)
SHOWN = 3  # changes, in an event's sentence


@define(eq=False)
class Reloading:
    """``store`` takes what is audited, whether this control plane leads or not; ``desired`` what a leader decides."""

    parts: Parts
    store: Store
    file: Path | None
    environ: Mapping[str, str]
    take_over: Callable[[Config], None]
    desired: Desired
    events: Events
    leads: Callable[[], bool] = lambda: True

    async def read_again(self) -> None:
        """SIGHUP: the file as it is now; a bad one keeps the config before."""
        if self.file is None:
            self.parts.log.warning(NO_FILE)
            applied = Applied(problems=(NO_FILE,))
        else:
            applied = self._said(await self._reread(self.file), SIGNAL)
        act = act_of(applied, time.time(), SIGNAL, "", "config.reload")
        await note_applied(self.store, self.parts.report, act)

    async def _reread(self, file: Path) -> Applied:
        try:
            text = await trio.to_thread.run_sync(partial(read_text, file))
        except Refused as refused:
            return Applied(problems=(str(Problem(str(file), "", refused.what, refused.what_to_do)),))
        return await self._applied(text, "", SIGNAL, source=str(file))

    async def bring(self, text: str, by: Operator, file: str, why: str = "", dry: bool = False) -> Applied:
        """`ctl apply`, whose audit is the admin API's; ``file`` is what the operator calls it. ``dry``: `ctl diff`."""
        if dry:
            return self._tried(text, file or SENT)
        return await self._warned(self._said(await self._applied(text, file or SENT, by.name, why, file), by.name))

    async def roll_back(self, to: Revision, by: Operator, why: str = "") -> Applied:
        """The models of an earlier revision, with the limits in force."""
        source = f"revision {to.revision}"
        applied = await self._applied(None, source, by.name, why or f"rolled back to {source}", source, to.models)
        return await self._warned(self._said(applied, by.name))

    async def _warned(self, applied: Applied) -> Applied:
        """What is in force now counts until the file is read again; said where the file is not the same."""
        if applied.problems or self.file is None:
            return applied
        try:
            undone = self._undone(await trio.to_thread.run_sync(partial(read_text, self.file)))
        except (Refused, ConfigError):
            undone = "can't be used as it is"
        if not undone:
            return applied
        again = f"SIGHUP to {self._here()}" if self.store.place.url else "the next start or SIGHUP"
        warning = f"{again} applies {self.file} again, which {undone}: write it there too"
        return attrs.evolve(applied, warnings=(warning,))

    def _here(self) -> str:
        return self.parts.config.listen.name or socket.gethostname()

    def _undone(self, text: str) -> str:
        """What the gateway's own file makes otherwise. Raises ConfigError."""
        config = self.parts.config
        # A file without models leaves those that were applied last.
        models = config.models if not load_revision(self.file, self.environ, text, 0).models else None
        changes = reload(config, self.file, self.environ, text, models=models).changes
        more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
        return f"says otherwise ({changes[0]}{more})" if changes else ""

    def _tried(self, text: str, named: str) -> Applied:
        """What applying it would do."""
        try:
            reloaded = reload(self.parts.config, self.file, self.environ, text, named)
        except ConfigError as error:
            return Applied(problems=tuple(str(problem) for problem in error.problems))
        return self._told(reloaded)

    async def _applied(
        self,
        text: str | None,
        named: str,
        who: str,
        why: str = "",
        source: str = "",
        models: Sequence[Mapping[str, Any]] | None = None,
    ) -> Applied:
        """Models and limits from this text; what needs a restart is said, and waits for one.

        Where we stand by the leader decides which models there are, and only the limits are ours to take.
        """
        leads = self.leads()
        if not leads:
            models = self.desired.models
        try:
            reloaded = reload(self.parts.config, self.file, self.environ, text, named, models)
        except ConfigError as error:
            return Applied(problems=tuple(str(problem) for problem in error.problems))
        if not leads:  # a revision is the leader's to number
            reloaded = _numbered(reloaded, self.parts.config.fleet.revision)
        if reloaded.changes and leads:
            try:
                await self.desired.record(reloaded.config.models, who, why, source, reloaded.config.fleet.revision)
            except StoreUnavailable as error:
                return Applied(problems=(f"nothing was changed, because it can't be stored: {error}",))
            except NotLeading as error:  # since a moment ago
                return Applied(problems=(f"nothing was changed, ask the control plane that leads: {error}",))
        if reloaded.changes:
            self.take_over(reloaded.config)
        return self._told(reloaded)

    def _told(self, reloaded: Reloaded) -> Applied:
        waiting = (f"{key}: needs a restart" for key in reloaded.needs_restart)
        revision, changes = reloaded.config.fleet.revision, (*reloaded.changes, *waiting)
        stays = scales_that_stay(reloaded.config.wants, self.desired.scales)
        return Applied(revision, changes, replaces=reloaded.replaces, stays=tuple(stays), may_stop=reloaded.may_stop)

    def _said(self, applied: Applied, who: str) -> Applied:
        log = self.parts.log
        if applied.problems:
            log.error("reload refused, the config before stays", by=who, problems=first_of(applied.problems))
        elif applied.changes:
            log.info("config applied", by=who, revision=applied.revision, changes=list(applied.changes))
            revision, more = f"revision {applied.revision}", len(applied.changes) - SHOWN
            what = "; ".join(applied.changes[:SHOWN]) + (f"; and {more} more" if more > 0 else "")
            self.events.tell("config.applied", revision, f"{revision} was applied by {who}: {what}")
        else:
            log.info("nothing changed", by=who, revision=applied.revision)
        return applied


def _numbered(reloaded: Reloaded, revision: int) -> Reloaded:
    config = reloaded.config
    return attrs.evolve(reloaded, config=attrs.evolve(config, fleet=attrs.evolve(config.fleet, revision=revision)))


async def first_config(config: Config, desired: Desired, environ: Mapping[str, str], alone: bool) -> Config:
    """What a process begins with: its file's models, recorded if they are new; without any, those applied last.

    Where several control planes share a store (not ``alone``) what was applied last counts, whatever a file says: a
    failover must change nothing. Raises ConfigError, for models in the store that this version can't read.
    """
    if desired.models and not (alone and config.models):
        stored = stored_config(config, desired, environ)
        if not config.models or desired.is_in_force(config.models):
            return stored
        what, todo = (text.format(file=config.file, revision=desired.revision) for text in OTHERWISE)
        differs = Problem(str(config.file or ""), "models", what, todo)
        return attrs.evolve(stored, warnings=(*stored.warnings, differs))
    if alone:
        await desired.record(config.models, "start", source=str(config.file or ""))
    return attrs.evolve(config, fleet=attrs.evolve(config.fleet, revision=desired.revision))


def stored_config(config: Config, desired: Desired, environ: Mapping[str, str]) -> Config:
    """The file's limits, and the models that were applied last. Raises ConfigError."""
    stored = load_revision(config.file, environ, None, desired.revision, models=desired.models)
    return attrs.evolve(stored, fleet=attrs.evolve(stored.fleet, revision=desired.revision))
