"""``python -m llmgw`` is ``llmgw``."""

from llmgw.cli import main

main()
