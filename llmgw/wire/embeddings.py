"""Embeddings asked for as base64 and answered as floats: made what was asked for.

base64 of little-endian float32 (openai-python ``resources/embeddings.py`` reads it so).
"""

import base64
import re
import struct
from typing import Any

import msgspec

_FLOATS = re.compile(rb'"embedding"\s*:\s*\[')


def looks_like_floats(beginning: bytes) -> bool:
    return _FLOATS.search(beginning, 0, 65536) is not None


def floats_to_base64(body: bytes) -> bytes:
    """The same answer with every vector of numbers as base64; unchanged if it is not of that shape."""
    try:
        answer: Any = msgspec.json.decode(body)
        for item in answer["data"]:
            vector = item["embedding"]
            if isinstance(vector, list):
                item["embedding"] = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
    except (msgspec.MsgspecError, KeyError, TypeError, struct.error, OverflowError, RecursionError, UnicodeDecodeError):
        return body
    return msgspec.json.encode(answer)
