"""An engine's last lines, fit for a frame, a terminal and a stranger's eye: bounded, clean, without its key.

The file is known by inode and size: the shim cuts it when it is too long and keeps the older part beside it.
"""

import os
import re
import time
from pathlib import Path

from attrs import define, field

LINE_MAX = 4096  # characters
KEY_PART = 6  # characters of a key at the end of an unfinished line that give it away
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# Controls but for the line's end and the tab, separators of other kinds, marks that turn the direction of text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


@define
class LogTail:
    path: Path
    key: str = field(default="", repr=False)
    written: int = 0  # bytes, over all rotations; it only rises
    told: int = 0  # of these, when its end was last told
    changed_at: float | None = None  # when the last look found something new
    _inode: int = field(default=0, init=False)
    _size: int = field(default=0, init=False)

    def look(self, now: float) -> bool:
        """Whether something was written since the last look."""
        try:
            found = self.path.stat()
        except OSError:
            return False
        inode, size = found.st_ino, found.st_size
        if (inode, size) == (self._inode, self._size):
            return False
        same = inode == self._inode and size >= self._size
        self.written += size - self._size if same else size
        self._inode, self._size = inode, size
        # A log that was found is as old as its last line, not as our look at it.
        self.changed_at = now if self.changed_at is not None else now - _age(found.st_mtime)
        return True

    def text(self, most: int) -> str:
        """Whole lines from the end, at most this many bytes of UTF-8."""
        margin = len(self.key.encode())
        raw, cut = self._end(most + margin)
        text = clean(without(self.key, raw.decode("utf-8", "replace")))
        if cut or len(text.encode()) > most:
            text = _last(text, most)
        return text

    def _end(self, most: int) -> tuple[bytes, bool]:
        """The last bytes, the older file's included, and whether something came before them."""
        new, cut = _read_end(self.path, most)
        if cut or len(new) >= most:
            return new, True
        old, cut = _read_end(self.path.with_name(self.path.name + ".1"), most - len(new))
        return old + new, cut


def _age(mtime: float) -> float:
    return max(0.0, time.time() - mtime)


def _read_end(path: Path, most: int) -> tuple[bytes, bool]:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - most))
            return file.read(most), size > most
    except OSError:
        return b"", False


def _last(text: str, most: int) -> str:
    """Its end; a line whose beginning is not there is left out, unless it is the only one."""
    kept = text.encode()[-most:].decode("utf-8", "ignore")
    head, newline, rest = kept.partition("\n")
    return rest if newline and rest else head


def without(key: str, text: str) -> str:
    if not key:
        return text
    text = text.replace(key, "[key]")
    for length in range(min(len(key) - 1, len(text)), KEY_PART - 1, -1):
        if text.endswith(key[:length]):
            return text[:-length] + "[key]"
    return text


def clean(text: str) -> str:
    """Lines as a terminal would show them at last: colours gone, a progress bar as it stood."""
    return "\n".join(_clean_line(line) for line in text.split("\n"))


def _clean_line(line: str) -> str:
    shown = _ESCAPES.sub("", line.rstrip("\r").rpartition("\r")[2])
    shown = _CONTROLS.sub("", shown)
    if len(shown) <= LINE_MAX:
        return shown
    return f"{shown[:LINE_MAX]} … [{len(shown) - LINE_MAX} more]"
