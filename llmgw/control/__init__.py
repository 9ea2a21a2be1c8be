"""The reconcile road: what should run, and how to get there."""
