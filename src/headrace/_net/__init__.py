"""The network: connections, retries, executors and clusters."""
