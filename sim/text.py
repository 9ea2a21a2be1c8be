"""What does the engine say? The same words for the same prompt and seed, already fit for a JSON string."""

from hashlib import blake2b

from attrs import frozen

from sim.blocks import TOKEN_BYTES

_LONGEST_BREATH = 192
_SHORTEST_BREATH = 64
_WORDS = """
a able about after again air all along also always an and any are around as ask at away back be became because
been before began begin being below best better between bird black blue boat body book both box boy bring built
but by call came can car care carry change children city clear close cold color come could country course cross
cut dark day deep did different do does dog done door down draw dry each early earth ease east eat end enough
even ever every eye face fact fall family far farm fast father feet few field fill final find fine fire first
fish five fly follow food foot for force form found four free friend from full game gave get give go gold good
got govern grand great green ground group grow had half hand happen hard has have he head hear heat help her here
high him his hold home horse hot hour house how hundred idea if in inch interest is island it just keep kind king
knew know land language large last late laugh lay lead learn leave left less let letter life light like line list
listen little live long look love low machine made main make man many map mark me mean might mile mind minute miss
moon more morning most mother mountain move much music must my name near need never new next night no north
""".split()
WORDS = tuple(word.encode("ascii") + b" " for word in _WORDS)


@frozen
class Voice:
    """An endless text; word ``n`` is computed, not remembered."""

    _offset: int
    _stride: int
    natural: int  # words after which it stops by itself

    def word(self, n: int) -> bytes:
        return WORDS[(self._offset + n * self._stride + (n * n >> 4)) % len(WORDS)]

    def words(self, first: int, count: int) -> bytes:
        return b"".join(self.word(n) for n in range(first, first + count))


def voice(prompt: bytes, seed: int, choice: int = 0) -> Voice:
    drawn = blake2b(b"%d %d " % (seed, choice) + prompt, digest_size=8).digest()
    number = int.from_bytes(drawn)
    return Voice(number & 0xFFFF, number >> 16 & 255 | 1, _SHORTEST_BREATH + (number >> 24) % _LONGEST_BREATH)


def token_ids(text: bytes) -> list[int]:
    """Four bytes a token; a leading 1 keeps their number, so that the text can be had back."""
    pieces = (text[at : at + TOKEN_BYTES] for at in range(0, len(text), TOKEN_BYTES))
    return [int.from_bytes(b"\1" + piece) for piece in pieces]


def text_of(ids: list[int]) -> bytes:
    """The other way; ids that no text has become the bytes of their number."""
    return b"".join(_bytes_of(i) for i in ids)


def _bytes_of(token: int) -> bytes:
    whole = token.to_bytes((token.bit_length() + 7) // 8 or 1)
    return whole[1:] if whole[0] == 1 and 2 <= len(whole) <= TOKEN_BYTES + 1 else whole


def vector(text: bytes, dimensions: int) -> list[float]:
    """An embedding of length one, the same for the same text."""
    raw, counter = b"", 0
    while len(raw) < dimensions:
        raw += blake2b(counter.to_bytes(4) + text).digest()
        counter += 1
    numbers = [byte / 127.5 - 1.0 for byte in raw[:dimensions]]
    length = sum(n * n for n in numbers) ** 0.5 or 1.0
    return [n / length for n in numbers]


def score(query: bytes, document: bytes) -> float:
    """How well a document answers a query: shared words, and a little of chance that never changes."""
    asked, said = set(query.lower().split()), set(document.lower().split())
    shared = len(asked & said) / (len(asked) or 1)
    chance = blake2b(query + b"\0" + document, digest_size=2).digest()
    return round(0.9 * shared + 0.1 * int.from_bytes(chance) / 65535, 6)
