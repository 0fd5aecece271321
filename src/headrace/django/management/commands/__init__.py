"""`headrace`, and `headrace_worker`."""
