"""Log lines: one JSON object each, fit for a terminal, never waited for, dropped only by count."""

import json
import os
from datetime import UTC, datetime

import pytest

from llmgw.telemetry.log import LogLimits, LogSink, clean, make_log


def lines_of(write, limits: LogLimits = LogLimits(), **how) -> list[str]:  # noqa: B008 - frozen
    """What reaches the file descriptor."""
    reader, writer = os.pipe()
    sink = LogSink(limits, fd=writer)
    write(make_log(sink, **how))
    sink.flush()
    os.close(writer)
    with os.fdopen(reader) as file:
        return file.read().splitlines()


def test_a_line_is_one_json_object_with_level_and_time():
    before = datetime.now(UTC)
    (line,) = lines_of(lambda log: log.info("request", status=200, wait_s=None))
    said = json.loads(line)

    assert (said["event"], said["level"], said["status"], said["wait_s"]) == ("request", "info", 200, None)
    assert abs((datetime.fromisoformat(said["timestamp"]) - before).total_seconds()) < 5


@pytest.mark.parametrize("dirt", ["a\nb", "a\x1b[2Jb", "a\u2028b", "a\x85b", "a\x00b"])
def test_what_comes_from_outside_can_forge_no_line_and_move_no_terminal(dirt):
    for form in ("json", "console"):
        written = lines_of(lambda log: log.info("x", model=dirt), LogLimits(format=form))
        assert len(written) == 1
        assert dirt not in written[0]
        assert written[0].isprintable()


def test_long_text_is_cut():
    assert len(clean("a" * 10_000)) == 257


def test_an_exception_is_shown_with_where_it_came_from():
    def fails(log) -> None:
        try:
            raise ZeroDivisionError
        except ZeroDivisionError as error:
            log.error("failed", exc_info=error)

    (line,) = lines_of(fails)
    assert "test_log_lines.py" in json.loads(line)["exception"]


def test_less_severe_lines_are_not_written():
    assert lines_of(lambda log: log.info("x"), LogLimits(level="warning")) == []


def test_a_full_queue_drops_and_counts():
    sink = LogSink(LogLimits(queue_max=2))
    log = make_log(sink)
    for _ in range(5):
        log.info("x")

    assert sink.dropped == 3


def test_a_value_json_does_not_know_is_shown_and_does_not_fail():
    (line,) = lines_of(lambda log: log.info("x", thing={1, 2}.__class__, secret=b"\xff"))
    assert json.loads(line)["event"] == "x"
