"""llmgw beside other gateways on one core, on the same work, in the same run: ``make bench``.

A neutral engine and load generator (``ssebench.c``) stand on core 1, the gateway under test alone on core 0.
Each round measures every gateway in turn, so that a machine whose speed drifts drifts for all; what is printed
are medians over the rounds and ratios between gateways of the same round.

nginx is measured where it is installed, vllm-router where pip can install it into bench/.work; what is
missing is said.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

from decisions import measured

HERE = Path(__file__).parent
WORK = HERE / ".work"
ENGINE = 9100
KEY = "sk-bench-0123456789abcdef"
MODEL = "m"
UNADMITTED = "llmgw without admission"
# name -> load mode, connections, microseconds between two events of a stream, milliseconds over which they open.
# A stream of 64 tokens takes 1.28 s at 50 tokens/s: opened over that time, streams go on starting evenly.
CASES = {
    "plain answers, 64 connections": ("plain", 64, 0, 0),
    "100 streams x 50 tokens/s, starting evenly": ("stream", 100, 20_000, 1280),
    "100 streams x 50 tokens/s, starting at once": ("stream", 100, 20_000, 0),
    "500 streams x 50 tokens/s": ("stream", 500, 20_000, 0),
    "1000 streams x 10 tokens/s": ("stream", 1000, 100_000, 0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5, help="of load, per gateway and case")
    parser.add_argument("--only", help="gateways, separated by commas")
    asked = parser.parse_args()
    if not shutil.which("gcc"):
        sys.exit("bench: needs gcc, for the load generator")
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("bench: needs two cores, one for the gateway and one for engine and load")
    WORK.mkdir(exist_ok=True)
    tool = WORK / "ssebench"
    subprocess.run(["gcc", "-O2", "-Wall", "-o", str(tool), str(HERE / "ssebench.c")], check=True)
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as made:
        gateways = _gateways(Path(made), asked.only.split(",") if asked.only else None)
        results = measure(tool, gateways, asked.rounds, asked.seconds)
    report(results, asked.rounds, asked.seconds)
    for name, cost_us in measured().items():
        print(f"admission: {name}: {cost_us:.1f} us a decision")


def measure(tool: Path, gateways: dict[str, Any], rounds: int, seconds: int) -> dict[str, dict[str, list[Any]]]:
    """case -> gateway -> one result a round."""
    results: dict[str, dict[str, list[Any]]] = {case: {name: [] for name in gateways} for case in CASES}
    for number in range(rounds):
        for case, (mode, connections, gap_us, ramp_ms) in CASES.items():
            for name, (port, argv, env) in gateways.items():
                if name == UNADMITTED and mode != "plain":
                    continue
                print(f"round {number + 1}/{rounds}: {case}: {name}", file=sys.stderr, flush=True)
                engine = [str(tool), "engine", str(ENGINE), "64", str(gap_us)]
                with _running(engine, 1, ENGINE), _running(argv, 0, port, env) as gateway:
                    time.sleep(1)
                    found = _load(tool, port, connections, seconds, mode, ramp_ms)
                    found["rss_mib"] = _rss_mib(gateway.pid)
                results[case][name].append(found)
    return results


def report(results: dict[str, dict[str, list[Any]]], rounds: int, seconds: int) -> None:
    python = f"Python {platform.python_version()} ({os.path.realpath(sys.executable)})"
    print(f"\n{python}; {_cpu()}; median of {rounds} rounds of {seconds} s\n")
    print("| work on one core | gateway | answers/s | events/s | first event p50 / p99 | relay p50 / p99 | MiB |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for case, by_name in results.items():
        for name, found in filter(itemgetter(1), by_name.items()):
            row = [_median(found, "answers_per_s"), _median(found, "events_per_s")]
            first, relay = _latency(found, "first_event_us"), _latency(found, "relay_us")
            cells = [case, name, f"{row[0]:,.0f}", f"{row[1]:,.0f}", first, relay, f"{_median(found, 'rss_mib'):.0f}"]
            print("| " + " | ".join(cells) + " |")
    print()
    for case, by_name in results.items():
        for other in sorted(by_name.keys() - {"llmgw"}) if "llmgw" in by_name else ():
            compare(case, by_name["llmgw"], other, by_name[other])
    for case, by_name in results.items():
        for name, found in by_name.items():
            for one in filter(_bad, found):
                print(f"not all answers were good: {case}: {name}: {one['status']}")


def compare(case: str, mine: list[Any], other: str, theirs: list[Any]) -> None:
    """Medians over the rounds of what was measured side by side."""
    rate = "answers_per_s" if CASES[case][0] == "plain" else "events_per_s"
    pairs = list(zip(mine, theirs, strict=False))
    ratios = [one[rate] / another[rate] for one, another in pairs if another[rate]]
    if ratios:
        print(f"{case}: llmgw / {other} = {statistics.median(ratios):.2f} ({rate.replace('_per_s', '/s')})")
    later = [
        (one["first_event_us"]["p99"] - another["first_event_us"]["p99"]) / 1000
        for one, another in pairs
        if one["first_event_us"] and another["first_event_us"]
    ]
    if later:
        print(f"{case}: llmgw's first event p99 is {statistics.median(later):+.2f} ms from {other}'s")


def _bad(found: dict[str, Any]) -> bool:
    return set(found["status"]) - {"200"} != set() or bool(found.get("streams_without_done"))


def _median(found: list[Any], key: str) -> float:
    return statistics.median(one[key] or 0 for one in found)


def _latency(found: list[Any], key: str) -> str:
    if not all(one[key] for one in found):
        return ""
    p50, p99 = (statistics.median(one[key][p] for one in found) / 1000 for p in ("p50", "p99"))
    return f"{p50:.2f} / {p99:.2f} ms"


def _gateways(place: Path, only: list[str] | None) -> dict[str, Any]:
    """name -> port, command, environment."""
    made: dict[str, Any] = {"llmgw": _llmgw(place, "on"), UNADMITTED: _llmgw(place, "off")}
    nginx = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if nginx:
        made["nginx"] = _nginx(nginx, place)
    else:
        print("bench: nginx is not installed: not measured", file=sys.stderr)
    router = _vllm_router()
    if router:
        argv = [router, "--host", "127.0.0.1", "--port", "7492", "--worker-urls", f"http://127.0.0.1:{ENGINE}"]
        made["vllm-router"] = (7492, [*argv, "--policy", "round_robin", "--log-level", "error"], {})
    else:
        print("bench: vllm-router could not be installed: not measured", file=sys.stderr)
    return {name: how for name, how in made.items() if only is None or name in only}


def _llmgw(place: Path, admission: str) -> tuple[int, list[str], dict[str, str]]:
    """Keys, metrics and log on; the key is brought along, as people do who move here."""
    config, data = place / f"llmgw-{admission}.toml", place / f"data-{admission}"
    config.write_text(
        '[server]\nlisten = "127.0.0.1:7490"\nbalancer_pause = 0\nshutdown_grace = 1\n'
        f'[admin]\nlisten = "127.0.0.1:7493"\n[admission]\nmode = "{admission}"\n'
        f'[[models]]\nname = "{MODEL}"\n[[models.endpoints]]\nid = "bench"\nurl = "http://127.0.0.1:{ENGINE}"\n'
        'engine = "openai"\ncapacity = 2000\n',
        encoding="utf-8",
    )
    keys = place / "keys.jsonl"
    keys.write_text(json.dumps({"key": KEY, "tenant": "bench"}) + "\n", encoding="utf-8")
    argv = [sys.executable, "-m", "llmgw"]
    with _running([*argv, "server", "-c", str(config), "--data-dir", str(data)], core=0, port=7490):
        subprocess.run(
            [*argv, "ctl", "--data-dir", str(data), "keys", "import", str(keys)], check=True, capture_output=True
        )
    return 7490, [*argv, "server", "-c", str(config), "--data-dir", str(data)], {}


def _nginx(nginx: str, place: Path) -> tuple[int, list[str], dict[str, str]]:
    config = place / "nginx.conf"
    config.write_text(
        f"""worker_processes 1; daemon off; master_process off; pid {place}/nginx.pid; error_log {place}/nginx.err;
events {{ worker_connections 8192; }}
http {{ access_log off; client_body_temp_path {place}/b; proxy_temp_path {place}/p; fastcgi_temp_path {place}/f;
  uwsgi_temp_path {place}/u; scgi_temp_path {place}/s;
  upstream engine {{ server 127.0.0.1:{ENGINE}; keepalive 1024; }}
  server {{ listen 127.0.0.1:7491; location / {{ proxy_pass http://engine; proxy_http_version 1.1;
    proxy_set_header Connection ""; proxy_buffering off; }} }} }}
""",
        encoding="utf-8",
    )
    return 7491, [nginx, "-c", str(config)], {}


def _vllm_router() -> str | None:
    """Installed into bench/.work once; None where that is impossible."""
    home = WORK / "vllm-router"
    binary = home / "bin" / "vllm-router"
    if not binary.exists():
        venv.create(home, with_pip=True)
        pip = [str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "vllm-router"]
        if subprocess.run(pip, check=False, capture_output=True).returncode:
            return None
    return str(binary)


def _load(tool: Path, port: int, connections: int, seconds: int, mode: str, ramp_ms: int) -> dict[str, Any]:
    argv = [str(tool), "load", str(port), str(connections), str(seconds), mode, MODEL, KEY]
    done = subprocess.run(
        argv, check=True, capture_output=True, text=True, timeout=seconds + 60, preexec_fn=_on_core(1),
        env=os.environ | {"RAMP_MS": str(ramp_ms)},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    return found


@contextmanager
def _running(
    argv: list[str], core: int, port: int, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    with (WORK / "last.log").open("ab") as log:
        process = subprocess.Popen(
            argv,
            stdout=log,
            stderr=log,
            env=os.environ | (env or {}),
            preexec_fn=_on_core(core),
            start_new_session=True,
        )
    try:
        _wait_for(port, process)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(8)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _on_core(core: int) -> Any:
    return lambda: os.sched_setaffinity(0, {core})


def _wait_for(port: int, process: subprocess.Popen[bytes], within_s: float = 20) -> None:
    until = time.monotonic() + within_s
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            return
        except OSError:
            time.sleep(0.05)
    sys.exit(f"bench: {process.args!r} did not start; see {WORK / 'last.log'}")


def _rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
