"""Which endpoint has seen the beginning of a prompt: blocks as integers, remembered per endpoint, oldest forgotten."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from attrs import define, field


@define(eq=False)
class PrefixIndex:
    """Of one pool. Each hash stands for its block and all blocks before it (a chain)."""

    most: int  # blocks remembered per endpoint
    _seen: dict[str, OrderedDict[int, None]] = field(factory=dict, init=False)

    def matches(self, hashes: Sequence[int]) -> dict[str, float]:
        """The share of the prompt's blocks that each endpoint has seen, where it has seen any."""
        if not hashes:
            return {}
        found = {}
        for endpoint, seen in self._seen.items():
            # A chain is seen up to some block and not beyond it: bisect for where that is.
            low, high = 0, len(hashes)
            while low < high:
                middle = (low + high) // 2
                if hashes[middle] in seen:
                    low = middle + 1
                else:
                    high = middle
            if low:
                found[endpoint] = low / len(hashes)
        return found

    def served(self, endpoint: str, hashes: Iterable[int]) -> None:
        seen = self._seen.setdefault(endpoint, OrderedDict())
        # Last block first, so that a chain is forgotten from its end.
        for block in reversed(list(hashes)):
            seen[block] = None
            seen.move_to_end(block)
        while len(seen) > self.most:
            seen.popitem(last=False)

    def forget(self, endpoint: str) -> None:
        self._seen.pop(endpoint, None)

    def size(self, endpoint: str) -> int:
        return len(self._seen.get(endpoint, ()))
