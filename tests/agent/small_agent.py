"""An agent as a process of its own, without a link: ``wanted`` frames come on stdin, what is seen goes to stdout."""

import sys
from pathlib import Path

import msgspec
import trio

from agent.engines import Engines, engines
from agent.places import Places
from llmgw.wire.agent_frames import Lines, Wanted, read_down
from tests.agent.engine_scripts import settings


async def main(data: Path) -> None:
    places = Places(data)
    with places.held():
        here = engines(settings(data), places)
        await here.adopt()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.run)
            nursery.start_soon(tell, here)
            await obey(here)
            nursery.cancel_scope.cancel()


async def obey(here: Engines) -> None:
    lines = Lines()
    async with trio.lowlevel.FdStream(0) as stdin:
        async for data in stdin:
            for line in lines.feed(data):
                frame = read_down(line)
                assert isinstance(frame, Wanted)
                here.obey(frame)


async def tell(here: Engines) -> None:
    while True:
        sys.stdout.write(msgspec.json.encode(here.seen()).decode() + "\n")
        sys.stdout.flush()
        await here.changed.wait()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
