"""Decisions without IO or a clock, as generators of effects. They are calls of several round trips,
and a worker's roles.
"""
