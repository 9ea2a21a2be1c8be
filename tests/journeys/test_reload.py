"""A config file read again under load: endpoints come and go, and no request notices."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from attrs import define, field

from tests.journeys.running import Gateway, House, config_of, values
from tests.journeys.talking import Clients, chat, complete
from tests.sim.engine_talk import Answer

TOKENS = 10
AT_ONCE = 40
WITHIN_S = 10


@define(eq=False)
class Load:
    """Streams, one after another in forty places, until told to end."""

    clients: Clients
    answers: list[Answer] = field(factory=list, init=False)
    over: bool = field(default=False, init=False)

    async def run(self, number: int) -> None:
        while not self.over:
            self.answers.append(await self.clients.ask(chat(f"place {number}", stream=True, max_tokens=TOKENS)))

    async def more(self, answers: int = AT_ONCE * 2) -> None:
        """Wait for that many more answers."""
        wanted = len(self.answers) + answers
        await until(lambda: len(self.answers) >= wanted)

    def failed(self) -> list[Answer]:
        return [answer for answer in self.answers if not complete(answer, TOKENS)]


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - a process sets no event for us
            await trio.sleep(0.02)


@asynccontextmanager
async def load(gateway: Gateway) -> AsyncIterator[Load]:
    made = Load(Clients(gateway, gateway.make_key()))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(AT_ONCE):
                nursery.start_soon(made.run, number)
            yield made
            made.over = True


def hang_up_signal(gateway: Gateway, config: str) -> None:
    gateway.config.write_text(config)
    gateway.process.signal(signal.SIGHUP)


def ctl_apply(gateway: Gateway, config: str) -> None:
    file = gateway.config.with_name("applied.toml")
    file.write_text(config)
    assert gateway.ctl("apply", str(file))["changes"]


def ids(gateway: Gateway) -> set[str]:
    return {endpoint["id"] for endpoint in gateway.endpoints()}


def series_of(gateway: Gateway, endpoint: str) -> bool:
    return any(("endpoint", endpoint) in labels for _, labels in gateway.metrics())


@pytest.mark.parametrize("reload", [hang_up_signal, ctl_apply])
async def test_endpoints_come_and_go_under_load_and_no_request_fails(
    home: House, reload: Callable[[Gateway, str], None]
):
    a, b, c = home.engines(3, decode_rate=100)
    gateway = home.gateway(config_of({"a": a.url, "b": b.url}))
    async with load(gateway) as streams:
        await streams.more()
        reload(gateway, config_of({"b": b.url, "c": c.url}))
        await until(lambda: ids(gateway) == {"b", "c"})
        await streams.more()
        served = a.state()["served"]
        await streams.more()
        assert a.state()["served"] == served  # nothing goes there any more
    assert served > 0
    assert c.state()["served"] > 0
    assert streams.failed() == []
    assert len(streams.answers) > AT_ONCE * 5
    assert a.state()["aborted"] == 0
    assert not series_of(gateway, "a")
    assert series_of(gateway, "c")
    assert sum(values(gateway.metrics(), "llmgw_requests_total")) == len(streams.answers)


async def test_a_removed_endpoint_finishes_its_streams_and_its_series_go_with_the_last(home: House):
    old, new = home.engines(2, decode_rate=10)
    gateway = home.gateway(config_of({"old": old.url}))
    clients, answers = Clients(gateway, gateway.make_key()), []

    async def ask() -> None:
        answers.append(await clients.ask(chat(stream=True, max_tokens=TOKENS)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await until(lambda: old.state()["generation_tokens"])
        hang_up_signal(gateway, config_of({"new": new.url}))
        await until(lambda: series_of(gateway, "new"))
        assert values(gateway.metrics(), "llmgw_endpoint_leaving", endpoint="old") == [1]
        assert complete(await clients.ask(chat(stream=True, max_tokens=1)), 1)
        assert new.state()["served"] == 1
    assert complete(answers[0], TOKENS)
    assert not series_of(gateway, "old")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("[[models]\n", "it is no TOML"),
        ('[server]\nlisen = "x"\n', "did you mean 'listen'?"),
        ('[[models]]\nname = ""\n', "models[0].name"),
        ("", "keep at least one [[models]], or stop the server"),
    ],
)
async def test_a_bad_file_keeps_the_config_before(home: House, broken: str, said: str):
    engine = home.engine(decode_rate=500)
    gateway = home.gateway(config_of({"a": engine.url}))
    clients = Clients(gateway, gateway.make_key())
    hang_up_signal(gateway, broken)
    await trio.to_thread.run_sync(gateway.process.said, "reload refused")
    refused = [line for line in gateway.log() if "reload refused" in line["event"]]
    assert said in str(refused[0]["problems"])
    (gateway.config.parent / "bad.toml").write_text(broken)
    assert said in gateway.ctl_says("apply", str(gateway.config.parent / "bad.toml"), code=2)
    assert complete(await clients.ask(chat(stream=True, max_tokens=2)), 2)
    assert ids(gateway) == {"a"}


async def test_a_file_that_can_not_be_read_is_named_and_keeps_the_config_before(home: House):
    gateway = home.gateway(config_of({"a": home.engine().url}))
    for spoil, said in (
        (lambda: gateway.config.write_bytes(b"\xff\xfe\x00"), "it is not UTF-8 at byte 0, save it as UTF-8"),
        (gateway.config.unlink, "it can't be read (No such file or directory), check the path and its owner"),
        (lambda: os.mkfifo(gateway.config), "it is no plain file, name the config file"),
    ):
        before = len(gateway.process.lines)
        spoil()
        gateway.process.signal(signal.SIGHUP)
        await trio.to_thread.run_sync(lambda before=before: gateway.process.said("reload refused", after=before))
        assert gateway.log()[-1]["problems"] == [f"{gateway.config}: {said}"]
    assert ids(gateway) == {"a"}


async def test_each_reload_is_in_the_audit_and_one_that_changes_nothing_keeps_the_revision(home: House):
    engine = home.engine(decode_rate=500)
    same, slower = config_of({"a": engine.url}), config_of({"a": engine.url}, more='[relay]\nidle = "50s"\n')
    gateway = home.gateway(same)

    async def hang_up(config: str, said: str) -> dict[str, object]:
        before = len(gateway.process.lines)
        hang_up_signal(gateway, config)
        await trio.to_thread.run_sync(lambda: gateway.process.said(said, after=before))
        return gateway.log()[-1]

    def audited() -> list[tuple[object, ...]]:
        acts = gateway.ctl("audit")["audit"]
        return [(act["who"], act["what"], act["subject"]) for act in acts if act["what"].startswith("config.")]

    assert (await hang_up(same, "nothing changed"))["revision"] == 1
    changed = await hang_up(slower, "config applied")
    assert (changed["revision"], changed["changes"]) == (2, ['relay.idle: "1min" -> "50s"'])
    await hang_up("", "reload refused")
    file = gateway.config.with_name("applied.toml")
    file.write_text(slower)
    assert gateway.ctl_says("apply", str(file)) == "revision 2: nothing changed\n"
    file.write_text("")
    assert f"{file}:models: " in gateway.ctl_says("apply", str(file), code=2)
    assert audited() == [
        ("first-start", "config.apply", "refused"),
        ("first-start", "config.apply", "nothing changed"),
        ("signal", "config.reload", "refused"),
        ("signal", "config.reload", "revision 2"),
        ("signal", "config.reload", "nothing changed"),
    ]
    assert values(gateway.metrics(), "llmgw_config_revision") == [2]


async def test_a_signal_to_a_gateway_without_a_file_is_in_the_audit_too(home: House):
    free = {"LLMGW_SERVER__LISTEN": "127.0.0.1:0", "LLMGW_ADMIN__LISTEN": "127.0.0.1:0"}
    process = home.running("server", "--data-dir", str(home.folder / "bare"), **free)
    admin = process.said("admin:   ").split()[-1]
    gateway = Gateway(process, home.folder / "bare", home.folder / "none", "", admin)
    await until(lambda: gateway.admin("GET", "/health").status_code == 200)
    process.signal(signal.SIGHUP)
    await until(lambda: gateway.ctl("audit")["audit"][0]["what"] == "config.reload")
    act = gateway.ctl("audit")["audit"][0]
    assert (act["who"], act["subject"]) == ("signal", "refused")
    assert act["after"] == {"problems": ["nothing to reload: started without a config file"]}


async def test_what_the_gateways_own_file_undoes_at_its_next_start_is_a_warning(home: House):
    engine = home.engine(decode_rate=500)
    own, more = config_of({"a": engine.url}), config_of({"a": engine.url}, more='[relay]\nidle = "50s"\n')
    gateway = home.gateway(own)
    file = gateway.config.with_name("applied.toml")

    def warned(*words: str) -> list[str]:
        return gateway.ctl(*words)["warnings"]

    file.write_text(own)
    assert warned("apply", str(file)) == [], "it says the same as the gateway's own"
    file.write_text(more)
    undone = "the next start or SIGHUP applies {} again, which says otherwise ({}): write it there too"
    idle = 'relay.idle: "50s" -> "1min"'
    assert warned("apply", str(file)) == [undone.format(gateway.config, idle)]
    gateway.config.write_text(more)
    assert warned("apply", str(gateway.config)) == []
    gateway.config.write_text(more.replace('id = "a"', 'id = "b"'))
    assert "applies" in warned("apply", str(gateway.config.with_name("applied.toml")))[0]
    assert warned("apply", str(gateway.config)) == []
    [back] = warned("rollback", "1")
    assert back == undone.format(gateway.config, "endpoint b added and 1 more")
    gateway.config.write_text(more.partition("[[models]]")[0])
    assert warned("apply", str(file)) == [], "a file without models leaves those that were applied last"
    gateway.config.write_text("[[models]\n")
    assert "which can't be used as it is" in warned("apply", str(file))[0]
