"""Requests wait for a full engine, and an operator sees who, why, and afterwards how long."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.journeys.running import Gateway, House, config_of, values, wait_until
from tests.journeys.talking import chat


@pytest.fixture(scope="module")
def gateway(shared_home: House) -> Gateway:
    engine = shared_home.engine(decode_rate=50)
    config = config_of({"only": engine.url}).replace('engine = "sim"', 'engine = "sim"\ncapacity = 1')
    return shared_home.gateway(config, "waiting")


def test_who_waits_why_and_for_how_long_is_seen(gateway: Gateway):
    url = f"{gateway.url}/v1/chat/completions"
    gold, bronze = ({"authorization": f"Bearer {gateway.make_key(band, band=band)}"} for band in ("gold", "bronze"))

    def ask(headers: dict[str, str]) -> httpx.Response:
        return httpx.post(url, json=chat(max_tokens=2), headers=headers, trust_env=False, timeout=30)

    with ThreadPoolExecutor(3) as pool, httpx.Client(trust_env=False, timeout=30) as client:
        runs = client.send(
            client.build_request("POST", url, json=chat(max_tokens=4000, stream=True), headers=gold), stream=True
        )
        asking = [pool.submit(ask, headers) for headers in (bronze, bronze, gold)]
        wait_until(lambda: values(gateway.metrics(), "llmgw_queue_tenant_waiting", tenant="bronze") == [2])
        wait_until(lambda: values(gateway.metrics(), "llmgw_queue_depth", band="gold") == [1])

        (pool_seen,) = gateway.ctl("pools", "gpt-4o")["pools"]
        assert (pool_seen["waiting"], pool_seen["saturation"], pool_seen["endpoints"][0]["decides"]) == (3, 1.0, "load")
        waiting = {row["band"]: row["waiting"] for row in gateway.ctl("queues")["queues"]}
        assert waiting == {"platinum": 0, "gold": 1, "silver": 0, "bronze": 2}
        assert "queue of model sim-model: 3 wait (1 of gold, 2 of bronze) because saturation 1.00" in gateway.ctl_says(
            "explain", "queue", "gpt-4o"
        )
        assert gateway.ctl("status")["waiting"] == 3
        assert "no model" in gateway.ctl_says("explain", "queue", "nothing", code=4)
        runs.close()
        answers = [one.result(30).raise_for_status() for one in asking]

    facts = [fact["text"] for fact in gateway.ctl("explain", "request", answers[0].headers["x-request-id"])["because"]]
    assert any(text.startswith("ahead of it as it came: ") for text in facts)
    assert any(text.startswith("it was let through: saturation 0.00 was below bronze's ceiling") for text in facts)
    seen = gateway.metrics()
    assert values(seen, "llmgw_queue_wait_seconds_count", band="bronze") == [2]
    assert values(seen, "llmgw_queue_tenant_waiting") == []
    assert values(seen, "llmgw_endpoint_granted") == [0]
