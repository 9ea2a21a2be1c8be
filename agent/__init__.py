"""The daemon on each GPU machine: GPUs, engine processes, the link to the leader."""
