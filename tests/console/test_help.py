"""The help tells the keys that there are: every one that a place binds, and none that it does not."""

import importlib
import pkgutil
from collections.abc import Iterator

import pytest
from rich.cells import cell_len
from textual.binding import Binding
from textual.keys import _character_to_key
from textual.widgets import Tree

import console.screens
import console.widgets
from console.acts import Verb, offered
from console.app import Console
from console.commands import PLACES, WHOM
from console.places import VIEWS, screen_of
from console.screens.dialog import Dialog
from console.screens.help import Help
from console.screens.listing import ListingScreen
from console.screens.place import PlaceScreen
from console.screens.placement import PlacementScreen
from console.shown import Place
from console.views.help import IN_ORDER, keys
from console.widgets.command import Command
from console.widgets.lines import Lines
from console.widgets.table import Table

KINDS = [*VIEWS, "overview", "leader", "placement"]
NAMED = {"↑": "up", "↓": "down", "pgup": "pageup", "pgdn": "pagedown", "esc": "escape"}
ORDERING = ("mark", "sort(-1)", "sort(1)", "turn")  # nothing that a table in the order of time does
PLACED = ("models", "replicas", "gpu", "replica")
ASIDE = {Dialog, Help, Command, Console}  # a dialog shows its own keys, and the last is everywhere


def bindings_of(owner: type) -> list[Binding]:
    return list(Binding.make_bindings(vars(owner).get("BINDINGS", ())))


def binders(kind: str) -> Iterator[type]:
    """What binds keys at such a place, in this house; and the tree, which is Textual's."""
    screen = screen_of(Place(kind, "x"))
    yield from (one for one in type(screen).__mro__ if one.__module__.startswith("console."))
    yield Console
    if isinstance(screen, PlacementScreen):
        yield from (one for one in Tree.__mro__ if one.__module__.startswith("textual."))
        return
    yield Lines
    if isinstance(screen, ListingScreen):
        yield Table


def works(kind: str, action: str) -> bool:
    """Some are bound for every place, and do something only at some."""
    if action.startswith("type("):
        return hasattr(screen_of(Place(kind, "x")), f"action_{action[6:-2]}")
    if action == "placement":
        return kind in PLACED
    return kind not in IN_ORDER or action not in ORDERING


def bound(kind: str) -> dict[tuple[type, str], set[str]]:
    """The keys of each action, as Textual names them."""
    found: dict[tuple[type, str], set[str]] = {}
    for owner in binders(kind):
        for one in bindings_of(owner):
            if works(kind, one.action):
                found.setdefault((owner, one.action), set()).add(one.key)
    return found


def offers(kind: str) -> tuple[Verb, ...]:
    screen = screen_of(Place(kind, "x"))
    names = screen.view.acts if isinstance(screen, ListingScreen) else screen.verbs
    return offered(names, "operator", read_only=False)


def pressed(key: str) -> str:
    """What Textual calls a key that is written like this."""
    return NAMED.get(key) or (_character_to_key(key) if len(key) == 1 else key)


def told(kind: str) -> list[str]:
    keys_ = [keys_ for title, rows in help_of(kind) if title != "Commands" for keys_, _ in rows]
    return [pressed(key) for written in keys_ for key in written.split()]


def help_of(kind: str) -> list[tuple[str, list[tuple[str, str]]]]:
    tabled = isinstance(screen_of(Place(kind, "x")), ListingScreen)
    return [(title, list(rows)) for title, rows in keys(kind, tabled, offers(kind), acts=True)]


# -- what is bound, and what is told ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_that_a_place_binds_is_told(kind: str) -> None:
    ours = {action: keys_ for (owner, action), keys_ in bound(kind).items() if owner.__module__.startswith("console.")}

    assert {action for action, keys_ in ours.items() if not keys_ & set(told(kind))} == set()


@pytest.mark.parametrize("kind", KINDS)
def test_no_key_is_told_that_does_nothing_there(kind: str) -> None:
    there = {key for keys_ in bound(kind).values() for key in keys_} | {verb.key for verb in offers(kind)}

    assert set(told(kind)) - there == set()


@pytest.mark.parametrize("kind", KINDS)
def test_no_key_is_told_twice(kind: str) -> None:
    assert sorted(told(kind)) == sorted(set(told(kind)))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_hinted_at_the_foot_is_told_in_the_help(kind: str) -> None:
    assert {pressed(key) for key, _ in screen_of(Place(kind, "x")).keys} <= set(told(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_no_act_has_the_key_of_something_else(kind: str) -> None:
    there = {key for keys_ in bound(kind).values() for key in keys_}

    assert there & {verb.key for verb in offers(kind)} == set()


def test_everything_in_the_house_that_binds_keys_is_looked_at_here() -> None:
    looked_at = {owner for kind in KINDS for owner in binders(kind)} | ASIDE
    rooms = (console.screens, console.widgets)
    modules = [
        importlib.import_module(f"{room.__name__}.{one.name}")
        for room in rooms
        for one in pkgutil.iter_modules(room.__path__)
    ]
    binding = {
        one for module in modules for one in vars(module).values()
        if isinstance(one, type) and one.__module__ == module.__name__ and bindings_of(one)
    }  # fmt: skip

    assert {Table, Lines, PlaceScreen} <= binding
    assert binding - looked_at == set()


# -- for whom ---------------------------------------------------------------------------------------------


def test_acts_are_told_first_with_what_they_do() -> None:
    title, rows = help_of("nodes")[0]

    assert title == "Acts, each after a yes"
    assert rows[:2] == [("c", "cordon: Nothing new is placed there. What runs goes"), ("", "on.")]
    assert [key for key, _ in rows if key] == ["c", "u", "D"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_help_fits_a_small_terminal(kind: str) -> None:
    """Of 80 cells it has 70: two and fourteen for the keys, one between."""
    for _, rows in help_of(kind):
        assert max(max(14, cell_len(key)) + cell_len(what) for key, what in rows) <= 70 - 3


def test_who_may_not_act_is_told_no_acts_and_no_commands_for_them() -> None:
    titles = [title for title, _ in keys("nodes", True, ())]
    said = " ".join(what for _, rows in keys("nodes", True, ()) for _, what in rows)

    assert titles == ["Tables", "Everywhere", "Commands"]
    assert ":drain " not in f"{said} "


def test_an_operator_is_told_the_commands_where_there_is_nothing_to_act_on() -> None:
    commands = dict(keys("overview", False, (), acts=True))["Commands"]
    said = " ".join(what for _, what in commands).split()

    assert said == [f":{name}" for name in (*PLACES, *WHOM)]
    assert [title for title, _ in commands if title] == ["go to", "act"]


def test_the_keys_of_a_table_are_told_only_where_there_is_one() -> None:
    assert "Tables" not in dict(keys("overview", False, ()))
    assert ("esc", "back") in dict(keys("overview", False, ()))["Everywhere"]
    assert "filter" in dict(dict(keys("nodes", True, ()))["Everywhere"])["esc"]


def test_events_stay_in_the_order_of_time_and_have_no_marks() -> None:
    assert not {pressed(key) for key in "<>!"} & set(told("events"))
    assert ("space p", "hold still, and go on") in dict(help_of("events"))["Here (events)"]
