"""The operator console (Textual): a separate process that shares only values with the daemon."""
