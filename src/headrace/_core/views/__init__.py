"""Views of queues for pages, terminals and `headrace.inspect`."""
