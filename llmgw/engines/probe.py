"""Is an endpoint there, and how busy is it: one service an endpoint, until the endpoint leaves.

A failed scrape never makes an endpoint unhealthy, and a stale sample is no sample: unknown is not zero.
"""

from collections.abc import Callable
from functools import partial

import trio
from attrs import define, evolve

from llmgw.core.fleet import Engine
from llmgw.engines.client import BrokeOff, DialTimeout, NotHttp, Unreachable
from llmgw.engines.limits import ProbeLimits
from llmgw.engines.live import LiveEndpoint
from llmgw.tasks.streams import Interrupted
from llmgw.wire.answers import failure_text
from llmgw.wire.engine_errors import read_error
from llmgw.wire.engine_metrics import has_metrics, read_metrics

FAILURES = (Unreachable, BrokeOff, NotHttp, DialTimeout, Interrupted)
STALE_AFTER = 4  # periods without a good scrape
_JITTER = 0.1


class ProbeFailed(Exception):
    """Why a probe got no answer; its text is for operators."""


@define(eq=False)
class Probing:
    live: LiveEndpoint
    limits: Callable[[], ProbeLimits]
    draw: Callable[[], float]
    on_change: Callable[[LiveEndpoint], None]
    failed: int = 0
    good: int = 0

    async def fetch(self, path: str) -> tuple[int, bytes]:
        """Status and body within the deadline. Raises ProbeFailed."""
        limits = self.limits()
        with trio.move_on_after(limits.timeout):
            try:
                return await self.live.client.fetch(path, limits.answer_max)
            except FAILURES as error:
                raise ProbeFailed(str(error)) from error
        raise ProbeFailed(f"no answer within {limits.timeout:g} s")

    async def pause(self, seconds: float) -> None:
        """A period, a little shorter or longer, so that probes of many endpoints spread out."""
        await trio.sleep(seconds * (1 + _JITTER * (2 * self.draw() - 1)))

    async def health(self) -> None:
        while not self.live.leaving:
            try:
                status, body = await self.fetch("/health")
                self._judged(200 <= status < 300, _said(status, body))
            except ProbeFailed as why:
                self._judged(False, str(why))
            await self.pause(self.limits().health)

    async def metrics(self) -> None:
        while not self.live.leaving:
            began = trio.current_time()
            ours = self.live.in_flight
            try:
                status, body = await self.fetch("/metrics")
                self._sampled(status, body, began, ours)
            except (ProbeFailed, ValueError) as why:
                self.live.sample_why = str(why)
            self._forget_stale(trio.current_time())
            await self.pause(self.limits().metrics)

    def _judged(self, ok: bool, why: str) -> None:
        live, limits = self.live, self.limits()
        self.good, self.failed = (self.good + 1, 0) if ok else (0, self.failed + 1)
        live.health_at = trio.current_time()
        before = live.healthy
        if ok and (before is not False or self.good >= limits.successes):
            live.healthy = True
        elif not ok and (self.failed >= limits.failures or before is None):
            live.healthy = False
        live.health_why = why
        if live.healthy is not before:
            self.on_change(live)

    def _sampled(self, status: int, body: bytes, at: float, ours: int) -> None:
        live = self.live
        if status != 200:
            live.sample_why = f"/metrics answered {status}"
            return
        sample = evolve(read_metrics(live.endpoint.engine, body, at), ours=ours)
        before = live.sample
        if before and before.process_start and sample.process_start != before.process_start:
            live.breaker.good()  # another process: what its predecessor did is not its fault
        live.sample, live.sample_why = sample, ""

    def _forget_stale(self, now: float) -> None:
        sample = self.live.sample
        if sample is not None and now - sample.at > STALE_AFTER * self.limits().metrics + self.limits().timeout:
            self.live.sample = None


async def probe(
    live: LiveEndpoint,
    limits: Callable[[], ProbeLimits],
    draw: Callable[[], float],
    on_change: Callable[[LiveEndpoint], None],
) -> None:
    """Watch one endpoint until it leaves. A hosted API has neither health route nor metrics: requests tell."""
    if live.endpoint.engine is Engine.OPENAI:
        live.health_why = "a hosted API: its answers tell"
        return
    probing = Probing(live, limits, draw, on_change)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probing.health)
        if has_metrics(live.endpoint.engine):
            nursery.start_soon(partial(probing.metrics))


def _said(status: int, body: bytes) -> str:
    if 200 <= status < 300:
        return "answers"
    words = failure_text(read_error(body).message)
    return f"/health answered {status}" + (f": {words}" if words else "")
