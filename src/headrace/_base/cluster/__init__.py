"""Clusters: which node serves which slot, and what an attempt sends to each."""
