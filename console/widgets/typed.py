"""A field of a dialog: one line."""

from textual import events
from textual.widgets import Input


class Typed(Input):
    """What is pasted is taken whole, its lines one behind the other."""

    def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.insert_text_at_cursor(" ".join(event.text.split()))
