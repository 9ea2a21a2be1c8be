"""The alert rules in deploy/prometheus/: Prometheus understands them, and they wake whom they should."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"
needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="there is no promtool here: apt-get install prometheus"
)


def rules() -> list[dict]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return group["rules"]


def promtool(*words: str) -> tuple[int, str]:
    said = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60)
    return said.returncode, said.stdout + said.stderr


@needs_promtool
def test_prometheus_understands_them():
    code, said = promtool("check", "rules", str(RULES))
    assert code == 0, said


@needs_promtool
def test_they_wake_for_trouble_and_for_nothing_else(tmp_path):
    shutil.copy(RULES, tmp_path)
    shutil.copy(Path(__file__).parent / "alerts_test.yml", tmp_path)
    code, said = promtool("test", "rules", str(tmp_path / "alerts_test.yml"))
    assert code == 0, said


def test_there_are_thirteen_and_each_says_what_to_run():
    assert len(rules()) == 13
    for rule in rules():
        assert rule["annotations"]["run"].startswith("llmgw "), rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]


def metrics_named() -> set[str]:
    return {name for rule in rules() for name in re.findall(r"\bllmgw_\w+", rule["expr"])}


def test_each_names_a_metric():
    assert all(re.search(r"\bllmgw_\w+", rule["expr"]) for rule in rules())
    assert len(metrics_named()) == 13
