"""Clusters: slots, seeds, and calls that are scattered over nodes."""
