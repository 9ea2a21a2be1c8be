"""What is wanted: the models that were applied last, revision by revision, and what operators scaled over them."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
from attrs import define, field, frozen

from llmgw.control.nearest import meant
from llmgw.core.engine_spec import OnFull, PlacementRules, Want
from llmgw.core.identity import Declined, Operator
from llmgw.store import audit
from llmgw.store import desired as rows
from llmgw.store.desired import Revision, Scale
from llmgw.store.face import Database, Written

SCALE_MAX = 1000


@frozen
class Difference:
    """What another set of models does. ``restarts``: those whose engines are replaced; the rest only reroutes.

    ``may_stop``: those whose replacements, if some wait for room, stop running replicas first from now on.
    """

    restarts: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()  # one sentence each
    may_stop: tuple[str, ...] = ()


@define(eq=False)
class Desired:
    """Made by ``await Desired.load(store)``. ``wants`` is what reconcile works towards."""

    _store: Written = field(repr=False)
    _wall: Callable[[], float] = field(default=time.time, repr=False)
    revision: int = field(default=0, init=False)
    models: Sequence[Mapping[str, Any]] | None = field(
        default=None, init=False, repr=False
    )  # None: nothing applied yet
    _written: Mapping[str, Want] = field(factory=dict, init=False, repr=False)
    _scales: Mapping[str, Scale] = field(factory=dict, init=False, repr=False)
    on_change: Callable[[], None] = field(default=lambda: None, repr=False)

    @classmethod
    async def load(cls, store: Written, wall: Callable[[], float] = time.time) -> "Desired":
        desired = cls(store, wall)
        await desired.read_again()
        return desired

    async def read_again(self) -> bool:
        """Take up what another process changed; whether there was anything. Raises StoreUnavailable."""
        number = await self._store.read(rows.number)
        news = number != self.revision
        if news:
            latest = await self._store.read(rows.latest)
            if latest is not None:
                self.revision, self.models = latest.revision, latest.models
        scales = {one.model: one for one in await self._store.read(rows.scales)}
        if scales != self._scales:
            self._scales, news = scales, True
        return news

    @property
    def wants(self) -> Mapping[str, Want]:
        """By model; what an operator scaled counts instead of what is written, within its max."""
        return {name: self._scaled(want) for name, want in self._written.items()}

    @property
    def scales(self) -> Mapping[str, Scale]:
        return self._scales

    def take(self, wants: Sequence[Want]) -> None:
        """What the config in force wants; it is in the store already, or about to be."""
        self._written = {want.model: want for want in wants}
        self.on_change()

    def is_in_force(self, models: Sequence[Mapping[str, Any]]) -> bool:
        return self.models is not None and _plain(models) == list(self.models)

    async def record(
        self,
        models: Sequence[Mapping[str, Any]],
        who: str,
        why: str = "",
        source: str = "",
        number: int | None = None,
    ) -> int:
        """These models are in force from now on, as this or the next revision; its number.

        Without a ``number``, models as before are no new revision.
        """
        if number is None and self.is_in_force(models):
            return self.revision
        plain = _plain(models)
        revision = Revision(number or self.revision + 1, self._wall(), who, why, source, plain)

        def change(db: Database) -> None:
            rows.add(db, revision)

        await self._store.write(change)
        self.revision, self.models = revision.revision, plain
        return self.revision

    async def history(self, limit: int = 50) -> list[Revision]:
        return await self._store.read(lambda conn: rows.history(conn, limit))

    async def find(self, revision: int) -> Revision | Declined:
        found = await self._store.read(lambda conn: rows.find(conn, revision))
        if found is not None:
            return found
        return Declined("not_found", f"there is no revision {revision}", "`llmgw ctl history` lists them")

    # -- scaling --------------------------------------------------------------------------------------

    async def scale(self, by: Operator, model: str, replicas: int | None, why: str = "") -> Want | Declined:
        """None: back to what is written."""
        want = self._written.get(model)
        if want is None:
            hint = meant(model, list(self._written)) if self._written else "none has a [models.engine]"
            return Declined("not_found", f"no model {model!r} is run by agents", hint)
        if replicas is not None and not 0 <= replicas <= SCALE_MAX:
            return Declined("field", f"{replicas} is no number of replicas from 0 to {SCALE_MAX}")
        if replicas is not None and want.most > want.least and replicas > want.most:
            hint = "raise replicas.max in the config, or scale to less"
            return Declined("over_max", f"{model} may have {want.most} replicas (replicas.max)", hint)
        before = self._scales.get(model)
        at = self._wall()
        said = None if replicas is None else Scale(model, replicas, at, by.name, why)

        def change(db: Database) -> None:
            if said is None:
                rows.unscale(db, model)
            else:
                rows.scale(db, said)
            was, now = (one.replicas if one else None for one in (before, said))
            audit.note(db, audit.Act(at, by.name, str(by.role), "models.scale", model, why, was, now))

        await self._store.write(change)
        self._scales = {name: one for name, one in self._scales.items() if name != model}
        if said is not None:
            self._scales = {**self._scales, model: said}
        self.on_change()
        return self._scaled(want)

    def _scaled(self, want: Want) -> Want:
        scale = self._scales.get(want.model)
        if scale is None:
            return want
        most = max(want.most, scale.replicas) if want.most == want.least else want.most
        return attrs.evolve(want, scaled=min(scale.replicas, most))


def difference(before: Mapping[str, Want], after: Mapping[str, Want]) -> Difference:
    """What applying ``after`` over ``before`` does to engines."""
    restarts, said, may_stop = [], [], []
    for name in sorted({*before, *after}):
        was, will = before.get(name), after.get(name)
        if was is None and will is not None:
            said.append(f"{name}: {_those(will.replicas, 'start')}")
        elif will is None and was is not None:
            said.append(f"{name}: {_those(was.replicas, 'end')}")
        elif was is not None and will is not None:
            if was.spec.revision != will.spec.revision:
                restarts.append(name)
                what = ", ".join(_differing(was.spec, will.spec))
                said.append(f"{name}: engines are replaced one by one, replacement first ({what})")
            elif was.spec != will.spec:
                said.append(f"{name}: {', '.join(_differing(was.spec, will.spec))} changes, no engine restarts")
            if (was.least, was.most) != (will.least, will.most):
                said.append(f"{name}: replicas {_count(was)} -> {_count(will)}")
            if was.rules != will.rules:
                said += (f"{name}: {one}" for one in _of_rules(was.rules, will.rules))
                if OnFull.STOP_FIRST is will.rules.on_full is not was.rules.on_full:
                    may_stop.append(name)
    return Difference(tuple(restarts), tuple(said), tuple(may_stop))


def _of_rules(was: PlacementRules, will: PlacementRules) -> Iterator[str]:
    if was.on_full != will.on_full:
        stops = will.on_full is OnFull.STOP_FIRST
        then = "stops a running replica first" if stops else "waits, and what runs stays"
        yield f"a replacement that has no room {then}, those that wait now too (on_full)"
    if where := [name for name in _differing(was, will) if name != "on_full"]:
        yield f"where it may run changes ({', '.join(where)})"


def _those(count: int, do: str) -> str:
    return f"{count} replicas {do}" if count > 1 else f"{count or 'no'} replica {do}s"


def scales_that_stay(wants: Iterable[Want], scales: Mapping[str, Scale]) -> Iterator[str]:
    """Whatever is written, a number that an operator gave counts instead."""
    for want in wants:
        if (scale := scales.get(want.model)) is not None:
            name = want.model
            yield f"{name}: scaled to {scale.replicas} by {scale.who}, which stays (`llmgw ctl scale {name} --reset`)"


def _differing(was: Any, will: Any) -> list[str]:
    names = (one.name for one in attrs.fields(type(was)) if getattr(was, one.name) != getattr(will, one.name))
    return [name.removesuffix("_mib").removesuffix("_s") for name in names]


def _count(want: Want) -> str:
    return str(want.least) if want.least == want.most else f"{want.least} to {want.most}"


def _plain(models: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """As the store has them."""
    found: list[dict[str, Any]] = json.loads(json.dumps(list(models), default=str))
    return found
