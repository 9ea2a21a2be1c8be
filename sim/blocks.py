"""Which KV blocks are held, which are free, and which still keep a prefix somebody may ask for again?

As vLLM does it: blocks of 16 tokens, full prompt blocks known by a hash of themselves and everything before
them, shared by whoever has the same prefix, and evicted least recently used once nobody holds them.
"""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from attrs import define, field

BLOCK_TOKENS = 16
TOKEN_BYTES = 4
_BLOCK_BYTES = BLOCK_TOKENS * TOKEN_BYTES


def tokens_of(prompt: bytes) -> int:
    """How many tokens a prompt has: four bytes are one."""
    return -(-len(prompt) // TOKEN_BYTES)


def block_hashes(prompt: bytes) -> list[bytes]:
    """One hash for each full block; each stands for the whole prefix up to its end."""
    hashes, before = [], b""
    for start in range(0, len(prompt) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        before = blake2b(before + prompt[start : start + _BLOCK_BYTES], digest_size=8).digest()
        hashes.append(before)
    return hashes


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


@define(eq=False)
class Lease:
    """The blocks of one sequence: those with a known prefix, and a count of its own."""

    hashes: list[bytes] = field(factory=list)
    own: int = 0
    hit: int = 0  # of `hashes`, how many were found rather than computed

    @property
    def size(self) -> int:
        return len(self.hashes) + self.own


@define(eq=False)
class Blocks:
    total: int
    free: int = field(init=False)
    evicted: int = field(default=0, init=False)
    _held: dict[bytes, int] = field(factory=dict, init=False)  # hash -> how many leases hold it
    _cached: OrderedDict[bytes, None] = field(factory=OrderedDict, init=False)  # held by none, oldest first
    _own: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.free = self.total

    @property
    def used(self) -> int:
        return len(self._held) + self._own

    @property
    def cached(self) -> int:
        return len(self._cached)

    def known(self, hashes: Sequence[bytes]) -> int:
        """How many blocks from the start are there already."""
        for n, block in enumerate(hashes):
            if block not in self._held and block not in self._cached:
                return n
        return len(hashes)

    def lease(self, hashes: Sequence[bytes], tokens: int) -> Lease | None:
        """Blocks for a prompt of so many tokens; None when they do not fit now."""
        # The last token is always computed, so a prompt that is known whole still misses its last block.
        hit = min(self.known(hashes), max(tokens - 1, 0) // BLOCK_TOKENS)
        cached_hits = sum(block in self._cached for block in hashes)
        fresh = sum(block not in self._held and block not in self._cached for block in hashes)
        own = blocks_for(tokens) - len(hashes)
        if fresh + own > self.free + self.cached - cached_hits:
            return None
        for block in hashes:  # first hold what is there, so that taking fresh ones cannot evict it
            if block in self._held:
                self._held[block] += 1
            elif block in self._cached:
                del self._cached[block]
                self._held[block] = 1
        for block in hashes:
            if block not in self._held:
                self._take()
                self._held[block] = 1
        for _ in range(own):
            self._take()
        self._own += own
        return Lease(list(hashes), own, hit)

    def grow(self, lease: Lease) -> bool:
        """One more block of its own; False when there is none."""
        if not self.free and not self._cached:
            return False
        self._take()
        self._own += 1
        lease.own += 1
        return True

    def release(self, lease: Lease, computed: int) -> None:
        """Give all back; the first ``computed`` prompt blocks hold something worth keeping."""
        for n in range(len(lease.hashes) - 1, -1, -1):  # tails first: they are evicted before their prefixes
            block = lease.hashes[n]
            self._held[block] -= 1
            if self._held[block]:
                continue
            del self._held[block]
            if n < computed:
                self._cached[block] = None
            else:
                self.free += 1
        self._own -= lease.own
        self.free += lease.own
        lease.hashes, lease.own = [], 0

    def forget(self) -> None:
        """Drop the prefix cache."""
        self.free += len(self._cached)
        self._cached.clear()

    def _take(self) -> None:
        if self.free:
            self.free -= 1
        else:
            self._cached.popitem(last=False)
            self.evicted += 1
