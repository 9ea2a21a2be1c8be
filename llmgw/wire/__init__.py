"""Bytes and values, sans-IO."""
