"""The process that asks the driver: ``python -m agent.nvml_child``. Its parent may end it at any moment.

A line on stdin is a question, a line of JSON on stdout the reading; the end of stdin is its end.
"""

import signal
import sys

import msgspec

from llmgw.core.gpu_reading import Reading

FAILED = "!"  # begins a line that says why there is no reading, the last one


def main() -> None:
    # The agent's terminal must not end it in the middle of a call; the end of stdin does in time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        from agent.nvml import Nvml
    except ImportError as error:
        _answer_all(Reading(trouble=f"the package nvidia-ml-py is not installed ({error})"))
        return
    nvml = Nvml()
    try:
        for _ in sys.stdin.buffer:
            _say(nvml.read())
    except Exception as error:
        sys.stdout.buffer.write(f"{FAILED}{type(error).__name__}: {error}".splitlines()[0].encode() + b"\n")
        raise
    nvml.close()


def _answer_all(reading: Reading) -> None:
    for _ in sys.stdin.buffer:
        _say(reading)


def _say(reading: Reading) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reading) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
