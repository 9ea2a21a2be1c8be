"""Simulated engines, traffic and failures, speaking the real interfaces."""
