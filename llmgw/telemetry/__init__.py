"""Metric objects bound once, log lines and their sink."""
