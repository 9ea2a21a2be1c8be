"""Which way imports may point, read from the files themselves."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FLOORS = [
    {"core"},
    {"wire", "tasks", "telemetry"},
    {"store", "engines", "nodes"},
    {"gateway", "control"},
    {"admin"},
    {"config"},
    {"daemon"},
    {"cli"},
    {"__main__"},
]
HEIGHT = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}

# The core and the wire know no world; what they may use of the standard library is listed, not guessed.
PURE_STDLIB = set(
    "__future__ abc array base64 binascii bisect collections dataclasses difflib enum functools hashlib heapq hmac html"
    " http ipaddress itertools json math operator re statistics string struct textwrap types typing urllib zlib".split()
)
PURE_PACKAGES = {"core": {"attr", "attrs"}, "wire": {"attrs", "msgspec", "httptools", "cattrs", "h2", "hpack"}}

# One technology, one folder (or file).
HOMES = {
    "sqlite3": {"store"},
    "sqlite_utils": {"store"},
    "psycopg": {"store"},
    "cryptography": {"nodes"},
    "h2": {"wire", "nodes"},
    "httptools": {"wire"},
    "quart": {"admin"},
    "quart_trio": {"admin"},
    "hypercorn": {"admin"},
    "prometheus_client": {"telemetry", "admin"},
    "structlog": {"telemetry"},
    "click": {"cli"},
    "rich": {"cli"},
    "httpx": {"cli"},
    "textual": set(),
    "pynvml": set(),
}
OUTSIDERS_MAY_SEE = {
    "console": {"core", "wire"},
    "agent": {"core", "wire", "tasks", "telemetry"},
}


def imports(file: Path) -> Iterator[str]:
    """Every module a file imports, at its head or inside a function; `from a import b` gives `a.b` too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: write imports in full"
            yield node.module or ""
            if node.module == "llmgw":
                yield from (f"llmgw.{alias.name}" for alias in node.names)


def room_of(file: Path, house: Path) -> str:
    return file.relative_to(house).parts[0].removesuffix(".py")


def breaches(house: Path) -> Iterator[str]:
    """Each import in the daemon that looks up, sideways, or at a technology that lives elsewhere."""
    for file in sorted(house.rglob("*.py")):
        where, room = file.relative_to(house), room_of(file, house)
        if room == "__init__":
            continue
        if room not in HEIGHT:
            yield f"{where}: {room} is not a room of the house"
            continue
        for module in imports(file):
            package, _, rest = module.partition(".")
            other = rest.partition(".")[0]
            if package == "llmgw" and other and other != room and other != "__version__":
                if HEIGHT.get(other, 99) >= HEIGHT[room]:
                    yield f"{where} may not look at {other}"
            elif room in PURE_PACKAGES and package not in {"llmgw"} | PURE_STDLIB | PURE_PACKAGES[room]:
                yield f"{where} is pure, yet imports {module}"
            if package in HOMES and room not in HOMES[package]:
                yield f"{where} uses {package}, which lives in {sorted(HOMES[package]) or 'another package'}"
            if package in {"console", "agent", "sim"} and room != "cli":  # whose commands start them
                yield f"{where} may not look at {package}"


def outsiders(root: Path) -> Iterator[str]:
    """What console and agent see of the daemon, and who looks at the simulator."""
    for package, allowed in OUTSIDERS_MAY_SEE.items():
        for file in sorted((root / package).rglob("*.py")):
            for module in imports(file):
                top, _, rest = module.partition(".")
                room = rest.partition(".")[0]
                if top == "llmgw" and room and room != "__version__" and room not in allowed:
                    yield f"{package}/{file.name} may not look at llmgw.{room}"
                if top == "sim":
                    yield f"{package}/{file.name} may not look at sim"
                if top == "pynvml" and not (package == "agent" and file.name.startswith("nvml")):
                    yield f"{package}/{file.name} uses pynvml, whose calls may hang: only agent/nvml*.py, in a child"


# Where the console draws and talks; everything else in it decides, and is reckoned without terminal, clock and network.
CONSOLE_DRAWS = {"app", "places", "screens", "widgets", "feed"}
CONSOLE_DECIDES_WITHOUT = {"textual", "httpx", "asyncio", "socket", "threading", "time", "random", "os"}


def impure(console: Path) -> Iterator[str]:
    """What decides in the console and looks at what only draws or talks."""
    for file in sorted(console.rglob("*.py")):
        if room_of(file, console) in CONSOLE_DRAWS:
            continue
        for module in imports(file):
            top, _, rest = module.partition(".")
            if top in CONSOLE_DECIDES_WITHOUT or (top == "console" and rest.partition(".")[0] in CONSOLE_DRAWS):
                yield f"console/{file.relative_to(console)} decides, yet imports {module}"


def test_what_the_console_decides_it_decides_without_a_terminal():
    assert not list(impure(ROOT / "console"))


def test_a_view_that_draws_is_seen(tmp_path):
    (tmp_path / "views").mkdir()
    (tmp_path / "views" / "a.py").write_text("from textual.widget import Widget\nfrom console.widgets import table\n")
    (tmp_path / "app.py").write_text("import textual\n")
    assert list(impure(tmp_path)) == [
        "console/views/a.py decides, yet imports textual.widget",
        "console/views/a.py decides, yet imports console.widgets",
    ]


def test_imports_only_look_down():
    assert not list(breaches(ROOT / "llmgw"))


def test_outsiders_see_only_what_they_may():
    assert not list(outsiders(ROOT))


def test_a_breach_is_seen(tmp_path):
    """The check itself can fail: one file a rule."""
    house = tmp_path / "llmgw"
    for room in ("core", "gateway", "attic"):
        (house / room).mkdir(parents=True)
    (house / "core" / "a.py").write_text("import random\nfrom llmgw.gateway import door\n")
    (house / "gateway" / "b.py").write_text("import sqlite3\nfrom llmgw import control\nimport sim.engine\n")
    (house / "attic" / "c.py").write_text("")

    assert sorted(breaches(house)) == [
        "attic/c.py: attic is not a room of the house",
        "core/a.py is pure, yet imports random",
        "core/a.py may not look at gateway",
        "gateway/b.py may not look at control",
        "gateway/b.py may not look at sim",
        "gateway/b.py uses sqlite3, which lives in ['store']",
    ]


def test_a_driver_call_outside_its_child_is_seen(tmp_path):
    (tmp_path / "agent").mkdir()
    for name in ("nvml.py", "gpus.py"):
        (tmp_path / "agent" / name).write_text("import pynvml as nv\n")

    assert list(outsiders(tmp_path)) == [
        "agent/gpus.py uses pynvml, whose calls may hang: only agent/nvml*.py, in a child"
    ]
