"""Engines that agents run listen on the node's address alone, and answer nobody without their own key."""

import ipaddress
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from agent.proc import environ, pids
from tests.journeys.clustering import MODEL, Cluster, cluster, model
from tests.journeys.running import House
from tests.journeys.talking import chat

LISTEN = "0A"  # of /proc/net/tcp
NODE = "127.0.0.2"  # the loopback network has many addresses, of which a node can have one


def test_engines_of_an_agent_are_reached_at_the_node_s_address_with_their_key_and_not_otherwise(home: House):
    with cluster(home, model(1, decode_rate=100), nodes=0) as made:
        made.add("node-1", "--address", NODE)
        made.wait(lambda: made.serves(1))
        (shard,) = made.replicas()[0]["shards"]
        assert shard["host"] == NODE
        assert listening(shard["pid"]) == {NODE}

        url = f"http://{NODE}:{shard['ports']['http']}/v1/chat/completions"
        key = environ(shard["pid"])["LLMGW_SIM_API_KEY"]
        for said, status in (("", 401), ("sk-of-nobody", 401), (key, 200)):
            head = {"authorization": f"Bearer {said}"} if said else {}
            answer = httpx.post(url, json=chat(max_tokens=1), headers=head, trust_env=False)
            assert answer.status_code == status
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", shard["ports"]["http"]), 2).close()

        told_nowhere(made, key)


def told_nowhere(made: Cluster, key: str) -> None:
    """No command line, no file, no log and no answer of ours has it."""
    for pid in pids():
        assert key.encode() not in command_line(pid)
    for file in made.home.folder.rglob("*"):
        if file.is_file():
            assert key.encode() not in file.read_bytes(), file
    assert not [line for line in made.gateway.process.lines if key in line]
    for path in ("/nodes", "/replicas", f"/explain/placement/{MODEL}", "/events", "/decisions", "/config"):
        answer = made.gateway.admin("GET", f"/admin/v1{path}")
        assert answer.status_code == 200
        assert key not in answer.text


def command_line(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""  # it has ended


def listening(pid: int) -> set[str]:
    """Addresses on which it listens, as the kernel says."""
    ours = {link.removeprefix("socket:[").rstrip("]") for link in descriptors(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            local, state, inode = (line.split()[place] for place in (1, 3, 9))
            if state == LISTEN and inode in ours:
                found.add(address(local.partition(":")[0]))
    return found


def descriptors(pid: int) -> Iterator[str]:
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            yield os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue  # closed while we looked


def address(hexadecimal: str) -> str:
    """As the kernel writes it: words of 32 bits in this machine's order."""
    words = [bytes.fromhex(hexadecimal[at : at + 8])[::-1] for at in range(0, len(hexadecimal), 8)]
    return str(ipaddress.ip_address(b"".join(words)))
