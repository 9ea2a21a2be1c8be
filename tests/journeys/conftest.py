"""One house of processes a test, or a module."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journeys.running import House, clean_environment, house


@pytest.fixture(autouse=True, scope="session")
def nobody_elses_settings() -> Iterator[None]:
    """Neither a proxy nor a key of the machine's reaches the packages under test."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - clean_environment().keys():
            patch.delenv(name)
        yield


@pytest.fixture
def home(tmp_path: Path) -> Iterator[House]:
    with house(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(tmp_path_factory.mktemp("house")) as made:
        yield made
