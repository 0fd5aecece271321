"""The console: command line, pages and terminal. Users import `headrace.web`, and call `headrace`."""
