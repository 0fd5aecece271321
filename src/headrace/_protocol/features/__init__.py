"""Features as scripts have them: the readers of their replies, and their operations."""
