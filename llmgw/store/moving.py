"""A whole store into another one: copied, counted, compared, and only then in use.

A target that is half filled says so in its ``meta``, and no control plane starts on it. The same copy goes on where it
was interrupted. What turns out different at the end, because the source changed in between, is copied again.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from llmgw.store import meta
from llmgw.store.ends import LAST, End, Source, Sum, Table, refuse_half, sum_of
from llmgw.store.errors import StoreUnavailable

# Of ``meta``: what is said of the place itself.
_STAYS = ("needs_version", meta.COPYING, meta.MOVED)


@frozen
class Progress:
    """``rows`` of a table are there."""

    table: str
    rows: int
    done: bool = False


@frozen
class Moved:
    """What was compared, by table, and the term that the target begins above."""

    sums: Mapping[str, Sum]
    term: tuple[int, int]


Tell = Callable[[Progress], None]


def move(source: Source, target: End, tell: Tell, leaving: Callable[[], None] = lambda: None) -> Moved:
    """Raises StoreUnavailable: the target holds something else, or the rows are not the same in the end.

    ``leaving`` is called once everything is there and was compared, immediately before the target is a store in use.
    """
    refuse_half(source)
    tables = [table for table in source.tables() if table.name not in LAST]
    _refuse_missing(source, target)
    _claim(source, target, tables)
    for table in tables:
        _copy(source, target, table, tell)
    sums = _compared(source, target, tables, tell)
    leaving()
    with target.transaction():
        term = _take_over(source, target)
        target.finish()
    return Moved(sums, term)


def leave(source: End, target: End, wall: str) -> None:
    """It says from now on where everything went. Moving it again is possible."""
    with source.transaction():
        source.conn.execute("delete from meta where key = ?", (meta.MOVED,))
        source.conn.execute("insert into meta (key, value) values (?, ?)", (meta.MOVED, f"to {target.shown} at {wall}"))


def _refuse_missing(source: Source, target: End) -> None:
    here = {table.name: set(table.columns) for table in target.tables()}
    for table in source.tables():
        if more := set(table.columns) - here.get(table.name, set()):
            raise StoreUnavailable(f"{target.shown} has no place for {table.name}: {', '.join(sorted(more))}")


def _claim(source: Source, target: End, tables: Sequence[Table]) -> None:
    """An empty target is ours from now on, and a half filled one if this source filled it."""
    mine = f"of {source.cluster_id} from {source.shown}"
    with target.transaction():
        begun = meta.value(target.conn, meta.COPYING)
        if begun and begun.split(" ")[1] != source.cluster_id:
            raise StoreUnavailable(f"a copy {begun} into {target.shown} was interrupted; go on with that, or empty it")
        if begun:
            return
        if full := [table.name for table in tables if target.count(table)]:
            raise StoreUnavailable(f"{target.shown} is not empty ({', '.join(full[:5])}); name an empty one")
        target.conn.execute("insert into meta (key, value) values (?, ?)", (meta.COPYING, mine))


def _copy(source: Source, target: End, table: Table, tell: Tell) -> None:
    rows = target.count(table)
    for batch in source.rows(table, target.last(table)):
        with target.transaction():
            target.add(table, batch)
        rows += len(batch)
        tell(Progress(table.name, rows))


def _compared(source: Source, target: End, tables: Sequence[Table], tell: Tell) -> dict[str, Sum]:
    sums = {table.name: sum_of(table, source.rows(table)) for table in tables}
    differ = [table for table in tables if sum_of(table, target.rows(table)) != sums[table.name]]
    if differ:
        _copy_again(source, target, differ, tables, tell)
    for table in tables:
        if sum_of(table, target.rows(table)) != sums[table.name]:
            raise StoreUnavailable(f"{table.name} is not the same in {target.shown} as in {source.shown}")
        tell(Progress(table.name, sums[table.name].rows, done=True))
    return sums


def _copy_again(source: Source, target: End, differ: Sequence[Table], tables: Sequence[Table], tell: Tell) -> None:
    # Keys belong to tenants: those can't go while keys are there.
    again = [t for t in tables if t in differ or (t.name == "keys" and any(d.name == "tenants" for d in differ))]
    with target.transaction():
        for table in reversed(again):
            target.conn.execute(f"delete from {table.name}")
    for table in again:
        _copy(source, target, table, tell)


def _take_over(source: Source, target: End) -> tuple[int, int]:
    """What the store says of itself, and a term above every one of either's. The target is a store in use now."""
    term = max(source.term[0], target.term[0]), max(source.term[1], target.term[1]) + 1
    (said,) = (table for table in source.tables() if table.name == "meta")
    marks = ", ".join("?" * len(_STAYS))
    target.conn.execute(f"delete from meta where key not in ({marks})", _STAYS)
    for batch in source.rows(said):
        target.add(said, [row for row in batch if row[said.columns.index("key")] not in _STAYS])
    target.conn.execute(
        "update leader_epoch set n = ?, epoch = ?, nonce = ? where id = 1", (*term, secrets.token_hex(8))
    )
    target.conn.execute("delete from meta where key = ?", (meta.COPYING,))
    return term
