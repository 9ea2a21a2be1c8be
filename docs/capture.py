"""How the console looks, as docs/console.md and the README show it: ``make docs-console``, some three minutes.

Opens the console with no flags before the demo of a cluster, in tmux; goes through it by keys while clients ask, a GPU
falls sick, a node is taken out and the control plane is killed; and puts what stood on the terminal between the markers
of docs/console.md. The README's pictures are drawn by a console of Textual's own, on the same cluster at those moments.
"""

import re
import shutil
import socket
import sys
import tempfile
from pathlib import Path

from attrs import define, field

from console.acts import VERBS
from docs.stage import LLMGW, Demo, NotSeen, Terminal, demo, streams, terminal, wait
from llmgw.cli.demo_processes import ctl
from tests.journeys.consoles import Seat, Story, at_console

DOCS = Path(__file__).parent
PAGE, PICTURES, PICTURE_SIZE = DOCS / "console.md", DOCS / "screens", (120, 36)
SCREEN = re.compile(r"<!-- screen: ([a-z-]+) -->\n.*?<!-- /screen -->\n", re.DOTALL)
FONTS_ELSEWHERE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # any that is as wide everywhere will do
EMPTY_LINES = re.compile(r"\n{4,}")  # of a screen: shortened
MODEL, XID = "demo-model", 119
CLIENTS, TOKENS, APART_S = 6, 900, 3.0  # of a stream: 18 s, so that one is there at any moment
LOOKS = 20  # at the pools, a second apart, until there is a history to be drawn
CROWD, CROWDS_TOKENS = 75, 300  # more than there is room for


@define(eq=False)
class Visit:
    """One console that is gone through, and what was seen so far."""

    demo: Demo
    seat: Terminal
    screens: dict[str, str] = field(factory=dict, init=False)

    def see(self, name: str, *words: str, without: str = "") -> None:
        self.screens[name] = self.seat.until(*words, without=without)
        print(f"--- {name}\n{self.screens[name].rstrip()}", flush=True)

    def go(self, place: str, *words: str) -> None:
        """By the command line; there once it stands on the way, with ``words`` on the screen."""
        self.seat.type(f":{place}")
        self.seat.until(f":{place}")
        self.seat.press("Enter")
        self.seat.until(place, *words, without=f":{place}")

    def ask(self, command: str, *words: str) -> None:
        """An act; its dialog is open then."""
        self.seat.type(f":{command}")
        self.seat.until(f":{command}")
        self.seat.press("Enter")
        self.seat.until("Reason", *words)

    def yes(self, verb: str, why: str, told: str, name: str = "") -> None:
        """In the open dialog: a reason, over its other fields to the yes, and what comes of it, seen as ``name``."""
        self.seat.type(why)
        self.seat.until(why)
        behind = [one.name for one in VERBS[verb].fields].index("why")
        for _ in range(len(VERBS[verb].fields) - behind + 1):
            self.seat.press("Tab")
            self.seat.until()
        self.seat.press("Enter")
        self.seat.until(told, "Close")
        if name:
            self.see(name, told)
        self.seat.press("Enter")
        self.seat.until(without="━")

    def picture(self, name: str, story: Story) -> None:
        async def drawn(seat: Seat) -> None:
            await story(seat)
            drawing = FONTS_ELSEWHERE.sub("", seat.app.export_screenshot(title="llmgw console"))
            (PICTURES / f"{name}.svg").write_text(drawing, encoding="utf-8")

        at_console(drawn, [self.demo.admin_url], self.demo.token, PICTURE_SIZE)


# -- what happens -----------------------------------------------------------------------------------------


def usual(visit: Visit) -> None:
    visit.see("overview", "2/2", "nothing is wrong", "tokens/s first token p99 ≤", without=" 0.0 tokens/s")
    visit.go("nodes", "node-1", "GPU memory")
    visit.see("nodes", "NODE")
    visit.seat.press("?")
    visit.see("help", "leave the console", "cordon: Nothing new")
    visit.seat.press("Escape")
    visit.seat.until(without="━")
    visit.seat.press("Enter")
    visit.see("gpus", "node node-1", "GPU 0", "read ")


def sick(visit: Visit) -> tuple[str, str]:
    """Which GPU it was."""
    node, gpu = visit.demo.home(visit.demo.serving()[0])
    visit.go("overview", "nothing is wrong")
    visit.demo.gpus(node).xid(gpu, XID)
    visit.seat.until(f"of {node} is excluded", "2/2")
    wait(lambda: all(visit.demo.home(one)[1] != gpu for one in visit.demo.serving()), lambda: visit.seat.text)
    visit.seat.press("End")
    visit.seat.until()
    visit.seat.press("Enter")
    visit.see(
        "gpu",
        f"gpu {node}/{gpu}",
        "no replica is on this GPU",
        "claimed 0.0, ours 0.0",
        "clears: a reset of the GPU, a reboot of",
    )
    visit.go("nodes", "NODE")
    visit.seat.press("f")
    visit.see("faults", "faults only", f"xid {XID}", "clears:")
    visit.seat.press("Escape")
    visit.picture("nodes", _nodes(node))
    return node, gpu


def _nodes(sick: str) -> Story:
    async def story(seat: Seat) -> None:
        await seat.say(":nodes")
        await seat.until(lambda: sick in seat.rows())
        await seat.press(*["down"] * seat.rows().index(sick))
        await seat.until_read(f"xid {XID}", "clears:")

    return story


def not_placed(visit: Visit, node: str, gpu: str) -> None:
    other = "node-2" if node == "node-1" else "node-1"
    visit.ask(f"cordon {other}", f"Cordon {other}")
    visit.yes("cordon", "a new fan", f"✓ {other} is cordoned", "cordon")
    visit.ask(f"scale {MODEL} 3", f"Scale {MODEL}")
    visit.yes("scale", "evening load", f"✓ {MODEL}")
    visit.go("overview", "2/3")
    visit.see("wrong", "2 of 3 replicas serve", "no node fits")
    visit.picture("overview", _overview)
    visit.go(f"placement {MODEL}", "claimed by")
    visit.see("placement", f"placement {MODEL}", f"xid {XID}", "cordoned by", "claimed by")
    visit.seat.press("w")
    visit.seat.type(f"with {other}")
    visit.seat.until(f"what if with {other}")
    visit.seat.press("Enter")
    visit.see("what-if", f"what if with {other}: goes to", f"✓ {other}")
    visit.picture("placement", _placement)
    visit.ask(f"uncordon {other}", f"Uncordon {other}")
    visit.yes("uncordon", "it turns", f"✓ {other} is schedulable")
    wait(lambda: len(visit.demo.serving()) == 3, lambda: visit.seat.text)
    visit.demo.gpus(node).reset(gpu)
    ctl(visit.demo.place, "scale", MODEL, "2", "-m", "the evening is over")
    wait(lambda: len(visit.demo.replicas()) == 2, lambda: visit.seat.text)
    visit.go("overview", "2/2", "nothing is wrong")


async def _overview(seat: Seat) -> None:
    await seat.until_read("is excluded", "2 of 3 replicas serve", "no node fits")
    await seat.until(lambda: len(seat.picture.histories[MODEL]) > LOOKS and seat.picture.rates.tokens_s)
    await seat.until(lambda: not seat.reads(" 0.0 tokens/s") and not seat.reads(" - tokens/s"))


async def _placement(seat: Seat) -> None:
    await seat.say(f":placement {MODEL}")
    await seat.until_read(f"xid {XID}", "cordoned by", "claimed by")


def drained(visit: Visit) -> None:
    node, _ = visit.demo.home(visit.demo.serving()[0])
    visit.go("nodes", "NODE")
    visit.seat.press(*(["Home", "Down"] if node == "node-2" else ["Home"]))
    visit.seat.until(f"{node} ready 127.0.0.1")
    visit.seat.press("D")
    visit.see("drain", f"Drain {node}", f"✓ {MODEL}", "requests, oldest")
    visit.picture("drain", _drain(node))
    visit.yes("drain", "new fans", f"✓ {node} is draining")
    visit.go("drains", node)
    visit.see("draining", "draining", "replaced", "finishes", "time left")
    visit.see("drained", f"{node} is drained after", "0 requests cut", f"drain of {node} drained")
    visit.seat.press("u")
    visit.seat.until(f"Uncordon {node}")
    visit.yes("uncordon", "the fans are in", f"✓ {node} is schedulable")


def _drain(node: str) -> Story:
    async def story(seat: Seat) -> None:
        await seat.say(":nodes")
        await seat.until(lambda: node in seat.rows())
        await seat.press(*["down"] * seat.rows().index(node), "D")
        await seat.until_read(f"Drain {node}", f"✓ {MODEL}", "requests, oldest")

    return story


def crowded(visit: Visit, base_url: str, key: str) -> None:
    with streams(base_url, key, CROWD, CROWDS_TOKENS):
        visit.go("queues", "POOL")
        visit.seat.press("End")
        visit.see("queues", "bronze nightly", "not < 90%")


def asked(visit: Visit) -> None:
    visit.go("requests", "REQUEST")
    visit.see("requests", "web", "streaming", "tokens so far", "platinum", without="nightly")
    visit.seat.press("End")  # one that has just begun
    visit.seat.until()
    visit.seat.press("x")
    visit.seat.until("Its client gets an error")
    visit.yes("cancel", "it repeats itself", "is cancelled")
    visit.seat.press("r")
    visit.seat.until("→ recent")
    visit.seat.press("f")
    visit.see("recent", "faults only", "attempt 1 at", "an operator ended this request")
    visit.go("events", "NUMBER")
    visit.seat.press("End")
    visit.see("events", "is to be uncordoned")


def killed(visit: Visit) -> None:
    visit.go("overview", "nothing is wrong")
    visit.demo.kill_server()
    visit.see("stale", "stale: no answer for 5 s")
    visit.demo.start_server()
    visit.see("back", "term 0.2", "2/2", "nothing is wrong", without="stale")


# -- what is kept -----------------------------------------------------------------------------------------


def shown(screen: str, place: Path) -> str:
    """Nothing in it tells where it was made. Raises NotSeen."""
    text = "\n".join(line.rstrip() for line in screen.splitlines()).replace(str(place), "/tmp/llmgw-demo")
    if re.search(rf"\b{re.escape(socket.gethostname())}\b", text):
        raise NotSeen(f"the name of this machine is on a screen:\n{text}")
    return EMPTY_LINES.sub("\n\n\n", text).rstrip()


def written(page: str, screens: dict[str, str]) -> str:
    """Raises KeyError for a screen that was not seen."""
    return SCREEN.sub(
        lambda found: f"<!-- screen: {found[1]} -->\n```\n{screens[found[1]]}\n```\n<!-- /screen -->\n", page
    )


def screens_of(place: Path) -> dict[str, str]:
    with demo(place) as made:
        base_url, _ = made.client
        web, nightly = made.make_key("web", "platinum"), made.make_key("nightly", "bronze")
        socket_of_tmux = place / "tmux"
        with (
            streams(base_url, web, CLIENTS, TOKENS, APART_S),
            terminal(socket_of_tmux, made.env, *LLMGW, "console") as seat,
        ):
            visit = Visit(made, seat)
            usual(visit)
            not_placed(visit, *sick(visit))
            drained(visit)
            crowded(visit, base_url, nightly)
            asked(visit)
            killed(visit)
    return {name: shown(screen, place) for name, screen in visit.screens.items()}


def main() -> int:
    if shutil.which("tmux") is None:
        print("the screens are taken in a real terminal: install tmux", file=sys.stderr)
        return 1
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="llmgw-demo-") as place:
        screens = screens_of(Path(place))
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), screens), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
