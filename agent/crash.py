"""Where a test ends the agent as `kill -9` would: ``LLMGW_CRASH_AT`` names the step after which it is gone."""

import os

VARIABLE = "LLMGW_CRASH_AT"
STEPS = (
    "start.recorded",
    "start.spec",
    "start.spawned",
    "start.running",
    "stop.recorded",
    "stop.signalled",
    "stop.killed",
    "stop.exited",
    "stop.released",
)


def after(step: str) -> None:
    assert step in STEPS, step
    if os.environ.get(VARIABLE) == step:
        os._exit(70)
