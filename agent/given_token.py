"""Which join token this agent was given: in its settings, or in a file that nobody else may read."""

import os
import stat
from pathlib import Path

from attrs import field, frozen

from llmgw.core.joining import JOIN_PREFIX, JoinToken, read_join_token

_READ_MAX = 4096
_OTHERS = 0o077
HOW = "`llmgw ctl nodes invite` prints one; write it to a file of mode 0600 and start with --join @FILE"


@frozen
class Given:
    """``wrong``: why it can't be used, and what to do. ``gone``: its file is, as it may be once it was used."""

    token: JoinToken | None = field(default=None, repr=False)
    wrong: str = ""
    gone: bool = False


def read_given(said: str) -> Given:
    """``said``: the token, ``@FILE``, or nothing."""
    if not said:
        return Given()
    if said.startswith("@"):
        return _from_file(Path(said[1:]).expanduser())
    return _of(said, "what was given as a join token")


def wrong_words(said: str) -> str:
    """Why this can never be a join token, whatever files there are; empty: it may be one."""
    return "" if said.startswith("@") else read_given(said).wrong


def _from_file(file: Path) -> Given:
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read(_READ_MAX).decode("ascii", "replace")
    except FileNotFoundError:
        return Given(wrong=f"the file of the join token is not there: {file}; {HOW}", gone=True)
    except OSError as error:
        return Given(wrong=f"the file of the join token can't be read: {file}: {error.strerror}")
    given = _of(text, f"what is in {file}")
    if given.token is not None and stat.S_ISREG(mode) and mode & _OTHERS:
        why = f"others can read the join token in {file} (mode {stat.S_IMODE(mode):04o}): chmod 600 {file}"
        return Given(given.token, f"{why}, and get a new token if somebody may have")
    return given


def _of(text: str, what: str) -> Given:
    token = read_join_token(text)
    if token is not None:
        return Given(token)
    how = f"it begins with {JOIN_PREFIX}" if JOIN_PREFIX not in text else "a part of it is missing or too much"
    return Given(wrong=f"{what} is no join token ({how}); {HOW}")
