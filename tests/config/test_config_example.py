"""The example file is what the settings say of themselves, and its commented lines are the defaults."""

import re
from pathlib import Path

from attrs import evolve

from llmgw.config import Config, describe, load
from llmgw.config.example import TITLES, example
from llmgw.config.read import SECTIONS, settings_of
from llmgw.core.fleet import Fleet

FILE = Path(__file__).parents[2] / "llmgw.example.toml"
COMMENTED = re.compile(r"^#(?=[a-z_]+ = )", re.MULTILINE)


def test_the_example_file_is_up_to_date():
    assert FILE.read_text(encoding="utf-8") == example(), "run: llmgw check-config --example > llmgw.example.toml"


def test_the_example_works_as_it_stands():
    config = load(FILE, {})

    assert config.warnings == ()
    assert [endpoint.id for endpoint in config.fleet.endpoints] == ["10.0.0.5:8000", "10.0.0.6:8000"]


def test_every_commented_line_is_the_default():
    without_models, _, sections = COMMENTED.sub("", example()).partition("# The client listener.")

    config = load(None, {}, sections)

    assert 'fallback = ["other-model"' in without_models
    assert evolve(config, warnings=()) == Config(fleet=Fleet())


def test_every_setting_has_a_line_and_every_section_a_title():
    assert TITLES.keys() == SECTIONS.keys()
    for section in SECTIONS:
        body = example().partition(f"\n[{section}]\n")[2].partition("\n[")[0]
        for setting in settings_of(section):
            assert f"\n#{setting.name} = " in f"\n{body}"


def test_within_a_section_a_name_means_one_setting():
    for section in SECTIONS:
        names = [setting.name for setting in settings_of(section)]
        assert len(names) == len(set(names))


def test_a_described_config_has_every_setting_and_shows_no_secret():
    model = '[[models]]\nname = "m"\n[[models.endpoints]]\nurl = "http://h:1"\napi_key = "hunter3"\n'
    text = '[admin]\nmetrics_token = "hunter2"\n' + model

    described = describe(load(None, {}, text))

    assert "hunter" not in str(described)
    assert described["admin"]["metrics_token"] == described["models"][0]["endpoints"][0]["api_key"] == "***"
    assert described["relay"]["total"] == "30min"
    for section in SECTIONS:
        assert described[section].keys() == {setting.name for setting in settings_of(section)}
