"""Is an endpoint there, and how busy is it: one service an endpoint, until the endpoint leaves.

What came too late because this process was not awake is no evidence against an endpoint.
A failed scrape never makes an endpoint unhealthy, and a stale sample is no sample: unknown is not zero.
"""

from collections.abc import Callable

import trio
from attrs import define, evolve

from llmgw.core.fleet import Engine
from llmgw.core.saturation import Sample
from llmgw.engines.client import BrokeOff, DialTimeout, NotHttp, Unreachable
from llmgw.engines.limits import ProbeLimits
from llmgw.engines.live import LiveEndpoint
from llmgw.tasks.streams import Interrupted
from llmgw.wire.engine_errors import read_error
from llmgw.wire.engine_metrics import has_metrics, read_metrics

FAILURES = (Unreachable, BrokeOff, NotHttp, DialTimeout, Interrupted)
# It has no metrics for us, now or later: no key for them, not served, switched off (llama.cpp without --metrics).
_REFUSED = frozenset({401, 403, 404, 405, 501})
_JITTER = 0.1
_FIRST_PAUSE = 0.1  # until something is known; a gateway that starts should not say ready for dead engines
_WORDS_MAX = 200
_OVERSLEPT_S = 0.5  # woken this much too late, a probe says more about us than about the endpoint


class ProbeFailed(Exception):
    """Why a probe got no answer; its text is for operators."""


class Overslept(ProbeFailed):
    """This process was not awake when the answer was due."""


@define(eq=False)
class Probing:
    live: LiveEndpoint
    limits: Callable[[], ProbeLimits]
    draw: Callable[[], float]
    on_change: Callable[[LiveEndpoint], None]
    failed: int = 0  # health checks in a row
    good: int = 0
    missed: int = 0  # scrapes in a row without a sample
    sampled: bool = False  # its metrics once said something
    process_start: float | None = None  # outlives the sample: a restart takes longer than a sample stays fresh

    async def fetch(self, path: str) -> tuple[int, bytes]:
        """Status and body within the deadline. Raises ProbeFailed."""
        limits = self.limits()
        due = trio.current_time() + limits.timeout
        with trio.move_on_at(due):
            try:
                return await self.live.client.fetch(path, limits.answer_max)
            except FAILURES as error:
                raise ProbeFailed(str(error) or type(error).__name__) from error
        late = trio.current_time() - due
        if late > _OVERSLEPT_S:
            raise Overslept(f"no answer, but this gateway was not awake for {late:.1f} s")
        raise ProbeFailed(f"no answer within {limits.timeout:g} s")

    async def pause(self, seconds: float) -> None:
        """A period, a little shorter or longer, so that probes of many endpoints spread out."""
        await trio.sleep(seconds * (1 + _JITTER * (2 * self.draw() - 1)))

    async def health(self) -> None:
        while not self.live.leaving:
            try:
                status, body = await self.fetch("/health")
                ok, why = 200 <= status < 300, _said(status, body)
            except Overslept:
                continue
            except ProbeFailed as error:
                ok, why = False, str(error)
            if self.live.leaving:
                return
            self._judged(ok, why)
            period = self.limits().health
            await self.pause(period if self.live.healthy is not None else min(period, _FIRST_PAUSE))

    async def metrics(self) -> None:
        while not self.live.leaving:
            began, ours = trio.current_time(), self.live.in_flight
            try:
                status, body = await self.fetch("/metrics")
                self._sampled(status, body, began, ours)
                self.live.on_news(self.live)
            except Overslept:
                continue
            except (ProbeFailed, ValueError) as why:
                self._unsampled(str(why))
            await self.pause(self.limits().metrics)

    async def forget_stale(self) -> None:
        """On its own, since a scrape that hangs would keep the old sample alive."""
        live = self.live
        while not live.leaving:
            life = live.sample_stale
            due = (live.sample.at if live.sample is not None else trio.current_time()) + life
            await trio.sleep_until(due)
            now = trio.current_time()
            if live.sample is not None and now >= live.sample.at + life:  # as the sleep above reckons it
                why = live.sample_why or "the scrape under way does not end"
                live.sample, live.sample_why = None, f"the last sample is older than {life:g} s: {why}"
                live.silent = self.sampled and now - due <= _OVERSLEPT_S
                live.on_news(live)

    def _judged(self, ok: bool, why: str) -> None:
        live, limits = self.live, self.limits()
        self.good, self.failed = (self.good + 1, 0) if ok else (0, self.failed + 1)
        before = live.healthy
        if ok and (before is not False or self.good >= limits.successes):
            live.healthy = True
        elif not ok and self.failed >= limits.failures:
            live.healthy = False
        live.health_at, live.health_why = trio.current_time(), why
        if live.healthy is not before:
            self.on_change(live)
            live.on_news(live)

    def _sampled(self, status: int, body: bytes, at: float, ours: int) -> None:
        live = self.live
        if status in _REFUSED:
            live.sample, live.sample_why = None, f"/metrics {_answered(status, body)}"
            live.silent = self.sampled = False
            return
        if status != 200:
            self._unsampled(f"/metrics {_answered(status, body)}")
            return
        sample = evolve(read_metrics(live.endpoint.engine, body, at), ours=ours)
        self._same_process(sample.process_start)
        live.sample, live.sample_why = sample, _unsaid(sample)
        live.silent, self.missed, self.sampled = False, 0, not live.sample_why

    def _unsampled(self, why: str) -> None:
        """One that had metrics and answers none of several scrapes counts as full; one that never had is unknown."""
        self.missed += 1
        self.live.sample_why = why
        if self.live.sample is None and self.sampled and self.missed * self.limits().metrics >= self.live.sample_stale:
            self.live.silent = True

    def _same_process(self, start: float | None) -> None:
        if start is None:
            return
        if self.process_start is not None and start != self.process_start:
            self.live.restarted()
        self.process_start = start


async def probe(
    live: LiveEndpoint,
    limits: Callable[[], ProbeLimits],
    draw: Callable[[], float],
    on_change: Callable[[LiveEndpoint], None],
) -> None:
    """Watch one endpoint until it leaves. A hosted API has neither health route nor metrics: requests tell."""
    if live.endpoint.engine is Engine.OPENAI:
        live.health_why = live.sample_why = "a hosted API: its answers tell"
        return
    probing = Probing(live, limits, draw, on_change)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probing.health)
        if has_metrics(live.endpoint.engine):
            nursery.start_soon(probing.metrics)
            nursery.start_soon(probing.forget_stale)


def _said(status: int, body: bytes) -> str:
    return "answers" if 200 <= status < 300 else f"/health {_answered(status, body)}"


def _answered(status: int, body: bytes) -> str:
    words = read_error(body).message[:_WORDS_MAX]
    return f"answered {status}: {words}" if words else f"answered {status}"


def _unsaid(sample: Sample) -> str:
    nothing = sample.running is None and sample.waiting is None and sample.kv is None
    return "/metrics answers, but says nothing of the load" if nothing else ""
