"""How a tone looks. Each differs without colours too, as NO_COLOR and the eyes of some want it."""

from collections.abc import Mapping

from rich.segment import Segment
from rich.style import Style
from textual.theme import Theme

from console.shown import Cell, Tone

# ANSI colours follow the terminal's own scheme; the high-contrast theme sets them itself.
STYLES = {
    Tone.PLAIN: Style(),
    Tone.DIM: Style(dim=True),
    Tone.STRONG: Style(bold=True),
    Tone.GOOD: Style(color="green"),
    Tone.BUSY: Style(color="cyan"),
    Tone.WARN: Style(color="yellow", bold=True),
    Tone.BAD: Style(color="red", bold=True, underline=True),
}
CONTRAST = {
    Tone.PLAIN: Style(color="bright_white"),
    Tone.DIM: Style(color="bright_white"),
    Tone.STRONG: Style(color="bright_white", bold=True),
    Tone.GOOD: Style(color="bright_green"),
    Tone.BUSY: Style(color="bright_cyan"),
    Tone.WARN: Style(color="bright_yellow", bold=True),
    Tone.BAD: Style(color="bright_white", bgcolor="red", bold=True),
}
HIGH_CONTRAST = Theme(
    name="high-contrast",
    primary="#ffffff",
    secondary="#ffff00",
    accent="#00ffff",
    warning="#ffff00",
    error="#ff5555",
    success="#55ff55",
    foreground="#ffffff",
    background="#000000",
    surface="#000000",
    panel="#000000",
    dark=True,
)


THEMES = {
    "dark": "textual-dark",
    "light": "textual-light",
    "terminal": "ansi-dark",
    "high-contrast": HIGH_CONTRAST.name,
}


def styles_of(theme: str) -> Mapping[Tone, Style]:
    """``theme``: a name of Textual's."""
    return CONTRAST if theme == HIGH_CONTRAST.name else STYLES


def segments(cells: tuple[Cell, ...], styles: Mapping[Tone, Style], under: Style) -> list[Segment]:
    return [Segment(cell.text, under + styles[cell.tone]) for cell in cells]
