"""Queues that are fair between values: their declaration, the look at new jobs, and the shares of values."""
