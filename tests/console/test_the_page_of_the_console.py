"""docs/console.md shows real screens, and the keys and commands that there are; the README's pictures exist."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from console.acts import VERBS
from console.commands import LEAVING, PLACES, WHOM
from console.views import help as keys_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "console.md").read_text(encoding="utf-8")
CAPTURE = (ROOT / "docs" / "capture.py").read_text(encoding="utf-8")
SCREEN = re.compile(r"<!-- screen: ([a-z-]+) -->\n(.*?)<!-- /screen -->\n", re.DOTALL)
COLUMNS, ROWS = 100, 30


def chapter(title: str) -> str:
    """Under a heading, to the next one."""
    return re.split(r"^#+ ", PAGE.partition(f"# {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def first_cells(text: str) -> Iterator[str]:
    """What stands in backticks in the first column of its tables."""
    for row in re.findall(r"^\| (.+?) \|", text, re.MULTILINE):
        yield from re.findall(r"`([^`]+)`", row)


def words(keys: Iterable[keys_of.Key]) -> set[str]:
    return {word for key, _ in keys for word in key.split()}


def test_every_screen_on_the_page_was_taken_in_a_terminal():
    shown = dict(SCREEN.findall(PAGE))
    taken = set(re.findall(r'visit\.see\(\s*"([a-z-]+)"', CAPTURE)) | {"cordon"}
    assert len(shown) == PAGE.count("<!-- screen: ")
    assert shown.keys() == taken
    for name, text in shown.items():
        lines = text.removeprefix("```\n").removesuffix("```\n").splitlines()
        assert 5 < len(lines) <= ROWS, name
        assert re.match(r"llmgw  gw-1 (leading|led when it answered last)", lines[0]), name
        assert max(map(len, lines)) <= COLUMNS, name


def test_the_page_has_the_keys_that_there_are_and_no_others():
    there = [*keys_of.MOVING, *keys_of.IN_TREE, *keys_of.ALWAYS, *keys_of.FINDING, *keys_of.ARRANGING, *keys_of.PANE]
    there += [key for of_place in keys_of.OF_PLACE.values() for key in of_place]
    assert set(first_cells(chapter("Keys"))) == words(there) | {verb.key for verb in VERBS.values()} | {"esc"}


def test_the_page_says_of_each_act_its_own_key():
    told = dict(re.findall(r"^\| `(\w)` \| (\w+) \|", chapter("Keys"), re.MULTILINE))
    acts = {key: name for key, name in told.items() if name in VERBS}
    assert acts == {verb.key: verb.name for verb in VERBS.values()}


def test_the_page_has_the_commands_that_there_are_and_no_others():
    told = {cell.split()[0].removeprefix(":") for cell in first_cells(chapter("Commands"))}
    assert told == PLACES.keys() | WHOM.keys() | (set(LEAVING) - {"q!"})


def test_every_picture_and_every_link_to_a_heading_leads_somewhere():
    for file in (ROOT / "README.md", ROOT / "docs" / "console.md"):
        text = file.read_text(encoding="utf-8")
        pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
        assert pictures, file.name
        for picture in pictures:
            assert (file.parent / picture).read_text(encoding="utf-8").startswith("<svg"), picture
    headings = {line.lstrip("# ").lower().replace(" ", "-") for line in PAGE.splitlines() if line.startswith("#")}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= {heading.replace(",", "") for heading in headings}


def test_nothing_on_the_page_tells_where_it_was_made():
    assert not re.search(r"/root\b|/home/|/work/", PAGE)
    for picture in (ROOT / "docs" / "screens").glob("*.svg"):
        drawn = picture.read_text(encoding="utf-8")
        assert "gw-1" in drawn.replace("&#160;", " "), picture.name
        assert "https://cdnjs" not in drawn, picture.name
