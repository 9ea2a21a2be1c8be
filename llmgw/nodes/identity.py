"""Who this control plane is to agents: the certificate its listener shows now, read again when its files change.

Running links are not cut by a new certificate; the next handshake shows it.
"""

import datetime
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import trio
from attrs import define, field

from llmgw.core.joining import ca_digits
from llmgw.nodes.certificates import Files, NoCertificate, Shown, der, renew, show
from llmgw.nodes.limits import AgentsLimits
from llmgw.nodes.listener import agents_context

T = TypeVar("T")
LOOK_EVERY_S = 10.0
NAME = "agents"


async def in_a_thread(work: Callable[[], T], /) -> T:
    return await trio.to_thread.run_sync(work)


@define(eq=False)
class ListenerIdentity:
    """Made by ``load``; ``follow`` is a service. ``trouble``: why the files can't be used now; empty: they can."""

    files: Files
    chain: Path
    key: Path
    ca_file: Path
    renews: bool
    say: Callable[[str], None] = field(default=lambda text: None, repr=False)
    wall: Callable[[], float] = field(default=time.time, repr=False)
    context: ssl.SSLContext = field(init=False, repr=False)
    shown: Shown = field(init=False)
    ca: bytes = field(init=False, repr=False)  # PEM, as agents pin it
    ca_digits: str = field(init=False)
    trouble: str = field(default="", init=False)
    _stamp: tuple[object, ...] = field(default=(), init=False, repr=False)

    @classmethod
    def load(
        cls,
        limits: AgentsLimits,
        data_dir: Path,
        say: Callable[[str], None] = lambda text: None,
        wall: Callable[[], float] = time.time,
    ) -> "ListenerIdentity | None":
        """None: there is no certificate, so no listener. Blocks. Raises NoCertificate, OSError, ssl.SSLError."""
        files = Files(data_dir / "certs")
        chain = Path(limits.tls_cert).expanduser() if limits.tls_cert else files.chain(NAME)
        if not limits.tls_cert and not chain.exists():
            return None
        key = Path(limits.tls_key).expanduser() if limits.tls_key else files.key(NAME)
        ca = Path(limits.ca).expanduser() if limits.ca else files.ca
        identity = cls(files, chain, key, ca, limits.renew and not limits.tls_cert, say, wall)
        identity.read()
        return identity

    async def follow(
        self, every_s: float = LOOK_EVERY_S, run_blocking: Callable[..., object] = in_a_thread
    ) -> NoReturn:
        """Service: renew what is due, and show what is on disk."""
        while True:
            await run_blocking(self.look)  # type: ignore[misc]
            await trio.sleep(every_s)

    def look(self) -> None:
        """Blocks. Says a line when something changed; what can't be read leaves the certificate as it was."""
        trouble = ""
        try:
            if self._due():
                renew(self.files, NAME, datetime.datetime.fromtimestamp(self.wall(), datetime.UTC))
            if self._stamp != self._stamps():
                self.read()
                self.say(f"agents meet a new certificate, good until {_day(self.shown.ends_at)}")
        except (NoCertificate, OSError, ssl.SSLError, ValueError) as error:
            trouble = str(error)
        if trouble and trouble != self.trouble:
            self.say(f"the certificate for agents stays as it is, good until {_day(self.shown.ends_at)}: {trouble}")
        self.trouble = trouble

    def read(self) -> None:
        """Raises NoCertificate, OSError, ssl.SSLError; then everything stays as it was."""
        stamp = self._stamps()
        context = agents_context(str(self.chain), str(self.key))
        shown, ca, digits = show(self.chain), self.ca_file.read_bytes(), ca_digits(der(self.ca_file))
        self.context, self.shown, self.ca, self.ca_digits, self._stamp = context, shown, ca, digits, stamp

    def expires_in_s(self) -> float:
        return self.shown.ends_at - self.wall()

    def _due(self) -> bool:
        return self.renews and self.files.ca_key.exists() and self.wall() >= self.shown.renew_at

    def _stamps(self) -> tuple[object, ...]:
        found = (file.stat() for file in (self.chain, self.key, self.ca_file))
        return tuple((one.st_mtime_ns, one.st_ino, one.st_size) for one in found)


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))
