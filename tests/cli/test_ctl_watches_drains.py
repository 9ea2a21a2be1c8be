"""ctl drain --watch: a line whenever the picture changes, to the end, over a control plane that goes and comes."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from click.testing import Result

from llmgw.cli.ctl import drain_watch
from tests.cli import test_ctl_drains as drains
from tests.cli.test_ctl_drains import NOT_FOUND, Scripted, ctl, got, over, status, told

AWAY = (503, {"error": {"message": "the store is away", "code": "store_unavailable", "hint": ""}})
PROXY = (502, "nobody is behind me")
TO_CORDONED = {"target": "cordoned", "by": "ann", "at": 1.0, "why": "new fans"}
admin = drains.admin


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_watch, "EVERY_S", 0.001)


def followed(admin: Scripted, *statuses: Any) -> Result:
    admin.answers["PUT", "/nodes/node-1/target"] = told(status())
    admin.answers["GET", "/nodes/node-1/drain"] = [each if isinstance(each, tuple) else got(each) for each in statuses]
    return ctl(admin, "drain", "node-1", "--watch")


def test_a_drain_is_followed_a_line_each_time_the_picture_changes(admin):
    ages = [status(left_s=2640.0 - n, waits_on=[f"org-llama-1 finishes 2 requests, oldest {n} s"]) for n in range(5)]
    half = status(
        state="blocked", left=["org-llama-2"], replaced=["org-llama-1"], cut=1, waits_on=["a", "b"], left_s=-3
    )

    shown = followed(admin, *ages, half, half, over("drained", "node-1 is drained after 99 s"))

    lines = [line.split("  ", 1)[1] for line in shown.stdout.splitlines()[3:5]]
    assert lines == [
        "draining, 0 of 2 replicas replaced, 44 min left: org-llama-1 finishes 2 requests, oldest 0 s",
        "blocked, 1 of 2 replicas replaced, at most 1 request cut, its grace is over: a; b",
    ]
    assert shown.stdout.splitlines()[5:] == ["node-1 is drained after 99 s"]
    assert (shown.exit_code, shown.stderr) == (0, "")


def test_of_many_replicas_a_line_names_those_that_something_is_new_of(admin, monkeypatch):
    waits = [f"m-{n} waits for its turn" for n in range(6)]
    one = [*waits[:4], "m-4 finishes 1 request, oldest 3 s", waits[5]]
    later = [*waits[:4], "m-4 finishes 1 request, oldest 4 s", "m-5 ends"]

    shown = followed(admin, status(waits_on=waits), status(waits_on=one), status(waits_on=later), over("drained", "x"))

    lines = [line.partition(" left: ")[2] for line in shown.stdout.splitlines()[3:6]]
    assert lines == [
        "m-0 waits for its turn; m-1 waits for its turn; and 4 more",
        "m-4 finishes 1 request, oldest 3 s; and 5 more",
        "m-5 ends; and 5 more",
    ]


def test_a_quiet_drain_is_shown_again_after_a_while(admin, monkeypatch):
    monkeypatch.setattr(drain_watch, "QUIET_S", 0.0)

    shown = followed(admin, status(), status(), over("drained", "done"))

    assert len(shown.stdout.splitlines()) == 3 + 2 + 1


def test_a_drain_that_ends_blocked_is_5(admin):
    shown = followed(admin, status(), over("blocked", "the drain of node-1 ends blocked after 2700 s"))

    assert (shown.exit_code, shown.stdout.splitlines()[-1]) == (5, "the drain of node-1 ends blocked after 2700 s")


def test_one_that_is_over_already_is_shown_as_that(admin):
    done = over("drained", "node-1 is drained after 99 s")
    admin.answers["PUT", "/nodes/node-1/target"] = told(done)
    admin.answers["GET", "/nodes/node-1/drain"] = got(done)

    plain, watched = ctl(admin, "drain", "node-1"), ctl(admin, "drain", "node-1", "--watch", "-o", "json")

    assert (plain.exit_code, plain.output) == (0, "node-1 is drained after 99 s\n")
    once = ctl(admin, "drain", "node-1", "--watch")
    assert (once.exit_code, once.output) == (0, plain.output)
    assert [json.loads(line)["drain"]["state"] for line in watched.stdout.splitlines()] == ["drained"]


def test_a_program_gets_a_status_a_line_and_nothing_else(admin):
    admin.answers["PUT", "/nodes/node-1/target"] = told(status())
    admin.answers["GET", "/nodes/node-1/drain"] = [got(status()), got(status(replaced=["org-llama-1"])),
                                                   got(over("blocked", "blocked"))]  # fmt: skip

    shown = ctl(admin, "drain", "node-1", "--watch", "-o", "json")

    states = [(one["node"], one["drain"]["state"]) for one in map(json.loads, shown.stdout.splitlines())]
    assert (shown.exit_code, states) == (5, [("node-1", "draining"), ("node-1", "draining"), ("node-1", "blocked")])


def test_a_drain_that_is_undone_meanwhile_is_1_and_says_by_whom(admin):
    admin.answers["GET", "/nodes/node-1"] = (200, {"node": {"target": TO_CORDONED}})

    shown = followed(admin, status(), NOT_FOUND)

    assert shown.exit_code == 1
    assert "undone meanwhile: it is cordoned by ann: new fans" in shown.stderr


def test_a_node_that_is_removed_meanwhile_is_1(admin):
    shown = followed(admin, status(), NOT_FOUND)

    assert (shown.exit_code, "node-1 was removed meanwhile" in shown.stderr) == (1, True)


@pytest.mark.parametrize(("away", "why"), [(AWAY, "the store is away"), (PROXY, "answers 502 in another form")])
def test_a_control_plane_that_goes_and_comes_back_is_waited_for(admin, away, why):
    shown = followed(admin, status(), away, away, over("drained", "done"))

    assert shown.exit_code == 0
    since, again = shown.stderr.splitlines()
    assert since.startswith("since ")
    assert f"{why}; asking again for up to 2 min" in since
    assert again.startswith("it answers again, after ")


def test_one_that_stays_away_is_6_with_how_to_follow_again(admin, monkeypatch):
    monkeypatch.setattr(drain_watch, "AWAY_S", 0.0)

    shown = followed(admin, status(), AWAY)

    assert shown.exit_code == 6
    assert "follow it again: llmgw ctl drain node-1 --watch" in shown.stderr


def test_what_is_refused_in_the_middle_is_not_asked_again(admin):
    refused = {"error": {"message": "who are you?", "code": "unauthenticated", "hint": ""}}

    assert followed(admin, status(), (401, refused)).exit_code == 1


def test_an_endpoint_is_followed_without_a_word_of_replicas(admin):
    wait = status(left=["org/a"], planned={}, waits_on=["org/a finishes 1 request, oldest 3 s"])
    admin.answers["PUT", "/endpoints/org%2Fa/target"] = told(wait, said="org/a is draining")
    admin.answers["GET", "/endpoints/org%2Fa/drain"] = [got(wait), got(over("drained", "org/a is drained"))]

    shown = ctl(admin, "drain", "endpoint/org/a", "--watch")

    assert shown.exit_code == 0
    assert "draining, 44 min left: org/a finishes 1 request, oldest 3 s\norg/a is drained\n" in shown.stdout
    assert "replica" not in shown.stdout


def test_ctrl_c_leaves_a_drain_running_and_says_how_to_go_on(admin):
    admin.answers["PUT", "/nodes/node-1/target"] = told(status())
    admin.answers["GET", "/nodes/node-1/drain"] = got(status())
    words = [sys.executable, "-m", "llmgw", "ctl", "--url", admin.url, "--token", "right", "drain", "node-1", "--watch"]

    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        for line in process.stdout:
            if "0 of 2 replicas" in line:
                break
        process.send_signal(signal.SIGINT)
        says = process.stderr.read()
        assert process.wait(20) == 130

    assert "the drain of node-1 goes on; follow it again: llmgw ctl drain node-1 --watch" in says
    assert "undo it: llmgw ctl uncordon node-1" in says
    assert [path for path, _ in admin.put] == ["/nodes/node-1/target"]


def test_ctrl_c_before_the_answer_does_not_say_that_a_drain_goes_on(admin, monkeypatch):
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("llmgw.cli.ctl.http.HttpApi.ask", interrupted)

    shown = ctl(admin, "drain", "node-1", "--watch")

    assert (shown.exit_code, "the drain of node-1 may have begun" in shown.stderr) == (130, True)
    assert ctl(admin, "drain", "node-1", "--dry-run").exit_code == 1
