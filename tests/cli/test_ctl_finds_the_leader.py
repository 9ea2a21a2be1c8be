"""ctl with several control planes: small real servers that lead, stand by, or are not there."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from llmgw.cli import main
from llmgw.cli.ctl import http


class Plane(ThreadingHTTPServer):
    """``leader``: whom it names; None: it leads. ``knows``: what it says of the cluster."""

    daemon_threads = True

    def __init__(self, leader: "str | None" = None, knows: str = "1") -> None:
        super().__init__(("127.0.0.1", 0), Answerer)
        self.leader, self.knows = leader, knows
        self.asked: list[str] = []
        self.becomes: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answerer(BaseHTTPRequestHandler):
    """One answer a connection, and no word of that: so it is where a refusal was quicker than the question's body."""

    server: Plane
    protocol_version = "HTTP/1.1"
    answered = False

    def answer(self) -> None:
        self.close_connection, self.answered, again = self.answered, True, self.answered
        if again:
            return
        self.rfile.read(int(self.headers.get("content-length", 0)))
        plane, status, headers = self.server, 200, {}
        value: Any = {"revisions": [{"source": plane.knows}], "replicas": 2, "scaled": 2}
        plane.asked.append(f"{self.command} {self.path}")
        if plane.leader is not None and self.command == "GET":
            headers = {"x-llmgw-leader": plane.leader, "x-llmgw-age": "0.4"}
        elif plane.leader is not None:
            error = {"message": "this one stands by", "code": "not_leading", "hint": "", "leader": plane.leader}
            status, value = 421, {"error": error}
        plane.becomes()
        text = json.dumps(value).encode()
        self.send_response(status)
        for name, said in {**headers, "content-length": str(len(text))}.items():
            self.send_header(name, said)
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = answer

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: what was asked is in ``asked``."""


@pytest.fixture
def planes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Plane]]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("LLMGW_CONFIG", raising=False)
    monkeypatch.setattr(http, "PAUSE_S", 0.01)
    with ExitStack() as ends:

        def start(*args: Any, **kwargs: Any) -> Plane:
            plane = Plane(*args, **kwargs)
            thread = threading.Thread(target=plane.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            ends.callback(plane.server_close)
            ends.callback(thread.join)
            ends.callback(plane.shutdown)
            return plane

        yield start


@pytest.fixture
def nobody() -> str:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{held.getsockname()[1]}"


def ctl(urls: str, *words: str) -> Result:
    return CliRunner().invoke(main, ["ctl", "--url", urls, "--token", "right", *words])


def scale(urls: str) -> Result:
    return ctl(urls, "scale", "llama", "2")


def history(urls: str) -> Result:
    return ctl(urls, "history", "-o", "json")


def test_one_that_stands_by_sends_to_the_leader_who_is_asked_instead(planes):
    leads = planes()
    stands_by = planes(leads.url)
    assert scale(stands_by.url).exit_code == 0
    assert [len(stands_by.asked), len(leads.asked)] == [1, 1]


def test_of_several_the_first_that_answers_is_asked(planes, nobody):
    leads = planes()
    result = scale(f"{nobody}, {leads.url}")
    assert result.exit_code == 0, result.output
    assert len(leads.asked) == 1


def test_when_none_answers_each_is_named(nobody):
    result = scale(f"{nobody},http://[::1]:9")
    assert result.exit_code == 6
    assert nobody in result.output
    assert "[::1]:9" in result.output


def test_a_question_is_answered_by_the_leader_who_knows_better(planes):
    leads = planes(knows="the leader")
    result = history(planes(leads.url).url)
    assert json.loads(result.stdout)["revisions"] == [{"source": "the leader"}]
    assert len(leads.asked) == 1


def test_where_the_leader_is_away_a_standbys_answer_is_shown_with_its_age(planes, nobody):
    result = history(planes(nobody).url)
    assert result.exit_code == 0
    assert f"{nobody} is not reachable" in result.stderr
    assert "this is what the store had 0.4 s ago" in result.stderr


def test_while_nobody_leads_it_asks_until_somebody_does(planes):
    plane = planes("")

    def lead_from_the_third() -> None:
        if len(plane.asked) == 3:
            plane.leader = None

    plane.becomes = lead_from_the_third
    result = scale(plane.url)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("nobody leads at the moment") == 1
    assert len(plane.asked) == 4


def test_nobody_leading_for_long_is_75(planes, monkeypatch):
    monkeypatch.setattr(http, "PATIENCE_S", 0.05)
    result = scale(planes("").url)
    assert result.exit_code == 75
    assert "no control plane leads; `llmgw ctl leader` says why; nothing was changed" in result.output


def test_while_nobody_leads_nobody_can_hand_over_and_whoever_comes_next_is_left_alone(planes):
    plane = planes("")
    result = ctl(plane.url, "leader", "resign")
    assert result.exit_code == 75
    assert "no control plane leads" in result.output
    assert plane.asked == ["POST /admin/v1/leader/resign"], "asked once"


def test_who_hands_over_is_found_like_any_leader(planes):
    leads = planes()
    ctl(planes(leads.url).url, "leader", "resign")
    assert leads.asked == ["POST /admin/v1/leader/resign"]


def test_two_that_name_each_other_end_as_nobody_leading(planes, monkeypatch):
    monkeypatch.setattr(http, "PATIENCE_S", 0.05)
    one, other = planes(""), planes("")
    one.leader, other.leader = other.url, one.url
    assert scale(one.url).exit_code == 75


def test_a_token_that_came_over_tls_is_not_sent_in_the_clear():
    api = http.HttpApi("https://gw-1:7442,https://gw-2:7442", "secret")
    with pytest.raises(Exception, match="not sent in the clear"):
        api._prefer("http://gw-2:7442")
    api.close()


def test_a_context_remembers_all_of_them(planes, nobody):
    leads = planes()
    CliRunner().invoke(main, ["ctl", "context", "add", "prod", "--url", f"{nobody}/, {leads.url}", "--token", "x"])
    listed = CliRunner().invoke(main, ["ctl", "context", "list", "-o", "json"])
    assert json.loads(listed.stdout)["contexts"][0]["url"] == f"{nobody},{leads.url}"
    assert CliRunner().invoke(main, ["ctl", "scale", "llama", "2"]).exit_code == 0
    assert len(leads.asked) == 1
