"""What is counted, log lines and their sink."""
