"""The keys that go up and down, and open what is under the cursor: the same wherever there is one."""

from textual.binding import Binding, BindingType

MOVING: list[BindingType] = [
    Binding("up,k", "move(-1)", "Up", show=False),
    Binding("down,j", "move(1)", "Down", show=False),
    Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False),
    Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False),
    Binding("home,g", "first", "First", show=False),
    Binding("end,G", "last", "Last", show=False),
    Binding("enter", "choose", "Open", show=False),
]
