"""Why a drain is where it is: what it waits on, what it has done, and what would end it sooner."""

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import frozen

from llmgw.control.endpoint_targets import PREFIX, EndpointTargets
from llmgw.control.nearest import meant
from llmgw.control.targets import Targets
from llmgw.core.drain import Target
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
        models = dict.fromkeys(move.model for move in self.targets.moves(subject))
        changes = tuple(_changes(subject, status, [f"llmgw ctl explain placement {model}" for model in models]))
        return Explanation(
            f"drain of {subject}", _verdict(status), tuple(facts), considered, changes, _next(subject, status)
        )

    def _of_endpoint(self, id: str) -> Explanation | Declined:
        status, held, subject = self.endpoints.status(id), self.endpoints.held.get(id), PREFIX + id
        if status is None or held is None:
            return self.endpoints.declined(id, Target.DRAINED) or self._endpoint_not_drained(id)
        facts = [Fact(_asked("drained", held.by, held.why), self._age_s(held.at)), *_facts(status)]
        live = self.endpoints.live.find(id)
        looks = [f"llmgw ctl endpoints --model {live.endpoint.model}"] if live is not None else []
        changes = tuple(_changes(subject, status, looks, serves=not held.out))
        return Explanation(f"drain of {subject}", _verdict(status), tuple(facts), (), changes, _next(subject, status))

    def _endpoint_not_drained(self, id: str) -> Explanation:
        move, subject = self.endpoints.move(id), PREFIX + id
        then = "it would serve on until another does" if move.blocked else "it would get no new request at once"
        facts = (Fact(f"{move.why}: {then}"), Fact(f"it has {move.requests}"))
        return Explanation(
            f"drain of {subject}", "it is not drained", facts, (), (), f"llmgw ctl drain {subject} --dry-run"
        )

    def _not_drained(self, name: str, asked: str) -> Explanation:
        plan, facts = self.targets.plan(name), [Fact(asked)]
        blocked = sum(move.blocked for move in plan.moves)
        if not plan.moves:
            facts.append(Fact("no replica is on it"))
        if plan.planned:
            facts.append(Fact(f"to drain it takes about {plan.estimate_s:.0f} s, without what requests need"))
        if blocked:
            facts.append(Fact(f"{blocked} of {len(plan.moves)} replicas on it can go nowhere now, and would serve on"))
        dry = f"llmgw ctl drain {name} --dry-run"
        return Explanation(f"drain of {name}", "it is not drained", tuple(facts), tuple(self._moves(name)), (), dry)

    def _moves(self, name: str) -> Iterator[Considered]:
        for move in self.targets.moves(name):
            where = f" -> {', '.join(move.to)}" if move.to else ""
            yield Considered(f"{move.replica}{where}", bool(move.to), (move.why, str(move.requests)))

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


def _changes(subject: str, status: dict[str, Any], looks: Sequence[str], serves: bool = False) -> Iterator[str]:
    """``looks``: commands that tell what is in the way; ``serves``: it gets requests as before."""
    ended, is_endpoint = status["left_s"] is None, subject.startswith(PREFIX)
    if status["state"] == "blocked" and not (is_endpoint and not serves):
        needs = "another endpoint that serves" if is_endpoint else "room elsewhere"
        needs += f", and `llmgw ctl drain {subject}` begins anew" if ended else ""
        yield f"{needs}: {', '.join(looks)} tells what is in the way" if looks else needs
    elif status["state"] == "blocked" and ended:
        yield f"llmgw ctl drain {subject} begins anew"
    if not ended:
        yield f"llmgw ctl uncordon {subject} undoes it"
        yield f"llmgw ctl drain {subject} --grace 1m sets another end"
    elif serves:
        yield f"llmgw ctl uncordon {subject} forgets the drain; it serves as it is"
    else:
        yield f"llmgw ctl uncordon {subject} brings it back into service"


def _next(subject: str, status: dict[str, Any]) -> str:
    if status["left_s"] is not None:
        return f"llmgw ctl drain {subject} --watch"
    return f"llmgw ctl drain {subject} --dry-run" if status["state"] == "blocked" else f"llmgw ctl uncordon {subject}"
