"""The agent link, both ends: joining, hello, reports up, what is wanted down, and every way it can end."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from llmgw.core.shards import Launch, ShardSeen, ShardState
from llmgw.core.term import Term
from llmgw.nodes.registry import NotLeading
from llmgw.wire.agent_frames import Tail, line
from tests.agent_links import ME, TERM, Leader, agent_on, until

SHARD = ShardSeen("m-1.g7.r0", ShardState.LOADING, pid=7, ports={"http": 20000})
LAUNCH = Launch("m-1.g7.r0", ("engine", "{port}"), key="sesame", key_env="KEY")


@pytest.fixture
async def leader(tmp_path: Path, nursery: trio.Nursery, autojump_clock) -> AsyncIterator[Leader]:
    leader = await Leader.make(tmp_path, nursery)
    yield leader
    assert leader.failures == []
    leader.store.close()


async def test_a_node_joins_and_is_heard(leader, nursery, tmp_path, autojump_clock):
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token(), labels={"zone": "east"})
    agent.engines.shards = (SHARD,)
    nursery.start_soon(agent.run)

    await until(lambda: leader.heard)

    node = leader.registry.nodes["node-1"]
    assert node.linked
    assert node.hello.labels == {"zone": "east"}
    assert node.hello.cluster == leader.store.cluster_id
    assert node.report.shards == (SHARD,)
    assert node.report.gpus[0].uuid == "GPU-1"
    assert node.report.host.cores > 0
    assert node.address == "10.0.0.9"
    assert agent.said == ["linked with leader.test:7443"]


async def test_a_node_reports_each_period_and_at_once_when_something_changes(leader, nursery, tmp_path, autojump_clock):
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)

    before = len(leader.heard)
    await trio.sleep(10)
    assert 9 <= len(leader.heard) - before <= 11

    await trio.sleep(0.5)
    before, agent.engines.shards = len(leader.heard), (SHARD,)
    agent.engines.changed.ring()
    await until(lambda: len(leader.heard) > before, within_s=0.2)
    assert leader.registry.nodes["node-1"].report.shards == (SHARD,)


async def test_the_whole_set_that_is_wanted_is_obeyed_and_that_is_told(leader, nursery, tmp_path, autojump_clock):
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    agent.engines.there = frozenset({"/models/m"})
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)

    assert leader.registry.want("node-1", 4, [LAUNCH], ["/models/m", "/models/n"]) == ""
    node = leader.registry.nodes["node-1"]
    assert not node.obeys_what_it_was_told()
    await until(node.obeys_what_it_was_told)

    assert agent.engines.told[0].shards == (LAUNCH,)
    assert (node.obeys.term, node.obeys.rev) == (TERM, 4)
    assert node.report.has == ("/models/m",)


async def test_of_several_sets_the_newest_counts(leader, nursery, tmp_path, autojump_clock):
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    go_on = trio.Event()

    async def slowly(write, term):
        await go_on.wait()
        write(term)

    agent.terms.run_blocking = slowly
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)
    for rev in range(1, 100):
        leader.registry.want("node-1", rev, [])
        await trio.sleep(0.01)
    go_on.set()
    await until(leader.registry.nodes["node-1"].obeys_what_it_was_told)

    assert agent.engines.told[-1].rev == 99
    assert len(agent.engines.told) < 5


async def test_what_was_wanted_before_the_link_comes_with_it(leader, nursery, tmp_path, autojump_clock):
    leader.registry.want("node-1", 9, [LAUNCH])
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    nursery.start_soon(agent.run)

    await until(lambda: agent.engines.told)

    assert agent.engines.told[0].rev == 9


async def test_tails_come_when_they_change_with_their_age(leader, nursery, tmp_path, autojump_clock):
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    agent.engines.shards = (SHARD,)
    agent.engines.wrote(SHARD.id, "loading weights")
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)
    node = leader.registry.nodes["node-1"]
    await trio.sleep(10)

    assert node.counts["tails"] == 1
    assert node.tails[SHARD.id].text == "loading weights"
    assert node.tails[SHARD.id].at == pytest.approx(trio.current_time() - 12, abs=2)

    agent.engines.wrote(SHARD.id, "ready")
    await until(lambda: node.tails[SHARD.id].text == "ready")
    agent.engines.shards = ()
    await until(lambda: node.report is not None and not node.report.shards)
    assert node.tails[SHARD.id].text == "ready"  # its last words, for whoever asks why it ended


async def test_a_node_where_everything_changes_all_the_time_stays_within_what_a_leader_lets_pass(
    leader, nursery, tmp_path, autojump_clock
):
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    agent.engines.shards = tuple(ShardSeen(f"m-{n}.g1.r0", ShardState.LOADING, why="w" * 100) for n in range(200))
    nursery.start_soon(agent.run)
    for turn in range(600):
        for one in agent.engines.shards:
            agent.engines.wrote(one.id, f"{turn} " + "x" * 4000)
        agent.engines.changed.ring()
        await trio.sleep(0.05)
    node = leader.registry.nodes["node-1"]

    assert node.counts["links"] == 1
    assert node.counts["floods"] == 0
    assert len(node.tails) == 200
    assert min(int(tail.text.split()[0]) for tail in node.tails.values()) > 300
    assert node.counts["reports"] > 100


async def test_logs_are_asked_for_and_answered(leader, nursery, tmp_path, autojump_clock):
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    agent.engines.text[SHARD.id] = "a" * 1000
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)

    logs = await leader.registry.ask_logs("node-1", SHARD.id, 100)
    wrong = await leader.registry.ask_logs("node-1", "nobody.g1.r0", 100)
    nowhere = await leader.registry.ask_logs("node-9", SHARD.id, 100)

    assert (logs.text, logs.age_ms, logs.error) == ("a" * 100, 1500, "")
    assert wrong.error == "there is no nobody.g1.r0 here"
    assert nowhere.error == "no node node-9 was heard of"


async def test_what_an_operator_has_looked_at_is_forgotten_on_its_node(leader, nursery, tmp_path, autojump_clock):
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)

    done = await leader.registry.ask_clear("node-1", "GPU-1", "xid 79")
    again = await leader.registry.ask_clear("node-1", "GPU-1", "xid 79")
    nowhere = await leader.registry.ask_clear("node-9", "GPU-1", "xid 79")

    assert (done.error, done.text) == ("", "xid 79 of GPU-1 is cleared")
    assert again.error == "nothing like 'xid 79' speaks against a GPU 'GPU-1' here"
    assert nowhere.error == "no node node-9 was heard of"


async def test_a_node_that_does_not_answer_for_its_logs_is_said_to(leader, nursery, tmp_path, autojump_clock):
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)
    agent.link.talk._answer = lambda asked: line(Tail("m.g1.r0", "no answer"))
    answers = []

    async def ask():
        answers.append(await leader.registry.ask_logs("node-1", SHARD.id))

    for _ in range(9):
        nursery.start_soon(ask)
    await until(lambda: len(answers) == 9)

    errors = sorted({answer.error for answer in answers})
    assert errors == ["8 questions to node-1 wait for an answer already; ask again", "node-1 did not answer within 5 s"]
    nursery.start_soon(ask)
    await trio.sleep(0.1)
    leader.registry.refuse("node-1", "out")
    await until(lambda: len(answers) == 10)
    assert answers[-1].error == "the link of node-1 ended: out"


# -- ends ------------------------------------------------------------------------------------------------


async def test_a_silent_node_is_unreachable_and_its_link_closed(leader, nursery, tmp_path, autojump_clock):
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)
    node = leader.registry.nodes["node-1"]
    leader.reachable = False

    # Its host lost power: nothing comes any more, and nothing says so.
    leader.connections[-1].dead_up = True
    last = node.heard_at
    await until(lambda: not node.linked)

    assert trio.current_time() - last == pytest.approx(5, abs=0.1)
    assert node.last_end == "nothing came in time: a frame within 5 s"
    assert node.report is not None  # unknown, not empty
    assert leader.registry.silent("node-1", trio.current_time() + 0.2)


async def test_a_silent_leader_is_left_and_found_again(leader, nursery, tmp_path, autojump_clock):
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)
    node = leader.registry.nodes["node-1"]

    leader.connections[-1].dead_down = True
    await until(lambda: node.counts["links"] == 2)

    assert agent.said == [
        "linked with leader.test:7443",
        "the link with leader.test:7443 ended: the leader was silent for 5 s",
        "linked with leader.test:7443",
    ]


async def test_a_newer_link_replaces_the_older_at_once(leader, nursery, tmp_path, autojump_clock):
    first = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    nursery.start_soon(first.run)
    await until(lambda: leader.heard)
    node = leader.registry.nodes["node-1"]
    old = node.link

    leader.connections[-1].dead_up = True  # half open: the leader has not noticed yet
    second = agent_on(tmp_path / "a", leader.dial)
    nursery.start_soon(second.run)
    await until(lambda: node.link is not old)

    assert node.counts["replaced"] == 1
    assert node.linked
    await until(lambda: any("node-1 has made a newer link" in line for line in first.said))
    first.scope.cancel()


async def test_a_reset_in_the_middle_of_a_frame_is_followed_by_a_clean_link(leader, nursery, tmp_path, autojump_clock):
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)
    node = leader.registry.nodes["node-1"]

    talk = agent.link.talk
    talk._out.append(b'{"t":"report","seq":')  # the frame's end never comes
    talk._duplex.wake()
    await trio.testing.wait_all_tasks_blocked()
    await trio.aclose_forcefully(leader.connections[-1])
    before = node.counts["reports"]
    await until(lambda: node.counts["reports"] > before)

    assert node.counts["links"] == 2
    assert node.counts["malformed"] == 0


async def test_a_cancelled_send_closes_the_link_and_a_new_one_is_made(
    leader, nursery, tmp_path, autojump_clock, monkeypatch
):
    """Trio's SSLStream is broken both ways then."""
    monkeypatch.setattr("agent.talk.STALL_S", 1.0)
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)
    node = leader.registry.nodes["node-1"]

    tls = agent.stream
    leader.connections[-1].takes_nothing = True
    await until(lambda: node.counts["links"] == 2)
    with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
        await tls.receive_some(1)
    leader.registry.want("node-1", 2, [LAUNCH])
    await until(node.obeys_what_it_was_told)

    assert agent.said[1] == "the link with leader.test:7443 ended: nothing was taken for 1 s"
    assert agent.engines.told[-1].shards == (LAUNCH,)


async def test_tries_are_spread_and_bounded(leader, nursery, tmp_path, autojump_clock):
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    leader.reachable = False
    nursery.start_soon(agent.run)

    await trio.sleep(10)
    early = agent.link.tries
    await trio.sleep(100)

    assert 5 <= early <= 12
    assert 18 <= agent.link.tries - early <= 22  # every 5 s: half of reconnect_max, as the draw is
    assert agent.said == ["no link: leader.test: connection refused"]
    leader.reachable = True
    await until(lambda: leader.heard)


async def test_a_leader_that_dies_again_and_again_is_found_again_within_seconds(
    leader, nursery, tmp_path, autojump_clock
):
    """Each time shortly after it welcomed us, and it is away for 1.5 s, as one that starts again."""
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    nursery.start_soon(agent.run)
    for _ in range(10):
        await until(lambda: agent.link.talk is not None and agent.link.talk.welcomed)
        await trio.sleep(1)
        leader.reachable = False
        await trio.aclose_forcefully(leader.connections[-1])
        await trio.sleep(1.5)
        leader.reachable = True
        await until(lambda: agent.link.talk is not None and agent.link.talk.welcomed, within_s=2.0)


async def test_a_leader_that_ends_each_link_at_once_is_not_asked_without_rest(
    leader, nursery, tmp_path, autojump_clock
):
    agent = agent_on(tmp_path / "a", leader.dial, token=await leader.token())

    async def end_each() -> None:
        while True:
            await until(lambda: agent.link.talk is not None and agent.link.talk.welcomed, within_s=60)
            await trio.aclose_forcefully(leader.connections[-1])
            await until(lambda: agent.link.talk is None)

    nursery.start_soon(agent.run)
    nursery.start_soon(end_each)
    await trio.sleep(10)
    before = agent.link.tries
    await trio.sleep(100)
    assert agent.link.tries - before <= 220  # every half second, as the draw is


# -- terms -----------------------------------------------------------------------------------------------


async def linked(leader, nursery, folder):
    agent = agent_on(folder, leader.dial, token=await leader.token())
    nursery.start_soon(agent.run)
    leader.registry.want("node-1", 1, [])
    await until(lambda: agent.engines.told)
    return agent


async def test_a_newer_term_is_on_disk_before_it_is_obeyed(leader, nursery, tmp_path, autojump_clock):
    agent = await linked(leader, nursery, tmp_path / "a")
    on_disk = []

    def look(wanted):
        on_disk.append((wanted.term, agent.terms.places.read_seen()))

    agent.engines.obeying = look
    leader.lead = Term(0, 4, "other")
    leader.registry.want("node-1", 2, [])
    await until(lambda: on_disk)

    assert on_disk[0] == (Term(0, 4, "other"), Term(0, 4, "other"))


async def test_an_older_leader_is_left_and_hears_of_the_newer_term(leader, nursery, tmp_path, autojump_clock):
    agent = await linked(leader, nursery, tmp_path / "a")
    told = len(agent.engines.told)

    leader.lead = Term(0, 2, "woken")
    leader.registry.want("node-1", 7, [LAUNCH])
    await until(lambda: "stale" in agent.link.state and "has obeyed" in agent.link.state)

    assert leader.newer[0] == ("node-1", TERM)
    assert len(agent.engines.told) == told
    assert any("stale: its term is 0.2, and 0.3 was obeyed here already" in line for line in agent.said)
    assert any("node-1 has obeyed term 0.3, this leader's is 0.2: stale" in line for line in agent.said)


async def test_two_leaders_of_one_term_are_a_conflict_and_the_second_is_not_obeyed(
    leader, nursery, tmp_path, autojump_clock
):
    agent = await linked(leader, nursery, tmp_path / "a")
    told = len(agent.engines.told)

    leader.lead = Term(TERM.n, TERM.epoch, "another nonce")
    leader.registry.want("node-1", 7, [LAUNCH])
    await until(lambda: leader.newer)

    assert len(agent.engines.told) == told
    assert any("conflict: two leaders claim term 0.3" in line for line in agent.said)


async def test_a_term_that_was_overtaken_while_it_was_written_down_is_not_obeyed(
    leader, nursery, tmp_path, autojump_clock
):
    agent = await linked(leader, nursery, tmp_path / "a")

    async def overtaken(write, term):
        write(term)
        agent.terms.seen = Term(9, 9, "x")

    agent.terms.run_blocking = overtaken
    told = len(agent.engines.told)
    leader.lead = Term(0, 4, "y")
    leader.registry.want("node-1", 2, [LAUNCH])
    await until(lambda: leader.newer)

    assert len(agent.engines.told) <= told + 1
    assert all(not wanted.shards for wanted in agent.engines.told)


async def test_a_term_that_cannot_be_written_down_is_not_obeyed(leader, nursery, tmp_path, autojump_clock):
    agent = await linked(leader, nursery, tmp_path / "a")

    async def full(write, term):
        raise OSError(28, "No space left on device")

    agent.terms.run_blocking = full
    told = len(agent.engines.told)
    leader.lead = Term(0, 4, "y")
    leader.registry.want("node-1", 2, [LAUNCH])
    await until(lambda: any("No space left" in line for line in agent.said))

    assert len(agent.engines.told) == told


async def test_a_standby_names_who_leads_and_the_agent_goes_there(leader, nursery, tmp_path, autojump_clock):
    asked = []

    async def dial(server, ca):
        asked.append(server)
        leader.lead = NotLeading("b.test:7443") if server == "a.test:7443" else TERM
        return await leader.dial(server, ca)

    token = await leader.token()
    agent = agent_on(tmp_path / "a", dial, token=token, servers=("a.test:7443",))
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)

    assert "b.test:7443" in asked
    assert agent.said[-1] == "linked with b.test:7443"
    leader.lead = TERM


async def test_while_nobody_leads_a_standby_is_asked_often_enough(leader, nursery, tmp_path, autojump_clock):
    token = await leader.token()
    agent = agent_on(tmp_path / "a", leader.dial, token=token, servers=("a.test:7443", "b.test:7443"))
    nursery.start_soon(agent.run)
    await until(lambda: leader.heard)

    leader.lead = NotLeading()
    leader.registry.refuse_all("it does not lead any more")
    await trio.sleep(60)
    tries = agent.link.tries
    await trio.sleep(10)
    assert 9 <= agent.link.tries - tries <= 11  # each second: half of the longest pause, as the draw is

    leader.reachable = False
    await trio.sleep(60)
    tries = agent.link.tries
    await trio.sleep(100)
    assert agent.link.tries - tries <= 22, "nobody has answered for long, and they are asked all the time"

    leader.reachable, leader.lead = True, TERM
    await until(lambda: leader.registry.nodes["node-1"].linked)


# -- who is let in ---------------------------------------------------------------------------------------


async def test_a_removed_node_is_cut_at_once_and_refused_by_name_and_keeps_its_engines(
    leader, nursery, tmp_path, autojump_clock
):
    agent = await linked(leader, nursery, tmp_path / "a")
    told = len(agent.engines.told)

    await leader.joining.remove(ME, "node-1", why="sold")
    assert "node-1" not in leader.registry.nodes
    await until(lambda: len(agent.said) > 1)
    await trio.sleep(30)

    removed = "refused by leader.test:7443: node-1 was removed from the cluster (sold)"
    assert agent.said[1] == removed
    assert agent.said[2].startswith(f"{removed}; to come in again it needs a new join token")
    assert len(agent.said) == 3
    assert "node-1" not in leader.registry.nodes
    assert len(agent.engines.told) == told

    again = agent_on(tmp_path / "a", leader.dial, token=await leader.token())
    nursery.start_soon(again.run)
    await until(lambda: "node-1" in leader.registry.linked())


async def test_joining_again_keeps_the_node_and_ends_what_showed_the_old_credential(
    leader, nursery, tmp_path, autojump_clock
):
    old = await linked(leader, nursery, tmp_path / "a")

    new = agent_on(tmp_path / "b", leader.dial, token=await leader.token())
    nursery.start_soon(new.run)
    await until(lambda: new.link.state.startswith("linked"))
    await until(lambda: "joined again" in old.link.state)

    assert old.link.state.startswith("refused by leader.test:7443: node-1 has joined again since, with another cred")
    assert list(leader.joining.nodes) == ["node-1"]


async def test_a_node_of_another_cluster_is_refused_by_name(leader, nursery, tmp_path, autojump_clock):
    agent = await linked(leader, nursery, tmp_path / "a")
    agent.scope.cancel()

    leader.registry.cluster = "f" * 32
    again = agent_on(tmp_path / "a", leader.dial)
    nursery.start_soon(again.run)
    await until(lambda: again.said)

    assert f"node-1 belongs to cluster {leader.store.cluster_id}, this is cluster {'f' * 32}" in again.said[0]


async def test_a_credential_that_counts_for_nothing_elsewhere_says_which_server_is_wrong(
    leader, nursery, tmp_path, autojump_clock
):
    agent = await linked(leader, nursery, tmp_path / "a")
    agent.scope.cancel()
    await leader.joining.remove(ME, "node-1")

    leader.registry.cluster = "f" * 32
    again = agent_on(tmp_path / "a", leader.dial)
    nursery.start_soon(again.run)
    await until(lambda: again.said)

    assert again.said[0] == (
        f"refused by leader.test:7443: it is of cluster {'f' * 32}, and this node, node-1, is of cluster"
        f" {leader.store.cluster_id}: take leader.test:7443 out of agent.servers"
    )


async def test_without_a_valid_token_nobody_joins(leader, nursery, tmp_path, autojump_clock):
    token = await leader.token(valid_s=60, uses_max=1)
    wrong = token.replace(token.split("-")[3], "x" * 32)
    for number, (text, why) in enumerate(
        [
            ("", "this node has joined no cluster: set agent.join_token"),
            (wrong, "this join token is not known here"),
            (token.replace(token.split("-")[2], "y" * 16), "this join token is not known here"),
            (token[:-1] + ("0" if token[-1] != "0" else "1"), "is not who the join token means"),
        ]
    ):
        agent = agent_on(tmp_path / str(number), leader.dial, name=f"node-{number}", token=text)
        nursery.start_soon(agent.run)
        await until(lambda said=agent.said: said)
        assert why in agent.said[0]
        agent.scope.cancel()

    assert not leader.joining.nodes


async def test_a_token_is_used_as_often_as_it_may_be(leader, nursery, tmp_path, autojump_clock):
    token = await leader.token(uses_max=1)
    first = agent_on(tmp_path / "1", leader.dial, name="node-1", token=token)
    nursery.start_soon(first.run)
    await until(lambda: leader.heard)

    second = agent_on(tmp_path / "2", leader.dial, name="node-2", token=token)
    nursery.start_soon(second.run)
    await until(lambda: second.said)

    assert "was used 1 times, which is all it allows" in second.said[0]
    assert list(leader.joining.nodes) == ["node-1"]
