"""What two control planes are told of each other, and how long a lease may be."""

import pytest

from llmgw.config import ConfigError, load

MODELS = '[[models]]\nname = "m"\n[[models.endpoints]]\nurl = "http://127.0.0.1:8000"\n'


def problems(tmp_path, text: str) -> list[str]:
    file = tmp_path / "llmgw.toml"
    file.write_text(text + MODELS)
    try:
        load(file, {})
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []


@pytest.mark.parametrize(
    "said",
    [
        "", '[lease]\nttl = "15s"\nrenew = "3s"', '[server]\nadvertise = "https://gw-1.example.com"',
        '[admin]\nadvertise = "https://gw-1:7442/"', '[agents]\nadvertise = "gw-1.example.com:7443"',
        '[agents]\nadvertise = "[::1]:7443"',
    ],
)  # fmt: skip
def test_what_makes_sense_is_taken(tmp_path, said):
    assert problems(tmp_path, said + "\n") == []


@pytest.mark.parametrize(
    ("said", "where", "what"),
    [
        ('[lease]\nttl = "5s"', "lease.ttl", "must be longer than renew + call_within + margin"),
        ('[lease]\nrenew = "9s"', "lease.renew", "lease.ttl (10 s) must be longer"),
        ('[server]\nadvertise = "gw-1"', "server.advertise", "is no URL"),
        ('[admin]\nadvertise = "https://gw-1/admin/v1"', "admin.advertise", "is no URL"),
        ('[agents]\nadvertise = "https://gw-1:7443"', "agents.advertise", "write HOST:PORT"),
    ],
)
def test_what_makes_none_is_refused_where_it_stands(tmp_path, said, where, what):
    (problem,) = problems(tmp_path, said + "\n")
    assert where in problem
    assert what in problem
