"""ctl pools, ctl queues and ctl explain queue: tables, JSON lines, and watching until somebody has seen enough."""

import json
import os
import pty
import signal
import subprocess
import sys

import pytest

from llmgw.cli.ctl import pools
from llmgw.cli.ctl.watching import frame
from tests.cli import test_ctl_meets_admin as meets
from tests.cli.test_ctl_meets_admin import POOL, QUEUE, ctl

gateway = meets.gateway  # the fixture: an admin listener over a real store
WITHIN_S = 20


def watching(gateway, *words, **more):
    command = [sys.executable, "-m", "llmgw", "ctl", "--data-dir", str(gateway.place.data_dir), *words]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, **more)


def test_pools_show_ceilings_and_what_makes_each_endpoint_full(gateway):
    shown = ctl(gateway, "pools").stdout.splitlines()

    assert shown[0].split("  ")[0] == "MODEL"
    assert "200%, at once" in shown[1]
    assert "90% floor 5%, 3 wait" in shown[1]
    assert shown[3].split() == "ENDPOINT FULL BY LOAD QUEUE KV OURS OTHERS CAPACITY ENGINE SEEN WHY".split()
    assert shown[4].split() == "a 96% load 96% 20% 10% 30+1 2 32 given 30 run, 0 wait 0.2 s ago -".split()


def test_where_no_endpoint_is_usable_bands_are_refused():
    bands = [{"band": "gold", "ceiling": 1.0, "waiting": 0, "at_once": False}]
    shown = pools._drawn({"pools": [{"model": "m", "saturation": None, "waiting": 0, "bands": bands, "why": "none"}]})

    assert shown.splitlines()[1].split() == "m - - 0 100%, refused none".split()


def test_queues_show_each_tenant_and_how_full_the_bands_are(gateway):
    shown = ctl(gateway, "queues", "meta/llama").stdout.splitlines()

    assert shown[1].split() == "meta/llama gold acme 3 7.500 s 300 4 2.000 s 5.500 s too_late: 2".split()
    assert shown[-1].split() == "gold 3 10 300 1000".split()


@pytest.mark.parametrize(("what", "holds"), [("pools", POOL), ("queues", QUEUE)])
def test_without_watching_json_is_the_answer_itself(gateway, what, holds):
    assert json.loads(ctl(gateway, what, "-o", "json").stdout)[what] == [holds]


@pytest.mark.parametrize(("what", "holds"), [("pools", POOL), ("queues", QUEUE)])
@pytest.mark.parametrize(
    "words",
    [
        ["--watch", "0.05", "--count", "3"],
        ["--watch=0.05", "meta/llama", "--count=3"],
        ["meta/llama", "--watch", "0.05", "--count", "3"],
    ],
)
def test_watched_json_is_one_object_a_line(gateway, what, holds, words):
    lines = ctl(gateway, what, *words, "-o", "json").stdout.splitlines()

    assert [json.loads(line)[what] for line in lines] == [[holds]] * 3


def test_a_model_behind_watch_is_a_model_and_no_number_of_seconds(gateway):
    shown = ctl(gateway, "pools", "--watch", "meta/llama", "--count", "1")

    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "meta/llama" in shown.stdout
    assert "\x1b" not in shown.stdout, "it is no terminal"


@pytest.mark.parametrize("words", [["pools", "--count", "2"], ["queues", "--watch", "0"], ["queues", "--watch=soon"]])
def test_what_can_t_be_watched_is_bad_usage(gateway, words):
    assert ctl(gateway, *words).exit_code == 2


@pytest.mark.parametrize("words", [["pools", "llama"], ["queues", "llama"], ["explain", "queue", "llama"]])
def test_an_unknown_model_is_not_found_and_the_nearest_is_named(gateway, words):
    asked = ctl(gateway, *words)

    assert (asked.exit_code, "no model 'llama' is configured" in asked.stderr) == (4, True)


def test_a_queue_is_explained_for_people_and_programs(gateway):
    assert "it waited (2.0 s ago)" in ctl(gateway, "explain", "queue", "meta/llama").stdout
    assert json.loads(ctl(gateway, "explain", "queue", "meta/llama", "-o", "json").stdout)["verdict"] == "answered"
    assert ctl(gateway, "explain", "queue", " ").exit_code == 2


def test_ctrl_c_ends_watching_with_0(gateway):
    with watching(gateway, "queues", "--watch", "30", "-o", "json", stdout=subprocess.PIPE) as process:
        assert json.loads(process.stdout.readline())["queues"] == [QUEUE]
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 0


def test_a_terminal_is_redrawn_in_place(gateway):
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    with watching(gateway, "pools", "--watch", "0.05", "--count", "2", stdout=theirs, env=env) as process:
        os.close(theirs)
        drawn = b""
        try:
            while some := os.read(ours, 65536):
                drawn += some
        except OSError:  # Linux says it so once the last writer has gone
            os.close(ours)
        assert process.wait(WITHIN_S) == 0
    first, second, third = drawn.decode().split("\x1b[H")
    assert first == "\x1b[2J"
    assert "every 0.05 s, Ctrl-C ends" in second
    assert second.splitlines()[1:] == third.splitlines()[1:], "the same lines again, but for the clock"
    assert "meta/llama" in second


def test_what_does_not_fit_on_the_screen_is_counted():
    lines = frame("\n".join("abcdefgh"), 6).splitlines()

    assert [line.removeprefix("\x1b[H").removesuffix("\x1b[K") for line in lines[:5]] == [*"abcd", "… 4 more lines"]
    assert frame("a\nb", 3) == "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J"
