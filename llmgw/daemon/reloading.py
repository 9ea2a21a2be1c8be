"""What a running process takes over from a config: read again at SIGHUP, or brought by an operator."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import trio
from attrs import define

from llmgw.admin.applying import act_of, first_of, note_applied
from llmgw.admin.services import Applied
from llmgw.config import Config, ConfigError, reload
from llmgw.config.load import read_text
from llmgw.config.problems import Problem, Refused
from llmgw.core.identity import Operator
from llmgw.daemon.parts import Parts
from llmgw.store.sqlite import SqliteStore

SIGNAL = "signal"  # who a SIGHUP is in the log and in the audit
NO_FILE = "nothing to reload: started without a config file"
SENT = "the config that was sent"


@define(eq=False)
class Reloading:
    parts: Parts
    store: SqliteStore
    file: Path | None
    environ: Mapping[str, str]
    take_over: Callable[[Config], None]

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
        return self._applied(text, "")

    async def bring(self, text: str, by: Operator, file: str) -> Applied:
        """`ctl apply`, whose audit is the admin API's; ``file`` is what the operator calls it."""
        return self._said(self._applied(text, file or SENT), by.name)

    def _applied(self, text: str, named: str) -> Applied:
        """Models and limits from this text; what needs a restart is said, and waits for one."""
        try:
            reloaded = reload(self.parts.config, self.file, self.environ, text, named)
        except ConfigError as error:
            return Applied(problems=tuple(str(problem) for problem in error.problems))
        if reloaded.changes:
            self.take_over(reloaded.config)
        waiting = (f"{key}: needs a restart" for key in reloaded.needs_restart)
        return Applied(reloaded.config.fleet.revision, (*reloaded.changes, *waiting))

    def _said(self, applied: Applied, who: str) -> Applied:
        log = self.parts.log
        if applied.problems:
            log.error("reload refused, the config before stays", by=who, problems=first_of(applied.problems))
        elif applied.changes:
            log.info("config applied", by=who, revision=applied.revision, changes=list(applied.changes))
        else:
            log.info("nothing changed", by=who, revision=applied.revision)
        return applied
