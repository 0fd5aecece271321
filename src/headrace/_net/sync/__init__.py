"""The network for threads."""
