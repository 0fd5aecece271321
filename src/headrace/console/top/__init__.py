"""`headrace top` shows the views of `headrace.inspect` in a terminal. Extra `top`."""
