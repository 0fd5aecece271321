"""Isolated handlers. The parent leases and settles; child processes run the functions."""
