"""ctl on the store itself, while no gateway runs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from llmgw.cli import main
from llmgw.core.identity import digest, well_formed
from llmgw.store import lock

DEBUG = {"LLMGW_DEBUG": "1"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("LLMGW_ADMIN_URL", "LLMGW_ADMIN_TOKEN", "LLMGW_CONFIG", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def ctl(home: Path, *words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["ctl", "--data-dir", str(home / "data"), *words], input=stdin, env=DEBUG)


def listed(home: Path, *words: str) -> list[dict[str, object]]:
    return json.loads(ctl(home, "keys", "list", "-o", "json", *words).stdout)["keys"]


def test_a_key_is_printed_alone_and_once(home):
    made = ctl(home, "keys", "create", "--tenant", "acme", "--new-tenant", "--band", "silver", "--model", "m")

    assert made.exit_code == 0
    key = made.stdout.strip()
    assert well_formed(key)
    assert key.startswith("sk-llmgw-")
    assert "not shown again" in made.stderr
    [listed_key] = listed(home)
    assert (listed_key["tenant"], listed_key["band"], listed_key["models"]) == ("acme", "silver", ["m"])
    assert key not in ctl(home, "keys", "list").stdout
    assert key not in ctl(home, "audit", "-o", "json").stdout


def test_a_mistyped_tenant_is_refused_with_the_nearest_name(home):
    ctl(home, "keys", "create", "--tenant", "research", "--new-tenant")

    refused = ctl(home, "keys", "create", "--tenant", "reserch")

    assert refused.exit_code == 1
    assert refused.stdout == ""
    assert refused.stderr.count("\n") == 1
    assert "did you mean 'research'?" in refused.stderr
    assert "--new-tenant" in refused.stderr


@pytest.mark.parametrize("naming", ["id", "beginning", "shown", "whole"])
def test_a_key_is_revoked_by_any_of_its_names(home, naming):
    key = ctl(home, "keys", "create", "--tenant", "acme", "--new-tenant").stdout.strip()
    [record] = listed(home)
    name = {"id": record["id"], "beginning": record["id"][:9], "shown": record["shown"], "whole": key}[naming]

    assert ctl(home, "keys", "revoke", name, "--why", "x" * 501).exit_code == 2
    revoked = ctl(home, "keys", "revoke", name, "--why", "lost")

    assert revoked.exit_code == 0, revoked.stderr
    assert listed(home) == []
    assert [k["revoked_at"] is not None for k in listed(home, "--all")] == [True]
    [act, _] = json.loads(ctl(home, "audit", "-o", "json").stdout)["audit"]
    assert (act["what"], act["why"]) == ("keys.revoke", "lost")


def test_what_is_not_there_is_4(home):
    ctl(home, "keys", "create", "--tenant", "acme", "--new-tenant")

    assert ctl(home, "keys", "revoke", "key_nowhere").exit_code == 4
    assert ctl(home, "tokens", "revoke", "nobody").exit_code == 4


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("keys.jsonl", '{"key": "sk-from-elsewhere", "tenant": "acme", "models": ["m", "n"]}\n\n'),
        ("keys.csv", "key,tenant,band,models,expires_at,note\nsk-from-elsewhere,acme,,m n,,\n"),
        ("keys.toml", '[[keys]]\nkey = "sk-from-elsewhere"\ntenant = "acme"\nmodels = ["m", "n"]\n'),
    ],
)
def test_keys_are_brought_along_from_three_formats(home, name, text):
    (home / name).write_text(text)

    done = ctl(home, "keys", "import", str(home / name))

    assert done.exit_code == 0, done.stderr
    assert done.stdout == "1 key imported; new tenants: acme\n"
    [key] = listed(home)
    assert (key["tenant"], key["band"], key["models"]) == ("acme", "gold", ["m", "n"])


def test_a_digest_is_brought_along_from_standard_input(home):
    line = json.dumps({"key": "sha256:" + digest("sk-secret").hex(), "tenant": "acme"})

    assert ctl(home, "keys", "import", "-", stdin=line).exit_code == 0
    assert listed(home)[0]["shown"].startswith("sha256:")


def test_an_import_with_problems_names_each_line_and_brings_nothing(home):
    (home / "keys.csv").write_text(
        "key,tenant,band\nsk-good-enough,acme,gold\n,acme,gold\nsk-x-x-x-x,acme,golden\na,b,c,d\n"
    )

    refused = ctl(home, "keys", "import", str(home / "keys.csv"))

    assert refused.exit_code == 2
    assert "keys.csv:3: key is missing" in refused.stderr
    assert "keys.csv:4: no band is called 'golden'; did you mean 'gold'?" in refused.stderr
    assert "keys.csv:5: more cells than columns" in refused.stderr
    assert "keys.csv:2" not in refused.stderr
    assert "sk-good-enough" not in refused.stderr
    assert not (home / "data").exists()


def test_the_same_import_twice_is_refused_naming_the_duplicate(home):
    line = '{"key": "sk-from-elsewhere", "tenant": "acme"}'
    ctl(home, "keys", "import", "-", stdin=line)

    refused = ctl(home, "keys", "import", "-", stdin=line)

    assert refused.exit_code == 1
    assert "entry 1: is here already" in refused.stderr


@pytest.mark.parametrize(("text", "seconds"), [("30d", 30 * 86400), ("12h", 43200), ("1y", 365 * 86400)])
def test_a_key_ends_when_it_was_said(home, text, seconds):
    ctl(home, "keys", "create", "--tenant", "acme", "--new-tenant", "--expires", text)

    assert abs(listed(home)[0]["expires_at"] - time.time() - seconds) < 60


@pytest.mark.parametrize("text", ["99999y", "9999-12-31"])
def test_a_time_too_far_away_is_named_as_it_was_typed(home, text):
    made = ctl(home, "keys", "create", "--tenant", "acme", "--new-tenant", "--expires", text)

    assert made.exit_code == 2
    assert f"--expires '{text}' is thousands of years away; say never" in made.stderr


@pytest.mark.parametrize("text", ["30", "soon", "2020-01-01", "30 d"])
def test_a_time_that_is_none_or_past_is_2(home, text):
    made = ctl(home, "keys", "create", "--tenant", "acme", "--new-tenant", "--expires", text)

    assert made.exit_code == 2
    assert made.stdout == ""


def test_models_of_the_config_are_known_by_every_name(home):
    config = home / "llmgw.toml"
    config.write_text(
        f'[store]\ndata_dir = "{home / "data"}"\n'
        '[[models]]\nname = "llama-3"\naliases = ["gpt-4o"]\n'
        '[[models.endpoints]]\nid = "a"\nurl = "http://127.0.0.1:1"\nadapters = ["lora-x"]\n'
    )

    def create(model: str) -> Result:
        words = ["ctl", "--config", str(config), "keys", "create", "--tenant", "t", "--new-tenant", "--model", model]
        return CliRunner().invoke(main, words, env=DEBUG)

    assert [create(m).exit_code for m in ("llama-3", "gpt-4o", "lora-x")] == [0, 0, 0]
    refused = create("lama-3")
    assert refused.exit_code == 1
    assert "did you mean 'llama-3'?" in refused.stderr
    assert len(listed(home)) == 3


def test_tokens_are_made_listed_and_ended(home):
    made = ctl(home, "tokens", "create", "joe", "--role", "admin")
    ctl(home, "tokens", "create", "grafana", "--role", "viewer")

    assert made.stdout.startswith("llmgw-adm-")
    assert ctl(home, "tokens", "revoke", "grafana").exit_code == 0
    refused = ctl(home, "tokens", "revoke", "joe")
    assert (refused.exit_code, "last admin token" in refused.stderr) == (1, True)
    assert [t["name"] for t in json.loads(ctl(home, "tokens", "list", "-o", "json").stdout)["tokens"]] == ["joe"]


def test_what_needs_a_gateway_says_so_without_one(home):
    ctl(home, "keys", "create", "--tenant", "acme", "--new-tenant")

    for words in (["status"], ["models"], ["endpoints"], ["requests"], ["explain", "request", "x"]):
        asked = ctl(home, *words)
        assert asked.exit_code == 6, words
        assert "start `llmgw server`" in asked.stderr
        assert asked.stderr.count("\n") == 1


def test_without_a_store_nothing_is_made_by_accident(home):
    asked = CliRunner().invoke(main, ["ctl", "keys", "create", "--tenant", "acme", "--new-tenant"], env=DEBUG)

    assert asked.exit_code == 6
    assert "--data-dir" in asked.stderr
    assert not (home / ".local").exists()


@pytest.mark.parametrize("words", ["keys list", "keys revoke key_1", "tenants", "tokens list", "audit"])
def test_a_data_directory_without_a_store_is_4_and_stays_as_it_is(home, words):
    asked = ctl(home, *words.split())

    assert (asked.exit_code, asked.stdout) == (4, "")
    assert f"there is no store in {home / 'data'}; check --data-dir" in asked.stderr
    assert not (home / "data").exists()


def test_a_first_key_makes_the_store_and_says_where(home):
    made = f"a new store was made in {home / 'data'}"

    refused = ctl(home, "keys", "create", "--tenant", "acme")
    first = ctl(home, "keys", "create", "--tenant", "acme", "--new-tenant")

    assert (refused.exit_code, made in refused.stderr) == (1, True)
    assert (first.exit_code, made in first.stderr) == (0, False)
    elsewhere = CliRunner().invoke(
        main,
        ["ctl", "--data-dir", str(home / "b"), "keys", "import", "-"],
        input='{"key": "sk-elsewhere", "tenant": "t"}',
    )
    assert (elsewhere.exit_code, elsewhere.stderr) == (0, f"a new store was made in {home / 'b'}\n")


def test_errors_are_json_when_answers_are(home):
    asked = ctl(home, "-o", "json", "keys", "create", "--tenant", "acme")

    assert asked.exit_code == 1
    error = json.loads(asked.stderr)["error"]
    assert error["code"] == "unknown_tenant"
    assert "no tenant is called 'acme'" in error["message"]


def test_a_store_that_is_damaged_is_one_line(home):
    (home / "data").mkdir()
    (home / "data" / "llmgw.db").write_bytes(b"no database" * 1000)

    asked = ctl(home, "keys", "list")

    assert asked.exit_code == 1
    assert asked.stderr.count("\n") == 1
    assert "is damaged" in asked.stderr


HOLD = """
import sys, time
from pathlib import Path
from llmgw.store.lock import take
held = take(Path(sys.argv[1]))
held.say(admin=sys.argv[2])
print("held", flush=True)
time.sleep(60)
"""


def test_while_a_daemon_holds_the_data_its_admin_api_is_asked(home):
    """It listens nowhere here: that ctl tries the URL in the lock file is the point."""
    (home / "data").mkdir()
    path = home / "data" / "llmgw.lock"
    words = [sys.executable, "-c", HOLD, str(path), "http://127.0.0.1:9"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout.readline() == "held\n"
        assert lock.held(path)

        asked = ctl(home, "keys", "list")

        daemon.kill()
    assert asked.exit_code == 6
    assert "http://127.0.0.1:9 is not reachable" in asked.stderr


NOBODY = 65534


@contextmanager
def somebody_else(folder: Path) -> Iterator[None]:
    """We are one who may not look into this folder."""
    root = os.geteuid() == 0
    folder.chmod(0)
    try:
        if root:
            os.seteuid(NOBODY)
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)


@pytest.mark.parametrize("words", [["status"], ["keys", "list"], ["-o", "json", "status"]])
def test_a_user_who_may_not_look_is_told_so_and_how_to_ask_all_the_same(home, words):
    (home / "data").mkdir()
    held = lock.take(home / "data" / "llmgw.lock")
    try:
        ctl(home, *words)  # whatever is imported late is there now
        with somebody_else(home / "data"):
            asked = ctl(home, *words)
    finally:
        held.release()

    assert asked.exit_code == 1
    assert f"{home / 'data' / 'llmgw.lock'}: permission denied" in asked.stderr
    assert "run as the gateway's user or as root, or use --url with a token" in asked.stderr
