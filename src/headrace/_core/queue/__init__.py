"""Verbs of one queue, as generators of effects."""
