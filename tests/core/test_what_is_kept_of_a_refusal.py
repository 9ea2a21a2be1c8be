"""What is logged and remembered of a failure: an engine's own words may repeat a prompt, so they are not."""

import pytest

from llmgw.core.outcome import Outcome, Refusal
from llmgw.gateway import verdicts

PROMPT = "my secret prompt"


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 501, 502, 503])
def test_no_engines_words_are_kept(status):
    body = b'{"error":{"message":"bad input: %b","type":"BadRequestError","code":%d}}' % (PROMPT.encode(), status)
    refusal = verdicts.of_status(status, body, b"")

    assert PROMPT in refusal.message
    assert PROMPT not in refusal.kept
    assert refusal.kept


def test_our_own_words_are_kept():
    refusal = Refusal(Outcome.FIRST_TOKEN_TIMEOUT, "the first_token deadline of 120 s passed")

    assert refusal.kept == refusal.message


def test_an_engines_status_is_kept_of_its_failure():
    assert verdicts.of_status(500, b'{"error":"boom"}', b"").kept == "the engine answered 500"


def test_an_error_inside_a_stream_keeps_no_words():
    assert PROMPT not in Refusal(Outcome.ENGINE_FAILED_INSIDE, PROMPT).kept
