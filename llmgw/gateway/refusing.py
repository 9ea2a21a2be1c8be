"""How a refusal is told while nothing else has been: one answer in the shape of its route's family."""

from llmgw.core.outcome import Refusal
from llmgw.gateway.exchange import Exchange
from llmgw.tasks.streams import Broken
from llmgw.wire.errors import Family, error_body, error_headers


async def answer_refusal(exchange: Exchange, family: Family, refusal: Refusal) -> None:
    """Raises Broken when the client can't be written to."""
    await exchange.answer(refusal.status, error_body(family, refusal, exchange.id), error_headers(refusal))


async def refuse(exchange: Exchange, family: Family, refusal: Refusal) -> None:
    """The same where an answer may have begun, or the client may be gone: then the connection is cut."""
    if exchange.answered:
        exchange.cut()
        return
    try:
        await answer_refusal(exchange, family, refusal)
    except Broken:
        exchange.cut()
