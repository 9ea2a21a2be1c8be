"""What a view is: how one kind of place looks, what it asks for beside the picture, and what can be done there."""

from collections.abc import Callable, Mapping
from typing import Any

from attrs import field, frozen

from console.model import Picture
from console.shown import Line, Listing

Json = Mapping[str, Any]
Asked = Mapping[str, Json]  # answers by the name of the question; one that is not there yet is missing


@frozen
class Question:
    """A reading of the management API."""

    path: str
    params: Mapping[str, Any] = field(factory=dict)


def no_questions(_subject: str, _key: str) -> Mapping[str, Question]:
    return {}


Detail = Callable[[Picture, str, str, Asked, int], tuple[Line, ...]]


def nothing(_picture: Picture, _subject: str, _key: str, _asked: Asked, _width: int) -> tuple[Line, ...]:
    return ()


@frozen
class View:
    """A table with a pane for the row under the cursor.

    ``detail``: of a picture, the place's subject, the row's key, what ``asks`` brought about it, and the width.
    ``about``: the same of the place's subject, where it has no row. ``watch``: live measurements that only this view
    needs. ``acts``: verbs that can be done to its rows, about ``subject_of`` the place's subject and the row's key.
    ``sort``: the column at first, ``falling``: from its greatest.
    """

    kind: str
    listing: Callable[[Picture, str], Listing]
    detail: Detail
    asks: Callable[[str, str], Mapping[str, Question]] = no_questions
    acts: tuple[str, ...] = ()
    watch: frozenset[str] = frozenset()
    sort: int = 0
    falling: bool = False
    newest_last: bool = False
    about: Detail = nothing
    subject_of: Callable[[str, str], str] = lambda subject, key: key
