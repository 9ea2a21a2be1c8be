"""Why a drain is where it is: what it waits on, what it has done, and what would end it sooner."""

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import frozen

from llmgw.control.endpoint_targets import PREFIX, EndpointTargets
from llmgw.control.nearest import meant
from llmgw.control.targets import Targets
from llmgw.core.explain import Considered, Explanation, Fact
from llmgw.core.identity import Declined


@frozen
class ExplainingDrains:
    targets: Targets
    endpoints: EndpointTargets

    def drain(self, subject: str) -> Explanation | Declined:
        """``subject``: a node, or ``endpoint/ID``."""
        if subject.startswith(PREFIX):
            return self._of_endpoint(subject.removeprefix(PREFIX))
        there = list(self.targets.cluster.joining.nodes)
        if subject not in there:
            return Declined("not_found", f"no node is called {subject[:128]!r}", meant(subject, there) if there else "")
        record = self.targets.cluster.joining.nodes[subject]
        asked = _asked(record.target, record.target_by, record.target_why)
        status = self.targets.status(subject)
        if status is None:
            return self._not_drained(subject, asked)
        facts = [Fact(asked, self._age_s(record.target_at)), *_facts(status)]
        considered = tuple(self._moves(subject)) if status["left_s"] is not None else ()
        models = dict.fromkeys(move.model for move in self.targets.plan(subject).moves)
        changes = tuple(_changes(subject, status, [f"llmgw ctl explain placement {model}" for model in models]))
        return Explanation(
            f"drain of {subject}", _verdict(status), tuple(facts), considered, changes, _next(subject, status)
        )

    def _of_endpoint(self, id: str) -> Explanation | Declined:
        status, held = self.endpoints.status(id), self.endpoints.held.get(id)
        if status is None or held is None:
            hint = f"llmgw ctl drain {PREFIX}{id[:128]}"
            return Declined("not_found", f"no endpoint {id[:128]!r} is drained", hint)
        facts = [Fact(_asked("drained", held.by, held.why), self._age_s(held.at)), *_facts(status)]
        subject = PREFIX + id
        live = self.endpoints.live.find(id)
        looks = [f"llmgw ctl endpoints --model {live.endpoint.model}"] if live is not None else []
        changes = tuple(_changes(subject, status, looks))
        return Explanation(f"drain of {subject}", _verdict(status), tuple(facts), (), changes, _next(subject, status))

    def _not_drained(self, name: str, asked: str) -> Explanation:
        plan = self.targets.plan(name)
        facts = (Fact(asked), Fact(f"to drain it takes about {plan.estimate_s:.0f} s, without what requests need"))
        dry = f"llmgw ctl drain {name} --dry-run"
        return Explanation(f"drain of {name}", "it is not drained", facts, tuple(self._moves(name)), (), dry)

    def _moves(self, name: str) -> Iterator[Considered]:
        """Where each replica goes, from the function that the drain uses, or its successor has gone already."""
        successors = {
            now.replica.replaces: now
            for now in self.targets.cluster.observe().replicas.values()
            if now.replica.replaces and now.shards
        }
        for move in self.targets.plan(name).moves:
            to, why = move.to, move.why
            if (now := successors.get(move.replica)) is not None:
                to = tuple(dict.fromkeys(shard.node for shard in now.shards))
                why = f"{now.name} is {now.standing} there"
            where = f" -> {', '.join(to)}" if to else ""
            yield Considered(f"{move.replica}{where}", bool(to), (why, str(move.requests)))

    def _age_s(self, at: float | None) -> float | None:
        return None if at is None else max(0.0, self.targets.cluster.wall() - at)


def _asked(target: str, by: str, why: str) -> str:
    return f"it is to be {target}" + (f", says {by}" if by else "") + (f": {why}" if why else "")


def _verdict(status: dict[str, Any]) -> str:
    if status["left_s"] is None:
        return str(status["state"])
    left = f"{status['left_s']:.0f} s of its {status['grace_s']:.0f} s left"
    ends = "stopped" if status["at_deadline"] == "stop" else "kept"
    return f"{status['state']}, {left}, then what is still there is {ends}"


def _facts(status: dict[str, Any]) -> Iterator[Fact]:
    if status["said"]:
        yield Fact(status["said"])
    yield from (Fact(one) for one in status["waits_on"])
    if status["replaced"]:
        yield Fact(f"replaced elsewhere: {', '.join(status['replaced'])}")
    if status["cut"]:
        yield Fact(f"{status['cut']} requests were there at the deadline")


def _changes(subject: str, status: dict[str, Any], looks: Sequence[str]) -> Iterator[str]:
    """``looks``: commands that tell what is in the way."""
    if status["left_s"] is None:
        yield f"llmgw ctl uncordon {subject} brings it back into service"
        return
    if status["state"] == "blocked":
        needs = "another endpoint that serves" if subject.startswith(PREFIX) else "room elsewhere"
        yield f"{needs}: {', '.join(looks)} tells what is in the way" if looks else needs
    yield f"llmgw ctl uncordon {subject} undoes it"
    yield f"llmgw ctl drain {subject} --grace 1m sets another end"


def _next(subject: str, status: dict[str, Any]) -> str:
    return f"llmgw ctl drain {subject} --watch" if status["left_s"] is not None else f"llmgw ctl uncordon {subject}"
