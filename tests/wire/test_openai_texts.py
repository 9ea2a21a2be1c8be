"""What a client is told of a body that can't be read: which member, and what to do."""

import pytest

from llmgw.wire import openai

SAID = [
    (b"", "the body is empty; send a JSON object", None),
    (b"[]", "the body must be a JSON object: Expected `object`, got `array`", None),
    (b'{"model":"m","stream":true,"stream":false}', "stream stands twice in the body, and decides about it", "stream"),
    (b'{"model":"m","mod\\u0065l":"n"}', "model stands twice in the body, and decides about it", "model"),
    (b'{"model":"m","max_tokens":1e999}', "the body has a value that can't be read: Number out of range", None),
    (b'{"model":', "the body is not JSON: Input data was truncated", None),
    (b'{"model":"m","priority":1,"priority":2,"x":' + b"[" * 900 + b"]" * 900 + b"}", "stands twice", "priority"),
]


@pytest.mark.parametrize(("body", "words", "param"), SAID, ids=[row[1] for row in SAID])
def test_what_is_wrong_with_a_body_is_named(body: bytes, words: str, param: str | None):
    with pytest.raises(openai.Invalid) as refused:
        openai.read(body)

    assert words in refused.value.message
    assert refused.value.param == param
