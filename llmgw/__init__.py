"""llmgw: one OpenAI-compatible address in front of a few GPU machines, and the control plane behind it.

The core knows everything and does nothing; the shell does everything and decides nothing.

Floors, from the ground; a file imports only from floors below its own (``tests/test_floors.py`` holds it):

====  ==========================  ====================================================================
0     core                        values and decisions: no clock, chance, I/O or logging
1     wire, tasks, telemetry      bytes and values; Trio furniture; metrics and log lines
2     store, engines, nodes       the only SQL; the only HTTP to engines; the only link to agents
3     gateway, control            the request road; the reconcile road
4     admin                       the management API, metrics, profiler
5     config                      a file, the environment, defaults -> one frozen Config
6     daemon                      the nursery tree: what starts, in which order it stops
7     cli                         click commands
====  ==========================  ====================================================================

Two roads cross the house, each one short file read from top to bottom: a request
(``gateway/request.py``) and a reconcile pass (``control/passes.py``).

The words (model, endpoint, pool, band, tenant, outcome, explanation) mean the same in the config, the
code, the API, the metrics and the console; ``docs/architecture.md`` lists them.
"""

__version__ = "0.6.0"
