"""`headrace top`: what `headrace.inspect` sees, in a terminal. Extra `top`."""
