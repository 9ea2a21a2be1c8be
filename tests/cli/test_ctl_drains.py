"""ctl cordons, drains, moves and purges: what it asks, what it prints, and the exit codes that scripts go by."""

import json
from collections.abc import Iterator, Sequence
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from llmgw.cli import main
from tests.cli import test_ctl_over_http as over_http

NOT_FOUND = (404, {"error": {"message": "no node is called 'node-9'", "code": "not_found", "hint": "node-1?"}})
MOVE = {
    "replica": "org-llama-1", "model": "org/llama", "to": ["node-2"], "why": "spread 0.50", "blocked": False,
    "requests": 2, "oldest_s": 340.0, "takes_s": 70.0,
}  # fmt: skip
STUCK = MOVE | {"replica": "org-llama-2", "to": [], "why": "no node fits: 1 full", "blocked": True, "requests": 0}
GOES = MOVE | {"replica": "org-llama-3", "to": [], "why": "it is on its way out: it was moved"}


def status(**said: Any) -> dict[str, Any]:
    return {
        "state": "draining", "left": ["org-llama-1", "org-llama-2"], "processes": ["org-llama-1.g1.r0"],
        "waits_on": ["org-llama-1 waits for its turn"], "grace_s": 2700.0, "left_s": 2640.0, "at_deadline": "stop",
        "planned": {"org-llama-1": ["node-2"]}, "replaced": [], "cut": 0, "said": "",
    } | said  # fmt: skip


def over(state: str, said: str, **more: Any) -> dict[str, Any]:
    return status(state=state, left=[], processes=[], waits_on=[], left_s=None, said=said, **more)


def told(drain: dict[str, Any] | None = None, name: str = "node-1", **said: Any) -> tuple[int, Any]:
    """As a target that was put is answered."""
    answer = {
        "node": name,
        "target": "drained",
        "confirmed": True,
        "said": f"{name} is draining",
        "may_still_start": [],
    }
    return 200, answer | {"plan": {"moves": [MOVE]}} | said | ({"drain": drain} if drain else {})


def got(drain: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"node": "node-1", "drain": drain}


class Answerer(over_http.Answerer):
    def do_PUT(self) -> None:
        self.answer()


class Scripted(over_http.Admin):
    """Of a list of answers each is given once, and the last one for ever."""

    def __init__(self) -> None:
        ThreadingHTTPServer.__init__(self, ("127.0.0.1", 0), Answerer)
        self.answers = _InTurn()
        self.asked = []
        self.plain = None

    @property
    def put(self) -> list[tuple[str, Any]]:
        return [(path, body) for method, path, body in self.asked if method in ("PUT", "POST")]


class _InTurn(dict[tuple[str, str], Any]):
    def get(self, key: tuple[str, str], default: Any = None) -> Any:
        found = super().get(key, default)
        if isinstance(found, list):
            return found.pop(0) if len(found) > 1 else found[0]
        return found


@pytest.fixture
def admin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    with Scripted() as server:
        over_http.threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def ctl(admin: Scripted, *words: str, stdin: str | None = None) -> Result:
    asked = ["ctl", "--url", admin.url, "--token", "right", *words]
    return CliRunner().invoke(main, asked, env={"LLMGW_DEBUG": "1"}, input=stdin)


# -- cordon ------------------------------------------------------------------------------------------------


def cordoned(admin: Scripted, name: str, **said: Any) -> None:
    admin.answers["PUT", f"/nodes/{name}/target"] = told(
        name=name, target="cordoned", said=f"{name} is cordoned", **said
    )


def test_several_nodes_are_cordoned_each_once_with_the_reason(admin):
    cordoned(admin, "node-1")
    cordoned(admin, "node-2")

    shown = ctl(admin, "cordon", "node-1", "node-2", "node-1", "-m", "new fans")

    assert (shown.exit_code, shown.stdout) == (0, "node-1 is cordoned\nnode-2 is cordoned\n")
    body = {"target": "cordoned", "reason": "new fans"}
    assert admin.put == [("/nodes/node-1/target", body), ("/nodes/node-2/target", body)]


def test_a_cordon_that_is_not_sure_is_5_and_names_what_may_still_start(admin):
    says = "node-1 is cordoned, unconfirmed: it has not obeyed rev 41, may still start m.g7.r0"
    admin.answers["PUT", "/nodes/node-1/target"] = told(confirmed=False, said=says, may_still_start=["m.g7.r0"])

    shown = ctl(admin, "cordon", "node-1")

    assert (shown.exit_code, shown.stdout) == (5, says + "\n")
    assert "ask again: llmgw ctl cordon node-1" in shown.stderr
    told_json = ctl(admin, "cordon", "node-1", "-o", "json")
    assert told_json.exit_code == 5
    assert json.loads(told_json.stdout)["targets"][0]["may_still_start"] == ["m.g7.r0"]


def test_one_node_that_is_not_there_keeps_no_other_from_being_cordoned(admin):
    admin.answers["PUT", "/nodes/node-9/target"] = NOT_FOUND
    cordoned(admin, "node-1")

    shown = ctl(admin, "cordon", "node-9", "node-1")

    assert (shown.exit_code, shown.stdout) == (4, "node-1 is cordoned\n")
    assert shown.stderr == "llmgw: no node is called 'node-9'; node-1?\n"


def test_a_gateway_that_is_away_is_asked_once_and_is_6(admin):
    admin.plain = b"<html>"

    assert ctl(admin, "cordon", "node-1", "node-2").exit_code == 6
    assert len(admin.put) == 1


def test_what_is_no_node_is_bad_usage(admin):
    for words in (["cordon"], ["cordon", ""], ["cordon", "endpoint/a"], ["uncordon"], ["drain", "endpoint/"]):
        assert ctl(admin, *words).exit_code == 2, words
    assert "llmgw ctl drain endpoint/a" in ctl(admin, "cordon", "endpoint/a").stderr
    assert admin.put == []


@pytest.mark.parametrize("name", [".", "..", "node-1/", "../node-1"])
def test_what_can_be_no_name_is_4_and_never_becomes_another_path(admin, name):
    for words in (["cordon", name], ["uncordon", name], ["drain", name], ["explain", "drain", name]):
        shown = ctl(admin, *words)
        assert (shown.exit_code, shown.stderr) == (
            4,
            f"llmgw: no node is called {name!r}; `llmgw ctl nodes` lists them\n",
        ), words
    for words in (["move", name], ["purge", name, "--yes"]):
        shown = ctl(admin, *words)
        assert (shown.exit_code, shown.stderr) == (
            4,
            f"llmgw: no replica {name!r} runs; `llmgw ctl replicas` lists them\n",
        )
    assert ctl(admin, "drain", "endpoint/..").exit_code == 4
    assert admin.asked == []


def test_one_that_is_no_name_keeps_no_other_from_being_cordoned(admin):
    cordoned(admin, "node-1")

    assert (ctl(admin, "cordon", "node-1/", "node-1").exit_code, len(admin.put)) == (4, 1)


def test_an_endpoint_is_not_moved_and_the_way_out_is_said(admin):
    shown = ctl(admin, "move", "endpoint/old-1")

    hint = "an endpoint is drained: llmgw ctl drain endpoint/old-1"
    assert (shown.exit_code, shown.stderr) == (4, f"llmgw: no replica 'endpoint/old-1' runs; {hint}\n")


def test_uncordon_takes_nodes_and_endpoints_whose_ids_have_slashes(admin):
    admin.answers["PUT", "/nodes/node-1/target"] = told(said="node-1 is schedulable")
    admin.answers["PUT", "/endpoints/org%2Fa/target"] = (
        200,
        {"endpoint": "org/a", "target": "schedulable", "confirmed": True, "said": "org/a is in service"},
    )

    shown = ctl(admin, "uncordon", "node-1", "endpoint/org/a", "-m", "done")

    assert (shown.exit_code, shown.stdout) == (0, "node-1 is schedulable\norg/a is in service\n")
    assert [body for _, body in admin.put] == [{"target": "schedulable", "reason": "done"}] * 2


def test_what_others_named_moves_no_cursor(admin):
    admin.answers["PUT", "/nodes/node-1/target"] = told(confirmed=False, said="may still start \x1b[2J")

    assert "\x1b" not in ctl(admin, "cordon", "node-1").output


# -- dry runs ----------------------------------------------------------------------------------------------


def planned(
    admin: Scripted, *moves: Any, estimate_s: float = 70.0, path: str = "/nodes/node-1", refused: str = ""
) -> None:
    plan = {"moves": list(moves), "estimate_s": estimate_s}
    admin.answers["PUT", f"{path}/target"] = (
        200,
        {"node": "node-1", "dry_run": True, "plan": plan, "refused": refused},
    )
    admin.answers["GET", "/config"] = (200, {"drain": {"grace": "45min"}})


def test_a_dry_run_says_where_each_goes_how_long_it_takes_and_what_to_type_next(admin):
    planned(admin, MOVE)

    shown = ctl(admin, "drain", "node-1", "--dry-run", "-m", "new fans")

    head, row, blank, takes = shown.stdout.splitlines()
    assert head.split() == "REPLICA MODEL TO WHY REQUESTS OLDEST TAKES".split()
    assert row.split() == "org-llama-1 org/llama node-2 spread 0.50 2 6 min 70.0 s".split()
    assert (blank, takes) == ("", "takes about 70 s without what requests need; drain.grace is 45min")
    assert shown.stderr == "next: llmgw ctl drain node-1 -m 'new fans' --watch\n"
    assert shown.exit_code == 0
    assert admin.put[0][1] == {"target": "drained", "reason": "new fans", "dry_run": True}


def test_a_dry_run_in_which_something_goes_nowhere_is_5_with_the_reason(admin):
    planned(admin, MOVE, STUCK)

    shown = ctl(admin, "drain", "node-1", "--dry-run")

    assert shown.exit_code == 5
    assert "nowhere  no node fits: 1 full" in shown.stdout
    assert "1 replica can go nowhere now" in shown.stdout
    assert "it serves on until there is room; at the end stopped, unless --at-deadline keep\n" in shown.stdout
    assert ctl(admin, "drain", "node-1", "--dry-run", "-o", "json").exit_code == 5


def test_a_dry_run_says_that_a_grace_is_too_short(admin):
    planned(admin, MOVE, estimate_s=3000.0, refused="draining node-1 takes about 3000 s, and drain.grace is 2700 s")

    shown = ctl(admin, "drain", "node-1", "--dry-run")
    assert "drain.grace is 45min, too short for all of it: it is refused without --grace or" in shown.stdout
    assert (shown.exit_code, shown.stderr) == (1, "next: llmgw ctl drain node-1 --grace 100min --watch\n")
    assert ctl(admin, "drain", "node-1", "--dry-run", "-o", "json").exit_code == 1
    planned(admin, MOVE, estimate_s=3000.0)
    given = ctl(admin, "drain", "node-1", "--dry-run", "--grace", "10min", "--at-deadline", "keep")
    assert "--grace is 10min, too short for all of it\n" in given.stdout
    assert given.stderr == "next: llmgw ctl drain node-1 --grace 10min --at-deadline keep --watch\n"
    assert admin.put[-1][1]["grace"] == 600


def test_a_node_with_nothing_on_it_has_no_table(admin):
    planned(admin)

    shown = ctl(admin, "drain", "node-1", "--dry-run")

    assert (shown.exit_code, shown.stdout.splitlines()[0]) == (0, "no replica is on node-1")


def test_an_endpoint_s_dry_run_says_who_serves_on(admin):
    planned(admin, MOVE | {"replica": "org/a", "to": [], "why": "b serves on"}, path="/endpoints/org%2Fa")

    shown = ctl(admin, "drain", "endpoint/org/a", "--dry-run")

    assert (shown.exit_code, "b serves on" in shown.stdout, "nowhere" in shown.stdout) == (0, True, False)
    assert shown.stdout.endswith("\n\ndrain.grace is 45min\n")
    assert "next: llmgw ctl drain endpoint/org/a --watch" in shown.stderr


def test_an_endpoint_that_is_the_only_one_is_not_said_to_be_stopped(admin):
    planned(admin, STUCK | {"replica": "org/a"}, path="/endpoints/org%2Fa")
    admin.answers["PUT", "/endpoints/org%2Fa/target"][1]["plan"]["estimate_s"] = 0.0

    shown = ctl(admin, "drain", "endpoint/org/a", "--dry-run")

    says = "it serves on until another endpoint does; at the end of the grace it is taken out all the same, unless"
    assert (shown.exit_code, says in shown.stdout) == (5, True)
    kept = ctl(admin, "drain", "endpoint/org/a", "--dry-run", "--at-deadline", "keep")
    assert "at the end of the grace it stays in service\n" in kept.stdout
    admin.answers["PUT", "/endpoints/org%2Fa/target"] = told(status(left=["org/a"], planned={}))
    begun = ctl(admin, "drain", "endpoint/org/a")
    assert "44 min left; requests that are there then are cut\n" in begun.stdout


# -- drains ------------------------------------------------------------------------------------------------


def test_a_drain_that_is_not_followed_says_its_plan_and_that_it_goes_on(admin):
    stale = status(planned={"org-llama-1": ["node-9"], "org-llama-2": ["node-9"]})
    admin.answers["PUT", "/nodes/node-1/target"] = told(stale, plan={"moves": [MOVE, STUCK, GOES]})

    shown = ctl(admin, "drain", "node-1", "--grace", "44min", "-m", "new fans")

    assert shown.stdout == (
        "node-1 is draining\n"
        "  org-llama-1 goes to node-2\n"
        "  org-llama-2 can go nowhere now: no node fits: 1 full\n"
        "  org-llama-3 stays until it has ended: it is on its way out: it was moved\n"
        "44 min left; what could not go elsewhere by then is stopped\n"
    )
    can = "1 replica can go nowhere now: it serves on until there is room; at the end stopped, unless --at-deadline"
    assert f"{can} keep\n" in shown.stderr
    assert "what is in the way: llmgw ctl explain placement org/llama\n" in shown.stderr
    assert "it goes on by itself; follow it: llmgw ctl drain node-1 --watch\n" in shown.stderr
    assert "undo it: llmgw ctl uncordon node-1\n" in shown.stderr
    assert (shown.exit_code, admin.put[0][1]["grace"]) == (0, 2640)
    assert json.loads(ctl(admin, "drain", "node-1", "-o", "json").stdout)["drain"]["left_s"] == 2640.0


def test_a_drain_that_takes_longer_than_its_grace_is_refused_with_what_to_do(admin):
    error = {"message": "draining node-1 takes about 3000 s", "code": "too_short", "hint": "give --grace"}
    admin.answers["PUT", "/nodes/node-1/target"] = (409, {"error": error})

    shown = ctl(admin, "drain", "node-1", "--watch")

    assert (shown.exit_code, shown.stderr) == (1, "llmgw: draining node-1 takes about 3000 s; give --grace\n")


@pytest.mark.parametrize(
    "words",
    [["--grace", "soon"], ["--grace", "0s"], ["--at-deadline", "never"], ["--dry-run", "--watch"], ["node-2"]],
)
def test_options_that_make_no_sense_are_bad_usage(admin, words):
    assert ctl(admin, "drain", "node-1", *words).exit_code == 2
    assert admin.asked == []


def test_drains_are_a_line_each(admin):
    mine = {"target": "drained", "by": "ann", "at": 1.0, "why": "new fans"}
    done = over("drained", "node-2 is drained after 9 s")
    gone = status(left=[], processes=["old.g1.r0"], waits_on=["old.g1.r0 ends"], left_s=60.0)
    drains = [
        {"subject": "node-1", "drain": status(), **mine},
        {"subject": "node-2", "drain": done, **mine},
        {"subject": "node-3", "drain": gone, **mine},
        {"subject": "endpoint/org/a", "drain": status(left=["org/a"]), **mine},
    ]
    admin.answers["GET", "/drains"] = (200, {"drains": drains})

    head, first, second, third, fourth = ctl(admin, "drains").stdout.splitlines()

    assert head.split() == "SUBJECT STATE LEFT WAITS ON SINCE BY WHY".split()
    assert "draining  2 replicas, 44 min  org-llama-1 waits for its turn" in first
    assert "drained   -                   node-2 is drained after 9 s" in second
    assert "1 shard, 60.0 s" in third
    assert "draining  44 min " in fourth
    assert first.endswith("ann  new fans")
    admin.answers["GET", "/drains"] = (200, {"drains": []})
    assert ctl(admin, "drains").stdout == "nothing is drained\n"


def test_a_drain_is_explained_also_an_endpoint_s(admin):
    for path in ("node-1", "endpoint%2Forg%2Fa"):
        admin.answers["GET", f"/explain/drain/{path}"] = (200, over_http.EXPLANATION)

    for subject in ("node-1", "endpoint/org/a"):
        assert "  - b was unhealthy (2.0 s ago)\n" in ctl(admin, "explain", "drain", subject).stdout
    assert ctl(admin, "explain", "drain", "node-9").exit_code == 4


# -- move and purge ----------------------------------------------------------------------------------------


def test_a_replica_is_moved_to_nodes_or_to_where_placement_puts_it(admin):
    moved = {"replica": "org-llama-1", "to": ["node-2", "node-3"], "why": "spread 0.50"}
    admin.answers["POST", "/replicas/org-llama-1/move"] = (202, moved)

    shown = ctl(admin, "move", "org-llama-1", "--to", "node-2", "--to", "node-3", "-m", "noise")
    dry = ctl(admin, "move", "org-llama-1", "--dry-run")

    assert (shown.exit_code, shown.stdout) == (0, "org-llama-1 goes to node-2, node-3: spread 0.50\n")
    assert (dry.stdout, dry.stderr) == ("org-llama-1 would go to node-2, node-3: spread 0.50\n", "")
    assert [body for _, body in admin.put] == [
        {"to": ["node-2", "node-3"], "reason": "noise"},
        {"to": [], "reason": "", "dry_run": True},
    ]


def test_a_move_is_taken_back(admin):
    admin.answers["POST", "/replicas/org-llama-1/move"] = (202, {"replica": "org-llama-1", "cancelled": True})

    shown = ctl(admin, "move", "org-llama-1", "--cancel", "-m", "wrong node")
    both = ctl(admin, "move", "org-llama-1", "--cancel", "--to", "node-2")

    assert (shown.exit_code, shown.stdout) == (0, "org-llama-1 is not moved\n")
    assert both.exit_code == 2
    assert [body for _, body in admin.put] == [{"cancel": True, "reason": "wrong node"}]


@pytest.mark.parametrize(("code", "exit"), [("refused", 1), ("blocked", 5)])
def test_a_replica_that_fits_nowhere_stays_and_the_reasons_are_told(admin, code, exit):
    error = {"message": "no node fits: 2 full", "code": code, "hint": ""}
    admin.answers["POST", "/replicas/org-llama-1/move"] = (409, {"error": error})

    shown = ctl(admin, "move", "org-llama-1")

    assert (shown.exit_code, shown.stderr) == (exit, "llmgw: no node fits: 2 full\n")


def stuck(admin: Scripted, *left: str, memory: Sequence[str] = ()) -> None:
    shards = [{"id": "org-llama-1.g1.r0", "node": "node-1"}]
    admin.answers["GET", "/replicas?model=org-llama-1"] = admin.answers["GET", "/replicas"] = (
        200,
        {"replicas": [{"name": "org-llama-1", "shards": shards}]},
    )
    admin.answers["POST", "/replicas/org-llama-1/purge"] = (
        200,
        {"replica": "org-llama-1", "left": list(left), "memory": list(memory)},
    )


def test_a_purge_asks_first_and_tells_of_the_orphans_it_leaves(admin):
    stuck(admin, "org-llama-1.g1.r0")

    no = ctl(admin, "purge", "org-llama-1", stdin="n\n")
    assert (no.exit_code, admin.put) == (1, [])
    assert "what is left of it on node-1 stays" in no.stderr

    yes = ctl(admin, "purge", "org-llama-1", "-m", "hangs", stdin="y\n")
    assert yes.exit_code == 0
    assert yes.stdout == "org-llama-1 is purged; left of it is\n  org-llama-1.g1.r0 on node-1: it may still run\n"
    assert "`llmgw ctl nodes show node-1` shows its processes" in yes.stderr
    assert admin.put == [("/replicas/org-llama-1/purge", {"reason": "hangs"})]


def test_a_purge_of_what_has_ended_speaks_of_no_process(admin):
    stuck(admin, "org-llama-1.g1.r0", memory=["org-llama-1.g1.r0"])

    shown = ctl(admin, "purge", "org-llama-1", "--yes")

    assert "  org-llama-1.g1.r0 on node-1: it has ended, its GPU memory is not back\n" in shown.stdout
    assert "a reset of the GPU or a reboot of node-1 brings it back" in shown.stderr
    assert "process" not in shown.output


def test_a_purge_that_leaves_nothing_says_so_and_scripts_are_not_asked(admin):
    stuck(admin)

    shown = ctl(admin, "purge", "org-llama-1", "--yes")

    assert shown.output == "org-llama-1 is purged; nothing of it runs any more\n"
    assert json.loads(ctl(admin, "purge", "org-llama-1", "--yes", "-o", "json").stdout)["left"] == []


def test_a_replica_that_is_not_there_is_4_before_anything_is_asked(admin):
    assert ctl(admin, "purge", "nope").exit_code == 4
    assert admin.put == []
