"""The admin listener: management API, metrics, profiler."""
