"""Queues that are fair between values. They declare terms, look at new jobs, and read the shares of
values."""
