"""What may happen to a cluster in simulated time, and what no pass may do about it."""

from pathlib import Path
from types import SimpleNamespace

import attrs
import trio

from llmgw.core.actions import Leave, Plan, Renew, Start, Stop
from llmgw.core.drain import AtDeadline, DrainLimits, Target
from llmgw.core.engine_spec import OnFull
from llmgw.core.gpus import Evidence, Severity
from llmgw.core.replicas import Phase, ReplicaLimits, Standing
from llmgw.engines.limits import ProbeLimits
from llmgw.nodes.limits import ClusterLimits
from tests.control.little_cluster import ANN, SPEC
from tests.control.little_nodes import Manner

SPECS = {
    "own": SPEC,
    "shared": attrs.evolve(SPEC, gpu_memory_mib=8_000, exclusive=False),
    "pair": attrs.evolve(SPEC, shards=2),
}
LIMITS = ReplicaLimits(
    healthy_min=4, restart_backoff=0.5, restart_backoff_max=8, leave_within=30, start_within=30, restarts_per_hour=1000
)
TIMES = ClusterLimits(node_grace=15, obey_within=5)
PROBING = ProbeLimits(canary=4, canary_within=2)
MANNERS = {
    "own": Manner(health_after_s=1, ready_after_s=2),
    "shared": Manner(starts_s=1.5, releases_s=1.5),
    "pair": Manner(ready_after_s=1),
}
DRAINS = DrainLimits(surges_max=2)
MEMORY = Path("/dev/shm")  # a store that need not outlive the machine
EXCLUDED = (Evidence("xid 79", Severity.EXCLUDED, "fell off the bus", 1, 1, "a reboot"),)


async def happen(little, on_full, what, model, n):
    node = little.nodes.get(f"node-{n}")
    ids = sorted(id for one in little.nodes.values() for id in one.running())
    old = little.wants.get(model)
    if what == "scale":
        little.want(attrs.evolve(old, least=n, most=n))
    elif what == "spec":
        little.want(attrs.evolve(old, spec=attrs.evolve(SPECS[model], args=(f"--v{n}",))))
    elif what == "restart":
        await little.acting().restart(ANN, model)
    elif what == "move":
        names = sorted(name for name, now in little.now.items() if now.replica.model == model)
        if names:
            await little.acting().move(ANN, names[n % len(names)])
    elif what == "drain":
        ending = AtDeadline.KEEP if model == "pair" else AtDeadline.STOP
        await little.there.targets.aim(ANN, node.name, Target.DRAINED, "fans", 60.0, ending)
    elif what == "cordon":
        await little.there.targets.aim(ANN, node.name, Target.CORDONED, "fans")
    elif what == "uncordon":
        await little.there.targets.aim(ANN, node.name, Target.SCHEDULABLE)
    elif what in ("kill", "wedge") and ids:
        id = ids[n % len(ids)]
        shard = next(one.shards[id] for one in little.nodes.values() if id in one.shards)
        if what == "kill":
            shard.kill()
        elif shard.served is not None:
            shard.wedge()
    elif what == "cut":
        node.cut = True
    elif what == "deaf":
        node.deaf = True
    elif what == "well":
        node.cut = node.deaf = False
    elif what == "give up":
        await little.there.joining.give_up(ANN, node.name)
        little.there.cluster.wake()
    elif what == "exclude":
        node.gpus = tuple(attrs.evolve(card, evidence=() if card.evidence else EXCLUDED) for card in node.gpus)
    elif what == "busy":
        for live in little.there.cluster.live:
            if live.endpoint.model == model:
                live.in_flight = n
    elif what == "leader":
        await little.leader_dies()
        await trio.sleep(0.7)
        await little.lead()
        look_at_plans(little)
    elif what == "store":
        little.store_goes_away()
        await trio.sleep(n)
        little.store_comes_back()
    else:
        await trio.sleep(n)


async def all_well(little):
    for node in little.nodes.values():
        node.cut = node.deaf = False
        node.gpus = tuple(attrs.evolve(card, evidence=()) for card in node.gpus)
    for live in little.there.cluster.live:
        live.in_flight = 0


def as_wanted(little, roomy):
    rows = little.there.cluster.rows.values()
    for name, wish in little.wants.items():
        its = [row for row in rows if row.model == name]
        full = [row for row in its if "no node fits" in row.why and not roomy]
        if len(little.serving(name)) + len(full) < wish.replicas:
            return False
        if roomy and (len(its) != wish.replicas or any(row.revision != wish.spec.revision for row in its)):
            return False
    wanted = {id for row in rows for id in row.instances}
    return set(little.running()) <= wanted and (not roomy or set(little.running()) == wanted)


def look_at_plans(little):
    """What no plan may do, however the world stands."""
    cluster, apply = little.there.cluster, little.there.passes.applying.apply
    little.there.passes.drains = lambda: DRAINS

    async def looked_at(made: Plan, more=()):
        seen = cluster.observe()

        def told(what):
            return f"{what}: {made}\n{little.story()}"

        for model, wish in little.wants.items():
            its = [now for now in seen.replicas.values() if now.replica.model == model]
            acts = {action.replica: action for action in made.actions if hasattr(action, "replica")}
            live = sum(now.live for now in its)
            starts = [now for now in its if isinstance(acts.get(now.name), Start)]
            assert not starts or live + len(starts) <= wish.replicas + 1, told(f"{model} has {live} live")
            serving = [now.name for now in its if now.serving]
            makes_room = wish.rules.on_full is OnFull.STOP_FIRST and any("no node fits" in now.why for now in its)
            overdue = {now.name for now in its if now.overdue}  # its drain is over
            planned = [name for name in serving if name not in overdue and not makes_room]
            ended = [name for name in planned if takes_away(acts.get(name))]
            left = len(serving) - len(ended)
            assert left >= min(wish.replicas, len(serving)), told(f"{model} has {serving}")
        before = len(for_drains(seen))
        await apply(made, more)
        assert len(for_drains(cluster.observe())) <= max(before, DRAINS.surges_max), told("too many start for drains")
        rows = cluster.rows.values()
        at = [(id, place.node) for row in rows for id, place in zip(row.instances, row.shards, strict=True)]
        assert len({id for id, _ in at}) == len(at)
        generations = [row.generation for row in rows if row.generation]
        assert len(generations) == len(set(generations))

    little.there.passes.applying = SimpleNamespace(apply=looked_at)


def for_drains(seen):
    """Replacements that start beside what serves, for a drain or a sick GPU."""
    old = {name for name, now in seen.replicas.items() if now.standing is not Standing.GONE}
    starts = [now for now in seen.replicas.values() if now.replica.phase is Phase.WANTED and not now.serving]
    return [now for now in starts if now.replica.replaces_for in ("drain", "gpu") and now.replica.replaces in old]


def takes_away(action):
    if isinstance(action, Leave):
        # As policy has it; or its drain is all but over, and it can go nowhere.
        return "fits nowhere beside it" not in action.why and not action.why.startswith("last call")
    return isinstance(action, Stop) or (isinstance(action, Renew) and action.restart)
