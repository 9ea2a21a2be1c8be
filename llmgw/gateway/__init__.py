"""The request road: door, request, relay, settle."""
