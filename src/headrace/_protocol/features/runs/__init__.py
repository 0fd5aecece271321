"""Runs as scripts have them."""
