"""What root makes in the data directory of a service can be read by the service, which is another user."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from llmgw.cli import main

SOMEBODY = 64001

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root leaves files to others")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """As systemd makes it for DynamicUser=yes."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    os.chown(folder, SOMEBODY, SOMEBODY)
    return folder


def run(*words: object) -> Result:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done


def owners(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_uid for path in folder.rglob("*")}


def test_certificates_belong_to_the_service(data_dir: Path):
    run("certs", "init", "--dir", data_dir / "certs", "--host", "gw-1")
    run("certs", "server", "--dir", data_dir / "certs", "--host", "gw-1", "admin")
    run("certs", "renew", "--dir", data_dir / "certs")

    files = [f"certs/{name}" for name in ("ca.pem", "ca.key", "agents.pem", "agents.key", "admin.pem", "admin.key")]
    assert owners(data_dir) == dict.fromkeys(["certs", *files], SOMEBODY)


def test_a_ca_that_was_copied_there_belongs_to_it_too(data_dir: Path, tmp_path: Path):
    run("certs", "init", "--dir", tmp_path / "first" / "certs", "--host", "gw-1")
    (data_dir / "certs").mkdir(mode=0o700)
    for name in ("ca.pem", "ca.key"):
        (tmp_path / "first" / "certs" / name).rename(data_dir / "certs" / name)

    run("certs", "init", "--dir", data_dir / "certs", "--host", "gw-2")

    assert set(owners(data_dir).values()) == {SOMEBODY}
    assert set(owners(tmp_path / "first").values()) == {0}


def test_a_restored_store_belongs_to_it(data_dir: Path, tmp_path: Path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLMGW_STORE__DATA_DIR", str(data_dir))
        run("ctl", "--data-dir", data_dir, "keys", "create", "--tenant", "t", "--new-tenant")
        run("store", "backup", tmp_path / "backup")
        for path in data_dir.iterdir():
            path.unlink()
        run("store", "restore", tmp_path / "backup")

    assert owners(data_dir) == {"llmgw.db": SOMEBODY, "llmgw.lock": SOMEBODY}
