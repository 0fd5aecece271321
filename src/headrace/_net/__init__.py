"""The network, with connections, retries, executors and clusters."""
