"""The command line, the pages and the terminal. Users import `headrace.web`, and call
`headrace`."""
