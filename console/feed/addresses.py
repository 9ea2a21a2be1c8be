"""Which control planes are asked, in which order, and which of them are left aside for a while.

Who answered last is first. The operator names some, and the cluster may name more: a token that was meant for TLS
alone is never sent to one without it.
"""

from collections.abc import Callable, Sequence

from attrs import define, field

from llmgw.wire.admin_answers import base_url, in_the_clear

LEARNT_MAX = 16
ASIDE_S = 10.0  # a leader that could not be reached is not asked before others again


@define(eq=False)
class Addresses:
    """``given``: by the operator. ``clock``: seconds that only rise."""

    given: tuple[str, ...]
    clock: Callable[[], float]
    _order: list[str] = field(init=False)
    _aside: dict[str, float] = field(factory=dict, init=False)
    _strange: set[str] = field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self._order = list(dict.fromkeys(self.given))

    @property
    def order(self) -> Sequence[str]:
        return tuple(self._order)

    def learn(self, said: str) -> str | None:
        """The address that the cluster names, if it may be asked at all; it comes last until it has answered."""
        url = base_url(said)
        if url is None or url in self._strange or (url not in self._order and in_the_clear(url, self._order)):
            return None
        if url not in self._order:
            if len(self._order) >= len(self.given) + LEARNT_MAX:
                return None
            self._order.append(url)
        return url

    def prefer(self, url: str) -> None:
        self._move(url, 0)

    def answered(self, url: str) -> None:
        self._move(url, 0)
        self._aside.pop(url, None)

    def failed(self, url: str) -> None:
        self._move(url, len(self._order))
        self._aside[url] = self.clock() + ASIDE_S

    def is_aside(self, url: str) -> bool:
        return self._aside.get(url, 0.0) > self.clock()

    def is_strange(self, url: str) -> bool:
        """Whether nobody gave it to us, so that somebody else may be there by mistake."""
        return url not in self.given

    def forget(self, url: str) -> None:
        """It was learnt, and another cluster answers there."""
        self._strange.add(url)
        if url in self._order:
            self._order.remove(url)

    def _move(self, url: str, to: int) -> None:
        if url in self._order:
            self._order.remove(url)
            self._order.insert(to, url)
