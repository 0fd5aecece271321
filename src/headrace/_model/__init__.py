"""Values and settings, such as jobs, queues, flows and policies."""
