"""``llmgw ctl explain-placement``: another name of ``llmgw ctl explain placement``."""

from llmgw.cli.ctl.explain import placement as command

__all__ = ["command"]
