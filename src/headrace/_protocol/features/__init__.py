"""Features as scripts have them. Each has the readers of its replies, and its operations."""
