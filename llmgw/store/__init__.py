"""The only SQL: what must outlive the process.

``limits`` bounds and names it, ``place`` finds it, ``lock`` keeps it for one process, ``schema`` shapes
it, ``sqlite`` is the door to it (one writer, one transaction a call), ``usage`` writes one row a request
in batches; ``keys``, ``tokens``, ``audit`` and ``accounts`` are the questions asked of it, each a plain
function of a connection, called inside ``SqliteStore.read`` or ``SqliteStore.write``.
"""
