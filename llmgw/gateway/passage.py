"""What one request's attempts share: how far its answer has got, what was seen of it, and its last word."""

from collections.abc import Callable

from attrs import define

from llmgw.core.outcome import Refusal
from llmgw.gateway.exchange import Exchange
from llmgw.gateway.limits import RelayLimits
from llmgw.gateway.refusing import answer_refusal
from llmgw.gateway.routes import Route
from llmgw.gateway.shadow import Beside
from llmgw.telemetry.metrics import TokenGaps
from llmgw.wire.answers import Reading, Usage
from llmgw.wire.errors import stream_error


@define(eq=False)
class Passage:
    """What one request's attempts share: how far its answer has got, and what was seen of it."""

    exchange: Exchange
    route: Route
    streaming: bool
    hide_usage: bool  # we asked for it, the client did not
    wants_base64: bool
    limits: RelayLimits
    total_at: float
    gaps: TokenGaps
    tenant: str = ""
    reached: bool = False  # an event or body byte has left for the client
    told: bool = False  # the engine's own error event has
    usage: Usage | None = None
    tokens: int = 0  # of attempts that have ended
    reading: Reading | None = None  # of the attempt under way, if it streams
    headers_at: float | None = None
    first_token_at: float | None = None
    sent_at: float = 0.0  # to the engine that has it now
    progress_at: float = 0.0  # the last token, or piece of a body
    on_first_token: Callable[[], None] | None = None  # somebody waits for it; of the attempt under way
    dial_s: float = 0.0
    cancelled: Refusal | None = None  # by an operator
    ended_at: float = 0.0  # the attempt before
    beside: Beside | None = None  # what admission would have done, in shadow mode
    bytes_out: int = 0
    sequence: int = 0  # of the last event of a responses stream

    @property
    def tokens_so_far(self) -> int:
        return self.tokens + (self.reading.tokens if self.reading is not None else 0)


async def tell(passage: Passage, refusal: Refusal) -> None:
    """The last word to a client whose request failed: an error answer, an error event, or a cut connection."""
    exchange, route = passage.exchange, passage.route
    if not exchange.answered:
        await answer_refusal(exchange, route.family, refusal)
    elif passage.streaming:
        if not passage.told:
            await exchange.send(stream_error(route.family, route.responses, refusal, exchange.id, passage.sequence))
        await exchange.end()
    else:
        exchange.cut()
