"""Does each replica answer? The leader asks: before it joins the pool, while it is idle, and when nothing gets on.

What is proved of an incarnation is kept in ``Cluster.proofs``; the plan judges by it.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

import attrs
import trio
from attrs import define, field

from llmgw.control.cluster import QUIET_SAMPLES, Cluster
from llmgw.control.publishing import endpoint_of
from llmgw.core.fleet import Endpoint
from llmgw.core.node_life import NodeNow
from llmgw.core.replicas import NO_PROOF, Phase, Proof, ReplicaLimits, ReplicaNow, Standing
from llmgw.core.shards import ShardState
from llmgw.engines.client import EngineClient
from llmgw.engines.limits import ProbeLimits
from llmgw.engines.proof import FAILURES, Prover
from llmgw.wire.engine_metrics import has_metrics, read_metrics

EVERY_S = 0.25
AT_ONCE = 32  # tries under way
HAS_NONE = frozenset({401, 403, 404, 405, 501})  # no metrics for us, now or later
OVERSLEPT_S = 0.5  # woken this much too late, a try says more about us than about the engine
METRICS_S = 1.0  # between two looks at what a leaving engine still holds


@define(eq=False)
class Proving:
    cluster: Cluster
    secret: str = field(repr=False)
    make_client: Callable[[Endpoint], EngineClient]
    probe: Callable[[], ProbeLimits]
    report: Callable[[str, BaseException], None]
    tries: int = field(default=0, init=False)  # for metrics
    failed: int = field(default=0, init=False)
    _provers: dict[str, Prover] = field(factory=dict, init=False, repr=False)
    _under_way: set[str] = field(factory=set, init=False)
    _looked: dict[str, float] = field(factory=dict, init=False)

    async def run(self) -> NoReturn:
        """Service."""
        async with trio.open_nursery() as tries:
            while True:
                self.look(tries)
                due = trio.current_time() + EVERY_S
                await trio.sleep_until(due)
                self.cluster.was_due(due)

    def look(self, tries: trio.Nursery) -> None:
        """Begin every try that is due."""
        seen, now = self.cluster.observe(), trio.current_time()
        self._forget()
        for replica in seen.replicas.values():
            id = replica.replica.endpoint_id
            if id in self._under_way or len(self._under_way) >= AT_ONCE:
                continue
            prover = self._prover(replica, seen.nodes)
            if prover is None:
                continue
            if replica.replica.phase is Phase.LEAVING:
                if now - self._looked.get(id, 0.0) >= METRICS_S:
                    self._begin(tries, id, self._look_at_leaving, prover)
            elif self._is_due(replica, now):
                self._begin(tries, id, self._try, prover)

    def _begin(self, tries: trio.Nursery, id: str, what: Any, prover: Prover) -> None:
        self._under_way.add(id)
        self._looked[id] = trio.current_time()
        tries.start_soon(self._safely, id, what, prover)

    async def _safely(self, id: str, what: Any, prover: Prover) -> None:
        try:
            await what(id, prover)
        except* Exception as errors:
            self.report(f"asking {id} failed", errors)
        finally:
            self._under_way.discard(id)

    # -- when -----------------------------------------------------------------------------------------

    def _is_due(self, replica: ReplicaNow, now: float) -> bool:
        """Not yet proved: as often as health is asked while it starts. Proved: idle, or standing still."""
        if replica.replica.phase is not Phase.WANTED or not _runs(replica):
            return False
        proof = self._proof(replica)
        limits, probe = self.cluster.limits(), self.probe()
        tried = now - proof.tried_at if proof.tried_at is not None else 1e9
        if proof.proved_at is None:
            return tried >= min(0.5, probe.health)
        if proof.failures:
            return tried >= min(probe.canary, probe.health)
        return tried >= probe.canary and self._idle_or_still(replica, limits, now, tried)

    def _idle_or_still(self, replica: ReplicaNow, limits: ReplicaLimits, now: float, tried: float) -> bool:
        live = self.cluster.endpoint(replica.replica.endpoint_id)
        if live is None:
            return True
        still = min(live.stands_still_s(now), now - self.cluster.woke_at)  # who slept saw no token
        if still > limits.stuck_after:
            self._stuck(replica.replica.endpoint_id, still)
            return True
        return still == 0.0 and live.in_flight == 0

    def _stuck(self, id: str, still: float) -> None:
        """Requests are there and no token comes: out of the pool at once; canaries say how it goes on."""
        least = self.cluster.limits().canary_failures
        proof = self.cluster.proofs[id]
        if proof.failures < least:
            why = f"no token for {still:.0f} s while requests are there"
            self._note(id, attrs.evolve(proof, failures=least, why=why))

    # -- what -----------------------------------------------------------------------------------------

    async def _try(self, id: str, prover: Prover) -> None:
        proof = self.cluster.proofs.get(id, NO_PROOF)
        self.tries += 1
        why: str | None = ""
        if proof.proved_at is None:
            why = await self._asked(prover.healthy, self.probe().timeout)
            if prover.well and proof.healthy_at is None:
                proof = attrs.evolve(proof, healthy_at=trio.current_time())
                self._note(id, proof)
        if not why and why is not None:
            why = await self._asked(prover.answers, self.probe().canary_within)
        now = trio.current_time()
        if why is None:
            self._note(id, attrs.evolve(self.cluster.proofs.get(id, proof), tried_at=now))
            return
        if not why:
            live = self.cluster.endpoint(id)
            if live is not None:
                live.progress_at = now
            if proof.proved_at is None:
                self._note_start(id)
            # Out of the pool and back: it has served since now, not since it came up.
            out = proof.failures >= self.cluster.limits().canary_failures
            proved = now if proof.proved_at is None or out else proof.proved_at
            self._note(id, Proof(proved, 0, "", now, proof.healthy_at))
        elif proof.proved_at is None:
            self._note(id, attrs.evolve(proof, why=why, tried_at=now))
        else:
            self.failed += 1
            failures = self.cluster.proofs.get(id, proof).failures + 1
            self._note(id, attrs.evolve(proof, failures=failures, why=why, tried_at=now))

    async def _asked(self, question: Callable[[float], Awaitable[str]], within_s: float) -> str | None:
        """Its answer; None: this process was not awake when that was due, and knows nothing."""
        due = trio.current_time() + within_s
        why = await question(within_s)
        return None if why and trio.current_time() - due > OVERSLEPT_S else why

    def _note(self, id: str, proof: Proof) -> None:
        before = self.cluster.proofs.get(id, NO_PROOF)
        if not any(row.endpoint_id == id for row in self.cluster.rows.values()):
            return
        self.cluster.proofs[id] = proof
        if (before.proved_at is None) != (proof.proved_at is None) or before.failures != proof.failures:
            self.cluster.wake()

    def _note_start(self, id: str) -> None:
        """How long it took to come up; one that was adopted did not come up now."""
        row = next((row for row in self.cluster.rows.values() if row.endpoint_id == id), None)
        if row is not None and row.since >= self.cluster.began_wall:
            self.cluster.counts.answered(row.model, max(0.0, self.cluster.wall() - row.since))

    async def _look_at_leaving(self, id: str, prover: Prover) -> None:
        """Others may have sent requests there too: its own metrics say when it holds nothing."""
        engine = prover.client.endpoint.engine
        if not has_metrics(engine):
            return
        quiet, held = 0, None
        with trio.move_on_after(self.probe().timeout):
            try:
                status, body = await prover.client.fetch("/metrics", self.probe().answer_max)
                sample = read_metrics(engine, body, trio.current_time())
            except (*FAILURES, ValueError):
                status, sample = 0, None  # unknown is not idle
            if status in HAS_NONE:
                quiet = QUIET_SAMPLES
            elif status and sample is not None:
                held = (sample.running or 0) + (sample.waiting or 0)
                quiet = 0 if held else self.cluster.quiet.get(id, 0) + 1
        self.cluster.quiet[id] = quiet
        if held is None:
            self.cluster.held.pop(id, None)
        else:
            self.cluster.held[id] = held
        self.cluster.wake()

    # -- whom -----------------------------------------------------------------------------------------

    def _proof(self, replica: ReplicaNow) -> Proof:
        return self.cluster.proofs.get(replica.replica.endpoint_id, NO_PROOF)

    def _prover(self, replica: ReplicaNow, nodes: Mapping[str, NodeNow]) -> Prover | None:
        """It asks where the engine is now: where it was, by its row, is believed only until its node says otherwise."""
        row, known = replica.replica, self._provers.get(replica.replica.endpoint_id)
        where = self.cluster.address(replica, nodes)
        if where is None or row.phase not in (Phase.WANTED, Phase.LEAVING):
            return known
        endpoint = endpoint_of(row, where, self.secret, row.spec)
        if known is not None:
            if known.client.endpoint.url == endpoint.url:
                return known
            known.client.close()
        client = self.make_client(endpoint)
        prover = self._provers[row.endpoint_id] = Prover(client)
        return prover

    def _forget(self) -> None:
        there = {row.endpoint_id for row in self.cluster.rows.values()}
        for id in [id for id in self._provers if id not in there]:
            self._provers.pop(id).client.close()
            self._looked.pop(id, None)


def _runs(replica: ReplicaNow) -> bool:
    """Each of its shards has a process, as far as is known."""
    if replica.standing in (Standing.UNKNOWN, Standing.GONE):
        return True
    return bool(replica.shards) and all(shard.state is ShardState.LOADING for shard in replica.shards)
