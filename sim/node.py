"""A node with simulated GPUs: what its agent is told, and the folder its GPUs are."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from attrs import field, frozen

from agent.proc import Table, kill
from llmgw.core.agent_settings import AgentSettings
from sim.gpus import FOLDER, SimFolder, SimInventory, gpus_of

_GPUS = "gpus"


@frozen
class NodeSpec:
    """``folder`` is this node's own: its engines, its membership, its GPUs."""

    folder: Path
    name: str = "sim"
    servers: tuple[str, ...] = ()
    gpus: int = 1
    gpu_mib: int = 24 * 1024
    labels: Mapping[str, str] = field(factory=dict)
    join_token: str = ""
    ca: str = ""
    address: str = "127.0.0.1"
    ports: str = "20000-20999"

    @property
    def settings(self) -> AgentSettings:
        return AgentSettings(
            servers=self.servers,
            name=self.name,
            data_dir=str(self.folder.absolute()),
            join_token=self.join_token,
            ca=self.ca,
            address=self.address,
            labels=dict(self.labels),
            ports=self.ports,
            gpus=self.gpus > 0,
        )


def inventory_of(spec: NodeSpec) -> SimInventory:
    """Makes its GPUs, unless they are there already; engines that this process starts find them. Raises OSError."""
    path = spec.folder.absolute() / _GPUS
    SimFolder(path).make(gpus_of(spec.gpus, spec.gpu_mib, re.sub(r"[^A-Za-z0-9]+", "-", spec.name)))
    os.environ[FOLDER] = str(path)
    return SimInventory(path)


def end_engines(folder: Path) -> int:
    """Kill what a node's agent left running, by the mark that every process of its engines carries; how many."""
    scope, ended = str(folder.absolute()), 0
    for found, _instance in Table.read().of_instance(scope):
        kill(found)
        ended += 1
    return ended
