"""Trio furniture that knows no domain word."""
