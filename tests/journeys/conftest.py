"""What is in the folders here belongs to users; pytest runs it by `test_journeys.py` only."""

collect_ignore_glob = ["*/*"]
