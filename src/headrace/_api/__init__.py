"""The public classes. They turn arguments into operations."""
