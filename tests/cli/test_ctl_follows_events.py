"""ctl events --follow over links that break, and the bytes it reads."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from llmgw.cli import main
from llmgw.wire.event_feed import EVENT_MAX, NotEvents, Told, events_in


def event(seq):
    return {"seq": seq, "at": 1.0, "kind": "node.back", "subject": "n", "sentence": f"n is back {seq}", "data": {}}


def sse(seq):
    return f"id: {seq}\nevent: node.back\ndata: {json.dumps(event(seq))}\n\n".encode()


LISTED = json.dumps({"events": [], "missed": 0, "last": 4}).encode()
HELLO = b": events of llmgw\n\n"


class Scripted(ThreadingHTTPServer):
    """Answers in order; ``asked`` are the paths and ids it was sent."""

    daemon_threads = True

    def __init__(self, *answers):
        super().__init__(("127.0.0.1", 0), Answerer)
        self.answers, self.asked = list(answers), []


class Answerer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.asked.append((self.path.removeprefix("/admin/v1"), self.headers.get("last-event-id")))
        status, kind, body, whole = self.server.answers.pop(0)
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body) + (0 if whole else 1)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, format, *args):
        """Quiet."""


def listed():
    return 200, "application/json", LISTED, True


def stream(*parts, whole=False):
    return 200, "text/event-stream", b"".join([HELLO, *parts]), whole


def refusal(status):
    body = {"error": {"message": "no more", "code": "token", "hint": ""}}
    return status, "application/json", json.dumps(body).encode(), True


@pytest.fixture
def follow(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    servers = []

    def followed(*answers, words=()):
        server = Scripted(*answers)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        env = {"LLMGW_ADMIN_URL": f"http://127.0.0.1:{server.server_address[1]}", "LLMGW_ADMIN_TOKEN": "t"}
        shown = CliRunner().invoke(main, ["ctl", "events", "--follow", "-o", "json", *words], env=env)
        return shown, server.asked

    yield followed
    for server in servers:
        server.shutdown()
        server.server_close()


def seqs(shown):
    return [json.loads(line)["seq"] for line in shown.stdout.splitlines()]


def test_it_goes_on_behind_the_last_one_seen_however_the_link_ends(follow):
    missed = b'event: missed\ndata: {"missed": 3, "since": 6}\n\n'
    shown, asked = follow(
        listed(),
        stream(sse(5)),  # and the link breaks
        stream(b"id: 6\n\n", whole=True),  # and the gateway ends it
        (502, "text/html", b"<h1>a proxy</h1>", True),
        stream(missed, sse(10), sse(11)),
        words=["--count", "3", "--kind", "node"],
    )

    assert shown.exit_code == 0, shown.stderr
    assert seqs(shown) == [5, 10, 11]
    assert [id for _, id in asked] == [None, "4", "5", "6", "6"]
    assert asked[1][0] == "/events?follow=true&kind=node"
    assert "up to 3 events are not remembered any more" in shown.stderr
    assert shown.stderr.count("asking again until it is back") == 2
    assert shown.stderr.count("it answers again\n") == 2


def test_a_refusal_ends_it(follow):
    shown, asked = follow(listed(), stream(sse(5)), refusal(401))

    assert (shown.exit_code, seqs(shown), len(asked)) == (1, [5], 3)
    assert json.loads(shown.stderr.splitlines()[-1])["error"]["message"] == "no more"


def test_a_gateway_that_streams_nothing_is_not_asked_again(follow):
    shown, asked = follow(listed(), listed())

    assert (shown.exit_code, len(asked)) == (1, 2)
    assert "streams nothing" in shown.stderr


def test_a_number_and_a_limit_are_where_it_begins(follow):
    shown, asked = follow(stream(sse(9)), words=["--since", "8", "--count", "1"])
    assert (seqs(shown), asked) == ([9], [("/events?follow=true", "8")])

    both = json.dumps({"events": [event(8)], "missed": 2, "last": 8}).encode()
    shown, asked = follow((200, "application/json", both, True), stream(sse(9)), words="--limit 1 --count 2".split())
    assert (seqs(shown), asked[1][1]) == ([8, 9], "8")
    assert "up to 2 events" in shown.stderr


@given(st.lists(st.integers(1, 50), max_size=20))
def test_however_the_bytes_are_cut_the_events_are_the_same(cuts):
    whole = HELLO + sse(1) + b"id: 2\n\n" + 'id: 3\nevent: x\ndata: {"a": "\u2028\x85"}\n\n'.encode() + b"id: 4\nda"
    parts, rest = [], whole
    for cut in cuts:
        parts, rest = [*parts, rest[:cut]], rest[cut:]

    found = list(events_in([*parts, rest]))

    assert found == [Told("1", "node.back", event(1)), Told("2"), Told("3", "x", {"a": "\u2028\x85"})]


@pytest.mark.parametrize("raw", [b"data: {\n\n", b"x" * (EVENT_MAX + 1)])
def test_bytes_that_are_no_events_are_refused(raw):
    with pytest.raises(NotEvents):
        list(events_in([raw]))
