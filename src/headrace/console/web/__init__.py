"""Web pages, which show the views of `headrace.inspect` as HTML by the server, and take actions as
forms. Extra `web`.
"""
