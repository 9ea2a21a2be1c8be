"""What the gateway reads of a request's body, what it refuses, and what an engine then gets."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.wire.openai import PRIVILEGED, Ask, Invalid, for_engine, read

DEEP = 100_000
NOT_JSON = [
    ("nothing", b""),
    ("white space", b" \n"),
    ("an array", b"[]"),
    ("a string", b'"x"'),
    ("a number", b"1"),
    ("null", b"null"),
    ("cut short", b'{"model":"m"'),
    ("two values", b'{"model":"m"}{}'),
    ("a comma too much", b'{"model":"m",}'),
    ("single quotes", b"{'model':'m'}"),
    ("a comment", b'{"model":"m"/**/}'),
    ("NaN", b'{"model":"m","temperature":NaN}'),
    ("Infinity", b'{"model":"m","temperature":Infinity}'),
    ("minus Infinity", b'{"model":"m","x":[{"y":-Infinity}]}'),
    ("a number that is infinite", b'{"model":"m","temperature":1e999}'),
    ("another", b'{"model":"m","x":{"y":[-1.5E+400]}}'),
    ("a byte-order mark", b'\xef\xbb\xbf{"model":"m"}'),
    ("UTF-16", '{"model":"m"}'.encode("utf-16")),
    ("UTF-16 without a mark", '{"model":"m"}'.encode("utf-16-le")),
    ("UTF-32", '{"model":"m"}'.encode("utf-32-be")),
    ("Latin-1", '{"model":"m","x":"é"}'.encode("latin-1")),
    ("a bad byte in a member nobody reads", b'{"model":"m","x":["\xff"]}'),
    ("a bad byte in a name", b'{"model":"m","\xc3":1}'),
    ("an overlong slash", b'{"model":"m","x":"\xc0\xaf"}'),
    ("a surrogate in UTF-8", b'{"model":"m","x":"\xed\xa0\x80"}'),
    ("a control character in a string", b'{"model":"m","x":"a\nb"}'),
    ("NUL behind the end", b'{"model":"m"}\0'),
    ("deep arrays", b'{"model":"m","x":' + b"[" * DEEP + b"]" * DEEP + b"}"),
    ("deep objects", b'{"model":"m","x":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}"),
    ("deep messages", b'{"model":"m","messages":' + b"[" * DEEP + b"]" * DEEP + b"}"),
    ("deep and open", b'{"model":"m","x":' + b"[" * DEEP),
    ("deep options", b'{"model":"m","stream_options":' + b"[" * DEEP + b"]" * DEEP + b"}"),
    ("deep outside", b"[" * DEEP),
]


def refused(body: bytes) -> Invalid:
    with pytest.raises(Invalid) as caught:
        read(body)
    return caught.value


@pytest.mark.parametrize("body", [row[1] for row in NOT_JSON], ids=[row[0] for row in NOT_JSON])
def test_what_is_not_a_json_object_is_invalid_json(body: bytes) -> None:
    error = refused(body)
    assert (error.code, error.param) == ("invalid_json", None)
    assert 0 < len(error.message) < 300


ACTED_ON = ["model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n", *PRIVILEGED]
VALUES = {
    "model": '"m"',
    "stream": "true",
    "stream_options": "{}",
    "max_tokens": "1",
    "max_completion_tokens": "1",
    "n": "1",
}


def escaped(name: str) -> str:
    return "".join(f"\\u{ord(letter):04x}" for letter in name)


@pytest.mark.parametrize("name", ACTED_ON)
@pytest.mark.parametrize("spelled", [str, escaped], ids=["plain", "by escape"])
def test_a_member_we_act_on_may_not_stand_twice(name: str, spelled: Any) -> None:
    value = VALUES.get(name, '"x"')
    model = "" if name == "model" else '"model":"m",'
    assert "twice" in refused(f'{{{model}"{name}":{value},"{spelled(name)}":{value}}}'.encode()).message


def test_a_member_that_is_null_once_and_given_once_stands_twice() -> None:
    assert "twice" in refused(b'{"model":null,"model":"m"}').message


def test_members_nobody_acts_on_may_repeat_and_nested_namesakes_may_stand_anywhere() -> None:
    body = b'{"model":"m","x":1,"x":2,"a":{"model":"n","stream":true},"b":[{"model":1}]}'
    ask = read(body)
    assert (ask.model, ask.stream, ask.body) == ("m", False, body)


WRONG = [
    ("model", [None, "", 7, True, [], {}, "x" * 257]),
    ("stream", ["true", 1, 0, [], {}]),
    ("stream_options", [1, "x", [], True]),
    ("max_tokens", [True, False, 1.5, 1.0, "1", -1, 2**31, 10**30, []]),
    ("max_completion_tokens", [True, 1.5, "1", -1]),
    ("n", [True, 0, -1, 1.5, "1"]),
]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG for value in values])
def test_a_value_of_the_wrong_kind_names_its_member(name: str, value: Any) -> None:
    error = refused(json.dumps({"model": "m", name: value}).encode())
    assert error.param == name


def test_a_missing_model_is_named_so() -> None:
    assert refused(b"{}").code == "missing_required_parameter"
    assert read(b"{}", model_needed=False).model == ""


@pytest.mark.parametrize("half", [b'"\\ud800"', b'"a\\udfff"', b'"\\ud83d\\ud83d"'])
def test_half_a_character_in_a_name_is_no_name(half: bytes) -> None:
    """A lone surrogate can't be written in UTF-8, whatever comes after."""
    try:
        ask = read(b'{"model":' + half + b"}")
    except Invalid:
        return
    ask.model.encode("utf-8")


def test_names_are_compared_decoded() -> None:
    ask = read(b'{"mod\\u0065l":"m","str\\u0065am":true}')
    assert (ask.model, ask.stream) == ("m", True)


def test_null_is_as_good_as_absent() -> None:
    ask = read(b'{"model":"m","stream":null,"stream_options":null,"max_tokens":null,"n":null}')
    assert (ask.stream, ask.asked_for_usage, ask.max_tokens, ask.n) == (False, False, None, 1)
    assert json.loads(for_engine(ask, "m", True)) == json.loads(ask.body)


def test_numbers_a_double_can_hold_are_no_infinities() -> None:
    for number in (b"1e308", b"1e-999", b"0e999", b"12345678901234567890123", b"1E+2", b"-0.0"):
        assert read(b'{"model":"m","x":' + number + b"}").model == "m"
    assert read(b'{"model":"m","x":"1e999"}').model == "m"


# -- what the engine gets ---------------------------------------------------------------------------

text = st.text(max_size=8)
members = st.dictionaries(
    st.one_of(text, st.sampled_from(PRIVILEGED)).filter(lambda name: name not in VALUES),
    st.recursive(
        st.one_of(st.none(), st.integers(), text), lambda i: st.lists(i) | st.dictionaries(text, i), max_leaves=6
    ),
    max_size=6,
)
options = st.one_of(st.none(), st.dictionaries(text, st.one_of(st.booleans(), st.integers(), text), max_size=3))


@given(members, options, st.booleans(), st.booleans(), st.sampled_from(["m", "served/name", 'a"b\\']), st.booleans())
def test_an_engine_gets_the_clients_members_but_for_those_that_must_change(
    others: dict[str, Any], chosen: Any, has_options: bool, stream: bool, served: str, inject: bool
) -> None:
    sent = {**others, "model": "m", "stream": stream} | ({"stream_options": chosen} if has_options else {})
    ask = read(json.dumps(sent).encode())

    got = json.loads(for_engine(ask, served, inject))

    expected = {name: value for name, value in sent.items() if name not in PRIVILEGED} | {"model": served}
    if inject and stream and not ask.asked_for_usage:
        expected["stream_options"] = {**(sent.get("stream_options") or {}), "include_usage": True}
    assert got == expected


def test_a_body_that_need_not_change_is_the_clients_own_object() -> None:
    ask = read(b' {"model" : "m", "x":1.0e0}')
    assert for_engine(ask, "m", True) is ask.body


def asked(**given: Any) -> Ask:
    return read(json.dumps({"model": "m", **given}).encode())


def test_what_else_the_road_reads() -> None:
    ask = asked(max_tokens=5, max_completion_tokens=7, n=2, encoding_format="base64", prompt_cache_key="k", input="x")
    assert (ask.max_tokens, ask.n, ask.wants_base64) == (7, 2, True)
    assert (ask.session, ask.prompt) == (b'"k"', b'"x"')
    assert asked(stream_options={"include_usage": True}).asked_for_usage
    assert not asked(stream_options={"include_usage": 1}).asked_for_usage
    assert asked(messages=[1]).prompt == b"[1]"


def test_a_member_to_take_out_that_is_written_with_escapes_is_refused_by_name() -> None:
    with pytest.raises(Invalid) as caught:
        for_engine(read(b'{"model":"m","pr\\u0069ority":1}'), "m", False)
    assert caught.value.param == "priority"
