"""The only HTTP to engines: client, pool, probes."""
