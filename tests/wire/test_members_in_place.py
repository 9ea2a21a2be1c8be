"""Changing one member of a JSON object: no other byte is touched, however strange the text."""

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from llmgw.wire import members
from llmgw.wire.members import Unfindable, find, inserted, removed, replaced

NAME = "model"
odd_text = st.text(alphabet='am"\\{}[],: \u00e9\u2028\U0001f600model', max_size=12)
names = st.one_of(odd_text, st.sampled_from([NAME, "modelx", "Model", 'model"', '"model":', "stream_options"]))
values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), odd_text),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=12,
)
spaces = st.sampled_from(["", " ", "\n", "\t \r\n"])


@st.composite
def written(draw: st.DrawFn, value: Any) -> str:
    """A value as JSON with white space anywhere and characters escaped or not."""
    ascii_only = draw(st.booleans())
    if isinstance(value, dict):
        inner = ",".join(
            draw(spaces) + json.dumps(key, ensure_ascii=ascii_only) + draw(spaces) + ":" + draw(written(one))
            for key, one in value.items()
        )
        return draw(spaces) + "{" + inner + draw(spaces) + "}" + draw(spaces)
    if isinstance(value, list):
        return draw(spaces) + "[" + ",".join(draw(written(one)) for one in value) + "]" + draw(spaces)
    return draw(spaces) + json.dumps(value, ensure_ascii=ascii_only) + draw(spaces)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[dict[str, Any], bytes]:
    """An object with a member of our name among others, and its text."""
    members = draw(st.lists(st.tuples(names.filter(lambda n: n != NAME), values), max_size=4))
    members.insert(draw(st.integers(0, len(members))), (NAME, draw(values)))
    value = dict(members)
    return value, draw(written(value)).encode()


@given(bodies(), values)
def test_a_replaced_member_has_its_new_value_and_no_other_byte_moved(
    given_: tuple[dict[str, Any], bytes], new: Any
) -> None:
    value, body = given_
    encoded = json.dumps(new).encode()

    changed = replaced(body, NAME.encode(), encoded)

    place = find(body, NAME.encode())
    assert place is not None
    _, start, end = place
    assert json.loads(body[start:end]) == value[NAME]
    assert changed == body[:start] + encoded + body[end:]
    assert json.loads(changed) == value | {NAME: new}
    assert list(json.loads(changed)) == list(value)


@given(bodies())
def test_a_removed_member_is_gone_and_the_others_stand_as_they_were(given_: tuple[dict[str, Any], bytes]) -> None:
    value, body = given_

    changed = removed(body, NAME.encode())

    assert json.loads(changed) == {key: one for key, one in value.items() if key != NAME}
    start, _, end = find(body, NAME.encode()) or (0, 0, 0)
    before, after = body[:start].rstrip().rstrip(b","), body[end:].lstrip().lstrip(b",")
    assert changed.startswith(before)
    assert changed.endswith(after)


@given(bodies(), values)
def test_an_inserted_member_stands_first_and_the_rest_follows_untouched(
    given_: tuple[dict[str, Any], bytes], new: Any
) -> None:
    value, body = given_
    member = b'"stream_options":' + json.dumps(new).encode()
    assume("stream_options" not in value)

    changed = inserted(body, member)

    at = body.index(b"{") + 1
    assert changed == body[:at] + member + b"," + body[at:]
    assert json.loads(changed) == {"stream_options": new} | value


@given(st.dictionaries(names.filter(lambda n: n != NAME), values, max_size=4).flatmap(written))
def test_a_member_that_stands_only_inside_others_is_not_found(text: str) -> None:
    assert find(text.encode(), NAME.encode()) is None


HIDDEN = [
    '{"a":"\\"model\\":1","model":"m"}',
    '{"a":"x\\\\","model":"m"}',
    '{"a":"\\\\\\"model\\":\\"no\\"","model":"m"}',
    '{"a":{"model":"no"},"model":"m"}',
    '{"a":[{"model":"no"},"model"],"model":"m"}',
    '{"a":"}","b":"{","c":["]","[{"],"model":"m"}',
    '{"model ":1," model":2,"Model":3,"model":"m"}',
    '{"a":"model","model":"m"}',
    '{"a":"model\\":","model" \n:\t"m" }',
    '{"\\"model":1,"model":"m"}',
    '{"\\u0022model":1,"model":"m"}',
    '{"a\\"model":{"model":0},"model":"m"}',
]


@pytest.mark.parametrize("text", HIDDEN)
def test_what_only_looks_like_the_member_is_left_alone(text: str) -> None:
    before = json.loads(text)
    changed = replaced(text.encode(), b"model", b'"new"')

    assert json.loads(changed) == before | {"model": "new"}
    assert changed.replace(b'"new"', b'"m"') == text.encode()


def test_a_name_written_with_escapes_can_not_be_found() -> None:
    text = b'{"mod\\u0065l":"m"}'
    assert find(text, b"model") is None
    with pytest.raises(Unfindable):
        replaced(text, b"model", b'"x"')
    with pytest.raises(Unfindable):
        removed(text, b"model")


def test_every_one_of_a_repeated_member_is_removed() -> None:
    assert json.loads(removed(b'{"rid":1,"a":2,"rid":{"rid":3},"rid":[]}', b"rid")) == {"a": 2}


@pytest.mark.parametrize(
    ("text", "left"),
    [('{"rid":1}', "{}"), ('{ "rid" : 1 }', "{}"), ('{"rid":1,"a":2}', '{"a":2}'), ('{"a":2, "rid":"x,}"}', '{"a":2}')],
)
def test_commas_go_with_the_member(text: str, left: str) -> None:
    assert removed(text.encode(), b"rid") == left.encode()


def test_a_search_without_end_is_given_up() -> None:
    text = b'{"a":[' + b",".join([b'{"model":1}'] * (members.CANDIDATES_MAX + 1)) + b'],"model":"m"}'
    with pytest.raises(Unfindable):
        find(text, b"model")


def test_a_large_body_takes_no_quadratic_time() -> None:
    """Ten thousand nested namesakes, and 5 MB of text that is full of quotes."""
    nested = b'{"a":[' + b",".join([b'{"model":1}'] * 9_000) + b"]"
    text = nested + b',"b":"' + b'\\"model\\": ' * 500_000 + b'","model":"m"}'
    assert replaced(text, b"model", b'"new"').endswith(b'"model":"new"}')
