"""The table of limits in docs/operations.md is what the settings say of themselves."""

import re
from pathlib import Path

import attrs

from llmgw.config.read import SECTIONS, default_of
from llmgw.config.reload import LIVE, LIVE_EXCEPT
from llmgw.config.values import written

FILE = Path(__file__).parents[2] / "docs" / "operations.md"
ROW = re.compile(r"\| `([a-z]+\.[a-z_]+)` \| (.+?) \| (yes|) ?\| (.+) \|")


def as_documented() -> dict[str, tuple[str, str]]:
    rows = FILE.read_text(encoding="utf-8").partition("\n## Limits\n")[2].splitlines()
    return {found[1]: (found[2].strip("`"), found[3]) for row in rows if (found := ROW.fullmatch(row))}


def as_it_is() -> dict[str, tuple[str, str]]:
    settings: dict[str, tuple[str, str]] = {}
    for section, classes in SECTIONS.items():
        for name, kind in classes.items():
            for setting in attrs.fields(kind):
                key, default = f"{section}.{setting.name}", default_of(setting)
                shown = written(default, setting.metadata["unit"], setting.metadata["of"])
                live = name in LIVE and key not in LIVE_EXCEPT
                settings[key] = ("empty" if shown == '""' else shown, "yes" if live else "")
    return settings


def test_every_setting_stands_in_the_table_with_its_default_and_whether_a_reload_changes_it():
    assert as_documented() == as_it_is()
