"""Changing single members of a JSON object without touching any other byte of it.

The caller has decoded the text, so it is valid JSON; what is left is to find where a member stands. A
quoted key directly followed by a colon can only be a key (a quote inside a string carries a backslash),
and it is the object's own if the brackets before it, strings set aside, have opened exactly once.
"""

import re
from functools import lru_cache

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]]|[^\s"{}\[\],:]++', re.DOTALL)
_BRACKETS = bytes(b for b in range(256) if b not in b"{}[]")
CANDIDATES_MAX = 10_000


class Unfindable(Exception):
    """The member is there (decoded), but written so that it can't be replaced in place."""


@lru_cache(maxsize=64)
def _key(name: bytes) -> re.Pattern[bytes]:
    return re.compile(rb'(?<!\\)"' + re.escape(name) + rb'"\s*+:\s*+')


def find(body: bytes, name: bytes) -> tuple[int, int, int] | None:
    """Where a top-level member stands: key start, value start, value end. Raises Unfindable beyond a bound."""
    depth, counted = 0, 0
    for tried, match in enumerate(_key(name).finditer(body)):
        if tried >= CANDIDATES_MAX:
            raise Unfindable(name.decode())
        depth += _depth(body[counted : match.start()])
        counted = match.start()
        if depth == 1:
            return match.start(), match.end(), _value_end(body, match.end())
    return None


def replaced(body: bytes, name: bytes, value: bytes) -> bytes:
    """The same text with another value for a member that is there. Raises Unfindable."""
    place = find(body, name)
    if place is None:
        raise Unfindable(name.decode())
    _, start, end = place
    return body[:start] + value + body[end:]


def inserted(body: bytes, member: bytes) -> bytes:
    """The same text with ``"key":value`` before the first member of a non-empty object."""
    brace = body.index(b"{") + 1
    return body[:brace] + member + b"," + body[brace:]


def removed(body: bytes, name: bytes) -> bytes:
    """The same text without a member, however often it stands there. Raises Unfindable."""
    place = find(body, name)
    if place is None:
        raise Unfindable(name.decode())
    while place is not None:
        start, _, end = place
        before, after = body[:start].rstrip(), body[end:].lstrip()
        if after[:1] == b",":
            after = after[1:]
        elif before[-1:] == b",":
            before = before[:-1]
        body = before + after
        place = find(body, name)
    return body


def _depth(text: bytes) -> int:
    """How many brackets a piece of text leaves open; it begins and ends outside a string."""
    if b"{" not in text and b"[" not in text and b"}" not in text and b"]" not in text:
        return 0
    brackets = _STRING.sub(b"", text).translate(None, _BRACKETS)
    return brackets.count(b"{") + brackets.count(b"[") - brackets.count(b"}") - brackets.count(b"]")


def _value_end(body: bytes, start: int) -> int:
    depth = 0
    for token in _TOKEN.finditer(body, start):
        first = token.group()[:1]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
        if depth == 0:
            return token.end()
    raise AssertionError("the text was decoded, so its values end")
