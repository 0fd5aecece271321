"""The public classes: arguments become operations."""
