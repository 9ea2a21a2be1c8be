"""A database that forgets who led (C22, L11, L12): agents obey nobody that is older than whom they obeyed before."""

import shutil

import pytest

from tests.journeys.clustering import model
from tests.journeys.pairs import pair
from tests.journeys.running import House, values
from tests.postgres_server import Server, running

TTL_S = 10.0


def both(one: Server, other: Server) -> str:
    """A URL with two hosts, of which the one that may be written is taken."""
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in (one, other))
    return one.url().replace(f"127.0.0.1:{one.port}", hosts)


@pytest.mark.slow
def test_a_lagging_standby_database_is_promoted(home: House):
    with running() as primary:
        standby = primary.standby()
        try:
            with pair(home, both(primary, standby), model()) as made:
                made.wait(lambda: made.serves(2))
                before = made.leading.running()
                primary.wait_for(standby)
                standby.sql("alter system set primary_conninfo = ''")
                standby.sql("select pg_reload_conf()")
                # What the standby does not hear of: another leader, another term.
                made.leading.gateway.ctl("leader", "resign")
                made.wait(lambda: made.leader() == "gw-2" and made.arrived("gw-2"), 5)
                assert made.term("gw-2") == (1, 2)

                primary.kill()
                standby.promote()
                made.wait(lambda: made.term_led()[0] == 2, 4 * TTL_S)
                made.wait(lambda: made.arrived(made.leader()) and made.serves(2), TTL_S)
                # It has a number below the one that was obeyed before, and counts all the same.
                assert made.term(made.leader()) == (2, 2)
                assert made.leading.running() == before
                assert made.leading.events("replica.failed") == []
        finally:
            standby.end()


@pytest.mark.slow
def test_a_backup_from_before_is_restored(home: House):
    with running() as server, pair(home, server.url(), model()) as made:
        made.wait(lambda: made.serves(2))
        before, copy = made.leading.running(), server.folder / "copy"
        server.stop()
        shutil.copytree(server.data, copy, copy_function=shutil.copy2)
        server.start()
        made.wait(lambda: bool(made.leader()) and made.arrived(made.leader()), 3 * TTL_S)
        for _ in range(5):  # more terms, which the copy knows nothing of
            leaving = made.leader()
            made.stop(leaving)
            coming = made.other(leaving)
            made.wait(lambda name=coming: made.leader() == name and made.arrived(name), 5)
            made.ended(leaving)
            made.start(leaving)
        obeyed = made.term_led()

        server.stop()
        shutil.rmtree(server.data)
        owner = server.folder.stat()
        copy.rename(server.data)
        for path in (server.data, *server.data.rglob("*")):
            shutil.chown(path, owner.st_uid, owner.st_gid)
        server.data.chmod(0o700)
        server.start()
        made.wait(lambda: made.term_led() > obeyed, 6 * TTL_S)
        made.wait(lambda: made.arrived(made.leader()) and made.serves(2), TTL_S)
        assert made.leading.running() == before
        leader = made.leading.gateway
        assert "went back in time" in made.leading.events("leader.lifted")[-1]["sentence"]
        assert values(leader.metrics(), "llmgw_leader_transitions_total", what="lifted") == [1.0]
        assert any(line.get("event") == "a node has obeyed a later term" for line in leader.log())
