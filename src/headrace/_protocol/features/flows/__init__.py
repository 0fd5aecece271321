"""Flows as scripts have them."""
