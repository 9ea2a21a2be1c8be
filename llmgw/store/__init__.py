"""The only SQL in the house."""
