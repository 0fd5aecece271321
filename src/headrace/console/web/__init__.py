"""Web pages: the views of `headrace.inspect` as HTML by the server, and actions as forms. Extra `web`."""
