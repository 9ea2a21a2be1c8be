"""Families that others reckon, as Prometheus reads them."""

from prometheus_client.parser import text_string_to_metric_families

from llmgw.telemetry.families import Family, text


def test_what_is_written_is_read_back():
    families = [
        Family("llmgw_gpus", "by state", (({"node": 'a"b\\c\n', "state": "usable"}, 2.0),)),
        Family("llmgw_failed_total", "how many", (({}, 3.0),), "counter"),
        Family("llmgw_none", "nothing yet", ()),
    ]
    read = list(text_string_to_metric_families(b"".join(text(families)).decode()))
    samples = {(s.name, tuple(s.labels.items())): s.value for family in read for s in family.samples}
    assert samples == {
        ("llmgw_gpus", (("node", 'a"b\\c\n'), ("state", "usable"))): 2.0,
        ("llmgw_failed_total", ()): 3.0,
    }
