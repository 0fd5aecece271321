"""Files in these folders belong to users. pytest runs them by `test_journeys.py` only."""

collect_ignore_glob = ["*/*"]
