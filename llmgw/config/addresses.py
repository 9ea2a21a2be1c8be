"""Where a listener stands: ``"127.0.0.1:7440"``, ``"[::1]:7440"``; and whether only this machine reaches it."""

import ipaddress
import re

from llmgw.config.problems import Refused

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", re.ASCII)
_LIKE = 'write it like "127.0.0.1:7440" or "[::1]:7440"'


def split_address(text: str) -> tuple[str, int]:
    """Host and port of an address, the host without brackets; raises Refused."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise Refused(f"{text[:80]!r} is no address", _LIKE)
    port = int(match[3])
    if port > 65535:
        raise Refused(f"{port} is no port", "choose one up to 65535")
    if match[1] is not None and _ip(match[1]) is None:
        raise Refused(f"{match[1]!r} is no IPv6 address", _LIKE)
    return match[1] or match[2], port


def is_loopback(address: str) -> bool:
    """Nobody but this machine can reach it."""
    host, _ = split_address(address)
    ip = _ip(host)
    return ip.is_loopback if ip is not None else host.lower() == "localhost"


def clash(one: str, other: str) -> bool:
    """Two listeners can't stand on these; port 0 is any free one."""
    (host, port), (host2, port2) = split_address(one), split_address(other)
    return port == port2 != 0 and (_same(host, host2) or _is_any(host) or _is_any(host2))


def reaches(listen: str, host: str, port: int) -> bool:
    """Who connects from this machine to ``host:port`` comes to a listener on this address."""
    host2, port2 = split_address(listen)
    if port != port2 or port == 0:
        return False
    name, local = host.lower() == "localhost", is_loopback(listen)
    if _same(host, host2) or (name and local):
        return True
    ip = _ip(host)
    return _is_any(host2) and (name or (ip is not None and (ip.is_loopback or ip.is_unspecified)))


def _same(host: str, host2: str) -> bool:
    # A listener on localhost stands on 127.0.0.1.
    plain, plain2 = (("127.0.0.1" if h.lower() == "localhost" else h.lower()) for h in (host, host2))
    return plain == plain2 or (_ip(plain) is not None and _ip(plain) == _ip(plain2))


def _is_any(host: str) -> bool:
    ip = _ip(host)
    return ip is not None and ip.is_unspecified


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
