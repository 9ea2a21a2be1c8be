"""A driver's library to ask, without a driver."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.fake_driver import FakeDriver

SOURCE = Path(__file__).parent / "fake_nvml.c"


@pytest.fixture(scope="session")
def nvml_libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with a libnvidia-ml.so.1: as it is, and as an older driver has it."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is missing: the binding to the driver's library is not tested")
    folders = {}
    for kind, flags in (("new", []), ("old", ["-DOLD"])):
        folder = tmp_path_factory.mktemp(f"nvml-{kind}")
        command = [
            gcc,
            "-shared",
            "-fPIC",
            "-O1",
            "-Wall",
            *flags,
            "-o",
            str(folder / "libnvidia-ml.so.1"),
            str(SOURCE),
        ]
        subprocess.run(command, check=True)
        folders[kind] = folder
    return folders


@pytest.fixture
def fake_driver(nvml_libraries: dict[str, Path], tmp_path: Path) -> Iterator[FakeDriver]:
    driver = FakeDriver(nvml_libraries["new"], tmp_path / "gpus.txt")
    yield driver
    driver.close()


@pytest.fixture
def old_driver(nvml_libraries: dict[str, Path], tmp_path: Path) -> Iterator[FakeDriver]:
    driver = FakeDriver(nvml_libraries["old"], tmp_path / "gpus.txt")
    yield driver
    driver.close()
