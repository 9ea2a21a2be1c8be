"""The only link to agents."""
