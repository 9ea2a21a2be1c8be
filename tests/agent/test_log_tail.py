"""The last lines of an engine, as they may be shown to anybody."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.log_tail import LINE_MAX, LogTail, clean, without

KEY = "sk-engine-0123456789abcdef"


@pytest.fixture
def log(tmp_path):
    return LogTail(tmp_path / "out.log")


def test_whole_lines_from_the_end_are_given(log):
    log.path.write_text("".join(f"line {n}\n" for n in range(1000)))
    assert log.text(30) == "line 997\nline 998\nline 999\n"
    assert log.text(10**6).startswith("line 0\n")


def test_a_line_longer_than_the_tail_is_given_by_its_end(log):
    log.path.write_text("x" * 500 + "end")
    assert log.text(10) == "x" * 7 + "end"


def test_after_a_rotation_the_older_file_comes_first(log):
    log.path.with_name("out.log.1").write_text("old 1\nold 2\n")
    log.path.write_text("new 1\n")
    assert log.text(18) == "old 1\nold 2\nnew 1\n"
    assert log.text(13) == "old 2\nnew 1\n"


def test_bytes_are_counted_over_rotations_and_truncations(log):
    log.path.write_text("12345")
    assert log.look(1.0)
    assert not log.look(2.0)
    log.path.write_text("123")  # cut in place
    assert log.look(3.0)
    assert (log.written, log.changed_at) == (8, 3.0)
    other = log.path.with_name("other")
    other.write_text("1234567")
    other.rename(log.path)  # another file
    assert log.look(4.0)
    assert log.written == 15


def test_a_log_found_by_a_new_agent_is_as_old_as_its_last_line(log):
    log.path.write_text("old\n")
    os.utime(log.path, (1, 1))
    log.look(10.0)
    assert log.changed_at < -1e6


def test_no_log_is_an_empty_one(log):
    assert not log.look(0.0)
    assert log.text(100) == ""


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("10%\r50%\r100%", "100%"),
        ("windows\r", "windows"),
        ("tab\there", "tab\there"),
        ("nul\0bell\x07\x9b31m", "nulbell31m"),
        ("right\u202eleft\u2028line", "rightleftline"),
        ("ünïcode ✓", "ünïcode ✓"),
    ],
)
def test_what_moves_a_terminal_is_taken_out(written, shown):
    assert clean(written) == shown


def test_a_line_without_end_is_cut_and_says_so():
    assert clean("x" * (LINE_MAX + 5)) == "x" * LINE_MAX + " … [5 more]"


@given(st.binary(max_size=300), st.integers(1, 400))
def test_a_tail_is_never_longer_than_asked_and_has_no_controls(tmp_path_factory, data, most):
    log = LogTail(tmp_path_factory.mktemp("log") / "out.log")
    log.path.write_bytes(data)
    text = log.text(most)
    assert len(text.encode()) <= most
    assert not [c for c in text if ord(c) < 32 and c not in "\n\t"]


@given(st.text("ab\n", max_size=60), st.text("ab\n", max_size=60), st.integers(1, 200))
def test_the_key_is_never_shown_wherever_the_window_falls(tmp_path_factory, before, after, most):
    log = LogTail(tmp_path_factory.mktemp("log") / "out.log", KEY)
    log.path.write_text(before + KEY + after)
    text = log.text(most)
    assert not any(KEY[n : n + 8] in text for n in range(len(KEY) - 7))


def test_a_key_whose_end_is_not_written_yet_is_not_begun():
    assert without(KEY, f"key={KEY[:15]}") == "key=[key]"
    assert without(KEY, "key=sk") == "key=sk"
    assert without("", "anything") == "anything"
