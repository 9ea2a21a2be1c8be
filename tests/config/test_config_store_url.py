"""``store.url``: which stores there are, where it may be written, and that its password is never shown."""

import json

import pytest

from llmgw.config import ConfigError, describe, load

MODEL = '[[models]]\nname = "m"\n[[models.endpoints]]\nurl = "http://h:1"\n'


def problems(url: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(None, {}, f'{MODEL}[store]\nurl = "{url}"\n')
    return "\n".join(map(str, caught.value.problems))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:hunter2@db-1,db-2:5433/llmgw?sslmode=require", "postgresql://***@db-1,db-2:5433/llmgw?…"),
        ("postgres://db/llmgw", "postgres://db/llmgw"),
        ("postgresql://db/llmgw?user=u&password=hunter2", "postgresql://db/llmgw?…"),
        ("postgresql://u@db/llmgw?application_name=a@b&password=hunter2", "postgresql://***"),
        ("postgresql://u:hunter2#x@db/llmgw", "postgresql://***@db/llmgw"),
        ("sqlite:////var/lib/llmgw/x.db", "sqlite:////var/lib/llmgw/x.db"),
    ],
)
def test_a_store_is_shown_without_its_password(url, shown):
    config = load(None, {}, f'{MODEL}[store]\nurl = "{url}"\n')

    assert config.store.url is not None
    assert config.store.url.reveal() == url
    assert describe(config)["store"]["url"] == shown
    assert "hunter2" not in repr(config) + json.dumps(describe(config))


def test_it_may_lie_in_a_file_or_come_from_the_environment(tmp_path):
    secret = tmp_path / "url"
    secret.write_text("postgresql://u:hunter2@db/llmgw\n")
    secret.chmod(0o600)

    in_file = load(None, {}, f'{MODEL}[store]\nurl = "@{secret}"\n')
    from_environment = load(None, {"LLMGW_STORE__URL": f"@{secret}"}, MODEL)
    credential = load(None, {"CREDENTIALS_DIRECTORY": str(tmp_path)}, f'{MODEL}[store]\nurl = "@url"\n')

    assert {c.store.url.reveal() for c in (in_file, from_environment, credential)} == {
        "postgresql://u:hunter2@db/llmgw"
    }


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "mysql://u:hunter2@db/llmgw",
            "store.url: no store is opened by 'mysql', write postgresql://… or sqlite:////path",
        ),
        (
            "sqlite:///var/lib/llmgw.db",
            "store.url: sqlite:///var/lib/llmgw.db is a relative path, write the whole path behind three slashes, as"
            " sqlite:////var/lib/llmgw.db",
        ),
        ("sqlite:///", "store.url: there is no path in it"),
        ("postgresql://u:sesame@hunter2/w#d@db/llmgw", "store.url: postgresql://***@db/llmgw has an @ or a / in its"),
        ("postgresql://u:hunter2/w@db/llmgw", "percent-encode them there: @ as %40, / as %2F, # as %23"),
        (
            "postgresql://u:hunter2@db/llmgw?colour=red",
            "is no URL of PostgreSQL, write postgresql://user:password@host",
        ),
        ("postgresql://u:hunter2@db:port%zz/llmgw", "is no URL of PostgreSQL"),
        ("@/nowhere", "can't be read"),
    ],
)
def test_a_url_that_opens_nothing_is_refused_before_it_is_used(url, says):
    found = problems(url)

    assert says in found
    assert "hunter2" not in found


@pytest.mark.parametrize(
    ("url", "warned"),
    [("postgresql://u:hunter2@db/d", True), ("postgresql://db/d", False), ("sqlite:////x.db", False)],
)
def test_only_a_url_with_a_password_is_a_secret_in_an_open_file(tmp_path, url, warned):
    file = tmp_path / "llmgw.toml"
    file.write_text(f'{MODEL}[store]\nurl = "{url}"\n')
    file.chmod(0o644)

    said = [str(one) for one in load(file, {}).warnings if "secret" in str(one)]

    assert bool(said) == warned
    assert "hunter2" not in "".join(said)
