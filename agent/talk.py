"""One link, from hello to its end: the whole report up, the whole of what is wanted down.

Both ways only the newest counts. A report is made when the leader's window has room for it, so one that reads slowly
gets fresh ones; of several ``wanted`` that arrive while one is obeyed the last is taken. A term is judged when it is
heard and again when it is obeyed, for it may have lain in a buffer while leadership moved.
"""

from collections import deque
from collections.abc import Callable, Mapping

import trio
from attrs import define, field

from agent.dialing import request
from agent.faces import Engines
from agent.membership import denied
from agent.report import Reporter, Tails
from agent.terms import Terms
from llmgw.core.shards import ShardSeen
from llmgw.tasks.duplex import Duplex
from llmgw.wire.agent_frames import (
    ClearAsked,
    Down,
    Hello,
    Lines,
    Logs,
    LogsAsked,
    Malformed,
    Obeys,
    Refused,
    Wanted,
    Welcome,
    line,
    read_down,
)
from llmgw.wire.agent_joining import LINK
from llmgw.wire.h2_stream import Body, End, H2Stream, Head, Violation

ASKS_MAX = 8  # for logs, waiting
LOGS_MAX = 128 * 1024  # of one answer: as JSON it may be six times as long, and is cut then
APART_S = 0.1  # between two reports, however much changes; more if they are long:
REPORTED_PER_S = 256 * 1024  # bytes
STALL_S = 10.0
DENIED_MAX = 16 * 1024


@define(eq=False, slots=False)
class Talk:
    server: str
    stream: trio.abc.Stream
    credential: str = field(repr=False)
    hello: Hello
    terms: Terms
    engines: Engines
    reporter: Reporter
    silent_s: float
    on_welcome: Callable[[], None] = lambda: None
    welcomed: bool = field(default=False, init=False)
    refused: Refused | None = field(default=None, init=False)  # by the leader, in its words
    not_admitted: bool = field(default=False, init=False)  # because the credential counts no more
    denied_by: str = field(default="", init=False)  # whose cluster it is that did not admit us, if it said so
    stands_by: bool = field(default=False, init=False)  # who answered does not lead
    _h2: H2Stream = field(init=False)
    _duplex: Duplex = field(init=False)
    _patience: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _lines: Lines = field(init=False)
    _tails: Tails = field(init=False)
    _denied: bytearray | None = field(default=None, init=False)
    _out: deque[bytes] = field(factory=deque, init=False)
    _part: memoryview = field(default=memoryview(b""), init=False)
    _due: bool = field(default=False, init=False)
    _period_s: float = field(default=1.0, init=False)
    _apart_s: float = field(default=APART_S, init=False)
    _newest: Wanted | None = field(default=None, init=False)
    _told: trio.Event = field(factory=trio.Event, init=False)
    _greeted: trio.Event = field(factory=trio.Event, init=False)
    _asked: deque[LogsAsked | ClearAsked] = field(factory=deque, init=False)
    _left: bool = field(default=False, init=False)
    _shown: tuple[ShardSeen, ...] = field(default=(), init=False)  # in the report that is on its way

    def __attrs_post_init__(self) -> None:
        head = {":method": "POST", ":path": LINK, "authorization": f"Bearer {self.credential}"}
        self._h2 = H2Stream.for_client(request(self.server, head))
        self._duplex = Duplex(self.stream, self._heard, self._outgoing, STALL_S)
        self._lines = Lines(self.reporter.frame_max)
        self._tails = Tails(self.engines)
        self._out.append(line(self.hello))

    async def run(self) -> str:
        """Until the link ends; why, in words. Running engines know nothing of it."""
        why = ""
        self._patience.deadline = trio.current_time() + self.silent_s
        async with trio.open_nursery() as tasks:
            tasks.start_soon(self._report_each_period)
            tasks.start_soon(self._obey_the_newest)
            with self._patience:
                why = await self._duplex.run()
            tasks.cancel_scope.cancel(reason="the link has ended")
        if self._patience.cancelled_caught:
            return f"the leader was silent for {self.silent_s:g} s"
        return self.refused.why if self.refused else why

    # -- down -------------------------------------------------------------------------------------------

    def _heard(self, data: bytes) -> None:
        try:
            for happening in self._h2.receive(data):
                match happening:
                    case Head(fields):
                        self._head(fields)
                    case Body(part, size):
                        self._body(part)
                        self._h2.consumed(size)
                    case End(why):
                        self._end(why)
        except (Violation, Malformed) as error:
            self._duplex.cut(f"{self.server} sent {error}")

    def _head(self, fields: Mapping[str, str]) -> None:
        if (status := fields.get(":status")) != "200":
            self._denied, self.not_admitted, self.stands_by = bytearray(), status == "401", status == "421"

    def _body(self, data: bytes) -> None:
        if self._denied is None:
            for text in self._lines.feed(data):
                self._take(read_down(text))
        elif len(self._denied) + len(data) <= DENIED_MAX:
            self._denied += data

    def _end(self, why: str) -> None:
        if self._denied is not None:
            said = denied(self._denied, self.server)
            self.refused, self.denied_by = Refused(str(said), said.leader), said.cluster
        self._duplex.cut(why or "the leader ended the link")

    def _take(self, frame: Down) -> None:
        if self._left:  # what came behind the frame that made us leave
            return
        self._patience.deadline = trio.current_time() + self.silent_s
        match frame:
            case Welcome():
                self._welcome(frame)
            case Wanted():
                self._wanted(frame)
            case LogsAsked() | ClearAsked():
                # Beyond the bound it asks and does not read, and hears nothing of this one.
                if len(self._asked) < ASKS_MAX:
                    self._asked.append(frame)
                    self._duplex.wake()
            case Refused():
                self.refused = frame
                self._leave(frame.why)

    def _welcome(self, frame: Welcome) -> None:
        if frame.cluster != self.hello.cluster:
            self._leave(f"{self.server} leads cluster {frame.cluster or 'none'}, this node is of {self.hello.cluster}")
        elif why := self.terms.why_not(frame.term):
            self._leave(why)
        else:
            self.terms.heard(frame.term)
            self._period_s = max(0.05, frame.period_ms / 1000)
            if not self.welcomed:
                self.welcomed = True
                self._greeted.set()
                self.on_welcome()

    def _wanted(self, frame: Wanted) -> None:
        if not self.welcomed:
            self._leave(f"{self.server} said what it wants before it said who it is")
        elif why := self.terms.why_not(frame.term):
            self._leave(why)
        else:
            self.terms.heard(frame.term)
            self._newest = frame
            self._told.set()

    def _leave(self, why: str) -> None:
        """Nothing of this leader is obeyed any more, not even what it said before."""
        self._left, self._newest = True, None
        self._duplex.cut(why)

    async def _obey_the_newest(self) -> None:
        while True:
            await self._told.wait()
            self._told, wanted = trio.Event(), self._newest
            if wanted is None:
                return
            try:
                # Before anything is done under it; then it is judged again, as time has passed.
                await self.terms.take(wanted.term)
            except OSError as error:
                self._leave(f"term {wanted.term} can't be written down, so it is not obeyed: {error.strerror}")
                return
            if self._left:
                return
            if why := self.terms.why_not(wanted.term):
                self._leave(why)
                return
            self.engines.obey(wanted)
            before, self.reporter.obeys = self.reporter.obeys, Obeys(wanted.term, wanted.rev)
            if self.reporter.obeys != before:
                self._report_soon()

    # -- up ---------------------------------------------------------------------------------------------

    async def _report_each_period(self) -> None:
        await self._greeted.wait()
        while True:
            self._report_soon()
            await trio.sleep(self._apart_s)
            with trio.move_on_after(max(0.0, self._period_s - self._apart_s)):
                await self.engines.changed.wait()

    def _report_soon(self) -> None:
        if self.welcomed:
            self._due = True
            self._duplex.wake()

    def _outgoing(self) -> bytes:
        while self._part or self._next():
            taken = self._h2.write(self._part)
            if not taken:
                break
            self._part = self._part[taken:]
            if not self._part and self._shown:
                self.engines.reported(self._shown)
                self._shown = ()
        return self._h2.outgoing()

    def _next(self) -> bool:
        """Whether there is another line; each is made when its turn comes, so that it is fresh and none waits."""
        if self._out:
            self._part = memoryview(self._out.popleft())
        elif self._due:
            self._due, report = False, self.reporter.report()
            self._shown = report.shards
            self._part = memoryview(self.reporter.line(report))
            self._apart_s = max(APART_S, len(self._part) / REPORTED_PER_S)
            self._out.extend(line(tail) for tail in self._tails.due(trio.current_time()))
        elif self._asked:
            self._part = memoryview(self._answer(self._asked.popleft()))
        return bool(self._part)

    def _answer(self, asked: LogsAsked | ClearAsked) -> bytes:
        try:
            if isinstance(asked, ClearAsked):
                answer = self._cleared(asked)
            else:
                text, age_ms = self.engines.logs(asked.instance, min(asked.bytes, LOGS_MAX))
                answer = Logs(asked.ask, text, age_ms)
        except Exception as error:  # whoever asked is told what went wrong, whatever it was
            answer = Logs(asked.ask, error=str(error) or type(error).__name__)
        return fitting(answer, self.reporter.frame_max)

    def _cleared(self, asked: ClearAsked) -> Logs:
        if self.reporter.gpus.clear(asked.gpu, asked.cause):
            self._report_soon()
            return Logs(asked.ask, f"{asked.cause} of {asked.gpu} is cleared")
        return Logs(asked.ask, error=f"nothing like {asked.cause!r} speaks against a GPU {asked.gpu!r} here")


def fitting(answer: Logs, most: int) -> bytes:
    """A line within the bound, with the end of the text: escapes may make it longer than its text."""
    text = line(answer)
    while len(text) > most and answer.text:
        answer = Logs(answer.ask, answer.text[len(answer.text) // 2 :], answer.age_ms)
        text = line(answer)
    return text
