"""What comes from a cluster: answers of its management API, and its event feed. Asyncio."""
