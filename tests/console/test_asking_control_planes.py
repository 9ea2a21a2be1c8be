"""Whom the console asks, and what it makes of refusals and of silence: over real sockets."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.feed import api as asking
from console.feed import listener, pieces
from console.feed.addresses import ASIDE_S, LEARNT_MAX, Addresses
from console.feed.api import AdminApi, Away, Refused
from tests.console.gateways import Gateway, refusal, up


def run(story):
    """A story of asyncio, bounded."""
    asyncio.run(asyncio.wait_for(story, 20))


class Api(AdminApi):
    """Its connections end with the block."""

    def __init__(self, *gateways, token="secret", **more):
        super().__init__([one if isinstance(one, str) else one.url for one in gateways], token, **more)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()


def put(api):
    return api.ask("PUT", "/nodes/node-1/target", body={"target": "cordoned"})


# -- who answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_where_nobody_listens_the_next_address_is_asked_and_from_then_on_first(method):
    async def story():
        gone, there = Gateway(), Gateway()
        async with up(gone, there):
            await gone.stop()
            async with Api(gone, there) as api:
                assert (await api.ask(method, "/x"))["did"] == f"{method} /x"
                assert api.addresses.order[0] == there.url

    run(story())


def test_where_nobody_answers_at_all_every_address_is_said():
    async def story():
        one, other = Gateway(), Gateway()
        async with up(one, other):
            pass
        async with Api(one, other) as api:
            with pytest.raises(Away) as away:
                await api.ask("GET", "/nodes")
        assert one.url in away.value.why
        assert other.url in away.value.why

    run(story())


def test_a_change_that_may_have_been_done_is_not_sent_again():
    async def story():
        cut, there = Gateway(answers={"/nodes/node-1/target": lambda _: (0, None)}), Gateway()
        async with up(cut, there), Api(cut, there) as api:
            with pytest.raises(Away, match="it may have been done"):
                await put(api)
            assert (len(cut.asked), there.asked) == (1, [])

    run(story())


def test_a_question_whose_answer_breaks_off_is_asked_elsewhere():
    async def story():
        cut, there = Gateway(answers={"/nodes": lambda _: (0, None)}), Gateway()
        async with up(cut, there), Api(cut, there) as api:
            assert (await api.ask("GET", "/nodes"))["did"] == "GET /nodes"

    run(story())


def test_no_answer_in_time_is_no_answer(monkeypatch):
    async def never(reader, writer):
        await reader.read()
        writer.close()

    async def story():
        monkeypatch.setattr(listener, "READ_WITHIN_S", 0.05)
        server = await asyncio.start_server(never, "127.0.0.1", 0)
        async with server, Api(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as api:
            with pytest.raises(Away, match="no answer in time"):
                await api.ask("GET", "/nodes")

    run(story())


def test_an_answer_without_end_is_not_read_to_it(monkeypatch):
    async def story():
        monkeypatch.setattr(listener, "ANSWER_MAX", 1000)
        large = Gateway(answers={"/nodes": lambda _: (200, {"nodes": ["x" * 2000]})})
        async with up(large), Api(large) as api:
            with pytest.raises(Away, match="more than 1000 bytes"):
                await api.ask("GET", "/nodes")

    run(story())


@pytest.mark.parametrize("body", [b"<html>", {"error": {"message": "no such model", "type": "x"}}, b"[1]"])
def test_what_is_no_admin_listener_is_called_so(body):
    async def story():
        client = Gateway(answers={"/nodes": lambda _: (404, body)})
        async with up(client), Api(client) as api:
            with pytest.raises(Away, match="is not an llmgw admin listener") as away:
                await api.ask("GET", "/nodes")
            assert "admin.listen" in away.value.hint

    run(story())


def test_a_refusal_keeps_its_words_and_its_status():
    async def story():
        said = {"error": {"message": "no", "code": "blocked", "hint": "wait", "problems": ["a", "b"]}}
        gateway = Gateway(answers={"/nodes": lambda _: (409, said)})
        async with up(gateway), Api(gateway) as api:
            with pytest.raises(Refused) as refused:
                await api.ask("GET", "/nodes")
        error = refused.value
        assert (str(error), error.hint, error.code, error.status) == ("no; a; b", "wait", "blocked", 409)

    run(story())


# -- who leads -----------------------------------------------------------------------------------------------


def test_a_change_goes_to_the_leader_whom_a_standby_names_and_is_done_once():
    async def story():
        standby, leader = Gateway(leads=False), Gateway()
        async with up(standby, leader):
            standby.other = leader.url
            async with Api(standby) as api:
                assert (await put(api))["did"] == "PUT /nodes/node-1/target"
                await put(api)
        assert (len(standby.asked), len(leader.asked)) == (1, 2), "from then on the leader is asked first"

    run(story())


def test_while_nobody_leads_a_change_waits_for_who_will(monkeypatch):
    async def story():
        monkeypatch.setattr(asking, "PAUSE_S", 0.01)
        standby = Gateway(leads=False)
        refusals = iter([(421, refusal("nobody leads", "not_leading", leader=""))] * 2)
        standby.answers["/nodes/node-1/target"] = lambda asked: next(refusals, (200, {"done": True}))
        async with up(standby), Api(standby) as api:
            assert await put(api) == {"done": True}

    run(story())


def test_while_a_leader_that_died_is_named_still_a_change_waits_for_the_next(monkeypatch):
    async def story():
        monkeypatch.setattr(asking, "PAUSE_S", 0.01)
        standby, dead = Gateway(leads=False), Gateway()
        async with up(standby, dead):
            await dead.stop()
            refusals = iter([(421, refusal("gw-1 leads", "not_leading", leader=dead.url))] * 12)
            standby.answers["/nodes/node-1/target"] = lambda asked: next(refusals, (200, {"done": True}))
            async with Api(standby) as api:
                assert await put(api) == {"done": True}

    run(story())


def test_a_resignation_is_for_who_leads_now_and_waits_for_nobody():
    async def story():
        standby = Gateway(leads=False)
        standby.answers["/leader/resign"] = lambda asked: (421, refusal("nobody leads", "not_leading", leader=""))
        async with up(standby), Api(standby) as api:
            with pytest.raises(Refused, match="no control plane that leads"):
                await api.ask("POST", "/leader/resign", body={})
        assert len(standby.asked) == 1

    run(story())


def test_who_names_each_other_as_the_leader_is_not_followed_for_ever(monkeypatch):
    async def story():
        monkeypatch.setattr(asking, "PATIENCE_S", 0.0)
        one, other = Gateway(leads=False), Gateway(leads=False)
        async with up(one, other):
            one.other, other.other = other.url, one.url
            async with Api(one) as api:
                with pytest.raises(Refused, match="no control plane that leads has answered"):
                    await put(api)
        assert len(one.asked) + len(other.asked) <= asking.HOPS_MAX + 1

    run(story())


def test_the_leaders_answer_is_better_than_a_standbys():
    async def story():
        standby, leader = Gateway(leads=False, nodes=[{"name": "old"}]), Gateway(nodes=[{"name": "new"}])
        async with up(standby, leader):
            standby.other = leader.url
            async with Api(standby) as api:
                found = await api.answer("GET", "/snapshot")
        assert (found.value["nodes"], found.age_s, found.url) == ([{"name": "new"}], None, leader.url)

    run(story())


def test_a_standbys_answer_has_its_age_and_a_leader_who_is_away_is_let_alone_for_a_while():
    async def story():
        now = 0.0
        standby, leader = Gateway(leads=False), Gateway()
        async with up(standby, leader):
            standby.other = leader.url
            await leader.stop()
            async with Api(standby, clock=lambda: now) as api:
                found = await api.answer("GET", "/snapshot")
                assert (found.age_s, found.url) == (0.0, standby.url)
                await leader.start()
                assert (await api.answer("GET", "/snapshot")).age_s == 0.0
                now = ASIDE_S + 1
                assert (await api.answer("GET", "/snapshot")).age_s is None

    run(story())


def test_a_learnt_address_where_the_token_is_unknown_is_somebody_elses():
    async def story():
        standby, stranger = Gateway(leads=False), Gateway(token="other")
        async with up(standby, stranger):
            standby.other = stranger.url
            async with Api(standby) as api:
                for _ in range(2):
                    assert (await api.answer("GET", "/snapshot")).url == standby.url
        assert len(stranger.asked) == 1

    run(story())


def test_a_given_address_that_does_not_know_the_token_says_so():
    async def story():
        gateway = Gateway()
        async with up(gateway), Api(gateway, token="wrong") as api:
            with pytest.raises(Refused) as refused:
                await api.ask("GET", "/nodes")
        assert (refused.value.status, "--token" in refused.value.hint) == (401, True)

    run(story())


# -- addresses -----------------------------------------------------------------------------------------------

urls = st.builds("{}://h{}:7442".format, st.sampled_from(["http", "https"]), st.integers(0, 40))


@given(st.lists(urls, min_size=1, max_size=4), st.lists(urls, max_size=40))
def test_a_token_for_tls_alone_is_never_sent_without_it(given_urls, learnt):
    addresses = Addresses(tuple(given_urls), lambda: 0.0)
    for url in learnt:
        addresses.learn(url)

    if all(url.startswith("https:") for url in given_urls):
        assert all(url.startswith("https:") for url in addresses.order)
    assert len(addresses.order) <= len(given_urls) + LEARNT_MAX
    assert set(given_urls) <= set(addresses.order)


@pytest.mark.parametrize("said", ["", "ftp://x", "http://", "http://x:0", "http://[", "x"])
def test_what_is_no_address_is_not_learnt(said):
    assert Addresses(("http://a:1",), lambda: 0.0).learn(said) is None


# -- large answers -------------------------------------------------------------------------------------------

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), st.lists(values, max_size=250) | values, max_size=4))
def test_an_answer_read_in_pieces_is_the_answer(answer):
    body = json.dumps(answer).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "INLINE_MAX", 20)
        assert asyncio.run(pieces.decoded(body)) == json.loads(body)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a": [1, 2', b'{"a": [1, x]}', b"\xff", b'{"a":' + b"[" * 2000])
@pytest.mark.parametrize("inline_max", [4, 10**6])
def test_what_is_no_json_object_is_said_to_be_none(body, inline_max, monkeypatch):
    monkeypatch.setattr(pieces, "INLINE_MAX", inline_max)
    with pytest.raises(pieces.NoObject):
        asyncio.run(pieces.decoded(body))
