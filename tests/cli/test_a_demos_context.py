"""A demo can be found without a word while it runs, and nothing of an operator's contexts is lost by it."""

import pytest

from llmgw.cli.ctl.contexts import Contexts, Named
from llmgw.cli.demo_context import context

URL = "http://127.0.0.1:7999"
PROD, OWN = Named("https://gw-1:7442", "p"), Named("https://mine:7442", "m")


@pytest.fixture
def data(tmp_path, monkeypatch):
    for name in ("LLMGW_ADMIN_URL", "LLMGW_ADMIN_TOKEN", "LLMGW_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "admin.token").write_text("secret\n")
    return tmp_path


def have(current, **named):
    contexts = Contexts.read()
    contexts.named, contexts.current = dict(named), current
    contexts.write()


def now():
    contexts = Contexts.read()
    return contexts.current, contexts.named


@pytest.mark.parametrize(
    ("current", "named", "words"),
    [
        (None, {}, ""),
        (None, {"prod": PROD}, ""),
        ("prod", {"prod": PROD}, "--context demo"),
        ("demo", {"demo": OWN}, ""),
        ("prod", {"prod": PROD, "demo": OWN}, "--context demo"),
    ],
)
def test_it_is_there_while_the_demo_runs_and_afterwards_all_is_as_it_was(data, current, named, words):
    have(current, **named)

    with context(URL, data) as said:
        chosen = Contexts.read().chosen("demo" if said else None)
        assert (chosen.url.removesuffix("/admin/v1"), chosen.token) == (URL, "secret")
        assert said == words

    assert now() == (current, named)


def test_what_a_killed_demo_left_is_replaced_and_not_restored(data):
    killed = context("http://127.0.0.1:7001", data)
    killed.__enter__()

    with context(URL, data) as words:
        assert (words, Contexts.read().chosen(None).url.removesuffix("/admin/v1")) == ("", URL)

    assert now() == (None, {})


def test_what_the_operator_changes_meanwhile_stays(data):
    with context(URL, data):
        have("prod", **now()[1], prod=PROD)

    assert now() == ("prod", {"prod": PROD})


def test_another_demos_context_is_not_taken_away(data):
    with context(URL, data):
        later = context("http://127.0.0.1:7002", data)
        later.__enter__()

    assert now()[1]["demo"].url.startswith("http://127.0.0.1:7002")


def test_where_contexts_have_no_place_the_data_directory_is_said(data, monkeypatch):
    (data / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(data / "file"))

    with context(URL, data) as words:
        assert words == f"--data-dir {data}"


@pytest.mark.parametrize("name", ["LLMGW_ADMIN_URL", "LLMGW_ADMIN_TOKEN", "LLMGW_CONFIG"])
def test_an_environment_that_names_another_gateway_is_outdone_by_the_flag(data, monkeypatch, name):
    monkeypatch.setenv(name, "http://elsewhere:7442")

    with context(URL, data) as words:
        assert words == "--context demo"
