"""Content codings of request bodies and engine answers: gzip and deflate, decoded under a cap."""

import zlib

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS
KNOWN = frozenset({b"gzip", b"x-gzip", b"deflate"})


class Corrupt(Exception):
    """The body is not what its coding says."""


class TooLarge(Exception):
    """Decoded, the body would pass its cap."""


class Decoder:
    """gzip (several members too) or deflate (with or without zlib's frame), at most ``most`` bytes out."""

    def __init__(self, most: int) -> None:
        self._room = most
        self._zlib = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._fed = False
        self._first = b""  # two bytes tell whether deflate has zlib's frame

    def feed(self, data: bytes) -> bytes:
        """What ``data`` decodes to. Raises Corrupt, TooLarge."""
        if not self._fed:
            data, self._first = self._first + data, b""
            if len(data) < 2:
                self._first = data
                return b""
        pieces = []
        while data:
            piece = self._some(data)
            self._room -= len(piece)
            if self._room < 0 or self._zlib.unconsumed_tail:
                raise TooLarge
            pieces.append(piece)
            data = self._zlib.unused_data
            if data:  # another gzip member
                self._zlib = zlib.decompressobj(_GZIP_OR_ZLIB)
        return b"".join(pieces)

    def end(self) -> None:
        """Raises Corrupt when the body stopped short."""
        if self._first or (self._fed and not self._zlib.eof):
            raise Corrupt("the compressed body is cut short")

    def _some(self, data: bytes) -> bytes:
        try:
            return self._zlib.decompress(data, self._room + 1)
        except zlib.error as error:
            if self._fed:
                raise Corrupt(str(error)) from None
            self._zlib = zlib.decompressobj(_RAW)
            try:
                return self._zlib.decompress(data, self._room + 1)
            except zlib.error:
                raise Corrupt(str(error)) from None
        finally:
            self._fed = True


def decoded(data: bytes, most: int) -> bytes:
    """A whole body. Raises Corrupt, TooLarge."""
    decoder = Decoder(most)
    whole = decoder.feed(data)
    decoder.end()
    return whole
