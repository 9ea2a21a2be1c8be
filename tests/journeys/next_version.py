"""``python -m tests.journeys.next_version …`` is ``llmgw …`` as the next release will be: it speaks the next link."""

from llmgw.wire import agent_frames

agent_frames.VERSION += 1

if __name__ == "__main__":
    from llmgw.cli import main

    main(prog_name="llmgw")
