"""``llmgw demo``: three simulated engines and a gateway, a key, two questions, and why they went where they went."""

import json
import signal
import sys
from pathlib import Path

import click

from llmgw.cli.demo_processes import Processes, ctl, folder, make_key, openai, openai_client, say

ENGINES = 3
MODEL = "demo-model"
QUESTION = "Why do platform engineers like short answers?"


@click.command("demo")
@click.option("--once", is_flag=True, help="End after it has been shown instead of staying up.")
@click.option("--cluster", is_flag=True, help="A control plane and two nodes instead: an engine dies and is replaced.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Where clients connect; 0: any free port.")
@click.option("--dir", "wanted", type=click.Path(file_okay=False, path_type=Path),
              help="Where config, store and logs go; kept afterwards. Default: a temporary folder.")  # fmt: skip
def command(once: bool, cluster: bool, port: int, wanted: Path | None) -> None:
    """Three simulated engines and a gateway on this machine, and a real client that talks to them.

    Everything listens on 127.0.0.1 and ends with this command.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    openai()  # before anything is started
    if cluster:
        from llmgw.cli.demo_cluster import show

        show(once, port, wanted)
        return
    with folder(wanted) as place, Processes(place) as processes:
        urls = [_engine(processes, number) for number in range(1, ENGINES + 1)]
        config = _config(place, urls, port)
        base_url, admin_url = processes.gateway(config)
        key = make_key(place)
        say("gateway", f"{base_url}  (admin {admin_url}, files in {place})")
        say("key", f"{key[:16]}…  made with `llmgw ctl keys create --tenant demo`")
        _ask(base_url, key, place)
        if once:
            return
        _stay(base_url, key, place, processes)


def _engine(processes: Processes, number: int) -> str:
    name = f"engine-{number}"
    processes.start(name, "sim", "engine", "--port", "0", "--model", MODEL, "--decode-rate", "60")
    return processes.announced(name, "listening on ")


def _ask(base_url: str, key: str, place: Path) -> None:
    """One plain and one streamed question through the openai package."""
    client = openai_client(base_url, key)
    plain = client.chat.completions.create(
        model="gpt-4o-mini", max_tokens=12, messages=[{"role": "user", "content": QUESTION}]
    )
    say("asked", QUESTION)
    say("answer", plain.choices[0].message.content.strip())
    say("why", _explained(place, plain._request_id))
    click.echo(f"{'streamed':>9}  ", nl=False)
    stream = client.chat.completions.create(
        model="gpt-4o-mini", max_tokens=16, stream=True, messages=[{"role": "user", "content": QUESTION + " Stream."}]
    )
    request_id = stream.response.headers["x-request-id"]
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            click.echo(chunk.choices[0].delta.content, nl=False)
    click.echo()
    say("why", _explained(place, request_id))


def _stay(base_url: str, key: str, place: Path, processes: Processes) -> None:
    body = json.dumps({"model": "gpt-4o-mini", "stream": True, "messages": [{"role": "user", "content": "hello"}]})
    click.echo("\nIt stays up. Try it from another terminal:\n")
    click.echo(f"  curl -N {base_url}/chat/completions \\\n    -H 'Authorization: Bearer {key}' \\\n    -d '{body}'\n")
    click.echo(f"  {sys.executable} -m llmgw ctl --data-dir {place / 'data'} requests\n")
    click.echo("Press Ctrl-C to stop everything.")
    try:
        processes.wait()
    except KeyboardInterrupt:
        click.echo("\nstopping")


def _explained(place: Path, request_id: str) -> str:
    explained = ctl(place, "explain", "request", request_id)
    chosen = [one for one in explained["candidates"] if one["chosen"]]
    scores = ", ".join(f"{name} {value:g}" for name, value in chosen[0]["scores"].items() if value) if chosen else ""
    return str(explained["verdict"]) + (f"; chosen by {scores}" if scores else "")


def _config(place: Path, urls: list[str], port: int) -> Path:
    lines = [
        "[server]",
        f'listen = "127.0.0.1:{port}"',
        "balancer_pause = 0  # nobody balances in front of a demo",
        "",
        "[admin]",
        'listen = "127.0.0.1:0"',
        "",
        "[[models]]",
        f'name = "{MODEL}"',
        'aliases = ["gpt-4o-mini"]',
    ]
    for number, url in enumerate(urls, 1):
        lines += ["", "[[models.endpoints]]", f'id = "engine-{number}"', f'url = "{url}"', 'engine = "sim"']
    file = place / "llmgw.toml"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file
