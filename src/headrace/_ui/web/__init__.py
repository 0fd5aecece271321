"""Web pages: what `headrace.inspect` sees, as HTML by the server, and actions as forms. Extra `web`."""
