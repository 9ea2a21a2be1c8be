"""The bounds of the store; each has this name in the config."""

from attrs import frozen

from llmgw.core.secret import Secret
from llmgw.core.settings import Unit, setting


@frozen
class StoreLimits:
    """``[store]``: where state lies, and what waits in memory before it gets there."""

    url: Secret | None = setting(  # noqa: RUF009 -- it makes a field, which is not shared
        None, Unit.SECRET, "postgresql://user:password@host/database, or sqlite:////path; empty: llmgw.db in data_dir"
    )
    data_dir: str = setting(
        "", Unit.PATH, "lock, database and first admin token; empty: $STATE_DIRECTORY, else ~/.local/share/llmgw"
    )
    offline_grace: float = setting(
        300.0,
        Unit.SECONDS,
        "how long to serve on what is known while the store is away",
    )
    spool_max: int = setting(256 * 1024**2, Unit.BYTES, "usage rows that wait on disk while the store is away")
    usage_queue_max: int = setting(
        100_000, Unit.COUNT, "usage rows that wait in memory; beyond it they are dropped and counted", at_least=1
    )
    usage_flush: float = setting(0.25, Unit.SECONDS, "usage rows are written at least this often", at_least=0.01)
    usage_batch_max: int = setting(2000, Unit.COUNT, "most usage rows in one transaction", at_least=1)
    usage_keep: float = setting(400 * 86400.0, Unit.SECONDS, "how long usage rows are kept; 0: for ever", at_least=0)
