"""A control plane on the SQLite file from before the move, asked first by every agent: the leader on PostgreSQL keeps
them, and no engine notices."""

import shutil
import signal

import pytest

from tests.journeys.clustering import QUICK, block_of_ports, cluster, config_at, model, server_words
from tests.journeys.running import Gateway, House, running, values, wait_until
from tests.postgres_server import running as postgres


def moved(home: House, source: str, target: str) -> None:
    with running("store", "migrate", "--from", source, "--to", target) as made:
        assert made.wait() == 0, made.lines


@pytest.mark.slow
def test_it_stands_aside_and_says_so_while_the_leader_on_postgresql_goes_on(home: House):
    try:
        with postgres() as server, cluster(home, model(1), nodes=0) as led:
            gateway, first = led.gateway, block_of_ports(3)
            copy = home.folder / "copy"
            node = led.add("node-1", server=f"127.0.0.1:{first + 2},127.0.0.1:{led.agents_port}")
            led.wait(lambda: led.serves(1))
            gateway.process.signal(signal.SIGTERM)
            assert gateway.process.wait() == 0
            shutil.copytree(gateway.data_dir, copy)
            moved(home, str(gateway.data_dir), server.url())
            with running(*server_words(gateway.config, gateway.data_dir)) as left:
                assert left.wait() == 2
            assert any("is not in use any more: it was moved to postgresql://" in line for line in left.lines)
            gateway.config.write_text(f'[store]\nurl = "{server.url()}"\n{gateway.config.read_text()}')
            led.start_control_plane()
            led.wait(lambda: led.serves(1) and (led.node("node-1")["agent"]["link_age_s"] or 0) > 1)
            before = led.running()

            old = home.write("old.toml", config_at(first, model(1), QUICK))
            with running(*server_words(old, copy)) as process:
                process.said("agents: ")
                aside = Gateway(process, copy, old, f"http://127.0.0.1:{first}", f"http://127.0.0.1:{first + 1}")
                led.kill_agent("node-1")
                led.start_agent("node-1")
                wait_until(lambda: values(aside.metrics(), "llmgw_leader_transitions_total", what="store_back") == [1])
                led.wait(lambda: led.serves(1) and led.node("node-1")["agent"]["linked"])

                assert led.running() == before
                assert values(aside.metrics(), "llmgw_leading") == [0]
                told = aside.admin("GET", "/admin/v1/explain/leader").json()
                assert "has obeyed term 1." in str(told)
                assert aside.admin("GET", "/admin/v1/leader").json()["leader"]["state"] == "aside"
            assert node.engine_pids()
    except LookupError as error:
        pytest.skip(str(error))
