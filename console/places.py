"""Which places there are, what each shows, and what can be done there."""

from collections.abc import Mapping
from typing import Any

from console.model import Picture
from console.screens.events import EventsScreen
from console.screens.listing import ListingScreen
from console.screens.place import PlaceScreen
from console.screens.placement import PlacementScreen
from console.screens.reading import ReadingScreen, nothing_yet
from console.screens.requests import RequestsScreen
from console.shown import Line, Place
from console.views import drains, events, leader, nodes, overview, queues, replicas, requests
from console.views.explained import explained
from console.views.view import Asked, Question, View

Json = Mapping[str, Any]
NODE_ACTS = ("cordon", "uncordon", "drain")
REPLICA_ACTS = ("move", "restart")
RUNNING, RECENT, LATEST = frozenset({"running"}), frozenset({"recent"}), frozenset({"latest"})


def _whole(subject: str, _key: str) -> str:
    """Acts on a row are about whose place it is."""
    return subject


VIEWS: Mapping[str, View] = {
    view.kind: view
    for view in (
        View("nodes", nodes.nodes, nodes.node_detail, nodes.ask_node, NODE_ACTS),
        View(
            "node", nodes.gpus, nodes.gpu_detail, nodes.ask_gpu, NODE_ACTS, about=nodes.node_detail, subject_of=_whole
        ),
        View(
            "gpu", replicas.on_gpu, replicas.replica_detail, replicas.ask_replica, REPLICA_ACTS, about=nodes.gpu_detail
        ),
        View("models", replicas.models, replicas.model_detail, replicas.ask_model, ("scale", "restart")),
        View("replicas", replicas.replicas, replicas.replica_detail, replicas.ask_replica, REPLICA_ACTS),
        View(
            "replica", replicas.shards, replicas.shard_detail, replicas.ask_shard, REPLICA_ACTS,
            about=replicas.replica_detail, subject_of=_whole,
        ),
        View("queues", queues.listing, queues.detail, queues.asks),
        View("requests", requests.running, requests.detail, requests.asks, ("cancel",), RUNNING),
        View("recent", requests.recent, requests.detail, requests.asks, (), RECENT, requests.AT, falling=True),
        View("latest", requests.latest, requests.detail, requests.asks, (), LATEST, requests.AT, falling=True),
        View("events", events.listing, events.detail, newest_last=True),
        View("drains", drains.listing, drains.detail, drains.asks, ("uncordon", "drain")),
    )
}  # fmt: skip
SCREENS: Mapping[str, type[ListingScreen]] = {
    "events": EventsScreen, "requests": RequestsScreen, "recent": RequestsScreen, "latest": RequestsScreen,
}  # fmt: skip


def _request(_picture: Picture, _now: float, width: int, asked: Asked) -> tuple[Line, ...]:
    return explained(asked["request"], width) if "request" in asked else (nothing_yet(),)


def _leader(picture: Picture, now: float, width: int, asked: Asked) -> tuple[Line, ...]:
    told = leader.lines(picture, width, now)
    return (*told, *(explained(asked["explanation"], width) if "explanation" in asked else ()))


def screen_of(place: Place) -> PlaceScreen:
    """Raises KeyError for a kind that there is none of; ``understood`` never gives one."""
    match place.kind:
        case "overview":
            return ReadingScreen(place, lambda picture, now, width, _: overview.overview(picture, now, width))
        case "leader":
            return ReadingScreen(place, _leader, {"explanation": Question("/explain/leader")}, ("resign",))
        case "request":
            return ReadingScreen(place, _request, requests.asks("", place.subject))
        case "placement":
            return PlacementScreen(place)
    return SCREENS.get(place.kind, ListingScreen)(place, VIEWS[place.kind])


def understood(place: Place, picture: Picture) -> Place:
    """The place that shows it: one drain is told of among the drains, a pool among the queues."""
    if place.kind == "drain":
        return Place("drains")
    if place.kind == "pools":
        return Place("queues", place.subject)
    if place.kind == "requests" and requests.is_id(place.subject, picture):
        return Place("request", place.subject)
    return place
