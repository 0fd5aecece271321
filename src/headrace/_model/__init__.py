"""Values and settings: what a job, a queue, a flow and a policy are."""
