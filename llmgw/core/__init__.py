"""Values and decisions: pure, no clock, no chance, no I/O."""
