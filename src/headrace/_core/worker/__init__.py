"""The roles of a worker, a file each."""
