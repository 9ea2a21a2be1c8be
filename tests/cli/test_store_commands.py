"""``llmgw store``: what it prints, what it refuses, and with which exit code."""

import json
import sqlite3
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from llmgw.cli import main
from llmgw.store import keys
from llmgw.store.place import Place
from llmgw.store.sqlite import open_store
from tests.postgres_server import PASSWORD


def place(folder: Path) -> Place:
    return Place(folder, folder / "llmgw.db")


def fill(folder: Path, *tenants: str) -> None:
    store = open_store(place(folder))
    trio.run(store.write, lambda db: keys.add_tenants(db, tenants, 1.0))
    store.close()


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["store", *map(str, words)])


def tenants(folder: Path) -> list[str]:
    store = open_store(place(folder))
    try:
        return [name for name, _ in trio.run(store.read, keys.tenants)]
    finally:
        store.close()


def test_a_store_moves_and_says_what_to_do_next(postgres, tmp_path):
    fill(tmp_path / "old", "acme", "beta")
    database = postgres.fresh()
    (tmp_path / "url").write_text(postgres.url(database, password=PASSWORD))
    (tmp_path / "url").chmod(0o600)

    done = run("migrate", "--from", tmp_path / "old", "--to", f"@{tmp_path / 'url'}")

    assert done.exit_code == 0, done.output
    assert "tenants: 2 rows" in done.stderr
    assert "compared row by row; now set [store] url to postgresql://***@127.0.0.1" in done.stdout
    assert PASSWORD.split()[0] not in done.output
    assert postgres.sql("select name from tenants order by name", database) == [("acme",), ("beta",)]

    again = run("migrate", "--from", tmp_path / "old", "--to", f"@{tmp_path / 'url'}")
    assert again.exit_code == 1
    assert "is not empty (tenants); name an empty one" in again.stderr
    postgres.forget(database)


def test_json_has_counts_and_checksums_and_nothing_else_on_standard_output(tmp_path):
    fill(tmp_path / "old", "acme")
    (tmp_path / "new").mkdir()

    done = run("migrate", "--from", tmp_path / "old" / "llmgw.db", "--to", tmp_path / "new", "-o", "json")

    said = json.loads(done.stdout)
    (found,) = [table for table in said["tables"] if table["name"] == "tenants"]
    assert (found["rows"], len(found["sha256"])) == (1, 64)
    assert said["term"]["epoch"] > 1
    assert done.stderr == ""
    assert tenants(tmp_path / "new") == ["acme"]


def test_a_backup_comes_back(tmp_path):
    fill(tmp_path / "old", "acme")
    file = tmp_path / "b"
    assert run("backup", file, "--from", tmp_path / "old").exit_code == 0
    (tmp_path / "new").mkdir()

    done = run("restore", file, "--to", tmp_path / "new")

    assert done.exit_code == 0, done.output
    assert "is what it was at" in done.stdout
    assert tenants(tmp_path / "new") == ["acme"]
    assert run("restore", file, "--to", tmp_path / "new").exit_code == 1


def test_a_backup_takes_anothers_place_only_where_that_is_said(tmp_path):
    fill(tmp_path / "old", "acme")
    words = ["backup", tmp_path / "b", "--from", tmp_path / "old"]
    assert run(*words).exit_code == 0
    before = (tmp_path / "b").stat().st_ino

    refused = run(*words)
    assert (refused.exit_code, (tmp_path / "b").stat().st_ino) == (1, before)
    assert "is there already; name another place for the backup, or add --replace" in refused.stderr
    assert run(*words, "--replace").exit_code == 0
    assert (tmp_path / "b").stat().st_ino != before


def test_a_path_without_a_databases_suffix_is_a_data_directory(tmp_path):
    fill(tmp_path / "old", "acme")

    done = run("migrate", "--from", tmp_path / "old", "--to", tmp_path / "new")

    assert f"now set [store] url to sqlite:////{str(tmp_path)[1:]}/new/llmgw.db, keep" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["llmgw.db", "llmgw.lock"]
    assert tenants(tmp_path / "new") == ["acme"]
    (tmp_path / "new" / "llmgw.db").rename(tmp_path / "new" / "llmgw.db.aside")  # a file that is there is a file
    assert run("backup", tmp_path / "b", "--from", tmp_path / "new" / "llmgw.db.aside").exit_code == 0


def test_who_has_moved_says_where_to_and_is_no_store_to_work_on_any_more(tmp_path):
    fill(tmp_path / "old", "acme")
    assert run("migrate", "--from", tmp_path / "old", "--to", tmp_path / "new").exit_code == 0

    config = tmp_path / "gw.toml"
    config.write_text('[server]\nlisten = "127.0.0.1:0"\n[admin]\nlisten = "127.0.0.1:0"\n')
    words = ["server", "-c", str(config), "--data-dir", str(tmp_path / "old")]
    server = CliRunner().invoke(main, words)
    asked = CliRunner().invoke(main, ["ctl", "--data-dir", str(tmp_path / "old"), "keys", "list"])
    for refused in (server, asked):
        assert refused.exit_code == 2, refused.output
        assert f"is not in use any more: it was moved to {tmp_path}/new/llmgw.db at 20" in refused.stderr
        assert "llmgw store migrate --from THERE --to EMPTY" in refused.stderr
    assert run("migrate", "--from", tmp_path / "old", "--to", tmp_path / "newer").exit_code == 0
    assert run("migrate", "--from", tmp_path / "newer", "--to", tmp_path / "back").exit_code == 0
    assert tenants(tmp_path / "back") == ["acme"]


def test_nobody_works_on_half_a_store(tmp_path):
    fill(tmp_path / "half", "acme")
    whole = tmp_path / "whole"
    assert run("backup", whole, "--from", tmp_path / "half").exit_code == 0
    conn = sqlite3.connect(tmp_path / "half" / "llmgw.db")
    with conn:
        conn.execute("insert into meta values ('copying', 'of 7 from /elsewhere')")
    conn.close()

    kept = run("backup", tmp_path / "b", "--from", tmp_path / "half")
    assert kept.exit_code == 1
    assert "is half a store: the copy of 7 from /elsewhere was interrupted" in kept.stderr
    assert not (tmp_path / "b").exists()
    for words in (["keys", "list"], ["tokens", "create", "ann", "--role", "viewer"]):
        asked = CliRunner().invoke(main, ["ctl", "--data-dir", str(tmp_path / "half"), *words])
        assert asked.exit_code == 1
        assert "was interrupted: run that again" in asked.stderr
    assert run("migrate", "--from", tmp_path / "half", "--to", tmp_path / "new").exit_code == 1


def test_what_does_not_answer_is_said_without_what_only_a_gateway_goes_on_with(tmp_path):
    asked = run("backup", tmp_path / "b", "--from", "postgresql://u:hunter2@127.0.0.1:1/d")

    assert asked.exit_code == 1
    assert "PostgreSQL at postgresql://***@127.0.0.1:1/d is away" in asked.stderr
    assert "requests go on" not in asked.stderr


def test_the_store_of_a_config_is_meant_where_none_is_named(tmp_path):
    fill(tmp_path / "old", "acme")
    config = tmp_path / "llmgw.toml"
    config.write_text(f'[store]\ndata_dir = "{tmp_path / "old"}"\n')

    done = run("backup", tmp_path / "b", "-c", config, "-o", "json")

    assert json.loads(done.stdout)["from"] == str(tmp_path / "old" / "llmgw.db")


def test_a_store_in_use_is_not_moved_and_may_be_backed_up(tmp_path):
    store = open_store(place(tmp_path / "old"))
    try:
        refused = run("migrate", "--from", tmp_path / "old", "--to", tmp_path / "new" / "llmgw.db")
        kept = run("backup", tmp_path / "b", "--from", tmp_path / "old")
    finally:
        store.close()

    assert refused.exit_code == 3
    assert "in use by process" in refused.stderr
    assert "stop it" in refused.stderr
    assert kept.exit_code == 0, kept.output


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["migrate", "--from", "{}/nowhere", "--to", "{}/new"], 1, "is not there; name the file of a store"),
        (["migrate", "--from", "{}/a", "--to", "{}/a"], 2, "are the same store"),
        (
            ["migrate", "--from", "{}/a", "--to", "mysql://u:hunter2@h/d"],
            2,
            "--to: no store is opened by 'mysql'; write",
        ),
        (["migrate", "--from", "{}/a", "--to", "@{}/nothing"], 2, "can't be read"),
        (["backup", "{}/b", "--from", "{}/nowhere"], 1, "is not there"),
        (["restore", "{}/nowhere", "--to", "{}/a"], 2, "does not exist"),
        (["backup", "{}/no/folder/b", "--from", "{}"], 1, "no/folder; make it, or name another place"),
        (["backup", "{}/llmgw.db", "--from", "{}", "--replace"], 1, "llmgw.db is there, and is no backup"),
        (
            ["migrate", "--from", "sqlite:///a.db", "--to", "{}/b"],
            2,
            "--from: sqlite:///a.db is a relative path; write",
        ),
        (["migrate", "--from", "{}", "--to", "postgresql://u:p@hunter2/w#d@h/d"], 2, "--to: postgresql://***@h/d has"),
    ],
)
def test_what_cannot_be_done_is_said_with_its_code(tmp_path, words, code, says):
    fill(tmp_path, "acme")

    done = run(*(word.format(tmp_path) for word in words))

    assert done.exit_code == code, done.output
    assert says in done.stderr
    assert "hunter2" not in done.output
