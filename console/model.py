"""What the console knows: one snapshot, what happened since, and what is measured live. Pure; time is an argument.

What is shown does not depend on the order in which things arrive. A snapshot counts if no newer one is known. An event
counts once, from its number on, and what it says of a node or a replica holds until a snapshot has it. A gap, or more
events than are kept, asks for another snapshot (``outdated``) and changes nothing by itself.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, evolve, field, frozen

from console.patches import patched
from console.traffic import Rates, Traffic

EVENTS_MAX = 5_000
HISTORY_MAX = 120  # samples of each pool's saturation
DOUBT_S = 3.0  # without any answer, where one is asked for each second
LIVE = ("pools", "queues", "traffic", "running", "recent", "latest")

Json = Mapping[str, Any]


@frozen
class Link:
    """``url``: who answers; ``down_since``, on the console's clock: since when what is shown is stale, and ``why``.

    ``heard_at``: when the last answer came; before the first, when one was first asked for, of ``asked``.
    """

    url: str = ""
    down_since: float | None = None
    why: str = ""
    heard_at: float | None = None
    asked: str = ""

    def silent_s(self, now: float) -> float | None:
        """For how long nobody has answered; None: not for so long that anything is to be doubted."""
        silent = 0.0 if self.heard_at is None else now - self.heard_at
        return silent if silent >= DOUBT_S else None

    def unanswered_s(self, now: float) -> float | None:
        """The same, and also while it is known that nobody answers."""
        return self.silent_s(now) if self.down_since is None else now - self.down_since


@frozen
class Picture:
    """Everything that screens show, by name as the management API calls it. Empty until the first snapshot."""

    seq: int = 0
    term: tuple[int, ...] = ()
    taken_at: float | None = None  # on the console's clock
    age_s: float | None = None  # of a standby's answer
    you: Json = field(factory=dict)
    status: Json = field(factory=dict)
    leader: Json = field(factory=dict)
    hold: str = ""  # why the leader doubts itself, and stops nothing
    nodes: Mapping[str, Json] = field(factory=dict)
    replicas: Mapping[str, Json] = field(factory=dict)
    models: Mapping[str, Json] = field(factory=dict)
    drains: Mapping[str, Json] = field(factory=dict)
    pools: Mapping[str, Json] = field(factory=dict)  # by model
    seats: Sequence[Json] = ()  # of the bands, over all pools
    queues: Sequence[Json] = ()  # by pool and band
    running: Sequence[Json] = ()
    recent: Sequence[Json] = ()  # slow or failed
    latest: Sequence[Json] = ()  # of all that have ended
    rates: Rates = field(factory=Rates)
    histories: Mapping[str, Sequence[float]] = field(factory=dict)  # of the pools' saturation, the newest last
    events: Sequence[Json] = ()  # the oldest first
    unmeasured: Mapping[str, tuple[float, str]] = field(factory=dict)  # of LIVE: since when, and why
    missed: int = 0  # events that nobody remembers any more, at most so many
    link: Link = field(factory=Link)

    @property
    def known(self) -> bool:
        return self.taken_at is not None

    @property
    def role(self) -> str:
        return str(self.you.get("role", "viewer"))


@define(eq=False)
class Model:
    """``outdated``: another snapshot is wanted."""

    outdated: bool = field(default=True, init=False)
    version: int = field(default=0, init=False)  # grows with everything that changes the picture
    _base: Picture = field(factory=Picture, init=False)
    _numbers: list[int] = field(factory=list, init=False)
    _events: dict[int, Json] = field(factory=dict, init=False)
    _forgotten: int = field(default=0, init=False)  # events up to this one are not kept any more
    _shown: Picture | None = field(default=None, init=False)
    _traffic: Traffic = field(factory=Traffic, init=False)
    _histories: dict[str, deque[float]] = field(factory=dict, init=False)

    @property
    def picture(self) -> Picture:
        if self._shown is None:
            after = [self._events[seq] for seq in self._numbers[bisect_left(self._numbers, self._base.seq + 1) :]]
            nodes, replicas = patched(self._base.nodes, self._base.replicas, after)
            events = tuple(self._events[seq] for seq in self._numbers)
            self._shown = evolve(self._base, nodes=nodes, replicas=replicas, events=events)
        return self._shown

    # -- the cluster -------------------------------------------------------------------------------------

    def take_snapshot(self, said: Json, now: float, age_s: float | None = None) -> bool:
        """``GET /snapshot``; whether it counts: one that is older than what is known does not.

        ``age_s``: a standby's, which counts where its leader has told nothing, however new it is.
        """
        term, seq = term_of(str(said["status"].get("term", ""))), int(said["seq"])
        base = self._base
        if base.known and ((term, seq) < (base.term, base.seq) or _is_worse(base, term, age_s)):
            return False
        if seq < base.seq:
            self._begin_again(seq)
        self._base = evolve(
            base,
            seq=seq,
            term=term,
            taken_at=now,
            age_s=age_s,
            you=_object(said["you"]),
            status=_object(said["status"]),
            leader=_object(said["leader"]),
            nodes=by_name(said["nodes"]),
            replicas=by_name(said["replicas"]),
            models=by_name(said["models"]),
            drains=by_name(said["drains"], "subject"),
            hold=str(said["hold"]),
        )
        self.outdated = bool(self._numbers) and self._numbers[-1] > seq
        self._changed()
        return True

    def take_event(self, event: Json) -> None:
        """Of the feed or of ``GET /events``, in any order and as often as it comes."""
        seq = int(event["seq"])
        if seq in self._events or seq <= self._forgotten:
            return
        insort(self._numbers, seq)
        self._events[seq] = event
        while len(self._numbers) > EVENTS_MAX:
            self._forgotten = self._numbers.pop(0)
            del self._events[self._forgotten]
        self.outdated = self.outdated or seq > self._base.seq
        self._changed()

    def take_missed(self, count: int) -> None:
        """So many events are not remembered any more where they were told."""
        self._base = evolve(self._base, missed=self._base.missed + count)
        self.outdated = True
        self._changed()

    def _begin_again(self, seq: int) -> None:
        """A leader on a store that was put back tells other events under numbers that we have seen."""
        for number in self._numbers[bisect_left(self._numbers, seq + 1) :]:
            del self._events[number]
        del self._numbers[bisect_left(self._numbers, seq + 1) :]
        self._forgotten = min(self._forgotten, seq)

    # -- what is measured --------------------------------------------------------------------------------

    def take_live(self, name: str, said: Json, now: float) -> None:
        """``name``: of LIVE."""
        match name:
            case "pools":
                self._take_pools(said["pools"])
            case "queues":
                self._base = evolve(self._base, seats=_rows(said["bands"]), queues=_rows(said["queues"]))
            case "traffic":
                self._traffic.take(said, now)
                self._base = evolve(self._base, rates=self._traffic.rates())
            case "running":
                self._base = evolve(self._base, running=_rows(said["requests"]))
            case "recent":
                self._base = evolve(self._base, recent=_rows(said["requests"]))
            case "latest":
                self._base = evolve(self._base, latest=_rows(said["requests"]))
            case _:
                raise AssertionError(name)
        self._base = evolve(
            self._base, unmeasured={other: why for other, why in self._base.unmeasured.items() if other != name}
        )
        self._changed()

    def not_measured(self, name: str, why: str, now: float) -> None:
        """``name``: of LIVE. What is known of it stays, and is told to be of before."""
        since, _ = self._base.unmeasured.get(name, (now, why))
        self._base = evolve(self._base, unmeasured={**self._base.unmeasured, name: (since, why)})
        self._changed()

    def _take_pools(self, pools: Sequence[Json]) -> None:
        there = by_name(pools, "model")
        for model, saturation in {name: float(pool["saturation"] or 0.0) for name, pool in there.items()}.items():
            self._histories.setdefault(model, deque(maxlen=HISTORY_MAX)).append(saturation)
        for gone in self._histories.keys() - there.keys():
            del self._histories[gone]
        shown = {model: tuple(history) for model, history in self._histories.items()}
        self._base = evolve(self._base, pools=there, histories=shown)

    # -- the link ----------------------------------------------------------------------------------------

    def asks(self, whom: str, now: float) -> None:
        """For the first time."""
        self._base = evolve(self._base, link=Link(heard_at=now, asked=whom))
        self._changed()

    def heard(self, now: float) -> None:
        """Any answer, or a byte of the feed: by itself no reason to draw, unless it ends a doubt."""
        link = evolve(self._base.link, heard_at=now)
        self.version += self._base.link.silent_s(now) is not None
        self._base = evolve(self._base, link=link)
        self._shown = self._shown and evolve(self._shown, link=link)

    def linked(self, url: str) -> None:
        link = self._base.link
        self._base = evolve(self._base, link=Link(url, heard_at=link.heard_at, asked=link.asked))
        self._changed()

    def lost(self, why: str, now: float) -> None:
        """The first loss counts; what is shown is as old as the last answer before it."""
        link = self._base.link
        heard_at = now if link.heard_at is None else link.heard_at
        since = heard_at if link.down_since is None else link.down_since
        self._base = evolve(self._base, link=evolve(link, down_since=since, why=why))
        self.outdated = True
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._shown = None


def _is_worse(known: Picture, term: tuple[int, ...], age_s: float | None) -> bool:
    """What a standby has from the store, than what its leader has told."""
    return age_s is not None and known.age_s is None and known.term == term


def _object(said: Any) -> Json:
    if not isinstance(said, Mapping):
        raise TypeError(f"an object was expected, not {said!r:.40}")
    return said


def _rows(said: Any) -> Sequence[Json]:
    if not isinstance(said, list | tuple):
        raise TypeError(f"a list was expected, not {said!r:.40}")
    return [_object(one) for one in said]


def by_name(rows: Sequence[Json], key: str = "name") -> dict[str, Json]:
    return {str(_object(row)[key]): row for row in rows}


def term_of(text: str) -> tuple[int, ...]:
    """ "2.11" sorts after "2.9"; a cluster that nobody leads yet has none."""
    parts = text.split(".") if text else []
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()
