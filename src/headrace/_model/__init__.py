"""Values and settings: jobs, queues, flows, policies."""
