"""The llmgw command."""
