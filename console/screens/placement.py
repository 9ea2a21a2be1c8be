"""Where a model or a replica would go, as a tree: every candidate, every check that failed, and what if."""

from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import quote

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Tree
from textual.widgets.tree import TreeNode

from console.feed.api import Away, Refused
from console.model import Picture
from console.screens.place import PlaceScreen
from console.shown import Line, Place, Tone, line, plain
from console.views.fitting import folded
from console.views.frame import Hint
from console.views.placement import Branch, tree
from console.widgets.bar import Bar
from console.widgets.command import Command
from console.widgets.tones import styles_of

GUIDE, SIGN = 2, 2  # cells: of each level, and of what tells whether a branch is folded


class PlacementScreen(PlaceScreen):
    """The tree is asked for once, and again with `r` or another `what if`: it must not move under who reads it."""

    DEFAULT_CSS = """
    PlacementScreen > Tree { height: 1fr; padding: 0; background: transparent; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "what_if", "What if", show=False),
        Binding("r", "again", "Again", show=False),
    ]
    keys: ClassVar[tuple[Hint, ...]] = (("w", "what if"), ("r", "ask again"), ("enter", "fold"), ("esc", "back"))

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.subject, _, self.what_if = place.subject.partition(" ")
        self.said: dict[str, Any] | None = None
        self.refusal = ""

    def body(self) -> Iterator[Widget]:
        yield Bar(id="asked", folds=True)
        candidates: Tree[None] = Tree("candidates", id="tree")
        candidates.show_root = False
        candidates.guide_depth = GUIDE
        yield candidates

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one(Tree).focus()
        self.action_again()

    def draw(self, picture: Picture) -> None:
        self.query_one("#asked", Bar).show(self._asked())

    def _asked(self) -> Line:
        if self.refusal:
            return line(plain(self.refusal, Tone.BAD))
        if self.said is None:
            return line(plain("asking …", Tone.BUSY))
        return line(plain(f"what if {self.what_if}" if self.what_if else "one more replica, as it stands", Tone.DIM))

    def action_again(self) -> None:
        self.console.beside(self, self._ask, "asked")

    async def _ask(self) -> None:
        params = {"what_if": self.what_if} if self.what_if else {}
        try:
            self.said = dict(await self.console.ask("GET", f"/explain/placement/{quote(self.subject)}", params))
            self.refusal = ""
        except (Refused, Away) as error:
            self.refusal = f"{error}" + (f"; {error.hint}" if getattr(error, "hint", "") else "")
        self._grow()
        self.redraw()

    def _grow(self) -> None:
        root = self.query_one("#tree", Tree).root
        root.remove_children()
        for branch in tree(self.said) if self.said is not None else ():
            self._hang(root, branch, self.size.width - SIGN - 1)
        root.expand()

    def _hang(self, parent: "TreeNode[None]", branch: Branch, room: int) -> None:
        """What does not fit beside its guides hangs below, as leaves of its own."""
        first, *more = map(self._label, folded(branch.line, max(SIGN, room)))
        if not branch.branches:
            for label in (first, *more):
                parent.add_leaf(label)
            return
        node = parent.add(first, expand=True)
        for label in more:
            node.add_leaf(label)
        for below in branch.branches:
            self._hang(node, below, room - GUIDE)

    def _label(self, said: Line) -> Text:
        label = Text(no_wrap=True)
        for cell in said.cells:
            label.append(cell.text, styles_of(self.app.theme)[cell.tone])
        return label

    def action_what_if(self) -> None:
        self.query_one(Command).ask("what if ", self._what_if, begun=self.what_if)

    def _what_if(self, said: str) -> None:
        self.what_if = said.strip()
        self.action_again()
